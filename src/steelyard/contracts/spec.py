"""RunSpec: the settings of one run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, NamedTuple

from steelyard.contracts.base import AtLeastOne, Bound, Contract, Count, Length, Name, NotNegative, Positive, Text
from steelyard.contracts.sim import SimTruth
from steelyard.contracts.wrap import Program

SCHEMA_VERSION: Final = 1
MAX_EVALUATIONS: Final = 9_000

Mode = Literal["train", "infer", "generate", "load", "ceiling"]
"""train: training; infer: forward passes; generate: prefill and decoding of tokens; load: the input pipeline without
the model; ceiling: what the device reaches without a model, such as matrix products or collectives."""
SIMULATED_MODES: Final = ("train", "infer")
LastBatch = Literal["drop", "pad", "keep"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
CompileMode = Literal["off", "default", "reduce-overhead", "max-autotune"]
Parallel = Literal["ddp", "fsdp2", "pipeline", "independent"]
"""ddp: every rank has the whole model, gradients are averaged; fsdp2: the parameters are sharded; pipeline: every rank
has some of the layers, and all samples pass through all ranks; independent: every rank trains its own model and
exchanges nothing, as separate jobs on one node would."""
KvCache = Literal["dynamic", "static"]
DataPlace = Literal["device", "host"]
Preset = Literal["plain", "tuned"]
OptimizerKernel = Literal["default", "foreach", "fused"]
Attention = Literal["auto", "flash", "efficient", "math"]


class Tuning(NamedTuple):
    """Settings that change how fast a step is computed, but not what is computed."""

    cudnn_benchmark: bool
    optimizer_kernel: OptimizerKernel
    gradient_as_bucket_view: bool


PRESETS: Final[dict[Preset, Tuning]] = {
    "plain": Tuning(cudnn_benchmark=False, optimizer_kernel="default", gradient_as_bucket_view=False),
    "tuned": Tuning(cudnn_benchmark=True, optimizer_kernel="fused", gradient_as_bucket_view=True),
}


def count_replicas(parallel: Parallel, devices: int) -> int:
    """Return how many devices have samples of their own: in a pipeline all work on the same ones."""
    return 1 if parallel == "pipeline" else devices


@dataclass(frozen=True, kw_only=True)
class Budget(Contract):
    """When a run stops: all minima are reached, or any maximum."""

    min_steps: AtLeastOne = 1000
    """Measured steps, after warm-up. Below 900 the confidence interval is only approximate."""
    min_seconds: NotNegative = 5.0
    """Measured seconds."""
    rel_half_width: Positive = 0.01
    """Target half-width of the 95 % CI of the mean step time, relative to the mean."""
    max_steps: AtLeastOne = 20_000
    """Stop after this many steps."""
    max_seconds: Positive = 240.0
    """Stop measuring after this many seconds."""
    max_extension: Annotated[float, Bound(ge=1, le=100)] = 2.0
    """Measure for up to this many times `max_seconds` if it is too short to judge the steady state; 1: never."""
    epochs: AtLeastOne | None = None
    """Run exactly this many epochs instead; needs `epoch_samples` or `data`."""

    @property
    def longest_s(self) -> float:
        """The most seconds that a run measures, unless it runs for a number of epochs."""
        return self.max_seconds * self.max_extension


@dataclass(frozen=True, kw_only=True)
class Loader(Contract):
    """Where batches come from and how they reach the device."""

    place: DataPlace = "device"
    """device: synthetic data, made once on the device; host: made or read on the host and copied for every step."""
    workers: Annotated[int, Bound(ge=0, le=1024)] = 0
    """Loader processes per rank; 0: the training process loads its own batches."""
    prefetch: Annotated[int, Bound(ge=1, le=1000)] = 2
    """Batches that each loader process keeps ready."""
    pin_memory: bool | None = None
    """Use pinned host memory; None: on an accelerator."""

    def __post_init__(self) -> None:
        if self.place == "device" and (self.workers or self.pin_memory):
            raise ValueError(
                "place: data made on the device uses no loader processes and no pinned memory; valid: host"
            )


@dataclass(frozen=True, kw_only=True)
class Data(Contract):
    """A data set on disk. Runs do not download data; `steelyard data` describes the formats."""

    format: Name
    """Data format, such as cifar100 or coco."""
    path: Text
    """Absolute path of the folder."""


@dataclass(frozen=True, kw_only=True)
class Quality(Contract):
    """Evaluation on the data's evaluation split, between training steps."""

    target: float | None = None
    """Train until the workload's metric reaches this value, for at most `budget.epochs`; None: train all epochs."""
    every_epochs: AtLeastOne = 1
    """Epochs between evaluations. The last epoch is always evaluated."""
    samples: AtLeastOne | None = None
    """Evaluate on at most this many samples."""


@dataclass(frozen=True, kw_only=True)
class Energy(Contract):
    """Energy measurement. Without a readable sensor the run continues, and the record gives the reason."""

    watch: bool = True
    """Read the power and energy sensors; False: do not look for any."""
    period_s: Annotated[float, Bound(ge=0.01, le=60)] = 0.1
    """Seconds between two readings of a sensor."""
    idle_s: Annotated[float, Bound(ge=0, le=600)] = 0.0
    """Seconds to read the sensors before the device is used, at least, for the idle baseline."""
    random_phase: bool = False
    """Read at random times inside each period, for sensors that measure only part of the time."""


@dataclass(frozen=True, kw_only=True)
class Source(Contract):
    """A function of a user's file that builds the model."""

    path: Text
    """Absolute path of the file."""
    function: Annotated[str, Length(80, r"^[A-Za-z_][A-Za-z0-9_]*$")]
    """Name of the function."""
    sha256: Annotated[str, Length(64, r"^[0-9a-f]{64}$")]
    """Checksum of the file when the run was planned; a changed file is refused."""


@dataclass(frozen=True, kw_only=True)
class RunSpec(Contract):
    """One run: one fresh launch of one workload with one set of settings."""

    schema_version: Literal[1] = SCHEMA_VERSION
    run_id: Name
    study: Name = "adhoc"
    study_arguments: Annotated[tuple[Text, ...], Length(20)] = ()
    """The command of the study after `steelyard`: `study` or `suite`, then what names its file, part and site; empty: a
    run of another command.

    One empty word: a study whose file is elsewhere, and is not named because its path may be private.
    """
    most_devices: Annotated[int, Bound(ge=1, le=65_536)] | None = None
    """Devices of the largest run of the study; None: this one is."""
    configuration: Name
    """Name of the settings. Runs of one configuration are repeats of each other."""
    repeat: Count = 0
    seed: Annotated[int, Bound(ge=0, lt=2**63)] = 0
    workload: Name = "sim"
    """Workload to measure (steelyard workloads), or FILE.py:FUNCTION."""
    mode: Mode = "train"
    """train, infer, generate (tokens), load (the input pipeline alone) or ceiling."""
    source: Source | None = None
    """The user's own workload; `workload` is then only its name."""
    model: Annotated[dict[str, bool | int | float | Text], Length(50)] = field(default_factory=dict)
    """Options of the workload's model, such as size."""
    device: Name = "auto"
    """Device family, such as cuda or cpu; auto: the accelerator of this machine, or else the CPU; sim: simulated, with
    the times of `sim` for any workload."""
    devices: Annotated[int, Bound(ge=1, le=65_536)] = 1
    """Devices of the job. Each has a process of its own, a rank."""
    batch: Annotated[int, Bound(ge=1, le=10**9)] = 32
    """Samples per micro-batch and device."""
    accumulation: Annotated[int, Bound(ge=1, le=10**6)] = 1
    """Micro-batches per optimizer step; training only."""
    learning_rate: Positive | None = None
    """Learning rate; None: the workload's own, which is small because most runs train on random labels."""
    precision: Precision = "fp32"
    """fp32, tf32 (fp32 with TF32 matrix units), bf16 or fp16. Training autocasts to the latter two (fp16 with a
    gradient scaler); inference and generation cast the weights once, before the first step."""
    autocast: bool = False
    """Autocast in inference and generation too: the weights stay fp32 and are cast in every step."""
    compile: CompileMode = "off"
    """Mode of torch.compile."""
    kv_cache: KvCache = "dynamic"
    """Keys and values of earlier tokens in generation: dynamic (they grow, as in a plain script) or static (memory of
    fixed size)."""
    graphs: bool = False
    """Record the decode of a token once as a graph of the device and replay it for every token; needs a static
    `kv_cache`."""
    channels_last: bool = False
    """Use the channels-last memory format."""
    parallel: Parallel = "ddp"
    """How several ranks train: ddp, fsdp2 (sharded), pipeline (each rank has some of the layers; `accumulation` is the
    number of micro-batches), or independent (a model per rank, without gradient exchange). Inference always runs
    independent replicas."""
    backend: Name | None = None
    """Backend of the collectives, such as nccl; None: the device family's own."""
    deterministic: bool = False
    """Use only deterministic algorithms."""
    threads: Annotated[int, Bound(ge=1, le=4096)] | None = None
    """CPU threads per rank; None: OMP_NUM_THREADS, or else, on CPUs, the usable cores of a node divided by the most
    ranks that a run of the study has there; on accelerators, by the accelerators of the node."""
    numa: bool | None = None
    """Bind each rank to the CPUs near its device; None: on an accelerator, if the node has several NUMA nodes and the
    one of the device is known."""
    preset: Preset = "plain"
    """Value of the tuning settings that are not set. plain: torch's own defaults; tuned: what an expert would switch on
    without changing what is computed."""
    cudnn_benchmark: bool | None = None
    """Let cuDNN time its algorithms for each shape and choose the fastest; None: as in the preset."""
    optimizer_kernel: OptimizerKernel | None = None
    """Implementation of the optimizer: torch's default, foreach or fused; None: as in the preset."""
    gradient_as_bucket_view: bool | None = None
    """Keep gradients in the buckets that DDP sends, which saves a copy; None: as in the preset."""
    attention: Attention = "auto"
    """Kernel of scaled_dot_product_attention; auto: torch chooses."""
    loader: Loader = field(default_factory=Loader)
    """Input pipeline."""
    data: Data | None = None
    """Data set; None: synthetic data."""
    weights: Text | None = None
    """File in the format safetensors with the weights that the model begins with; None: random ones."""
    quality: Quality | None = None
    """Evaluation; None: only speed is measured."""
    epoch_samples: AtLeastOne | None = None
    """Samples per epoch of the whole job; None: the whole data set, or no end with synthetic data."""
    last_batch: LastBatch = "drop"
    """Last partial batch of an epoch: drop it, pad it (only real samples count) or keep it small."""
    crosscheck_steps: Annotated[int, Bound(ge=0, le=10_000)] = 32
    """Steps of the second pass, which synchronises after each step; fewer if they would take long, and
    none if they would take longer than a run that is too short to be judged."""
    time_limit_s: Positive | None = None
    """End the run after this many seconds of wall time."""
    hang_limit_s: Positive = 300.0
    """End the run if a rank finishes no block of steps for this many seconds; the first step and compilation do not
    count."""
    budget: Budget = field(default_factory=Budget)
    """When the run stops."""
    energy: Energy = field(default_factory=Energy)
    """Energy measurement."""
    program: Program | None = None
    """A command to measure instead of a workload; `workload` is then only its name."""
    sim: SimTruth = field(default_factory=SimTruth)
    """The simulated accelerator, for the device sim."""

    def __post_init__(self) -> None:
        self._check_simulated()
        if self.deterministic and self.cudnn_benchmark:
            raise ValueError(
                "cudnn_benchmark: the chosen algorithm may change from run to run, but deterministic is set; "
                "valid: leave out one of cudnn_benchmark and deterministic"
            )
        if self.mode != "train" and self.accumulation != 1:
            raise ValueError("accumulation: only training accumulates gradients; valid: 1")
        self._check_generation()
        self._check_data()
        if self.weights is not None and (self.mode in ("load", "ceiling") or self.device_family == "sim"):
            what = "the simulated device" if self.device_family == "sim" else f"the mode {self.mode}"
            raise ValueError(f"weights: {what} has no model; valid: leave it out")
        if self.weights is not None and self.program is not None:
            raise ValueError("weights: a program loads its own; valid: leave it out")
        self._check_pipeline()
        if self.budget.epochs is not None and self.epoch_samples is None and self.data is None:
            raise ValueError("epoch_samples: missing, but budget.epochs needs it; valid: an integer of at least 1")
        if self.last_batch == "drop" and self.epoch_samples is not None and self.epoch_samples < self.step_samples:
            raise ValueError(
                f"epoch_samples: {self.epoch_samples} are less than one step ({self.step_samples} samples), and the "
                f"last partial batch is dropped; valid: at least {self.step_samples}, or last_batch 'pad' or 'keep'"
            )

        if self.parallel == "fsdp2" and self.last_batch == "keep" and self.accumulation > 1:
            raise ValueError(
                "last_batch: sharded ranks need the same number of micro-batches, which a small last step does not "
                "give them; valid: drop or pad"
            )
        if self.parallel == "independent" and self.quality is not None and self.devices > 1:
            raise ValueError(
                "quality: independent ranks train several models, but a run has one quality; "
                "valid: devices = 1, or another value of parallel"
            )
        rest = self.epoch_samples % self.step_samples if self.epoch_samples is not None else 0
        if self.last_batch == "keep" and 0 < rest < self.devices:
            raise ValueError(
                f"epoch_samples: the last step of an epoch has {rest} samples for {self.devices} devices; "
                "valid: another number, or last_batch 'drop' or 'pad'"
            )

    def _check_simulated(self) -> None:
        if self.program is not None:
            if self.device == "sim":
                raise ValueError("device: a program does not run on the simulated device; valid: auto or a real one")
            return
        if self.device_family != "sim":
            if self.workload == "sim":
                raise ValueError(f"device: {self.device} does not run the workload sim; valid: sim or auto")
            return
        if self.mode not in SIMULATED_MODES:
            raise ValueError(
                f"mode: the simulated device does not run the mode {self.mode}; "
                f"valid: {' or '.join(SIMULATED_MODES)}, or another device"
            )
        if self.data is not None:
            raise ValueError("data: the simulated device reads no data; valid: leave it out, or another device")

    def _check_generation(self) -> None:
        if self.autocast and self.mode == "train":
            raise ValueError("autocast: training in bf16 or fp16 autocasts anyway; valid: leave it out")
        if self.kv_cache != "dynamic" and self.mode != "generate":
            raise ValueError(f"kv_cache: the mode {self.mode} generates no tokens; valid: leave it out")
        if self.kv_cache == "static" and self.autocast:
            raise ValueError(
                "autocast: a static cache has one number format; valid: leave it out with kv_cache 'static'"
            )
        if self.graphs and self.kv_cache != "static":
            raise ValueError("kv_cache: a graph needs memory of fixed size; valid: static, if graphs is set")

    def _check_pipeline(self) -> None:
        if self.parallel != "pipeline":
            return
        if self.mode != "train":
            raise ValueError(f"parallel: a pipeline only trains, and mode is {self.mode}; valid: leave it out")
        if self.accumulation < self.devices:
            raise ValueError(
                f"accumulation: a pipeline of {self.devices} devices needs as many micro-batches; "
                f"valid: at least {self.devices}"
            )
        if self.precision == "fp16":
            raise ValueError("precision: the gradient scaler of fp16 does not support a pipeline; valid: bf16 or fp32")
        if self.compile != "off":
            raise ValueError("compile: the stages of a pipeline are not compiled; valid: off")
        if self.last_batch == "keep":
            raise ValueError("last_batch: a pipeline needs micro-batches of one size; valid: drop or pad")
        if self.quality is not None:
            raise ValueError(
                "quality: no rank of a pipeline has the whole model to evaluate; valid: another value of parallel"
            )

    def _check_data(self) -> None:
        if self.data is not None and self.loader.place != "host":
            raise ValueError("loader.place: real data is read on the host; valid: host")
        if self.data is not None and self.mode in ("generate", "ceiling"):
            raise ValueError(f"data: the mode {self.mode} makes its own input; valid: leave it out")
        if self.mode == "load" and self.loader.place != "host":
            raise ValueError("loader.place: the input pipeline is measured on the host; valid: host")
        if self.quality is not None and (self.mode != "train" or self.data is None or self.budget.epochs is None):
            raise ValueError(
                "quality: needs training on real data for a number of epochs; "
                "valid: --data FORMAT:PATH with --epochs N; in a study, data with budget.epochs"
            )
        if self.quality is not None and (self.budget.epochs or 0) // self.quality.every_epochs > MAX_EVALUATIONS:
            raise ValueError(
                f"quality.every_epochs: too many evaluations in {self.budget.epochs} epochs; "
                f"valid: at most {MAX_EVALUATIONS} evaluations"
            )

    @property
    def device_family(self) -> str:
        """The device family, with `auto` resolved for the workload sim."""
        simulated = self.workload == "sim" and self.program is None
        return "sim" if self.device == "auto" and simulated else self.device

    @property
    def processes(self) -> int:
        """Processes of the job: one per rank, but one for all simulated ranks, and one that starts a program."""
        return 1 if self.device_family == "sim" or self.program is not None else self.devices

    @property
    def exchanges_gradients(self) -> bool:
        """Whether the ranks train one model together."""
        return self.mode == "train" and self.devices > 1 and self.parallel != "independent"

    @property
    def tuning(self) -> Tuning:
        """The tuning settings: those that are set, and the preset's values for the others."""
        chosen = PRESETS[self.preset]
        if self.deterministic:
            chosen = chosen._replace(cudnn_benchmark=False)
        return chosen._replace(**{name: value for name in chosen._fields if (value := getattr(self, name)) is not None})

    @property
    def replicas(self) -> int:
        """Devices that have samples of their own; the others of a pipeline work on the same ones."""
        return count_replicas(self.parallel, self.devices)

    @property
    def step_samples(self) -> int:
        """Samples per full step of the whole job."""
        return self.batch * self.accumulation * self.replicas

    @property
    def steps_per_epoch(self) -> int | None:
        """Steps per epoch; None when the data has no end."""
        if self.epoch_samples is None:
            return None
        whole, rest = divmod(self.epoch_samples, self.step_samples)
        return whole + (1 if rest and self.last_batch != "drop" else 0)
