"""One rank of a PyTorch job: its device, its team, its model and its settings. Knows torch; times nothing."""

from __future__ import annotations

import datetime as dt
import inspect
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from steelyard import hostinfo, registry
from steelyard.contracts.observe import DeviceFacts, ModelFacts, Settings
from steelyard.errors import InputError, Problem
from steelyard.worker.devices.facts import look_up
from steelyard.worker.devices.torch_device import TorchDevice, open_device
from steelyard.worker.engine.flops import count
from steelyard.worker.engine.job import Alone, Team
from steelyard.worker.engine.parallel import Parallel
from steelyard.worker.engine.precision import Precision
from steelyard.worker.engine.steps import Inference, Training
from steelyard.worker.measure import numa
from steelyard.worker.measure.software import torch_facts
from steelyard.worker.workloads.feed import Feed
from steelyard.worker.workloads.recipe import Recipe
from steelyard.worker.workloads.user import load_source

if TYPE_CHECKING:
    from steelyard.contracts.spec import RunSpec
    from steelyard.worker.engine.steps import TorchWorkload
    from steelyard.worker.measure.vendor import NvidiaSmi

# Longer than any hang limit in use: the watchdog is to speak first, and compilation on one rank is no failure.
COLLECTIVE_TIMEOUT_S = 1800.0
VENDOR_S = 5.0
DEV = Path("/dev")


class Processes:
    """The processes that torchrun or a scheduler started, tied together by collectives on the host."""

    def __init__(self, rank: int, group: dist.ProcessGroup | None) -> None:
        self.process = rank
        self._group = group

    def agree(self, values: list[int]) -> list[int]:
        """What process 0 says. Through the host, so that the device's queue is not touched."""
        shared = torch.tensor(values, dtype=torch.int64)
        dist.broadcast(shared, src=0, group=self._group)
        return [int(value) for value in shared.tolist()]


def open_job(spec: RunSpec, vendor: NvidiaSmi) -> TorchJob:
    """Find the rank's device and its team. `vendor` has been asked about the devices and answers later."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local_rank, local_world = (
        int(os.environ.get("LOCAL_RANK", "0")),
        int(os.environ.get("LOCAL_WORLD_SIZE", str(world))),
    )
    if world != spec.ranks:
        raise InputError(f"{spec.ranks} ranks were asked for, {world} were started")
    if spec.source is not None:
        # First: a user's file may bring a backend, and must not undo a switch or a seed that is set later.
        load_source(spec.source)
    device = open_device(spec.device, rank, local_rank)
    cpus = _near(device, local_rank, local_world) if spec.numa else None
    if cpus:
        numa.bind(cpus)
    if spec.threads is not None or cpus:
        torch.set_num_threads(spec.threads or min(torch.get_num_threads(), len(cpus or ())))
    # What cannot be done is refused before the ranks meet.
    precision = Precision(spec, device.device)
    parallel = Parallel(spec, device.device, device.record)
    return TorchJob(spec, device, _team(spec, device, rank), vendor, precision, parallel)


def _near(device: TorchDevice, local_rank: int, local_world: int) -> set[int] | None:
    """The CPUs to bind to; none where nothing tells which are beside the accelerator."""
    address = device.pci_address()
    if address is None and device.device.type != "cpu":
        return None
    return numa.cpus_beside(address, local_rank, local_world)


def _team(spec: RunSpec, device: TorchDevice, rank: int) -> Team:
    if spec.ranks == 1 and spec.parallel == "ddp":
        return Alone()
    timeout = dt.timedelta(seconds=max(COLLECTIVE_TIMEOUT_S, 2 * spec.hang_limit_s))
    if not dist.is_initialized():
        backend = _backend(spec, device)
        if {"RANK", "MASTER_ADDR"} <= os.environ.keys():
            dist.init_process_group(backend, timeout=timeout)
        else:
            # One process that was started without a starter: it meets itself.
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group(backend, timeout=timeout, store=store, rank=0, world_size=1)
    own: Any = None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo", timeout=timeout)
    return Processes(rank, own)


def _backend(spec: RunSpec, device: TorchDevice) -> str:
    if spec.backend is not None:
        return spec.backend
    return {"cpu": "gloo", "mps": "gloo", "cuda": "nccl", "xpu": "xccl", "hpu": "hccl"}.get(device.device.type, "gloo")


class TorchJob:
    """One process of the job, and its one device."""

    def __init__(
        self,
        spec: RunSpec,
        device: TorchDevice,
        team: Team,
        vendor: NvidiaSmi,
        precision: Precision,
        parallel: Parallel,
    ) -> None:
        self._spec = spec
        self._vendor = vendor
        self._device = device
        self.family = device.device.type
        self.devices = [device]
        self.team = team
        self._precision = precision
        self._parallel = parallel
        self._workload: TorchWorkload | None = None
        self._parameters = 0

    def facts(self) -> dict[str, str]:
        """Of torch, its build and the devices."""
        # A render node alone may be the graphics of a workstation.
        files = {name: len(list(DEV.glob(pattern))) for name, pattern in hostinfo.ACCELERATOR_FILES.items()}
        seen = ", ".join(f"{name}: {number}" for name, number in files.items() if number and "DRM" not in name)
        facts = {"device.name": self._device.name(), "accelerator.files": seen or "none"}
        return facts | torch_facts() | self._vendor.facts(VENDOR_S)

    def build(self) -> list[TorchWorkload]:
        """The model on its device, seeded, in its precision and its parallel dress."""
        spec, device = self._spec, self._device.device
        if spec.deterministic != torch.are_deterministic_algorithms_enabled():
            # Not called in vain: it loads the compiler, which takes a second.
            torch.use_deterministic_algorithms(spec.deterministic)
        if spec.deterministic:
            # Read by cuBLAS when it starts, which has not happened yet.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.backends.cudnn.benchmark = False
        self._precision.apply()
        torch.manual_seed(spec.seed)
        recipe = self._recipe()
        # Sharding moves each part as it is cut: the whole may not fit on one device.
        module = recipe.module if self._parallel.shards else recipe.module.to(device)
        if spec.channels_last:
            module = module.to(memory_format=torch.channels_last)
        self._parameters = sum(parameter.numel() for parameter in module.parameters())
        feed = Feed(spec, self._device.rank, device, recipe.batch)
        parallel = self._parallel
        if spec.mode == "infer":
            workload: TorchWorkload = Inference(spec, feed, parallel.replicate(module), self._precision)
        else:
            workload = Training(spec, feed, parallel.wrap(module), recipe, self._precision, parallel)
        self._workload = workload
        return [workload]

    def _recipe(self) -> Recipe:
        spec = self._spec
        build = load_source(spec.source) if spec.source is not None else registry.load("workload", spec.workload)
        _refuse_options(build, spec)
        made = build(**spec.model)
        if isinstance(made, Recipe):
            return made
        if isinstance(made, tuple) and len(made) == 4:
            return Recipe(*made)
        raise InputError(
            f"{spec.workload}: its function returned {type(made).__name__}",
            next_step="return module, loss, optimizer and batch maker, in this order",
        )

    def settings(self) -> Settings | None:
        """Read back from torch, not from the spec."""
        assert self._workload is not None
        values = {
            "device": str(self._device.device),
            "ranks": str(dist.get_world_size() if dist.is_initialized() else 1),
            "backend": dist.get_backend() if dist.is_initialized() else "none",
            "threads": str(torch.get_num_threads()),
            "threads_interop": str(torch.get_num_interop_threads()),
            "cpus": str(len(os.sched_getaffinity(0))),
            "seed": str(torch.initial_seed()),
            "deterministic": str(torch.are_deterministic_algorithms_enabled()).lower(),
            "cudnn_benchmark": str(torch.backends.cudnn.benchmark).lower(),
        }
        return Settings(values=values | self._precision.effective() | self._workload.effective())

    def device_facts(self) -> DeviceFacts | None:
        """From the table, by the driver's name."""
        return look_up(self._device.name(), self._device.memory_bytes())

    def model_facts(self) -> ModelFacts | None:
        """Counted on the meta device."""
        assert self._workload is not None
        found = count(self._recipe, train=self._spec.mode == "train")
        loss = self._workload.last_loss()
        return ModelFacts(
            parameters=self._parameters,
            flops_per_sample=found.flops_per_sample,
            method=found.method,
            last_loss=None if loss is None else (f"{loss:.9g}" if math.isfinite(loss) else str(loss)),
        )

    def close(self) -> None:
        """Leave the group, so that no rank sees another vanish."""
        if dist.is_initialized():
            dist.destroy_process_group()


def _refuse_options(build: Any, spec: RunSpec) -> None:
    parameters = inspect.signature(build).parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    known = [p.name for p in named]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    unknown = [] if takes_any else [name for name in spec.model if name not in known]
    missing = [p.name for p in named if p.default is p.empty and p.name not in spec.model]
    problems = [Problem(f"model.{name}", "unknown option", ", ".join(known) or "none") for name in unknown]
    problems += [Problem(f"model.{name}", "is not given", f"--model {name}=VALUE") for name in missing]
    if problems:
        raise InputError(f"the workload {spec.workload!r} cannot be built so", problems=tuple(problems))
