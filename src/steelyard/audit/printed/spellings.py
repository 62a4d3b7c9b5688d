"""What headings, units and cells are called in print. Data only: to teach a spelling, add it here.

A phrase is a heading in lower case without its unit, precision, scope ("per GPU") and percentile.
"""

from __future__ import annotations

METRICS: dict[str, tuple[str, ...]] = {
    "throughput": (
        "throughput", "avg throughput", "average throughput", "mean throughput", "throughput avg",
        "throughput average", "training throughput", "train throughput", "inference throughput", "total throughput",
        "overall throughput", "training speed", "performance", "training performance", "inference performance",
        "throughput performance", "tput", "global throughput", "system throughput", "aggregate throughput",
        "processing rate", "training rate", "rate", "inference speed", "speed", "throughput total", "avg tput",
        "measured throughput", "tokens throughput", "token throughput", "total token throughput", "sample throughput",
        "image throughput", "request throughput", "sequence throughput", "average training throughput",
        "avg training throughput",
    ),
    "train_time": (
        "time to train", "training time", "train time", "time to solution", "total training time",
        "time to convergence", "total train time", "time to accuracy", "convergence time", "wall time", "walltime",
        "wall clock time", "estimated walltime", "wall clock", "total time", "time to target", "training duration",
        "end to end time", "time to train to accuracy", "e2e training time", "run time", "runtime", "duration",
        "elapsed time", "total training hours", "training hours", "time total", "time to target accuracy", "e2e time",
    ),
    "epoch_time": (
        "time per epoch", "epoch time", "time / epoch", "avg epoch time", "average epoch time",
        "training time per epoch", "seconds per epoch", "average time per epoch", "avg time per epoch", "time epoch",
        "mean epoch time", "per epoch time",
    ),
    "step_time": (
        "step time", "time per step", "iteration time", "time per iteration", "iter time", "time / step",
        "time / iter", "average step time", "avg step time", "train step time", "training step time", "batch time",
        "time per batch", "time per iter", "iteration latency", "step latency", "time / iteration",
        "train time per step", "mean step time", "elapsed time per iteration", "time step", "seconds per step",
        "time per training step",
    ),
    "latency": (
        "latency", "inference latency", "end to end latency", "e2e latency", "response time", "request latency",
        "inference time", "latency per batch", "batch latency", "e2el",
    ),
    "ttft": ("ttft", "time to first token", "first token latency", "time to first token ttft", "prefill latency"),
    "time_per_token": (
        "tpot", "time per output token", "inter token latency", "itl", "time per token", "latency per token",
        "time per output token tpot", "inter token latency itl", "per token latency", "token latency",
    ),
    "speedup": (
        "speedup", "throughput speedup", "scaling", "weak scaling", "strong scaling", "scaling factor",
        "training speedup", "relative speedup", "multi gpu weak scaling", "multi gpu strong scaling",
        "multi gpu scaling", "speedup factor", "relative throughput", "relative performance", "speedup throughput",
        "throughput scaling", "performance scaling", "speedup ratio", "acceleration", "multi gpu speedup",
        "weak scaling throughput", "gain", "avg speedup",
    ),
    "time_speedup": (
        "time to train speedup", "training time speedup", "speedup time to train", "latency speedup",
        "avg latency speedup", "train time speedup", "speedup latency", "time to train scaling",
    ),
    "efficiency": (
        "scaling efficiency", "efficiency", "parallel efficiency", "weak scaling efficiency",
        "strong scaling efficiency", "efficiency scaling", "scale efficiency", "relative efficiency",
    ),
    "mfu": ("mfu", "model flops utilization", "model flops utilisation", "model flop utilization", "model flops util"),
    "hfu": ("hfu", "hardware flops utilization", "hardware flops utilisation", "hardware flop utilization"),
    "flops_per_second": (
        "flops", "flop/s", "achieved flops", "model flops", "aggregate flops", "compute throughput", "training flops",
        "flops throughput", "achieved", "sustained flops", "total flops", "achieved throughput flops",
        "hardware flops", "sustained performance", "compute performance",
    ),
    "power": (
        "power", "average power", "avg power", "mean power", "power draw", "power consumption", "total power",
        "gpu power", "average power draw", "avg power draw", "average power consumption", "node power", "board power",
    ),
    "energy": (
        "energy", "total energy", "energy consumption", "energy consumed", "energy to train", "training energy",
        "energy to solution", "energy used", "total energy consumption", "energy usage",
    ),
    "energy_per_epoch": ("energy per epoch", "epoch energy", "energy / epoch"),
    "items_per_energy": (
        "energy efficiency", "throughput per watt", "performance per watt", "perf per watt", "perf / watt",
        "perf/watt", "throughput / watt", "power efficiency", "throughput per w", "perf/w", "perf / w",
    ),
    "memory": (
        "memory", "gpu memory", "peak memory", "peak gpu memory", "memory usage", "peak memory usage", "max memory",
        "vram", "memory footprint", "peak vram", "gpu mem", "peak gpu mem", "mem", "max memory allocated",
        "memory consumption", "gpu memory usage", "max gpu memory", "peak mem", "device memory", "vram usage",
        "training memory", "max memory used", "peak active memory", "memory allocated", "max mem", "memory used",
    ),
    "parameters": (
        "parameters", "params", "num params", "number of parameters", "parameter count", "model parameters",
        "num parameters", "total parameters", "trainable parameters",
    ),
    "cost": ("cost", "training cost", "total cost", "cost to train", "price", "estimated cost", "on demand cost"),
    "cost_per_hour": ("cost per hour", "hourly cost", "price per hour", "hourly price", "on demand price"),
    "cost_per_item": ("cost per token", "price per token", "cost per million tokens", "cost per 1m tokens"),
    "accuracy": (
        "accuracy", "top1", "top 1", "top1 accuracy", "top 1 accuracy", "acc", "top1 acc", "top 1 acc",
        "val accuracy", "validation accuracy", "test accuracy", "acc@1", "top1 acc.", "final accuracy",
        "accuracy top1", "accuracy top 1",
    ),
    "accuracy_top5": ("top5", "top 5", "top5 accuracy", "top 5 accuracy", "acc@5"),
    "loss": ("loss", "final loss", "training loss", "train loss", "val loss", "validation loss", "final training loss"),
    "perplexity": ("perplexity", "ppl", "average perplexity", "validation perplexity", "accuracy perplexity"),
    "f1": ("f1", "f1 score", "accuracy / f1"),
    "bleu": ("bleu", "bleu score", "accuracy bleu", "sacrebleu"),
    "map": ("map", "bbox map", "box map", "mask map", "box ap", "mask ap", "segm map", "ap", "map 50 95"),
}  # fmt: skip

SETTINGS: dict[str, tuple[str, ...]] = {
    "devices": (
        "gpus", "# gpus", "#gpus", "num gpus", "number of gpus", "n gpus", "gpu count", "no. of gpus", "no. gpus",
        "ngpus", "devices", "# devices", "#devices", "num devices", "number of devices", "device count",
        "accelerators", "gpu(s)", "# accelerators", "number of accelerators", "num accelerators", "chips", "# chips",
        "num chips", "number of chips", "gpus used", "total gpus", "tpus", "# tpus", "ipus", "# ipus",
        "number of ipus", "gcds", "# gcds", "number of gcds", "world size", "hpus", "npus", "# npus", "# hpus",
        "num hpus", "#accelerators", "#chips", "gpu num", "gpu number", "# of gpus", "gpus #", "number of gpu",
        "num gpu", "# gpu", "#gpu", "# of devices", "cards", "# cards", "xpus", "ddp gpus", "tpu chips",
        "total devices", "gpus total", "numgpus",
    ),
    "nodes": (
        "nodes", "# nodes", "#nodes", "num nodes", "number of nodes", "node count", "no. of nodes", "n nodes",
        "nnodes", "hosts", "# hosts", "# of nodes", "num of nodes", "compute nodes", "number of hosts", "servers",
        "total nodes",
    ),
    "global_batch": (
        "global batch", "global batch size", "gbs", "effective batch size", "total batch size", "global bs",
        "total batch", "effective batch", "overall batch size", "effective global batch size", "global batchsize",
        "global_batch_size", "aggregate batch size", "total train batch size", "effective bs", "batch size global",
        "batch size total",
    ),
    "batch": (
        "local batch size", "micro batch size", "microbatch size", "micro batch", "mbs", "microbatch", "local batch",
        "local bs", "per device train batch size", "device batch size", "per device batch size", "per gpu batch size",
        "per gpu batch", "per device batch", "batch size per gpu", "micro bs", "local batchsize",
    ),
    "any_batch": (
        "batch size", "batch", "bs", "batchsize", "training batch size", "train batch size", "batch sz",
        "mini batch size", "minibatch size", "mini batch", "minibatch", "client batch size", "inference batch size",
    ),
    "accumulation": (
        "accumulation steps", "grad accumulation", "gradient accumulation", "gradient accumulation steps",
        "grad accum", "ga", "grad accumulation steps", "gradaccum", "accum steps", "gas", "accumulation", "grad acc",
        "gradient accum", "grad accum steps", "acc steps", "gradient acc steps",
    ),
    "sequence_length": (
        "sequence length", "seq len", "seq length", "seqlen", "max sequence length", "max seq len", "context length",
        "sequence len", "seq. length", "seq. len", "max seq length", "seq", "context", "sl", "context size",
        "sequence size", "seq. len.", "maximum sequence length",
    ),
    "precision": (
        "precision", "dtype", "data type", "datatype", "numerics", "numerical precision", "training precision",
        "number format", "compute precision", "math", "compute dtype", "data format", "train precision",
        "precision mode",
    ),
    "model": (
        "model", "network", "arch", "architecture", "model name", "backbone", "models", "model architecture",
        "networks", "model size", "size", "model type", "model variant",
    ),
    "system": (
        "system", "platform", "machine", "server", "cluster", "dgx system", "instance", "instance type",
        "system name", "node type", "machine type", "systems", "supercomputer", "vm type", "vm", "server type",
        "training system",
    ),
    "accelerator": (
        "accelerator", "device", "hardware", "gpu type", "gpu model", "processor", "gpu name", "gpu",
        "accelerator type", "device type", "device name", "chip", "accelerator name", "hw", "gpu architecture",
        "card",
    ),
    "dataset": ("dataset", "data set", "training data", "data", "corpus"),
    "framework": ("framework", "software", "library", "frameworks", "framework version", "ml framework"),
    "container": ("container",),
    "parallel": (
        "parallelism", "sharding strategy", "parallel strategy", "mp mode", "distribution strategy",
    ),
    "optimizer": ("optimizer", "optimiser"),
    "epochs": ("epochs", "# epochs", "number of epochs", "num epochs", "training epochs"),
    "learning_rate": ("learning rate", "lr"),
    "task": ("task", "benchmark", "workload", "tasks"),
    "mode": ("phase",),
    "loader.workers": ("workers per gpu", "workers per device"),
    "compile": ("compile", "torch compile", "torch.compile", "compiler"),
    "options": (
        "method", "configuration", "config", "setup", "variant", "algorithm", "mode", "name", "approach", "technique",
        "optimization", "optimizations", "xla", "amp", "training method", "implementation", "scenario", "methods",
        "type", "techniques", "settings", "setting", "experiment", "strategy", "backend", "kernel", "attention",
        "flash attention", "description", "category", "run", "case", "resolution", "image size", "input size",
        "concurrency", "input shape", "beam size", "dispatcher", "recompute", "activation checkpointing", "ac",
        "operating mode", "inference runtime", "concurrent requests", "request rate", "# concurrent requests",
        "concurrent client requests", "input length", "output length", "memory length", "isl", "osl", "date",
        "version", "model options", "tp", "pp", "dp", "cp", "ep", "fsdp", "tp size", "pp size", "dp size",
        "tensor parallel", "pipeline parallel", "data parallel", "tensor parallelism", "pipeline parallelism",
        "data parallelism", "tensor parallel size", "pipeline parallel size",
    ),
}  # fmt: skip

MODEL_PARALLEL = frozenset(
    {
        "tp",
        "pp",
        "cp",
        "tp size",
        "pp size",
        "tensor parallel",
        "pipeline parallel",
        "tensor parallelism",
        "pipeline parallelism",
        "tensor parallel size",
        "pipeline parallel size",
    }
)
"""Columns that say that one copy of a model takes several devices; its batch is then not that of a device."""

PRECISIONS: dict[str, str] = {
    "mixed precision": "mixed", "mixed-precision": "mixed", "automatic mixed precision": "mixed", "mixed": "mixed",
    "amp": "mixed", "fp32": "fp32", "float32": "fp32", "single precision": "fp32", "tf32": "tf32", "fp16": "fp16",
    "float16": "fp16", "half precision": "fp16", "bf16": "bf16", "bfloat16": "bf16", "fp8": "fp8", "int8": "int8",
    "fp64": "fp64", "float64": "fp64", "double precision": "fp64", "fp4": "fp4", "nvfp4": "nvfp4", "mxfp8": "mxfp8",
    "int4": "int4", "mxfp4": "mxfp4", "f32": "fp32", "f16": "fp16", "fp 32": "fp32", "fp 16": "fp16",
}  # fmt: skip

ITEMS: dict[str, str] = {
    **dict.fromkeys(("image", "images", "img", "imgs", "im", "ims", "pictures", "frame", "frames"), "images"),
    **dict.fromkeys(("sample", "samples", "example", "examples", "ex", "smp"), "samples"),
    **dict.fromkeys(("sequence", "sequences", "seq", "seqs", "sentence", "sentences", "sent", "sents"), "sequences"),
    **dict.fromkeys(("token", "tokens", "tok", "toks"), "tokens"),
    **dict.fromkeys(("item", "items", "inference", "inferences", "infer", "inf", "it.s"), "items"),
    **dict.fromkeys(("step", "steps", "iter", "iters", "iteration", "iterations", "it", "its", "batches"), "steps"),
    **dict.fromkeys(("epoch", "epochs"), "epochs"),
    **dict.fromkeys(("request", "requests", "req", "reqs", "query", "queries"), "requests"),
}
TIMES: dict[str, str] = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds", "sec.", "secs."), "s"),
    **dict.fromkeys(("ms", "msec", "msecs", "millisecond", "milliseconds", "msec."), "ms"),
    **dict.fromkeys(("us", "µs", "μs", "usec", "microsecond", "microseconds"), "us"),
    **dict.fromkeys(("min", "mins", "minute", "minutes", "min."), "min"),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours", "hr.", "hrs."), "h"),
    **dict.fromkeys(("d", "day", "days"), "d"),
}
ENERGIES: dict[str, str] = {
    "J": "J",
    "kJ": "kJ",
    "MJ": "MJ",
    "Wh": "Wh",
    "kWh": "kWh",
    "MWh": "MWh",
    "joule": "J",
    "joules": "J",
    "Joule": "J",
    "Joules": "J",
    "KWh": "kWh",
    "kwh": "kWh",
    "KJ": "kJ",
    "kW h": "kWh",
}
POWERS: dict[str, str] = {
    "W": "W",
    "kW": "kW",
    "mW": "mW",
    "MW": "MW",
    "KW": "kW",
    "Watt": "W",
    "Watts": "W",
    "watt": "W",
    "watts": "W",
}
MEMORIES: dict[str, str] = {
    "kB": "kB",
    "KB": "kB",
    "MB": "MB",
    "GB": "GB",
    "TB": "TB",
    "PB": "PB",
    "mb": "MB",
    "gb": "GB",
    "tb": "TB",
    "KiB": "KiB",
    "MiB": "MiB",
    "GiB": "GiB",
    "TiB": "TiB",
}
MONEY: dict[str, str] = {
    "$": "$",
    "USD": "$",
    "US$": "$",
    "dollars": "$",
    "usd": "$",
    "€": "EUR",
    "EUR": "EUR",
    "£": "GBP",
    "GBP": "GBP",
    "CHF": "CHF",
}
CLOCKS: dict[str, str] = {
    **dict.fromkeys(("h:mm:ss", "hh:mm:ss", "h:m:s", "hrs:mins:secs", "hr:min:sec"), "h:mm:ss"),
    **dict.fromkeys(("h:mm", "hh:mm", "h:m", "hr:min", "hours:minutes"), "h:mm"),
    **dict.fromkeys(("mm:ss", "m:ss", "min:sec", "m:s", "minutes:seconds"), "mm:ss"),
}
RATES: dict[str, tuple[str, str]] = {
    "fps": ("images/s", "frames per second"),
    "tps": ("tokens/s", "tokens per second"),
    "qps": ("requests/s", "queries per second"),
    "rps": ("requests/s", "requests per second"),
}
"""Short names of rates: the unit, and what the letters were taken to mean."""

DEVICE_WORDS = frozenset(
    {
        "gpu",
        "gpus",
        "device",
        "devices",
        "accelerator",
        "chip",
        "chips",
        "gcd",
        "tpu",
        "ipu",
        "hpu",
        "npu",
        "card",
        "accelerators",
    }
)
NODE_WORDS = frozenset({"node", "nodes", "host", "server", "system"})
EMPTY = frozenset(
    {
        "", "-", "--", "---", "–", "—", "−", "n/a", "na", "n.a.", "n.a", "n/r", "nr", "tbd", "none", "null", "nan",
        "?", "...", "…", "/", ".", "not available", "not applicable", "not reported", "unknown", "n.r.",
    }
)  # fmt: skip
FAILED: dict[str, str] = {"oom": "out_of_memory", "out of memory": "out_of_memory", "oom error": "out_of_memory"}
HARMLESS = frozenset(
    {
        "total", "overall", "higher is better", "lower is better", "avg", "avg.", "average", "mean", "training",
        "train", "measured", "estimated", "approx", "approx.", "approximate", "↑", "↓", "global", "job", "per job",
        "aggregate", "all gpus", "est.", "all", "vs baseline", "vs. baseline", "over baseline", "#", "count",
        "number", "end to end", "e2e", "whole job",
    }
)  # fmt: skip
"""Words in parentheses that do not change what a heading means."""
