"""One rank of a PyTorch job: its device, team, model and settings. Timing is done elsewhere."""

from __future__ import annotations

import datetime as dt
import inspect
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from steelyard import hostinfo, plugins
from steelyard.contracts.observe import DataFacts, DeviceFacts, ModelFacts, Settings
from steelyard.errors import InputError, Problem
from steelyard.worker.devices.facts import look_up
from steelyard.worker.devices.torch_device import TorchDevice, open_device
from steelyard.worker.engine.ceiling_steps import CeilingSteps
from steelyard.worker.engine.evaluate import Judge
from steelyard.worker.engine.flops import built_on_meta, count
from steelyard.worker.engine.generate import Generating, count_generation, generation_of, prompts_of
from steelyard.worker.engine.job import Alone, Team
from steelyard.worker.engine.parallel import Parallel
from steelyard.worker.engine.precision import Precision
from steelyard.worker.engine.steps import Inference, Loading, Training
from steelyard.worker.measure import clock, numa
from steelyard.worker.measure.software import torch_facts
from steelyard.worker.workloads.bundle import ModelBundle
from steelyard.worker.workloads.ceiling import Ceiling
from steelyard.worker.workloads.feed import Feed
from steelyard.worker.workloads.real import TrainingSplit, fit, open_format, with_epochs
from steelyard.worker.workloads.user import load_source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.contracts.spec import RunSpec
    from steelyard.worker.devices.device import Device
    from steelyard.worker.engine.steps import TorchSteps
    from steelyard.worker.measure.vendor import NvidiaSmi
    from steelyard.worker.workloads.real import RealData

# Longer than any hang limit in use: the watchdog must act first, and compilation on one rank is not a failure.
COLLECTIVE_TIMEOUT_S = 1800.0
VENDOR_S = 5.0
DEV = Path("/dev")


class Processes:
    """The processes started by torchrun or a scheduler, connected by collectives on the host."""

    def __init__(self, rank: int, group: dist.ProcessGroup | None) -> None:
        self.process = rank
        self._group = group

    def agree(self, values: list[int]) -> list[int]:
        """Return the values of process 0. Runs on the host, so that the device's queue is not touched."""
        shared = torch.tensor(values, dtype=torch.int64)
        dist.broadcast(shared, src=0, group=self._group)
        return [int(value) for value in shared.tolist()]


def open_job(spec: RunSpec, vendor: NvidiaSmi) -> TorchJob:
    """Open the rank's device and team. `vendor` was started earlier; its results are collected later."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local_rank, local_world = (
        int(os.environ.get("LOCAL_RANK", "0")),
        int(os.environ.get("LOCAL_WORLD_SIZE", str(world))),
    )
    if world != spec.ranks:
        raise InputError(f"the run needs {spec.ranks} ranks, but {world} were started")
    touched_s = clock.now()
    if spec.source is not None:
        # First: a user's file may register a backend, and must not change a switch or a seed that is set later.
        load_source(spec.source)
    device = open_device(spec.device, rank, local_rank)
    cpus = None
    if spec.numa:
        address = device.pci_address()
        # If the CPUs near the accelerator are unknown, do not bind.
        if address is not None or device.device.type == "cpu":
            cpus = numa.cpus_beside(address, local_rank, local_world)
    if cpus:
        numa.bind(cpus)
    if spec.threads is not None or cpus:
        torch.set_num_threads(spec.threads or min(torch.get_num_threads(), len(cpus or ())))
    # Reject unsupported settings before the process group is created.
    precision = Precision(spec, device.device)
    parallel = Parallel(spec, device.device, device.record)
    job = TorchJob(spec, device, _team(spec, device, rank), vendor, precision, parallel)
    job.touched_s = touched_s
    return job


def _team(spec: RunSpec, device: TorchDevice, rank: int) -> Team:
    if spec.ranks == 1 and spec.parallel != "fsdp2":
        return Alone()
    timeout = dt.timedelta(seconds=max(COLLECTIVE_TIMEOUT_S, 2 * spec.hang_limit_s))
    if not dist.is_initialized():
        own = {"cuda": "nccl", "xpu": "xccl", "hpu": "hccl"}.get(device.device.type, "gloo")
        backend = spec.backend if spec.backend is not None else own
        if {"RANK", "MASTER_ADDR"} <= os.environ.keys():
            dist.init_process_group(backend, timeout=timeout)
        else:
            # A single process without torchrun: create a group of one.
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group(backend, timeout=timeout, store=store, rank=0, world_size=1)
    group: Any = None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo", timeout=timeout)
    return Processes(rank, group)


class TorchJob:
    """One process of the job with its device."""

    def __init__(
        self,
        spec: RunSpec,
        device: TorchDevice,
        team: Team,
        vendor: NvidiaSmi,
        precision: Precision,
        parallel: Parallel,
    ) -> None:
        self.spec = spec
        self.judge: Judge | None = None
        self.touched_s: float | None = None
        self._vendor = vendor
        self._device = device
        self.family = device.device.type
        self.devices: Sequence[Device] = [device]
        self.team = team
        self._precision = precision
        self._parallel = parallel
        self._step_maker: TorchSteps | CeilingSteps | None = None
        self._opened: tuple[Any, Any, Any] | None = None
        self._data: RealData | None = None
        self._parameters = 0
        self._tokens: int | None = None

    def watch(self, raw: Path) -> None:
        """Return None: the node's sensors are read."""

    def facts(self) -> dict[str, str]:
        """Return facts on torch, its build and the devices."""
        # Without render nodes: one alone may be a workstation's graphics card.
        files = {name: len(list(DEV.glob(pattern))) for name, pattern in hostinfo.ACCELERATOR_FILES.items()}
        seen = ", ".join(f"{name}: {number}" for name, number in files.items() if number and "DRM" not in name)
        facts = {"device.name": self._device.name(), "accelerator.files": seen or "none"}
        return facts | torch_facts() | self._vendor.facts(VENDOR_S)

    def build(self) -> list[TorchSteps | CeilingSteps]:
        """Build the model on its device, seeded, in its precision and wrapped for its ranks; or the ceiling."""
        spec = self.spec
        if spec.deterministic != torch.are_deterministic_algorithms_enabled():
            # Only if it changes something: the call loads the compiler, which takes a second.
            torch.use_deterministic_algorithms(spec.deterministic)
        if spec.deterministic:
            # cuBLAS reads it at its start, which has not happened yet.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.backends.cudnn.benchmark = False
        self._precision.apply()
        # Independent models start from different weights, as those of separate jobs do.
        torch.manual_seed(spec.seed + (self._device.rank if spec.parallel == "independent" else 0))
        if spec.mode == "ceiling":
            made = self._made()
            assert isinstance(made, Ceiling)
            self._step_maker = CeilingSteps(spec, made, self._device, self._precision)
        else:
            self._step_maker = self._model()
        return [self._step_maker]

    def _model(self) -> TorchSteps:
        spec, device = self.spec, self._device.device
        if spec.data is not None:
            # Before the model, which gets its number of classes from the data.
            self._opened = open_format(spec)
        bundle = built_on_meta(self._bundle) if spec.mode == "load" else self._bundle()
        read = None
        if self._opened is not None:
            self._data = fit(*self._opened, bundle.task, spec)
            self.spec = spec = with_epochs(spec, self._data)
            read = TrainingSplit(self._data, spec)
        self._parameters = sum(parameter.numel() for parameter in bundle.module.parameters())
        self._tokens = bundle.tokens
        if spec.mode == "load":
            return Loading(Feed(spec, self._device.rank, device, bundle.batch, read))
        # fully_shard moves each shard itself: the whole model may not fit on one device.
        module = bundle.module if self._parallel.shards else bundle.module.to(device)
        if spec.channels_last:
            module = module.to(memory_format=torch.channels_last)
        if spec.mode == "generate":
            made = generation_of(bundle, spec.workload)
            self._tokens = made.new_tokens
            feed = Feed(spec, self._device.rank, device, prompts_of(bundle, made.prompt))
            return Generating(spec, feed, self._parallel.replicate(module), self._precision, made, self._device)
        feed = Feed(spec, self._device.rank, device, bundle.batch, read)
        parallel = self._parallel
        if spec.mode == "infer":
            return Inference(spec, feed, parallel.replicate(module), self._precision)
        step_maker = Training(spec, feed, parallel.wrap(module), bundle, self._precision, parallel)
        if self._data is not None and spec.quality is not None:
            self.judge = Judge(spec, self._data, self._device.rank, device, module, self._precision)
        return step_maker

    def _bundle(self) -> ModelBundle:
        made = self._made()
        assert isinstance(made, ModelBundle)
        return made

    def _made(self) -> ModelBundle | Ceiling:
        """Return what the workload's function returns, if it supports this mode."""
        spec = self.spec
        build = load_source(spec.source) if spec.source is not None else plugins.load("workload", spec.workload)
        _refuse_options(build, spec)
        made = build(**spec.model, **self._classes(build))
        if isinstance(made, tuple) and len(made) == 4:
            made = ModelBundle(*made)
        if isinstance(made, (ModelBundle, Ceiling)):
            if isinstance(made, Ceiling) == (spec.mode == "ceiling"):
                return made
            what, valid = ("a ceiling", "ceiling") if isinstance(made, Ceiling) else ("a model", "train, infer")
            raise InputError(
                f"the workload {spec.workload!r} is {what}",
                problems=(Problem("mode", f"is {spec.mode}", valid),),
                next_step=f"--mode {valid.partition(',')[0]}",
            )
        raise InputError(
            f"{spec.workload}: its function returned {type(made).__name__}",
            next_step="return (module, loss, optimizer, batch), in this order",
        )

    def _classes(self, build: Any) -> dict[str, int]:
        """Return the number of classes of the data if the model has such an option and it was not set."""
        available = self._opened[1].classes if self._opened is not None else None
        if available is None or "classes" not in inspect.signature(build).parameters:
            return {}
        asked = self.spec.model.get("classes")
        if asked is None:
            return {"classes": available}
        if isinstance(asked, int) and asked < available:
            problem = Problem("model.classes", f"is {asked}, but the data has {available}", f"at least {available}")
            raise InputError("the model has too few classes for its data", problems=(problem,))
        return {}

    def data_facts(self) -> DataFacts | None:
        """Return facts on the data set that is read."""
        return None if self._data is None else self._data.facts()

    def settings(self) -> Settings | None:
        """Return the settings, read back from torch and not from the spec."""
        assert self._step_maker is not None
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
        return Settings(values=values | self._precision.effective() | self._step_maker.effective())

    def device_facts(self) -> DeviceFacts | None:
        """Return the entry of the device table for the driver's device name."""
        return look_up(self._device.name(), self._device.memory_bytes())

    def model_facts(self) -> ModelFacts | None:
        """Return the model's size and FLOPs, counted on the meta device."""
        assert self._step_maker is not None
        if self.spec.mode == "load":
            return ModelFacts(
                parameters=self._parameters, flops_per_sample=None, method="input pipeline only: no model is run"
            )
        if isinstance(self._step_maker, CeilingSteps):
            return self._step_maker.facts()
        generates = self.spec.mode == "generate"
        found = count_generation(self._bundle) if generates else count(self._bundle, train=self.spec.mode == "train")
        loss = self._step_maker.last_loss()
        return ModelFacts(
            parameters=self._parameters,
            flops_per_sample=found.flops_per_sample,
            tokens_per_sample=self._tokens,
            method=found.method,
            last_loss=None if loss is None else (f"{loss:.9g}" if math.isfinite(loss) else str(loss)),
        )

    def close(self) -> None:
        """Leave the process group, so that no rank sees another disappear."""
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
    problems += [Problem(f"model.{name}", "is missing", f"--model {name}=VALUE") for name in missing]
    if problems:
        raise InputError(f"the workload {spec.workload!r} cannot be built with these options", problems=tuple(problems))
