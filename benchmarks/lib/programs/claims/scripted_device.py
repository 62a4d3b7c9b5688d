"""A scripted accelerator as torch's device `scripted`, as a vendor's library adds one.

Its tensors have a shape and no values, so it computes nothing. It has a queue: the host goes on at once, and each
operation ends a scripted time after the one before it. Its driver calls it an H100, whose peak is in the table of
devices; products of matrices run at half of that peak.
"""

import time
from collections import deque

import torch
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "NVIDIA H100 80GB HBM3"
PEAK = 989.4e12
RATE = PEAK / 2
OTHER_S = 2e-6
"""What an operation takes that is no product of matrices."""
DEPTH = 1024
PRODUCTS = {"mm": 0, "addmm": 1, "bmm": 0}
"""By name: the place of the first of the two matrices."""
_done = deque([0.0], maxlen=DEPTH)


def _wait(until_s):
    time.sleep(max(0.0, until_s - time.monotonic()))


def _enqueue(seconds):
    if len(_done) == DEPTH:
        _wait(_done[0])
    _done.append(max(_done[-1], time.monotonic()) + seconds)


def _seconds(func, args):
    name = func.overloadpacket.__name__
    if name not in PRODUCTS:
        return OTHER_S
    first, second = args[PRODUCTS[name] :][:2]
    return 2 * first.numel() * second.shape[-1] / RATE


class DeviceTensor(torch.Tensor):
    """A tensor on the device: its shape is that of a tensor without data."""

    @staticmethod
    def __new__(cls, shape_of):
        made = torch.Tensor._make_wrapper_subclass(  # noqa: SLF001 -- for classes such as this one
            cls, shape_of.shape, strides=shape_of.stride(), dtype=shape_of.dtype, device="scripted:0"
        )
        made.shape_of = shape_of
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.ops.aten._local_scalar_dense.default:  # noqa: SLF001 -- the name of an operator
            _wait(_done[-1])
            return 0.0
        target = kwargs.get("device")
        if target is not None and torch.device(target).type != "scripted":
            _wait(_done[-1])
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype, device=target)
        if target is not None:
            kwargs["device"] = "meta"
        _enqueue(_seconds(func, args))
        known = {}

        def bare(value):
            if isinstance(value, DeviceTensor):
                known[id(value.shape_of)] = value
                return value.shape_of
            return value.to("meta") if isinstance(value, torch.Tensor) else value

        def wrapped(value):
            if not isinstance(value, torch.Tensor):
                return value
            # What works in place gives back what it was given.
            return known[id(value)] if id(value) in known else DeviceTensor(value)

        return tree_map(wrapped, func(*tree_map(bare, args), **tree_map(bare, kwargs)))


class Event:
    """A moment in the queue."""

    def __init__(self, enable_timing=False):
        self.at_s = None

    def record(self, stream=None):
        self.at_s = max(_done[-1], time.monotonic())

    def query(self):
        return time.monotonic() >= self.at_s

    def synchronize(self):
        _wait(self.at_s)

    def elapsed_time(self, end):
        return 1000.0 * (end.at_s - self.at_s)


class Module:
    """torch.scripted."""

    Event = Event

    @staticmethod
    def synchronize(device=None):
        _wait(_done[-1])

    @staticmethod
    def get_device_name(device=None):
        return NAME

    @staticmethod
    def is_available():
        return True

    @staticmethod
    def is_initialized():
        return True

    @staticmethod
    def _is_in_bad_fork():
        return False

    @staticmethod
    def current_device():
        return 0

    @staticmethod
    def device_count():
        return 1

    @staticmethod
    def manual_seed_all(seed):
        """It has no random numbers."""


_setup_privateuseone_for_python_backend(rename="scripted", backend_module=Module)


def _empty(size, *, dtype=None, **_more):
    return DeviceTensor(torch.empty(size, dtype=dtype, device="meta"))


def _empty_strided(size, stride, *, dtype=None, **_more):
    return DeviceTensor(torch.empty_strided(size, stride, dtype=dtype, device="meta"))


_library = torch.library.Library("aten", "IMPL")
_library.impl("empty.memory_format", _empty, "PrivateUse1")
_library.impl("empty_strided", _empty_strided, "PrivateUse1")
