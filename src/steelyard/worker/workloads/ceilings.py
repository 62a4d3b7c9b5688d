"""Ceilings of one device: matrix products, memory bandwidth, and copies between host and device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from steelyard.errors import InputError, Problem
from steelyard.worker.workloads.about import About, about
from steelyard.worker.workloads.ceiling import Ceiling, Work, elements_of, one_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FORMATS = ("fp32", "tf32", "bf16", "fp16")
# Rows and columns of a product that are compared with the exact result, and how much is converted at a time.
CHECKED_LINES = 4
PIECE = 1024
PIECE_ELEMENTS = 1 << 22
FLOAT_BYTES = 4
# Prime, and not near a power of two: no shift caused by a buffer's layout maps the pattern onto itself.
PERIOD = 8_191


# -- matrix products


@dataclass(frozen=True)
class Kind:
    """A number format of matrix products."""

    factor: str
    """Format of the factors, as torch calls it."""
    product: str
    sum_error: float
    """Largest relative error of one addition in the sum."""
    addends: int = 1
    """Number of products summed before such an addition."""


KINDS = {
    "fp64": Kind("float64", "float64", 2.0**-53),
    "fp32": Kind("float32", "float32", 2.0**-23),
    "bf16": Kind("bfloat16", "bfloat16", 2.0**-23),
    "fp16": Kind("float16", "float16", 2.0**-23),
    "fp8": Kind("float8_e4m3fn", "bfloat16", 2.0**-13, addends=32),
    "int8": Kind("int8", "int32", 0.0),
}
"""Short formats accumulate in fp32, which matrix units truncate instead of rounding: 2^-23, not 2^-24. fp8 keeps 14
bits on some devices ("DeepSeek-V3 Technical Report", arXiv 2412.19437, section 3.3.2)."""
# Sums of k products with random signs stay below this many standard deviations.
DEVIATIONS = 8
# tf32 keeps 10 bits of each of two factors, rounded or truncated.
TF32_FACTORS = 2 * 2.0**-10
# Parts of a sum that a library may accumulate in the short format if torch allows it.
SHORT_PARTS = 4


@about(
    About(
        family="ceilings",
        title="matrix product",
        modes=("ceiling",),
        reduced={"m": 64, "n": 48, "k": 96},
    )
)
def matmul(m: int = 4096, n: int = 4096, k: int = 4096, dtype: str = "auto") -> Ceiling:
    """Multiply an m x k matrix by a k x n matrix: 2 m n k operations.

    `dtype` is that of `--precision`, or fp64, int8 or fp8 if torch supports such products on the device. The product is
    written to the same memory each time. Some of its rows and columns are compared with the exact product in float64.
    With u the error of one addition, v half the distance between numbers of the product's format, and s the standard
    deviation of a sum of products with random signs, s = sqrt(sum of a^2 b^2), an element c may be off by

        8 s k u  +  v |c|

    because each of the k additions is off by at most u of a partial sum, which stays below 8 s, and the result is
    rounded. If torch allows accumulation in the short format, 4 x 8 s v is added; if it allows tf32, 8 s 2^-9. Products
    of int8 are exact.
    """
    sizes = {"m": m, "n": n, "k": k}
    problems = tuple(
        Problem(f"model.{name}", f"is {value}", "at least 1") for name, value in sizes.items() if value < 1
    )
    if problems:
        raise InputError("invalid matrix size", problems=problems)
    one_of("dtype", dtype, ("auto", *KINDS))
    by_format = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}

    def make(device: torch.device, number_format: torch.dtype, _repeats: int) -> Work:
        return _Product(device, by_format[number_format] if dtype == "auto" else dtype, m, n, k)

    return Ceiling(make, FORMATS if dtype == "auto" else ("fp32",))


class _Product(Work):
    def __init__(self, device: torch.device, name: str, m: int, n: int, k: int) -> None:
        kind = KINDS[name]
        self.flops = 2.0 * m * n * k
        self._kind, self._device = kind, device
        self._factor, self._format = _known(kind.factor, name), _known(kind.product, name)
        self._left, self._right = self._random(m, k), self._random(k, n)
        self._product = torch.empty(m, n, dtype=self._format, device=device)
        self.step = self._multiply(name)
        self._try(name)
        rows, columns = _spread_out(m), _spread_out(n)
        self._lines = [
            ("row", rows, *self._exact(self._left[rows], self._right)),
            ("column", columns, *self._exact(self._right.t()[columns], self._left.t())),
        ]
        self.fault()

    def _random(self, rows: int, columns: int) -> torch.Tensor:
        """Return numbers between -1 and 1; with constants a device would draw less power."""
        if self._kind.factor == "int8":
            return torch.randint(-128, 128, (rows, columns), dtype=torch.int8, device=self._device)
        wide = torch.float64 if self._kind.factor == "float64" else torch.float32
        return torch.rand(rows, columns, dtype=wide, device=self._device).mul_(2).sub_(1).to(self._factor)

    def _multiply(self, name: str) -> Callable[[], object]:
        left, right, product = self._left, self._right, self._product
        if name == "int8":
            return lambda: torch._int_mm(left, right, out=product)  # noqa: SLF001
        if name == "fp8":
            # The second factor is stored column by column, as the matrix units require.
            by_columns, one = right.t().contiguous().t(), torch.ones((), device=self._device)
            given: dict[str, Any] = {"scale_a": one, "scale_b": one, "out_dtype": product.dtype, "out": product}
            return lambda: torch._scaled_mm(left, by_columns, **given)  # noqa: SLF001
        return lambda: torch.mm(left, right, out=product)

    def _try(self, name: str) -> None:
        """Raise InputError if torch does not support the product on this device."""
        try:
            self.step()
        except (RuntimeError, NotImplementedError, AttributeError, TypeError, ValueError) as error:
            if "memory" in str(error):
                raise
            raise InputError(
                f"torch {torch.__version__} has no {name} matrix product on the device {self._device.type}: "
                + " ".join(str(error).split())[:300],
                next_step="use another --model dtype, or another size",
            ) from None

    def _exact(self, lines: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the product of a few lines in float64, and the tolerance of each element."""
        lines = lines.cpu().double()
        exact, squares = [], []
        for start in range(0, other.shape[1], PIECE):
            piece = other[:, start : start + PIECE].cpu().double()
            exact.append(lines @ piece)
            squares.append(lines.square() @ piece.square())
        product, deviation = torch.cat(exact, 1), torch.cat(squares, 1).sqrt()
        kind = self._kind
        additions = math.ceil(lines.shape[1] / kind.addends)
        allowed = DEVIATIONS * deviation * additions * kind.sum_error
        if (
            self._format == torch.float32
            and self._device.type != "cpu"
            and torch.get_float32_matmul_precision() != "highest"
        ):
            # torch may compute these products in tf32.
            allowed += DEVIATIONS * deviation * TF32_FACTORS
        if self._format.is_floating_point:
            rounding = torch.finfo(self._format).eps / 2
            # Twice: the exact product itself is a float64 sum.
            allowed += product.abs() * rounding * (2 if kind.factor == "float64" else 1)
            if self._adds_short():
                allowed += SHORT_PARTS * DEVIATIONS * deviation * rounding
        return product, allowed

    def _adds_short(self) -> bool:
        switch = {
            torch.bfloat16: "allow_bf16_reduced_precision_reduction",
            torch.float16: "allow_fp16_reduced_precision_reduction",
        }.get(self._format)
        if switch is None or self._device.type == "cpu":
            return False
        # Other devices have no such switch and may do it.
        return self._device.type != "cuda" or bool(getattr(torch.backends.cuda.matmul, switch, True))

    def fault(self) -> str | None:
        """Return the first element whose error exceeds its tolerance."""
        fault = None
        for name, at, exact, allowed in self._lines:
            lines = self._product[at] if name == "row" else self._product.t()[at]
            difference = (lines.cpu().double() - exact).abs()
            # NaN counts as wrong, too.
            wrong = (~(difference <= allowed)).nonzero()
            if len(wrong) and fault is None:
                line, place = (int(number) for number in wrong[0])
                other = "column" if name == "row" else "row"
                fault = (
                    f"{name} {at[line]}, {other} {place} of the product: expected {float(exact[line, place]):.9g}, "
                    f"found {float(lines[line, place]):.9g}, tolerance {float(allowed[line, place]):.3g}"
                )
        self._product.fill_(-1 if self._format == torch.int32 else math.nan)
        return fault

    def effective(self) -> dict[str, str]:
        m, k = self._left.shape
        return {
            "matmul_dtype": str(self._left.dtype).removeprefix("torch."),
            "product_dtype": str(self._product.dtype).removeprefix("torch."),
            "matrices": f"{m} x {k} times {k} x {self._right.shape[1]}",
        }


def _known(name: str, kind: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise InputError(f"torch {torch.__version__} does not have {name}", next_step=f"use another dtype than {kind}")
    return dtype


def _spread_out(lines: int) -> list[int]:
    """Return the first, the last and some lines in between."""
    return sorted({number * (lines - 1) // (CHECKED_LINES - 1) for number in range(CHECKED_LINES)})


# -- memory


STREAM = {"copy": (1.0, 0.0), "scale": (3.0, 0.0), "add": (1.0, 1.0), "triad": (1.0, 3.0)}
"""Factors of the one or two input arrays of each kernel."""
SCALAR = 3.0


@about(About(family="ceilings", title="memory bandwidth (STREAM)", modes=("ceiling",), reduced={"size_mb": 0.1}))
def memory_bandwidth(size_mb: float = 1024, kind: str = "triad") -> Ceiling:
    """Run one of STREAM's kernels on arrays of `size_mb` megabytes each, which should be much larger than the caches.

    copy: c = a; scale: b = 3 c; add: c = a + b; triad: a = b + 3 c. As in STREAM, the bytes of the two or three arrays
    are counted, without the cache lines that a write fetches first. The numbers are small integers in float32, so the
    result is exact, and every element is compared.
    """
    one_of("kind", kind, tuple(STREAM))
    elements = elements_of(size_mb, FLOAT_BYTES)

    def make(device: torch.device, _number_format: torch.dtype, _repeats: int) -> Work:
        return _BandwidthStream(device, kind, elements)

    return Ceiling(make)


class _BandwidthStream(Work):
    def __init__(self, device: torch.device, kind: str, elements: int) -> None:
        self._kind = kind
        first, second = pattern(elements, device), pattern(elements, device, 1)
        result = self._result = torch.full_like(first, math.nan)
        arrays = 3 if STREAM[kind][1] else 2
        self.moved_bytes = float(arrays * elements * FLOAT_BYTES)
        kernels: dict[str, Callable[[], object]] = {
            "copy": lambda: result.copy_(first),
            "scale": lambda: torch.mul(first, SCALAR, out=result),
            "add": lambda: torch.add(first, second, out=result),
            "triad": lambda: torch.add(first, second, alpha=SCALAR, out=result),
        }
        self.step = kernels[kind]

    def fault(self) -> str | None:
        """Return the first wrong element. The expected values are computed again."""
        fault = None
        for start, piece in _pieces(self._result):
            first, second = (pattern(len(piece), piece.device, seed, start) for seed in (0, 1))
            expected = first * STREAM[self._kind][0] + second * STREAM[self._kind][1]
            fault = fault or differing(piece, expected, start)
        self._result.fill_(math.nan)
        return fault

    def effective(self) -> dict[str, str]:
        return {
            "kernel": self._kind,
            "array_bytes": str(self._result.numel() * FLOAT_BYTES),
            "array_dtype": str(self._result.dtype).removeprefix("torch."),
        }


# -- between host and device


@about(About(family="ceilings", title="copies between host and device", modes=("ceiling",), reduced={"size_mb": 0.1}))
def host_device_copy(size_mb: float = 256, direction: str = "to-device", pinned: bool = True) -> Ceiling:
    """Copy `size_mb` megabytes; every element that arrives is compared.

    On the CPU both ends are host memory and nothing is pinned; the settings in effect show this.
    """
    one_of("direction", direction, ("to-device", "to-host"))
    elements = elements_of(size_mb, FLOAT_BYTES)

    def make(device: torch.device, _number_format: torch.dtype, _repeats: int) -> Work:
        return _Copy(device, elements, to_device=direction == "to-device", pinned=pinned)

    return Ceiling(make)


class _Copy(Work):
    def __init__(self, device: torch.device, elements: int, *, to_device: bool, pinned: bool) -> None:
        source = pattern(elements, torch.device("cpu") if to_device else device)
        target = torch.full((elements,), math.nan, device=device if to_device else "cpu")
        if pinned and device.type != "cpu":
            if to_device:
                source = _pinned(source)
            else:
                target = _pinned(target)
        self._source, self._target, self._device = source, target, device
        self._pinned = (source if to_device else target).is_pinned() if device.type != "cpu" else False
        self.moved_bytes = float(elements * FLOAT_BYTES)
        self.step = lambda: target.copy_(source, non_blocking=True)

    def fault(self) -> str | None:
        """Return the first element that did not arrive as it was sent."""
        fault = None
        for start, piece in _pieces(self._target):
            fault = fault or differing(piece, pattern(len(piece), piece.device, 0, start), start)
        self._target.fill_(math.nan)
        return fault

    def effective(self) -> dict[str, str]:
        host = "host memory"
        return {
            "copied": f"{self._place(self._source, host)} to {self._place(self._target, host)}",
            "message_bytes": str(self._source.numel() * FLOAT_BYTES),
            "pinned": str(self._pinned).lower(),
        }

    def _place(self, tensor: torch.Tensor, host: str) -> str:
        return host if tensor.device.type == "cpu" else f"memory of {tensor.device}"


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    try:
        return tensor.pin_memory()
    except RuntimeError as error:
        raise InputError(
            f"memory cannot be pinned here: {' '.join(str(error).split())[:200]}", next_step="--model pinned=false"
        ) from None


# -- numbers that encode their position


def pattern(elements: int, device: torch.device, seed: int = 0, start: int = 0, period: int = PERIOD) -> torch.Tensor:
    """Return small integers in float32, from 1 to `period` (a prime), that encode their position.

    Neighbours differ, and so do numbers at the same position of different seeds below the period. The pattern repeats
    only after the square of the period.
    """
    numbers = torch.empty(elements, dtype=torch.float32, device=device)
    for first, piece in _pieces(numbers):
        at = torch.arange(start + first, start + first + len(piece), dtype=torch.int64, device=device)
        # Reduced first, so that no product exceeds 32 bits, which is all that some devices support.
        whole = at.div(period, rounding_mode="floor").remainder_(period).mul_(1_009)
        number = at.remainder_(period).mul_(2_741).add_(whole).add_(seed * 977 % period)
        piece.copy_(number.remainder_(period).add_(1))
    return numbers


def _pieces(tensor: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield parts of a long vector with their offsets, so that temporaries stay small."""
    for start in range(0, len(tensor), PIECE_ELEMENTS):
        yield start, tensor[start : start + PIECE_ELEMENTS]


def differing(result: torch.Tensor, expected: torch.Tensor, start: int = 0) -> str | None:
    """Return the first element that is not as expected, or None."""
    if torch.equal(result, expected):
        return None
    place = int((~(result == expected)).nonzero()[0])
    return f"element {start + place}: expected {float(expected[place]):.9g}, found {float(result[place]):.9g}"
