"""RunSpec: everything one run is asked to do. Knows what may be asked, not how it is done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from steelyard.contracts.base import AtLeastOne, Bound, Contract, Count, Length, Name, NotNegative, Positive, Text
from steelyard.contracts.sim import SimTruth

SCHEMA_VERSION: Final = 1
MAX_EVALUATIONS: Final = 9_000

Mode = Literal["train", "infer", "generate", "load", "ceiling"]
"""Training; a forward pass; prefill and decoding of tokens; the input pipeline without the model; and what a device
reaches without a model, such as products of matrices or collectives."""
LastBatch = Literal["drop", "pad", "keep"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
CompileMode = Literal["off", "default", "reduce-overhead", "max-autotune"]
Parallel = Literal["ddp", "fsdp2"]
DataPlace = Literal["device", "host"]


@dataclass(frozen=True, kw_only=True)
class Budget(Contract):
    """When a run has measured enough: all three minima, or any cap."""

    min_steps: AtLeastOne = 1000
    """Steps after warm-up. Below 900 the interval is only approximate; 1,000 leave room for a few slow first steps."""
    min_seconds: NotNegative = 5.0
    rel_half_width: Positive = 0.01
    """Half-width of the 95 % interval of the mean step time, over the mean."""
    max_steps: AtLeastOne = 20_000
    max_seconds: Positive = 240.0
    epochs: AtLeastOne | None = None
    """Run exactly so many epochs instead; needs `epoch_samples`."""


@dataclass(frozen=True, kw_only=True)
class Loader(Contract):
    """Where batches come from and how they reach the device."""

    place: DataPlace = "device"
    """Synthetic data made once on the device, or made anew on the host for every step and moved."""
    workers: Annotated[int, Bound(ge=0, le=1024)] = 0
    """Loader processes a rank; 0: the training process makes its batches itself."""
    prefetch: Annotated[int, Bound(ge=1, le=1000)] = 2
    """Batches each loader process keeps ready."""
    pin_memory: bool = False

    def __post_init__(self) -> None:
        if self.place == "device" and (self.workers or self.pin_memory):
            raise ValueError(
                "place: data made on the device needs no loader processes and no pinned memory; valid: host"
            )


@dataclass(frozen=True, kw_only=True)
class Data(Contract):
    """A data set on disk. No run downloads anything: `steelyard data` says what to put where."""

    format: Name
    """A registered format, such as cifar100 or coco."""
    path: Text
    """Of its folder, absolute."""


@dataclass(frozen=True, kw_only=True)
class Quality(Contract):
    """How well a model does after training: measured on the data's evaluation split, outside every step."""

    target: float | None = None
    """Train until the workload's metric is this good, `budget.epochs` at most; None: train all epochs."""
    every_epochs: AtLeastOne = 1
    """Epochs between evaluations; the last epoch is always evaluated."""
    samples: AtLeastOne | None = None
    """Evaluate on so many samples at most."""


@dataclass(frozen=True, kw_only=True)
class Energy(Contract):
    """How energy is watched. Where no sensor can be read the run goes on, and the record says why there is none."""

    watch: bool = True
    """Read the sensors that are there; False: none, not even looked for."""
    period_s: Annotated[float, Bound(ge=0.01, le=60)] = 0.1
    """Time between two readings of a sensor."""
    idle_s: Annotated[float, Bound(ge=0, le=600)] = 0.0
    """At least so long the sensors are read before the device is touched, for the idle baseline; what passes anyway
    until then is always used."""
    random_phase: bool = False
    """Take readings at random times inside each period: for sensors that look only part of the time."""


@dataclass(frozen=True, kw_only=True)
class Source(Contract):
    """A function in a user's own file that builds the model."""

    path: Text
    """Of the file, absolute."""
    function: Annotated[str, Length(80, r"^[A-Za-z_][A-Za-z0-9_]*$")]
    sha256: Annotated[str, Length(64, r"^[0-9a-f]{64}$")]
    """Of the file as it was when the run was asked for; another file is refused."""


@dataclass(frozen=True, kw_only=True)
class RunSpec(Contract):
    """One run: one fresh launch of one workload with one set of settings."""

    schema_version: Literal[1] = SCHEMA_VERSION
    run_id: Name
    study: Name = "adhoc"
    configuration: Name
    """Names the settings: runs of one cell are repeats of each other."""
    repeat: Count = 0
    seed: Annotated[int, Bound(ge=0, lt=2**63)] = 0
    workload: Name = "sim"
    mode: Mode = "train"
    source: Source | None = None
    """The user's own workload; `workload` is then only what it is called."""
    model: Annotated[dict[str, bool | int | float | Text], Length(50)] = field(default_factory=dict)
    """Options of the workload's model, such as its size."""
    device: Name = "auto"
    """Device family; auto: the accelerator that is there, else the CPU."""
    ranks: Annotated[int, Bound(ge=1, le=65_536)] = 1
    batch: Annotated[int, Bound(ge=1, le=10**9)] = 32
    """Samples a device takes in one micro-batch."""
    accumulation: Annotated[int, Bound(ge=1, le=10**6)] = 1
    """Micro-batches to one optimizer step; training only."""
    learning_rate: Positive | None = None
    """Of the optimizer; None: the workload's own, which is small, because most runs train on random labels."""
    precision: Precision = "fp32"
    """Of the computation: fp32 without and with the matrix units' tf32, or autocast to bf16 or fp16 (with a scaler)."""
    compile: CompileMode = "off"
    channels_last: bool = False
    parallel: Parallel = "ddp"
    """How more than one rank trains; inference runs independent replicas."""
    backend: Name | None = None
    """Of the collectives; None: what the device family uses."""
    deterministic: bool = False
    """Only algorithms that give the same bits every time."""
    threads: Annotated[int, Bound(ge=1, le=4096)] | None = None
    """CPU threads a rank; None: torch's own choice for one rank, an equal share of the usable CPUs for more."""
    numa: bool = False
    """Bind each rank to the CPUs beside its device."""
    loader: Loader = field(default_factory=Loader)
    data: Data | None = None
    """Real data; None: synthetic."""
    quality: Quality | None = None
    """Evaluate; None: the run measures speed alone."""
    epoch_samples: AtLeastOne | None = None
    """Samples in one epoch of the whole job; None: all of the data set, and synthetic data never ends."""
    last_batch: LastBatch = "drop"
    """A last step without enough samples: dropped, padded (computed whole, real samples counted) or kept small."""
    crosscheck_steps: Annotated[int, Bound(ge=0, le=10_000)] = 32
    """Steps of the second pass that synchronises after each one; fewer where they would take long."""
    time_limit_s: Positive | None = None
    """Wall-clock limit after which the launcher ends the run."""
    hang_limit_s: Positive = 300.0
    """A rank that finishes no block of steps for so long hangs; the first step and compilation do not count."""
    budget: Budget = field(default_factory=Budget)
    energy: Energy = field(default_factory=Energy)
    sim: SimTruth = field(default_factory=SimTruth)

    def __post_init__(self) -> None:
        if (self.workload == "sim") != (self.device_family == "sim"):
            raise ValueError(
                f"device: {self.device!r} does not run the workload {self.workload!r}; valid: auto, or the device sim "
                "with the workload sim"
            )
        if self.mode != "train" and self.accumulation != 1:
            raise ValueError("accumulation: only training has an optimizer step to accumulate for; valid: 1")
        self._check_data()
        if self.budget.epochs is not None and self.epoch_samples is None and self.data is None:
            raise ValueError("epoch_samples: a budget in epochs needs it; valid: an integer of at least 1")
        if self.last_batch == "drop" and self.epoch_samples is not None and self.epoch_samples < self.step_samples:
            raise ValueError(
                f"epoch_samples: {self.epoch_samples} do not fill one step of {self.step_samples}, and the last "
                f"partial batch is dropped; valid: at least {self.step_samples}, or last_batch 'pad' or 'keep'"
            )

        if self.parallel == "fsdp2" and self.last_batch == "keep" and self.accumulation > 1:
            raise ValueError(
                "last_batch: sharded ranks gather in every micro-batch, and a small last step would give them "
                "different numbers of those; valid: drop or pad"
            )
        rest = self.epoch_samples % self.step_samples if self.epoch_samples is not None else 0
        if self.last_batch == "keep" and 0 < rest < self.ranks:
            raise ValueError(
                f"epoch_samples: the last step of an epoch has {rest} samples for {self.ranks} ranks, so that some "
                "would have none; valid: another number, or last_batch 'drop' or 'pad'"
            )

    def _check_data(self) -> None:
        if self.data is not None and self.device_family == "sim":
            raise ValueError("data: a simulated job reads none; valid: none, with the workload sim")
        if self.data is not None and self.loader.place != "host":
            raise ValueError("loader.place: real data is read on the host; valid: host")
        if self.data is not None and self.mode in ("generate", "ceiling"):
            raise ValueError(f"data: the mode {self.mode!r} makes its own input; valid: none")
        if self.mode == "load" and self.loader.place != "host":
            raise ValueError("loader.place: the input pipeline is measured on the host; valid: host")
        if self.quality is not None and (self.mode != "train" or self.data is None or self.budget.epochs is None):
            raise ValueError(
                "quality: it is measured when a model trains on real data for a number of epochs; "
                "valid: mode 'train' with data and budget.epochs"
            )
        if self.quality is not None and (self.budget.epochs or 0) // self.quality.every_epochs > MAX_EVALUATIONS:
            raise ValueError(
                f"quality.every_epochs: {self.budget.epochs} epochs would be evaluated too often; "
                f"valid: at most {MAX_EVALUATIONS} evaluations"
            )

    @property
    def device_family(self) -> str:
        """The registered device that runs this: `auto` is decided by the workload alone."""
        return "sim" if self.device == "auto" and self.workload == "sim" else self.device

    @property
    def processes(self) -> int:
        """Processes of the job: one a rank, but all simulated ranks live in one."""
        return 1 if self.device_family == "sim" else self.ranks

    @property
    def step_samples(self) -> int:
        """Samples the whole job takes in one full step."""
        return self.batch * self.accumulation * self.ranks

    @property
    def steps_per_epoch(self) -> int | None:
        """Steps of one epoch; None when the data never ends."""
        if self.epoch_samples is None:
            return None
        whole, rest = divmod(self.epoch_samples, self.step_samples)
        return whole + (1 if rest and self.last_batch != "drop" else 0)
