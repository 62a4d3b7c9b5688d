"""Read a model's weights from a file in the safetensors format, which is only data: nothing in it is executed.

The format is a length of 8 bytes, a JSON object with the type, shape and place of each tensor, and the tensors. The
file may come from anybody: before a tensor is read, its name and shape have to be those of the model.
"""

from __future__ import annotations

import hashlib
import json
import math
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from steelyard.errors import InputError, Problem

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

    from torch import nn

    from steelyard.worker.workloads.bundle import ModelBundle

KINDS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
LENGTH_BYTES = 8
MOST_HEADER_BYTES = 16 << 20
MOST_SIDES = 16
"""Of a tensor: the product of a million large numbers would take minutes."""
SPARE_BYTES = 64 << 20
"""How much larger than the model in double precision a file may be: names, and a head that is not used."""
COUNTER = "num_batches_tracked"
"""Ending of counters of batch normalisation, which files of older releases lack."""
HEADS = ("fc.", "head.", "classifier.")
"""How the names of a classifier's last layers begin, which a backbone does not have."""
SHOWN = 3
SHOWN_CHARACTERS = 60
EXPORT = "save it with safetensors.torch.save_file(model.state_dict(), FILE)"


@dataclass(frozen=True)
class _Stored:
    """A tensor in the file."""

    name: str
    kind: torch.dtype
    shape: tuple[int, ...]
    size_bytes: int


def load_weights(bundle: ModelBundle, path: Path) -> str:
    """Copy the weights in a file into the model, or into its backbone, and return the SHA-256 of the file."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise _refusal(path, "is not a file")
        with path.open("rb") as file:
            return _load(bundle, path, file)
    except OSError as error:
        raise _refusal(path, f"cannot be read: {error.strerror}") from None


def _load(bundle: ModelBundle, path: Path, file: BinaryIO) -> str:
    size, most = path.stat().st_size, _most_bytes(bundle.module)
    if size > most:
        raise _refusal(path, f"has {size:,} bytes, too many for this model", f"at most {most:,} bytes")
    head = file.read(LENGTH_BYTES)
    length = int.from_bytes(head, "little")
    if len(head) < LENGTH_BYTES or not 2 <= length <= min(MOST_HEADER_BYTES, size - LENGTH_BYTES):
        raise _refusal(path, "is not in the format safetensors", next_step=EXPORT)
    text = file.read(length)
    stored = _stored(path, text, size - LENGTH_BYTES - length)
    target = _target(bundle, path, stored)
    wanted, digest = target.state_dict(), hashlib.sha256(head + text)
    found = {}
    for entry in stored:
        data = bytearray(file.read(entry.size_bytes))
        if len(data) < entry.size_bytes:
            raise _refusal(path, "ends before its last tensor")
        digest.update(data)
        if entry.name in wanted and data:
            found[entry.name] = torch.frombuffer(data, dtype=entry.kind).reshape(entry.shape)
    # What must be there was compared above; counters may be missing.
    target.load_state_dict(found, strict=False)
    return digest.hexdigest()


def _most_bytes(module: nn.Module) -> int:
    return 8 * sum(int(tensor.numel()) for tensor in module.state_dict().values()) + SPARE_BYTES


def _stored(path: Path, text: bytes, size_bytes: int) -> list[_Stored]:
    """Return the tensors of a header, in the order of the file; they fill it without gaps and do not overlap."""
    try:
        header = json.loads(text)
        entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
        entries.sort(key=lambda named: tuple(map(int, named[1]["data_offsets"])))
        stored, end = [], 0
        for name, entry in entries:
            kind, shape = KINDS[entry["dtype"]], tuple(map(int, entry["shape"][: MOST_SIDES + 1]))
            length = math.prod(shape) * torch.empty(0, dtype=kind).element_size()
            if len(shape) > MOST_SIDES or min(shape, default=0) < 0 or entry["data_offsets"] != [end, end + length]:
                raise ValueError(name)
            stored.append(_Stored(name, kind, shape, length))
            end += length
        if end != size_bytes:
            raise ValueError(end)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _refusal(path, "is not a valid file of the format safetensors", next_step=EXPORT) from None
    return stored


def _target(bundle: ModelBundle, path: Path, stored: list[_Stored]) -> nn.Module:
    """Return what the file has the weights of: the model, or its backbone as a classifier was trained with it."""
    problems = _misfits(bundle.module, stored)
    if not problems:
        return bundle.module
    if bundle.backbone is not None:
        body = [entry for entry in stored if not entry.name.startswith(HEADS)]
        others = _misfits(bundle.backbone, body)
        if not others:
            return bundle.backbone
        problems = others if {entry.name for entry in body} & bundle.backbone.state_dict().keys() else problems
    what = f"{path.name} does not have the weights of this model"
    raise InputError(what, problems=tuple(Problem("weights", problem) for problem in problems))


def _misfits(module: nn.Module, stored: list[_Stored]) -> list[str]:
    """Return what differs between a module's tensors and those of a file; empty: nothing."""
    wanted: dict[str, Any] = module.state_dict()
    there = {entry.name: entry for entry in stored}
    missing = [name for name in wanted if name not in there and not name.endswith(COUNTER)]
    further = [name for name in there if name not in wanted]
    other = [
        f"{_shown(name)} ({_sides(entry.shape)} instead of {_sides(wanted[name].shape)})"
        for name, entry in there.items()
        if name in wanted and tuple(wanted[name].shape) != entry.shape
    ]
    other += [
        f"{_shown(name)} ({entry.kind} instead of {wanted[name].dtype})"
        for name, entry in there.items()
        if name in wanted and wanted[name].is_floating_point() != entry.kind.is_floating_point
    ]
    return [
        *([f"the file lacks {_few([_shown(name) for name in missing])}"] if missing else []),
        *([f"the model does not have {_few([_shown(name) for name in further])}"] if further else []),
        *([f"not as in the model: {_few(other)}"] if other else []),
    ]


def _few(names: list[str]) -> str:
    rest = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + rest


def _shown(name: str) -> str:
    return ascii(name)[1 : 1 + SHOWN_CHARACTERS].removesuffix("'")


def _sides(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "one number"


def _refusal(path: Path, problem: str, valid: str = "", next_step: str | None = None) -> InputError:
    return InputError(
        "the weights cannot be loaded",
        problems=(Problem("weights", f"{path} {problem}", valid or "a file in the format safetensors"),),
        next_step=next_step,
    )
