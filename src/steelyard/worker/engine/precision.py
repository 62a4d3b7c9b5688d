"""The number format of the computation: set torch's switches, and read back what is in effect."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from steelyard.errors import InputError
from steelyard.worker.measure.software import ask

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from steelyard.contracts.spec import RunSpec

CAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
# Large enough for an accelerator to use its matrix units.
PROBE = 256


class Precision:
    """The run's number format on one device."""

    def __init__(self, spec: RunSpec, device: torch.device) -> None:
        self._asked = spec.precision
        self._device = device
        # fully_shard casts parameters and inputs itself; autocast would cast twice.
        self._shards = spec.parallel == "fsdp2" and spec.mode == "train"
        self.cast = CAST.get(spec.precision)
        once = spec.mode in ("infer", "generate") and not spec.autocast
        self.weights = self.cast if once else None
        """Number format that weights and inputs are cast to once, before the first step; None: they stay as built."""
        self.autocasts = self.cast is not None and not once and not self._shards
        """Whether the context casts in every step."""
        self.scaler: Any = None
        if self._asked == "tf32" and device.type not in ("cuda", "xpu", "hpu"):
            raise InputError(
                f"tf32 needs an accelerator with matrix units; the device is {device.type}",
                next_step="use --precision fp32 or bf16",
            )
        if self._asked == "fp16" and spec.mode == "train":
            if self._shards:
                raise InputError("fp16 with a GradScaler does not support fsdp2", next_step="use --precision bf16")
            modern = getattr(torch.amp, "GradScaler", None)
            if modern is None and device.type != "cuda":
                raise InputError(
                    f"torch {torch.__version__} has GradScaler for CUDA only", next_step="use --precision bf16"
                )
            self.scaler = torch.cuda.amp.GradScaler() if modern is None else modern(device.type)
        self._refuse_unknown_cast()

    def _refuse_unknown_cast(self) -> None:
        try:
            with self.context():
                # An accelerator would load its matrix library for this; there, the first step fails.
                if self._device.type == "cpu" and self.weights is not None:
                    self._product()
        except RuntimeError as error:
            how = "autocast to" if self.autocasts else "matrix products in"
            raise InputError(
                f"torch {torch.__version__} does not support {how} {self._asked} on the device "
                f"{self._device.type}: {error}",
                next_step="use --precision bf16 or fp32",
            ) from None

    def apply(self) -> None:
        """Set torch's global switches. tf32 is switched off unless requested: fp32 means fp32."""
        allowed = self._asked == "tf32"
        torch.set_float32_matmul_precision("high" if allowed else "highest")
        torch.backends.cudnn.allow_tf32 = allowed

    def context(self) -> AbstractContextManager[Any]:
        """Return the autocast context for the forward pass and the loss."""
        if not self.autocasts:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=self.cast)

    def _product(self) -> torch.dtype:
        """Return the number format of a product of two matrices in the format of the weights."""
        left = torch.ones(PROBE, PROBE, device=self._device, dtype=self.weights or torch.float32)
        return (left @ left).dtype

    def effective(self) -> dict[str, str]:
        """Return the number formats that torch uses now, measured with a small matrix product."""
        with self.context():
            product = self._product()
        # Check the values: a backend may ignore the switch.
        fine = torch.full((PROBE, PROBE), 1 + 2.0**-12, device=self._device)
        in_full = bool((fine @ torch.eye(PROBE, device=self._device) == fine).all())
        values = {
            "matmul_dtype": str(self.cast if self._shards and self.cast else product).removeprefix("torch."),
            "autocast": str(product != (self.weights or torch.float32)).lower(),
            "float32_products": "fp32" if in_full else "tf32",
            "float32_matmul_precision": str(ask(torch.get_float32_matmul_precision)),
            "cudnn_allow_tf32": str(bool(torch.backends.cudnn.allow_tf32)).lower(),
        }
        if self.scaler is not None:
            values["loss_scale"] = f"{self.scaler.get_scale():g}"
        return values
