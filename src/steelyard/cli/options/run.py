"""Measure a workload on this machine.

Runs with the same settings are repeats of each other; three or more give an interval. With --mode load the input
pipeline is measured without the model, for each count of --loader-workers, and compared with the model's own rate: the
answer is which runs would wait for data.

$ steelyard run resnet50 --batch 64 --precision bf16 --repeats 3
$ steelyard run ./my.py:build --data cifar100:my-data --mode load
"""

from steelyard import plugins
from steelyard.cli.arguments import add_choice, add_common, add_setting, add_switch, assignment, counts, whole, within
from steelyard.cli.parser import Parser
from steelyard.contracts.spec import Budget, Loader, Quality, RunSpec

MOST_REPEATS = 10_000
LOAD_WORKERS = (0, 1, 2)
# The rate of a pipeline is known soon.
LOAD_BUDGET = {"min_steps": 50, "max_seconds": 20.0}


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    parser.add_argument(
        "workload",
        metavar="WORKLOAD",
        help="workload to measure (steelyard workloads lists them), or your own function: ./my.py:build",
    )
    _add_job(parser)
    _add_tuning(parser)
    _add_data(parser)
    _add_budget(parser)
    repeats = parser.add_argument_group("repeats")
    repeats.add_argument(
        "--repeats",
        type=within(whole, ge=1, le=MOST_REPEATS),
        default=1,
        metavar="N",
        help="fresh launches; three or more give an interval (default 1)",
    )
    add_setting(repeats, RunSpec, "seed", "random seed")
    add_setting(repeats, RunSpec, "study", "study name to keep the runs under")
    parser.set_defaults(seed=RunSpec.seed, study=RunSpec.study)
    add_common(parser, loudness=True)


def _add_job(parser: Parser) -> None:
    job = parser.add_argument_group("model and device")
    add_setting(job, RunSpec, "mode", "what to measure", default="what the workload is made for")
    job.add_argument(
        "--model",
        action="append",
        default=[],
        type=assignment,
        metavar="KEY=VALUE",
        help="model option, such as size=800M; may be repeated",
    )
    job.add_argument(
        "--weights", metavar="FILE", help="weights to begin with, in the format safetensors (default: random ones)"
    )
    add_setting(job, RunSpec, "device", f"device family: {', '.join(plugins.BUILTIN['device'])}")
    add_setting(job, RunSpec, "devices", "devices of the job; each has a process of its own")
    add_setting(job, RunSpec, "batch", "samples per device and micro-batch")
    add_setting(job, RunSpec, "accumulation", "micro-batches per optimizer step")
    add_setting(job, RunSpec, "learning_rate", "learning rate", default="the workload's own")
    add_setting(job, RunSpec, "precision", "number format")
    add_setting(job, RunSpec, "compile", "torch.compile mode")
    add_setting(job, RunSpec, "parallel", "how several ranks train")
    add_setting(job, RunSpec, "backend", "collectives library, such as nccl or gloo", default="the device family's own")
    add_setting(job, RunSpec, "threads", "CPU threads per rank", default="a share of the cores")
    add_setting(job, RunSpec, "kv_cache", "keys and values of earlier tokens in generation")
    add_switch(job, "graphs", "record the decode of a token once and replay it (CUDA graphs); needs --kv-cache static")
    add_switch(job, "autocast", "inference and generation: keep fp32 weights and cast them in every step")
    add_switch(job, "channels_last", "use the channels-last memory layout")
    add_switch(job, "deterministic", "use only algorithms that give the same bits every time")
    job.add_argument(
        "--set",
        action="append",
        default=[],
        type=assignment,
        metavar="KEY=VALUE",
        dest="assignments",
        help="any other setting, such as sim.step_time_s=0.02 (steelyard explain run-spec lists them); may be repeated",
    )


def _add_tuning(parser: Parser) -> None:
    tuning = parser.add_argument_group("tuning")
    add_setting(
        tuning,
        RunSpec,
        "preset",
        "plain: torch's defaults; tuned: settings for speed; sets the next three unless they are given",
    )
    add_choice(
        tuning, "cudnn_benchmark", "let cuDNN time its algorithms and choose the fastest (default: of the preset)"
    )
    add_setting(tuning, RunSpec, "optimizer_kernel", "implementation of the optimizer", default="of the preset")
    add_choice(
        tuning, "gradient_as_bucket_view", "keep gradients in the buckets that DDP sends (default: of the preset)"
    )
    add_setting(tuning, RunSpec, "attention", "kernel of scaled_dot_product_attention")
    add_choice(
        tuning,
        "numa",
        "bind each rank to the CPUs near its device (default: on accelerators, where the CPUs are known)",
    )


def _add_data(parser: Parser) -> None:
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data",
        metavar="SOURCE",
        help="'device' or 'host' for synthetic data made there, or FORMAT:PATH for real data; steelyard data lists the "
        f"formats (default {Loader.place})",
    )
    add_setting(data, RunSpec, "epoch_samples", "samples per epoch", default="the whole data set")
    add_setting(data, RunSpec, "last_batch", "what to do with a last, partial batch")
    data.add_argument(
        "--loader-workers",
        type=counts,
        metavar="N",
        help=f"loader processes per rank (default {Loader.workers}); with --mode load several counts to try (default "
        f"{','.join(map(str, LOAD_WORKERS))})",
    )
    add_setting(data, Loader, "prefetch", "batches each loader process keeps ready")
    add_choice(data, "pin_memory", "use pinned host memory (default: on accelerators)")


def _add_budget(parser: Parser) -> None:
    budget = parser.add_argument_group("when to stop")
    load = LOAD_BUDGET
    add_setting(
        budget,
        Budget,
        "min_steps",
        "measure at least this many steps",
        default=f"{Budget.min_steps}; {load['min_steps']} with --mode load",
    )
    add_setting(budget, Budget, "min_seconds", "measure for at least this many seconds")
    add_setting(
        budget, Budget, "rel_half_width", "measure until the half-width of the 95 % interval is this share of the mean"
    )
    add_setting(budget, Budget, "max_steps", "stop measuring after this many steps")
    add_setting(
        budget,
        Budget,
        "max_seconds",
        "stop measuring after this many seconds",
        default=f"{Budget.max_seconds:g}; {load['max_seconds']:g} with --mode load",
    )
    add_setting(
        budget,
        Budget,
        "max_extension",
        "measure for up to this many times --max-seconds if it is too short to judge the steady state; 1: never",
    )
    add_setting(budget, Budget, "epochs", "run exactly this many epochs instead")
    add_setting(
        budget, Quality, "target", "train until the workload's metric reaches this value; needs --data and --epochs"
    )
    add_setting(
        budget,
        Quality,
        "every_epochs",
        "epochs between evaluations",
        names=("--evaluate-every",),
    )
    add_setting(budget, RunSpec, "time_limit_s", "end the run after this many seconds of wall time")
    add_setting(budget, RunSpec, "hang_limit_s", "end a run that makes no progress for this many seconds")
