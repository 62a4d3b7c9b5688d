"""Mistakes that people make, as data: what is written, the place that the error must name, and the right spelling.

An empty answer: there is no single right spelling, and naming the place is enough.
"""

from __future__ import annotations

import re

PYTHON = re.compile(
    r"<(?:class|function|module|object)\b|\bobject at 0x|\b(?:Posix)?Path\(|\bnp\.\w+\(|\bdict_\w+\("
    r"|\bNone\b|\{'|\('|\['"
)
"""What a program prints that formats an object as Python does."""
STUDY = 'name = "s"\nrepeats = 2\n[run]\nworkload = "tiny"\n'
SITE = """name = "here"
scheduler = "slurm"
[pools.gpu]
architecture = "x86_64"
devices_per_node = 4
"""
RECIPE = 'name = "node"\njobs = 4\n[expect]\nvalue = 3200.0\n[run]\nworkload = "sim"\n'
SCRIPT = "from other import taken as train\n\ndef build(hidden=3, layers=2):\n    return None\n\nBuild = make = build\n"

Case = tuple[str, str, str]

# Appended to STUDY, in its table [run] unless another one begins.
IN_STUDY: tuple[Case, ...] = (
    ("bacth = 8", "study.toml:5: run.bacth", "did you mean batch?"),
    ("batchs = 8", "run.batchs", "did you mean batch?"),
    ("Batch = 8", "run.Batch", "did you mean batch?"),
    ("precison = 'bf16'", "run.precison", "did you mean precision?"),
    ("percision = 'bf16'", "run.percision", "did you mean precision?"),
    ("devcie = 'cpu'", "run.devcie", "did you mean device?"),
    ("rank = 2", "run.rank", "did you mean devices?"),
    ("learning-rate = 0.1", "run.learning-rate", "did you mean learning_rate?"),
    ("learnig_rate = 0.1", "run.learnig_rate", "did you mean learning_rate?"),
    ("acumulation = 2", "run.acumulation", "did you mean accumulation?"),
    ("chanels_last = true", "run.chanels_last", "did you mean channels_last?"),
    ("time_limit = 60", "run.time_limit", "did you mean time_limit_s?"),
    ("hang_limit = 60", "run.hang_limit", "did you mean hang_limit_s?"),
    ("epoch_sample = 60", "run.epoch_sample", "did you mean epoch_samples?"),
    ("deterministc = true", "run.deterministc", "did you mean deterministic?"),
    ("parralel = 'ddp'", "run.parralel", "did you mean parallel?"),
    ("lastbatch = 'pad'", "run.lastbatch", "did you mean last_batch?"),
    ("wrokload = 'sim'", "run.wrokload", "did you mean workload?"),
    ("zzz = 1", "run.zzz", "valid: workload, mode"),
    # In the wrong table.
    ("max_seconds = 30", "run.max_seconds", "belongs in [run.budget]"),
    ("min_steps = 30", "run.min_steps", "belongs in [run.budget]"),
    ("epochs = 3", "run.epochs", "belongs in [run.budget]"),
    ("pin_memory = true", "run.pin_memory", "belongs in [run.loader]"),
    ("prefetch = 2", "run.prefetch", "belongs in [run.loader]"),
    ("idle_s = 2", "run.idle_s", "belongs in [run.energy]"),
    ("target = 0.9", "run.target", "belongs in [run.quality]"),
    ("step_time_s = 0.1", "run.step_time_s", "belongs in [run.sim]"),
    ("idle_w = 80", "run.idle_w", "belongs in [run.sim.power]"),
    ("cv = 0.1", "run.cv", "belongs in [run.sim.noise]"),
    ("first = 8", "run.first", "belongs in [search]"),
    ("repeats = 3", "run.repeats", "belongs at the top of the file"),
    ("seed = 3", "run.seed", "belongs at the top of the file"),
    ("name = 'x'", "run.name", "belongs at the top of the file"),
    ("run_id = 'x'", "run.run_id", "leave it out"),
    ("[run.budget]\nbatch = 8", "study.toml:6: run.budget.batch", "belongs in [run]"),
    ("[run.loader]\nthreads = 8", "run.loader.threads", "belongs in [run]"),
    ("[run.budget]\nseed = 8", "run.budget.seed", "belongs at the top of the file"),
    ("[search]\nbatch = 8", "search.batch", "belongs in [run]"),
    # Deeper levels.
    ("[run.budget]\nmax_second = 3", "study.toml:6: run.budget.max_second", "did you mean max_seconds?"),
    ("[run.budget]\nmin_step = 3", "run.budget.min_step", "did you mean min_steps?"),
    ("[run.budget]\nrel_halfwidth = 0.1", "run.budget.rel_halfwidth", "did you mean rel_half_width?"),
    ("[run.bugdet]\nmin_steps = 3", "run.bugdet", "did you mean budget?"),
    ("[run.loader]\nworker = 3", "run.loader.worker", "did you mean workers?"),
    ("[run.laoder]\nworkers = 3", "run.laoder", "did you mean loader?"),
    ("[run.energy]\nperiod = 1", "run.energy.period", "did you mean period_s?"),
    ("[run.quality]\ntarget_value = 1", "run.quality.target_value", "did you mean target?"),
    ("[run.sim]\nsteptime_s = 1", "run.sim.steptime_s", "did you mean step_time_s?"),
    ("[run.sim.niose]\ncv = 0.1", "run.sim.niose", "did you mean noise?"),
    ("[run.sim.noise]\nkid = 'ar1'", "run.sim.noise.kid", "did you mean kind?"),
    ("[run.sim.power]\nidle = 5", "run.sim.power.idle", "did you mean idle_w?"),
    ("[[run.sim.sensors]]\nscop = 'device'", "run.sim.sensors[0].scop", "did you mean scope?"),
    ("[run.sim.shape]\nwarmup_step = 5", "run.sim.shape.warmup_step", "did you mean warmup_steps?"),
    ("[run.data]\nformat = 'mnist'\npaht = '/x'", "run.data.paht", "did you mean path?"),
    ("[sweep]\nbacth = [8]", "study.toml:6: sweep.bacth", "did you mean batch?"),
    ("[sweep]\nmax_seconds = [8]", "sweep.max_seconds", "did you mean budget.max_seconds?"),
    ('[sweep]\n"budget.max_second" = [8]', "sweep.budget.max_second", "did you mean max_seconds?"),
    ('[sweep]\n"lodaer.workers" = [8]', "sweep.lodaer.workers", "did you mean loader?"),
    ("[swep]\nbatch = [8]", "swep", "did you mean sweep?"),
    ("[runs]\nbatch = 8", "runs", "did you mean run?"),
    ("[serach]\nfirst = 8", "serach", "did you mean search?"),
    ("[search]\nfrist = 8", "search.frist", "did you mean first?"),
    ("[search]\nper_octav = 8", "search.per_octav", "did you mean per_octave?"),
    # Values: units and types.
    ('batch = "64"', 'run.batch = "64"', "did you mean 64?"),
    ("batch = 64.0", "run.batch = 64.0", "did you mean 64?"),
    ("batch = 6.5", "run.batch = 6.5", "must be an integer"),
    ("batch = [8, 16]", "run.batch = [8, 16]", "put lists of values to try in [sweep]"),
    ("batch = true", "run.batch = true", "must be an integer"),
    ("batch = 0", "run.batch = 0", "must be at least 1"),
    ("batch = -8", "run.batch = -8", "must be at least 1"),
    ("devices = 0", "run.devices = 0", "must be at least 1"),
    ("threads = 99999", "run.threads = 99999", "must be at most 4,096"),
    ("learning_rate = -0.1", "run.learning_rate = -0.1", "must be greater than 0"),
    ('learning_rate = "1e-3"', 'run.learning_rate = "1e-3"', "did you mean 0.001?"),
    ("numa = 1", "run.numa = 1", "did you mean true?"),
    ('numa = "yes"', 'run.numa = "yes"', "did you mean true?"),
    ('channels_last = "false"', "run.channels_last", "did you mean false?"),
    ('precision = "bf61"', 'run.precision = "bf61"', "did you mean bf16?"),
    ('precision = "bfloat16"', 'run.precision = "bfloat16"', "did you mean bf16?"),
    ('precision = "float32"', 'run.precision = "float32"', "did you mean fp32?"),
    ("precision = 16", "run.precision = 16", "did you mean fp16?"),
    ("precision = bf16", "study.toml:5", 'did you mean precision = "bf16"?'),
    ("batch: 8", "study.toml:5", "did you mean batch = 8?"),
    ("numa = True", "study.toml:5", "did you mean numa = true?"),
    ("batch = 8\nbatch = 9", "study.toml", "the key is set twice"),
    ('mode = "training"', 'run.mode = "training"', "did you mean train?"),
    ('mode = "inference"', 'run.mode = "inference"', "did you mean infer?"),
    ("compile = true", "run.compile = true", "did you mean default?"),
    ('compile = "max_autotune"', "run.compile", "did you mean max-autotune?"),
    ('parallel = "fsdp"', "run.parallel", "did you mean fsdp2?"),
    ('last_batch = "dorp"', "run.last_batch", "did you mean drop?"),
    ('time_limit_s = "1h"', "run.time_limit_s", "did you mean 3600?"),
    ('time_limit_s = "01:30:00"', "run.time_limit_s", "did you mean 5400?"),
    ("time_limit_s = 01:30:00", "run.time_limit_s", "did you mean 5400?"),
    ("[run.budget]\nmax_seconds = '10 s'", "run.budget.max_seconds", "did you mean 10?"),
    ("[run.budget]\nmax_seconds = '5 min'", "run.budget.max_seconds", "did you mean 300?"),
    ("[run.budget]\nmax_seconds = 0", "run.budget.max_seconds = 0", "must be greater than 0"),
    ("[run.budget]\nmin_steps = '1000'", "run.budget.min_steps", "did you mean 1000?"),
    ("[run.budget]\nrel_half_width = '1 %'", "run.budget.rel_half_width", "did you mean 0.01?"),
    ("[run.loader]\nworkers = -1", "run.loader.workers = -1", "must be at least 0"),
    ("[run.loader]\nplace = 'cpu'", "run.loader.place", "did you mean host?"),
    ("[run.energy]\nperiod_s = '100 ms'", "run.energy.period_s", "did you mean 0.1?"),
    ("[run.energy]\nwatch = 0", "run.energy.watch = 0", "did you mean false?"),
    ("[run.sim.noise]\ncv = 5", "run.sim.noise.cv = 5", "must be at most 0.3"),
    ("[run.sim.noise]\nkind = 'norml'", "run.sim.noise.kind", "did you mean normal?"),
    ("budget = 30", "run.budget = 30", "must be a table with min_steps"),
    ("[sweep]\nbatch = 8", "sweep.batch = 8", "did you mean [8]?"),
    ("[sweep]\nbatch = []", "sweep.batch", "the list is empty"),
    ("[sweep]\nbatch = [8, 0]", "sweep.batch = 0", "must be at least 1"),
    ("[sweep]\nprecision = ['bf16', 'fp61']", 'sweep.precision = "fp61"', "did you mean fp16?"),
    ("[sweep]\nsim.noise.cv = [0.1]", "sweep.sim", '"sim.noise.cv", in quotes'),
    ("[search]\nfirst = '8'", "search.first", "did you mean 8?"),
    ("[search]\nfirst = 9\nlast = 3", "search.first", "at most 3"),
    # Names.
    ("workload = 'x'", "study.toml", "the key is set twice"),
    ("device = 'gpu'", "run.device", "did you mean cuda?"),
    ("device = 'cdua'", "run.device", "did you mean cuda?"),
    ("data = 'cifra10:/data'", "run.data", "did you mean cifar10?"),
    ("data = 'mnist'", "run.data", "did you mean mnist:PATH?"),
    ("data = 'synthetic'", "run.data", "did you mean device?"),
    ("model.widht = 8", "run.model.widht", "did you mean width?"),
    ("model.width = 'wide'", "run.model.width", "must be a number"),
    ("[sweep]\nworkload = ['tiny', 'tinny']", 'sweep.workload = "tinny"', "did you mean tiny?"),
    ("[sweep]\n'model.dpeth' = [2]", "sweep.model.dpeth", "did you mean depth?"),
)

# Whole study files.
STUDIES: tuple[Case, ...] = (
    ('nmae = "s"', "study.toml:1: nmae", "did you mean name?"),
    ('name = "s"\nrepeat = 3', "study.toml:2: repeat", "did you mean repeats?"),
    ('name = "s"\nsed = 3', "sed", "did you mean seed?"),
    ('name = "s"\nrepeats = "3"', "repeats", "did you mean 3?"),
    ('name = "s"\nrepeats = 0', "repeats = 0", "must be at least 1"),
    ('name = "s"\nseed = -1', "seed = -1", "must be at least 0"),
    ('name = "my study"', 'name = "my study"', "letters, digits"),
    ("name = 5", "name = 5", 'did you mean "5"?'),
    ("repeats = 3", "name", "missing"),
    ('name = "s"\nbatch = 3', "study.toml:2: batch", "belongs in [run]"),
    ('name = "s"\nworkload = "tiny"', "workload", "belongs in [run]"),
    ('name = "s"\n[budget]\nmin_steps = 3', "budget", "belongs in [run]"),
    ('name = "s"\n[run]\nworkload = "resent50"', 'run.workload = "resent50"', "did you mean resnet50?"),
    ('name = "s"\n[run]\nworkload = "bert"', "run.workload", "did you mean bert-base?"),
    ('name = "s"\n[run]\nworkload = "vit-l16"', "run.workload", "did you mean vit-l-16?"),
    ('name = "s"\n[run]\nworkload = "./my.py:bild"', "run.workload", "did you mean ./my.py:build?"),
    ('name = "s"\n[run]\nworkload = "./my.py"', "run.workload", "did you mean ./my.py:build?"),
    ('name = "s"\n[run]\nworkload = "./mi.py:build"', "run.workload", "did you mean ./my.py?"),
    ('name = "s"\n[run]\nworkload = "./my.py:build"\nmodel.hiden = 3', "run.model.hiden", "did you mean hidden?"),
    ('name = "s"\nrun = 3', "run = 3", "must be a table"),
)

# The table it is put into ("" for the top of the file), the line, the place, the answer.
IN_SITE: tuple[tuple[str, str, str, str], ...] = (
    ("", 'descripton = "x"', "site.toml:2: descripton", "did you mean description?"),
    ("", 'pyhton = "python3"', "pyhton", "did you mean python?"),
    ("", 'partition = "a"', "site.toml:2: partition", "belongs in [pools.NAME]"),
    ("", 'account = "a"', "account", "belongs in [pools.NAME]"),
    ("", "max_submitted = 5", "max_submitted", "belongs in [limits]"),
    ("", 'namespace = "a"', "namespace", "belongs in [cluster]"),
    ("", 'runtime = "podman"', "runtime", "belongs in [container]"),
    ("", "per_node_hour = 2", "per_node_hour", "belongs in [charge]"),
    ("pools.gpu", "device_per_node = 4", "pools.gpu.device_per_node", "did you mean devices_per_node?"),
    ("pools.gpu", 'partiton = "a"', "site.toml:4: pools.gpu.partiton", "did you mean partition?"),
    ("pools.gpu", "max_node = 4", "pools.gpu.max_node", "did you mean max_nodes?"),
    ("pools.gpu", "max_time = 4", "pools.gpu.max_time", "did you mean max_time_s?"),
    ("pools.gpu", 'max_time_s = "24:00:00"', "pools.gpu.max_time_s", "did you mean 86400?"),
    ("pools.gpu", 'max_time_s = "1-00:00:00"', "pools.gpu.max_time_s", "did you mean 86400?"),
    ("pools.gpu", 'memory_per_node_mib = "64GB"', "pools.gpu.memory_per_node_mib", "did you mean 65536?"),
    ("pools.gpu", 'cpus_per_node = "32"', "pools.gpu.cpus_per_node", "did you mean 32?"),
    ("pools.gpu", 'exclusive = "yes"', "pools.gpu.exclusive", "did you mean true?"),
    ("pools.gpu", "exclusive = 1", "pools.gpu.exclusive = 1", "did you mean true?"),
    ("pools.gpu", "max_nodes = 0", "pools.gpu.max_nodes = 0", "must be at least 1"),
    ("pools.gpu", 'start = "srun"', "pools.gpu.start", "did you mean tasks?"),
    ("pools.gpu", 'options = "--switches=1"', "pools.gpu.options", 'did you mean ["--switches=1"]?'),
    ("pools.gpu", 'options = ["-N 2"]', "pools.gpu.options[0]", "one long option"),
    ("pools.gpu", "gpus = 4", "pools.gpu.gpus = 4", 'did you mean "4"?'),
    ("pools.gpu", "array_size = 4", "pools.gpu.array_size", "belongs in [limits]"),
    ("pools.gpu", "batch = 4", "pools.gpu.batch", ""),
    ("container", 'runtme = "podman"', "container.runtme", "did you mean runtime?"),
    ("container", 'runtime = "aptainer"', "container.runtime", "did you mean apptainer?"),
    ("container", 'image = "a.sif"', "container.image", ""),
    ("container", 'devices = "cuda"', "container.devices", "did you mean nvidia?"),
    ("container.images", 'arm64 = "a.sif"', "container.images.arm64", "did you mean aarch64?"),
    ("[container.mounts]", 'src = "/data"', "container.mounts[0].src", "did you mean source?"),
    ("[container.mounts]", 'source = "data"', "container.mounts[0].source", "absolute path"),
    ("modules", 'laod = ["cuda"]', "modules.laod", "did you mean load?"),
    ("modules", 'load = "cuda"', "modules.load", 'did you mean ["cuda"]?'),
    ("environment", "NCCL_DEBUG = 1", "environment.NCCL_DEBUG = 1", 'did you mean "1"?'),
    ("charge", 'unit = "gpu-hour"', "charge.unit", "did you mean device-hour?"),
    ("charge", "per_device_hours = 2", "charge.per_device_hours", "did you mean per_device_hour?"),
    ("limits", "max_submited = 2", "limits.max_submited", "did you mean max_submitted?"),
    ("limits", 'setup_s = "5 min"', "limits.setup_s", "did you mean 300?"),
    ("limit", "max_submitted = 2", "limit", "did you mean limits?"),
    ("cluster", 'namspace = "a"', "cluster.namspace", "did you mean namespace?"),
    ("cluster", "jobset = 1", "cluster.jobset = 1", "did you mean true?"),
    ("pool.cpu", "devices_per_node = 1", "pool", "did you mean pools?"),
)

# Whole site files.
SITES: tuple[Case, ...] = (
    (SITE.replace("scheduler", "schedular"), "site.toml:2: schedular", "did you mean scheduler?"),
    (SITE.replace('"slurm"', '"slrum"'), "scheduler", "did you mean slurm?"),
    (SITE.replace('"slurm"', '"k8s"'), "scheduler", "did you mean kubernetes?"),
    (SITE.replace('"slurm"', '"pbs"'), "scheduler", "valid: kubernetes, slurm"),
    (SITE.replace("architecture", "arch"), "pools.gpu.arch", "did you mean architecture?"),
    (SITE.replace('"x86_64"', '"amd64"'), "pools.gpu.architecture", "did you mean x86_64?"),
    (SITE.replace("= 4", '= "4"'), "pools.gpu.devices_per_node", "did you mean 4?"),
    (SITE.replace("= 4", "= 0"), "pools.gpu.devices_per_node = 0", "must be at least 1"),
    ('name = "x"\nscheduler = "slurm"\n', "pools", "missing"),
)

RECIPES: tuple[Case, ...] = (
    (RECIPE.replace("jobs", "job"), "recipe.toml:2: job", "did you mean jobs?"),
    (RECIPE.replace("[expect]", "[expects]"), "expects", "did you mean expect?"),
    (RECIPE.replace("value =", "vaule ="), "expect[0].vaule", "did you mean value?"),
    (RECIPE + "bacth = 8\n", "run.bacth", "did you mean batch?"),
    (RECIPE + "max_steps = 8\n", "run.max_steps", "belongs in [run.budget]"),
    (RECIPE.replace("jobs = 4", "jobs = 1"), "jobs = 1", "must be at least 3"),
    (RECIPE.replace('"sim"', '"simm"'), 'run.workload = "simm"', "did you mean sim?"),
    (RECIPE.replace("3200.0", '"3200"'), "expect[0].value", "did you mean 3200?"),
    (RECIPE.replace("value = 3200.0", 'value = 3200.0\nside = "atleast"'), "expect[0].side", "did you mean at least?"),
)

# Command lines outside the parser of options: files, functions, names and settings.
COMMANDS: tuple[tuple[list[str], str, str], ...] = (
    (["study", "studdy.toml"], "studdy.toml: no such file", "did you mean study.toml?"),
    (["study", "study"], "study: no such file", "did you mean study.toml?"),
    (["study", "stduy.toml"], "stduy.toml", "did you mean study.toml?"),
    (["study", "."], ".: is a folder", ""),
    (["verify", "recpie.toml"], "recpie.toml", "did you mean recipe.toml?"),
    (["site", "show", "stie.toml"], "stie.toml", "did you mean site.toml?"),
    (["study", "study.toml", "--site", "site.toml:gup"], "--site site.toml:gup", "did you mean gpu?"),
    (["study", "study.toml", "--site", "site.tmol"], "site.tmol", "did you mean site.toml?"),
    (["site", "new", "slurm-nvida"], "slurm-nvida", "did you mean slurm-nvidia?"),
    (["site", "show", "nowhere"], "nowhere: no such site or site file", ""),
    (["run", "resent50"], "resent50: no such workload", "did you mean resnet50?"),
    (["run", "./my.py:bild"], "./my.py:bild: no such function", "did you mean ./my.py:build?"),
    (["run", "my.py"], "my.py: must name a function", "did you mean my.py:build?"),
    (["run", "./mi.py:build"], "./mi.py: no such file", "did you mean ./my.py?"),
    (["run", "tiny", "--model", "widht=8"], "--model widht", "did you mean width?"),
    (["run", "tiny", "--model", "width=big"], "--model width=big", "must be a number"),
    (["run", "tiny", "--set", "bacth=8"], "--set bacth", "did you mean batch?"),
    (["run", "tiny", "--set", "max_seconds=8"], "--set max_seconds", "did you mean budget.max_seconds?"),
    (["run", "tiny", "--set", "budget.max_second=8"], "--set budget.max_second", "did you mean budget.max_seconds?"),
    (["run", "tiny", "--set", "num_workers=8"], "--set num_workers", "did you mean loader.workers?"),
    (["run", "sim", "--set", "sim.step_time_s=fast"], "--set sim.step_time_s=fast", "must be a number"),
    (["run", "sim", "--set", "sim.noise.cv=5"], "--set sim.noise.cv=5", "must be at most 0.3"),
    (["run", "tiny", "--batch", "0"], "--batch 0", "at least 1"),
    (["run", "tiny", "--repeats", "0"], "--repeats 0", "at least 1"),
    (["run", "tiny", "--max-seconds", "-5"], "--max-seconds -5", "greater than 0"),
    (["run", "tiny", "--precision", "bf61"], "--precision", "did you mean bf16?"),
    (["run", "tiny", "--mode", "trian"], "--mode", "did you mean train?"),
    (["run", "tiny", "--device", "gpu"], "--device gpu", "did you mean cuda?"),
    (["run", "tiny", "--data", "cifra10:/data"], "--data cifra10", "did you mean cifar10?"),
    (["data", "show", "cifar-10"], "cifar-10: no such data format", "did you mean cifar10?"),
    (["data", "check", "mnits:data"], "mnits: no such data format", "did you mean mnist?"),
    (["workloads", "gpt2"], "gpt2: no such workload", "did you mean gpt?"),
    (["explain", "S201"], "S201", "did you mean SY201?"),
)

# Tables, claims and reference documents, with their files.
TABLE = "accelerator,devices,metric,value,unit\nA,4,throughput,1,images/s\n"
CLAIMS = 'tables = ["t.csv"]\n[[claim]]\nid = "a"\nkind = "times"\n'
AUDITS: tuple[tuple[list[str], dict[str, str], str, str], ...] = (
    (["audit", "t.csv"], {"t.csv": TABLE.replace("devices", "devicse")}, "devicse", "did you mean devices?"),
    (["audit", "c.toml"], {"c.toml": CLAIMS.replace("tables", "tabels")}, "c.toml", "did you mean tables?"),
    (["audit", "c.toml"], {"c.toml": CLAIMS, "T.csv": TABLE}, "t.csv: no such file", "T.csv?"),
    (["audit", "carmal"], {}, "carmal", "caraml"),
)

# Misspelt verbs, options and their values, and ids of results: refused by the command line itself.
OPTIONS: tuple[tuple[list[str], str, str], ...] = (
    (["rnu", "sim"], "rnu", "did you mean run?"),
    (["stduy", "study.toml"], "stduy", "did you mean study?"),
    (["comapre", "a", "b"], "comapre", "did you mean compare?"),
    (["statsu"], "statsu", "did you mean status?"),
    (["run", "tiny", "--bacth", "8"], "--bacth", "did you mean --batch?"),
    (["run", "tiny", "--repeat", "8"], "--repeat", "did you mean --repeats?"),
    (["run", "tiny", "--presicion", "bf16"], "--presicion", "did you mean --precision?"),
    (["run", "tiny", "--batch", "eight"], "--batch", ""),
    (["run", "tiny", "--max_seconds", "8"], "--max_seconds", "did you mean --max-seconds?"),
    (["study", "study.toml", "--dryrun"], "--dryrun", "did you mean --dry-run?"),
    (["show", "--result", "x"], "--result", "did you mean --results?"),
    (["run"], "WORKLOAD", ""),
    (["site", "shwo", "site.toml"], "shwo", "did you mean show?"),
    (["show", "adhok", "--results", "results"], "adhok", "did you mean adhoc?"),
    (["scaling", "adhok", "--results", "results"], "adhok", "did you mean adhoc?"),
)

# Fields of other tools' configuration, as their own documentation writes them: the line, and our field; "" where we
# have none, and being refused is enough.
FOREIGN_STUDY: dict[str, tuple[tuple[str, str], ...]] = {
    "torchrun (--help of PyTorch 2)": (
        ("nproc_per_node = 4", "devices"), ("nnodes = 2", "devices"), ("rdzv_backend = 'c10d'", ""),
        ("max_restarts = 3", ""), ("master_port = 29500", ""),
    ),
    "Hugging Face TrainingArguments": (
        ("per_device_train_batch_size = 8", "batch"), ("gradient_accumulation_steps = 4", "accumulation"),
        ("learning_rates = 5e-5", "learning_rate"), ("num_train_epochs = 3", "budget.epochs"), ("fp16 = true", "fp16"),
        ("bf16 = true", "bf16"), ("tf32 = true", "tf32"), ("dataloader_num_workers = 4", "loader.workers"),
        ("dataloader_pin_memory = true", "loader.pin_memory"), ("dataloader_drop_last = true", "last_batch"),
        ("torch_compile = true", "compile"), ("ddp_backend = 'nccl'", "backend"), ("output_dir = 'x'", ""),
        ("warmup_steps = 100", ""), ("weight_decay = 0.1", ""), ("save_steps = 500", ""),
    ),
    "PyTorch Lightning Trainer": (
        ("accelerator = 'gpu'", "device"), ("num_nodes = 2", "devices"),
        ("max_epochs = 3", "budget.epochs"), ("accumulate_grad_batches = 4", "accumulation"),
        ("strategy = 'ddp'", "parallel"),
        ("max_time = '00:12:00:00'", "budget.max_seconds"), ("gradient_clip_val = 0.5", ""),
    ),
    "PyTorch DataLoader": (
        ("batch_size = 64", "batch"), ("num_workers = 4", "loader.workers"), ("prefetch_factor = 2", "loader.prefetch"),
        ("drop_last = true", "last_batch"), ("shuffle = true", ""), ("persistent_workers = true", ""),
    ),
    "DeepSpeed configuration": (
        ("train_micro_batch_size_per_gpu = 8", "batch"), ("train_batch_size = 64", "batch"),
        ("zero_optimization = 2", ""),
    ),
    "Accelerate configuration": (
        ("mixed_precision = 'bf16'", "precision"), ("num_processes = 4", "devices"), ("lr = 0.1", "learning_rate"),
    ),
    "hyperfine (--help)": (
        ("runs = 10", "repeats"), ("parameter_list = [1]", "sweep"), ("warmup = 3", "warm-up"),
        ("min_runs = 3", "repeats"),
    ),
    "sbatch (man page)": (
        ("gpus = 4", "devices"), ("nodes = 2", "devices"), ("ntasks = 8", "devices"),
        ("time = '01:30:00'", "time_limit_s"),
        ("partition = 'gpu'", "site file"), ("account = 'a'", "site file"), ("qos = 'high'", "site file"),
        ("mem = '16GB'", "site file"), ("cpus_per_task = 8", "threads"), ("job_name = 'x'", "name"),
    ),
    "Kubernetes Job": (
        ("image = 'x'", "site file"), ("activeDeadlineSeconds = 60", ""), ("env = {A = 'b'}", ""), ("replicas = 3", ""),
    ),
}  # fmt: skip
FOREIGN_SITE: dict[str, tuple[tuple[str, str], ...]] = {
    "sbatch (man page)": (
        ("gpus_per_node = 4", "devices_per_node"), ("ntasks_per_node = 4", "devices_per_node"),
        ("gres = 'gpu:4'", "gpus"),
        ("time = '24:00:00'", "max_time_s"), ("mem = '64G'", "memory_per_node_mib"),
        ("cpus_per_task = 8", "cpus_per_node"),
        ("nodes = 4", "max_nodes"), ("mail_user = 'a'", ""), ("nodelist = 'n1'", ""),
    ),
    "PBS (man qsub)": (("walltime = '24:00:00'", "max_time_s"), ("queue = 'gpu'", "partition"),
        ("project = 'a'", "account")),
    "Kubernetes Pod": (
        ("nodeSelector = {a = 'b'}", "node_selector"), ("memory = '16Gi'", "memory_per_node_mib"),
        ("cpus = 8", "cpus_per_node"), ("taints = ['a']", "tolerations"), ("restartPolicy = 'Never'", ""),
    ),
    "ReFrame partitions": (("launcher = 'srun'", "start"), ("features = ['a']", "constraint"),
        ("max_jobs = 8", "limits.max_submitted")),
}  # fmt: skip
