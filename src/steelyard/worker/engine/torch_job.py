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
from steelyard.contracts import threads
from steelyard.contracts.observe import DataFacts, DeviceFacts, ModelFacts, Settings
from steelyard.errors import InputError, Problem
from steelyard.worker.devices.facts import look_up
from steelyard.worker.devices.torch_device import TorchDevice, open_device
from steelyard.worker.engine import attention
from steelyard.worker.engine.ceiling_steps import CeilingSteps
from steelyard.worker.engine.distinct import refuse_shared
from steelyard.worker.engine.evaluate import Judge
from steelyard.worker.engine.fits import refuse_too_large
from steelyard.worker.engine.flops import built_on_meta, count
from steelyard.worker.engine.generate import Generating, count_generation, generation_of, prompts_of
from steelyard.worker.engine.job import Alone, Team
from steelyard.worker.engine.parallel import Parallel
from steelyard.worker.engine.pipeline import Pipelined, stage_of
from steelyard.worker.engine.precision import Precision
from steelyard.worker.engine.steps import Inference, Loading, Training
from steelyard.worker.measure import clock, numa
from steelyard.worker.measure.environment import ROOT
from steelyard.worker.measure.software import ask, torch_facts
from steelyard.worker.workloads.bundle import ModelBundle
from steelyard.worker.workloads.ceiling import Ceiling
from steelyard.worker.workloads.feed import Feed
from steelyard.worker.workloads.real import TrainingSplit, fit, open_format, with_epochs
from steelyard.worker.workloads.user import load_source
from steelyard.worker.workloads.weights import load_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from steelyard.contracts.spec import RunSpec
    from steelyard.worker.devices.device import Device
    from steelyard.worker.engine.steps import TorchSteps
    from steelyard.worker.measure.vendor import NvidiaSmi
    from steelyard.worker.workloads.real import RealData

# Longer than any hang limit in use: the watchdog must act first, and compilation on one rank is not a failure.
COLLECTIVE_TIMEOUT_S = 1800.0
VENDOR_S = 5.0
LEAVE_S = 60.0


class Together:
    """Processes whose steps exchange data, connected by the collectives that their steps use."""

    def __init__(self, rank: int, device: torch.device) -> None:
        self.process = rank
        self._device = device

    def agree(self, values: list[int]) -> list[int]:
        """Return the values of process 0 when all processes have arrived, on the host and in the device's queue."""
        # Every backend adds single precision, and the values are small.
        shared = torch.tensor(values if self.process == 0 else [0] * len(values), dtype=torch.float32)
        shared = shared.to(self._device)
        dist.all_reduce(shared)
        return [round(value) for value in shared.tolist()]


class Apart:
    """Processes whose steps do not wait for each other: they need no connection but that to the store.

    Connecting their devices would take memory and time that such a job does not spend.
    """

    def __init__(self, rank: int, store: Any) -> None:
        self.process = rank
        self._store = store
        self._calls = 0

    def agree(self, values: list[int]) -> list[int]:
        """Return the values of process 0, as soon as it has stored them."""
        self._calls += 1
        key = f"steelyard-{self._calls}"
        if self.process == 0:
            self._store.set(key, " ".join(map(str, values)))
            return values
        return [int(value) for value in self._store.get(key).split()]

    def leave(self) -> None:
        """Let process 0, which may hold the store, end last."""
        others = [f"steelyard-left-{rank}" for rank in range(1, dist.get_world_size())]
        if self.process:
            self._store.set(others[self.process - 1], "")
        elif others:
            # Not longer: a rank that was killed after its measurement does not come.
            self._store.wait(others, dt.timedelta(seconds=LEAVE_S))


def open_job(spec: RunSpec, vendor: NvidiaSmi) -> TorchJob:
    """Open the rank's device and team. `vendor` was started earlier; its results are collected later."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local_rank, local_world = (
        int(os.environ.get("LOCAL_RANK", "0")),
        int(os.environ.get("LOCAL_WORLD_SIZE", str(world))),
    )
    if world != spec.devices:
        raise InputError(f"the run needs {spec.devices} processes, one for each device; {world} started")
    touched_s = clock.now()
    if spec.source is not None:
        # First: a user's file may register a backend, and must not change a switch or a seed that is set later.
        load_source(spec.source)
    device = open_device(spec.device, rank, local_rank, local_world)
    accelerator = device.device.type != "cpu"
    near = numa.choose(spec.numa, device.pci_address(), local_rank, local_world, accelerator=accelerator)
    if near.cpus:
        numa.bind(near.cpus)
    own = spec.threads or threads.share(device.visible if accelerator else 0)
    if near.cpus and spec.threads is None:
        own = min(own or torch.get_num_threads(), len(near.cpus))
    if own is not None:
        torch.set_num_threads(own)
    # Reject unsupported settings before the process group is created.
    precision = Precision(spec, device.device)
    parallel = Parallel(spec, device.device, device.record)
    refuse_too_large(spec, device, local_world)
    team = _team(spec, device, rank)
    if world > 1 and "LOCAL_WORLD_SIZE" in os.environ:
        refuse_shared(device.identity(), local_rank, local_world)
    job = TorchJob(spec, device, team, vendor, precision, parallel)
    job.touched_s = touched_s
    job.numa_bound = str(near)
    return job


def _team(spec: RunSpec, device: TorchDevice, rank: int) -> Team:
    if spec.devices == 1 and spec.parallel != "fsdp2":
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
    if spec.mode == "ceiling" or spec.exchanges_gradients:
        # gloo computes on the host, whatever the device.
        return Together(rank, torch.device("cpu") if dist.get_backend() == "gloo" else device.device)
    from torch.distributed.distributed_c10d import _get_default_store

    return Apart(rank, _get_default_store())


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
        self.numa_bound = "no"
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
        self._initial_weights = "random"
        # The number format of matrix products, such as those that give queries and keys.
        self._products: torch.dtype | None = None

    def watch(self, raw: Path) -> None:
        """Return None: the node's sensors are read."""

    def facts(self) -> dict[str, str]:
        """Return facts on torch, its build and the devices."""
        # Without Intel's: most only drive a display.
        there = {maker: number for maker, number in hostinfo.accelerators(ROOT).items() if maker != "Intel"}
        seen = ", ".join(f"{maker}: {number}" for maker, number in there.items())
        facts = {"device.name": self._device.name(), "accelerator.files": seen or "none"}
        if self._device.shares_memory:
            facts["device.shares_memory"] = "yes"
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
        torch.backends.cudnn.benchmark = spec.tuning.cudnn_benchmark
        self._precision.apply()
        attention.allow_only(spec.attention)
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
        if spec.weights is not None:
            self._initial_weights = load_weights(bundle, Path(spec.weights))
        own = next((parameter.dtype for parameter in bundle.module.parameters() if parameter.is_floating_point()), None)
        self._products = self._precision.cast or own or torch.float32
        attention.refuse_other(spec, self._bundle, device, self._products)
        memory = self._device.memory_bytes()
        part = stage_of(bundle, spec, self._device.rank) if self._parallel.pipelines else None
        module = self._placed(bundle.module if part is None else part.module)
        if spec.mode == "generate":
            made = generation_of(bundle, spec.workload)
            self._tokens = made.new_tokens
            feed = Feed(spec, self._device.rank, device, prompts_of(bundle, made.prompt), memory=memory)
            return Generating(spec, feed, self._parallel.replicate(module), self._precision, made, self._device)
        feed = Feed(spec, self._device.rank, device, bundle.batch, read, memory, self._precision.weights)
        parallel = self._parallel
        if spec.mode == "infer":
            return Inference(spec, feed, parallel.replicate(module), self._precision)
        if part is not None:
            return Pipelined(spec, feed, part, bundle, self._precision, parallel)
        step_maker = Training(spec, feed, parallel.wrap(module), bundle, self._precision, parallel)
        if self._data is not None and spec.quality is not None:
            self.judge = Judge(spec, self._data, self._device.rank, device, module, self._precision)
        return step_maker

    def _placed(self, module: nn.Module) -> nn.Module:
        """Return the module on the rank's device, in the number format and memory format of its weights."""
        weights = self._precision.weights
        if weights is not None and any(tensor.is_complex() for tensor in module.state_dict().values()):
            raise InputError(
                f"the model has complex numbers, which a cast to {weights} would cut", next_step="use --autocast"
            )
        if not self._parallel.shards:
            # fully_shard moves each shard itself: the whole model may not fit on one device.
            module = module.to(self._device.device, weights)
        return module.to(memory_format=torch.channels_last) if self.spec.channels_last else module

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
                f"the workload {spec.workload} is {what}",
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
            "preset": self.spec.preset,
            "devices": str(dist.get_world_size() if dist.is_initialized() else 1),
            "backend": dist.get_backend() if dist.is_initialized() else "none",
            "threads": str(torch.get_num_threads()),
            "threads_interop": str(torch.get_num_interop_threads()),
            "cpus": str(len(os.sched_getaffinity(0))),
            "numa_bound": self.numa_bound,
            "seed": str(torch.initial_seed()),
            "deterministic": str(torch.are_deterministic_algorithms_enabled()).lower(),
            "cudnn_benchmark": str(torch.backends.cudnn.benchmark).lower(),
        }
        if self.spec.mode not in ("load", "ceiling"):
            values["initial_weights"] = self._initial_weights
        values |= self._precision.effective() | self._step_maker.effective()
        kind = self._products
        if kind is not None:
            kernel = ask(lambda: attention.kernels(self._bundle, self.spec, self._device.device, kind))
            values |= {"attention": kernel} if kernel else {}
        return Settings(values=values)

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
        counted = count_generation(self._bundle) if generates else count(self._bundle, train=self.spec.mode == "train")
        # After a failed cross-check the device may not answer.
        loss = ask(self._step_maker.last_loss)
        return ModelFacts(
            parameters=self._parameters,
            flops_per_sample=counted.flops_per_sample,
            tokens_per_sample=self._tokens,
            method=counted.method,
            last_loss=None if loss is None else (f"{loss:.9g}" if math.isfinite(loss) else str(loss)),
        )

    def close(self, *, lost: bool) -> None:
        """Leave the process group, so that no rank sees another disappear."""
        if isinstance(self.team, Apart):
            self.team.leave()
        elif lost:
            return
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
        raise InputError(f"the workload {spec.workload} cannot be built with these options", problems=tuple(problems))
