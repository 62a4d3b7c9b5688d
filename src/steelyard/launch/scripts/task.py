"""Write the scripts of a campaign: job.sh, which runs a task, and node.sh, which runs on each node for a run.

They are plain bash 4 with coreutils, because a node may have no Python outside containers, and people can read them
and run them by hand. Every value from outside is quoted here: text from an untrusted file is one word to the shell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard.contracts import observe
from steelyard.errors import DamagedDataError, InputError
from steelyard.launch.scripts.bash import Raw, Word, line, quoted
from steelyard.launch.scripts.container import run_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from steelyard.launch.campaign import Campaign, JobArray

MEETING_HOST, MEETING_PORT = "STEELYARD_MEETING_HOST", "STEELYARD_MEETING_PORT"
# Below the ports that systems use for outgoing connections, above those of well-known services.
FIRST_PORT, PORTS = 10_000, 20_000
LIMIT_HIT = 124
"""Exit code in a line of TASK.done: the run reached its time limit (as `timeout` reports it)."""
GRACE_S = 30
MAX_DONE_LINE = 1000
MAX_EXIT = 255
READABLE_COLUMNS = 110

# The place of a process in its job, and its devices: a container gets these from outside.
PLACE_VARIABLES = (
    *("SLURM_JOB_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"),
    *("SLURM_STEP_TASKS_PER_NODE", "SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    *("HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
)
# A task may be started by hand from inside another job.
FOREIGN_RANKS = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT"


# -- job.sh -------------------------------------------------------------------------------------------------------

_TASK = """\
# One task of job {name}. Started by the scheduler, or by hand: bash job.sh TASK_NUMBER
# A task is a line of the file `tasks`, counted from 0: the ids of its runs.
{modules}
campaign={campaign}
job="$campaign"/jobs/{folder}
task=${{1:-$SLURM_ARRAY_TASK_ID}}
[[ $task =~ ^[0-9]{{1,9}}$ ]] || {{ echo 'invalid task number; usage: bash job.sh TASK_NUMBER' >&2; exit 2; }}
task=$((10#$task))
read -r -a runs < <(sed -n "$((task + 1))p" "$job"/tasks)
((${{#runs[@]}})) || {{ echo "task $task does not exist" >&2; exit 2; }}

{start}{meeting}
# The scheduler signals this script before its time limit, a person may at any time. The signal is passed on, and
# nothing more is started or written: the scheduler then reports how the task ended.
signalled= child=
trap 'signalled=yes; [[ $child ]] && kill -TERM "$child"' TERM INT HUP
await() {{
  "$@" </dev/null &
  child=$!
  [[ $signalled ]] && kill -TERM "$child"
  wait "$child"
  code=$?
  while [[ $signalled ]] && kill -0 "$child" 2>/dev/null; do wait "$child"; done
  child=
}}
"""

_ONE_RUN = """
# Make one run, unless it was started before: the lease is a file that only one process can create.
make_run() {{
  local raw="$campaign"/runs/$1/raw since=$SECONDS began said
  if ! said=$( (set -C; echo "$HOSTNAME ${{SLURM_JOB_ID:-$$}}" >"$raw"/{lease}) 2>&1 ); then
    echo "$1: already started, or its folder is missing (${{said##*: }})"
    return 1
  fi
  began=$(date +%s.%3N)
  await timeout --kill-after={grace} {limit} "${{start[@]}}" bash "$job"/node.sh "$raw" >"$raw"/{log} 2>&1
  rm -rf "$raw"/torchrun
  [[ $signalled ]] && return 1
  # At the limit `timeout` returns {hit}, except when it had to kill.
  ((code == 137 && SECONDS - since >= {limit})) && code={hit}
{judge}  echo "$1 $code $began $(date +%s.%3N)" >>"$job/$task".done
}}
"""

_EACH = """
for run in "${{runs[@]}}"; do
  [[ $signalled ]] && exit 143
  make_run "$run"
done
[[ $signalled ]] && exit 143
exit 0
"""

_PACKED = """
# All runs in one process, which takes the lease of each and writes a line to TASK.done after it. Only the scheduler
# enforces the time limit: another limit here would hide the reason from the records.
await "${{start[@]}}" bash "$job"/node.sh "$task"
[[ $signalled ]] && exit 143
exit "$code"
"""

# Before the run is marked as ended, because its folder may be collected from then on.
_JUDGE = """\
  verdict='out of memory'
  if ((code == 0)); then
    verdict=fits
  elif ! grep -qs '^{{"kind": "status", "code": "out_of_memory"' "$raw"/events-*.jsonl &&
      ! grep -qsiE '{memory_words}' "$raw"/{log}; then
    verdict="failed with exit code $code, not for lack of memory: the search ends here"
  fi
"""

_SEARCH = """
# The runs differ only in the batch, in rising order. Search for the largest that fits: double the batch until it does
# not fit, then halve the gap. `low` is the largest known to fit, `high` the smallest known not to fit.
mapfile -t batches < <(for run in "${{runs[@]}}"; do
  sed -n 's/^ "batch": \\([0-9]*\\),\\{{0,1\\}}$/\\1/p' "$campaign"/runs/"$run"/raw/{spec}
done)
count=${{#runs[@]}}
((${{#batches[@]}} == count)) || {{ echo 'cannot read the batches of the runs' >&2; exit 1; }}
low=-1 high=$count next=0 tries=0
while ((high - low > 1)); do
  [[ $signalled ]] && exit 143
  if ((tries++ && SECONDS + {limit} >= {task_limit})); then
    echo 'not enough time left in this task for another run; run the same command again to continue'
    break
  fi
  make_run "${{runs[next]}}" || break
  echo "batch ${{batches[next]}}: $verdict"
  case $verdict in
    fits) low=$next ;;
    'out of memory') high=$next ;;
    *) break ;;
  esac
  if ((high < count)); then
    next=$(((low + high) / 2))
  else
    while ((next < count - 1 && batches[next] < 2 * batches[low])); do ((next++)); done
  fi
done
[[ $signalled ]] && exit 143
((low < 0)) && echo 'no batch is known to fit' || echo "largest batch known to fit: ${{batches[low]}}"
exit 0
"""

# What Slurm and the C++ library print when host memory is exhausted, in case the worker could not report it.
MEMORY_WORDS = r"oom.kill|exceeded memory limit|std::bad_alloc"


def task_script(campaign: Campaign, job: JobArray, *, head: Sequence[str] = (), start: Sequence[Word] = ()) -> str:
    """Return job.sh. `head`: lines right after the first, such as #SBATCH; `start`: command that starts another on
    all nodes, such as srun.
    """
    values: dict[str, object] = {
        "grace": GRACE_S,
        "limit": job.shape.run_limit_s,
        "task_limit": job.task_limit_s,
        "hit": LIMIT_HIT,
        "lease": observe.LEASE_FILE,
        "log": observe.WORKER_LOG,
        "spec": observe.SPEC_FILE,
        "memory_words": MEMORY_WORDS,
    }
    task = _TASK.format(
        name=job.name,
        modules=_render_modules(campaign),
        campaign=quoted(str(campaign.path.absolute())),
        folder=campaign.job_folder(job).name,
        start=_render_start(campaign, job, start),
        meeting=_render_meeting(campaign, job),
    )
    values["judge"] = _JUDGE.format(**values) if job.kind == "search" else ""
    ends = {"runs": (_ONE_RUN, _EACH), "packed": (_PACKED,), "search": (_ONE_RUN, _SEARCH)}[job.kind]
    end = "".join(text.format(**values) for text in ends)
    return "".join(["#!/bin/bash\n", *(f"{entry}\n" for entry in head), task, end])


def _render_modules(campaign: Campaign) -> str:
    modules = campaign.plan.site.modules
    lines = []
    if modules.init is not None:
        lines.append(f"source {quoted(modules.init)} || exit")
    if modules.load:
        lines.append(f"{line(['module', 'load', *modules.load])} || {{ echo 'cannot load modules' >&2; exit 1; }}")
    return "\n".join(["", "# First of all, so that the runs see what the modules set.", *lines, ""] if lines else [""])


def _render_start(campaign: Campaign, job: JobArray, words: Sequence[Word]) -> str:
    """Return the lines that define how a command starts on all nodes, also outside Slurm."""
    if not words and not _needs_starter(campaign, job):
        return "start=()\n"
    alone = "  start=()"
    if _needs_starter(campaign, job):
        nodes = job.shape.nodes
        say = f"this job needs srun on {nodes} node(s): start it inside an allocation, salloc --nodes={nodes}"
        alone = f"  echo {quoted(say)} >&2\n  exit 2"
    said = "# Starts a command on every node of the task. Without Slurm it starts here.\n"
    return f"{said}start=({line(words)})\nif [[ -z $SLURM_JOB_ID ]]; then\n{alone}\nfi\n"


def _needs_starter(campaign: Campaign, job: JobArray) -> bool:
    by_tasks = campaign.plan.place.pool.start == "tasks" and job.shape.processes_per_node > 1
    return job.shape.nodes > 1 or by_tasks


def _render_meeting(campaign: Campaign, job: JobArray) -> str:
    """Return the rendezvous address. Tasks on one host get different ports, because their job ids differ."""
    if not _needs_starter(campaign, job):
        return ""
    host = campaign.plan.site.meeting_host
    first = '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"'
    return (
        "\n# Rendezvous of the ranks: on the first node, at a port that no other job uses.\n"
        f"export {MEETING_HOST}={first if host is None else quoted(host)}\n"
        f"export {MEETING_PORT}=$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))\n"
    )


# -- node.sh ------------------------------------------------------------------------------------------------------

_NODE = """\
#!/bin/bash
# Runs on each node for {what}
cd {folder} || exit
unset {foreign}
{threads}exec {before} \\
  {words}
"""


def node_script(campaign: Campaign, job: JobArray, *, node_rank: Raw, master: Raw, port: Raw) -> str:
    """Return node.sh. The three values are the node's rank and the rendezvous address."""
    what = f"one run of job {job.name}; $1: the run's raw folder. Started by job.sh."
    if job.kind == "packed":
        what = f"one task of job {job.name}; $1: its number. Started by job.sh."
    assigned = _assign_variables(campaign, job, master, port)
    before, starter = _make_container_words(campaign, [*assigned])
    if starter:
        # The container's command line puts our worker first itself, and keeps the image's own path.
        assigned.pop("PYTHONPATH")
    command = [*starter, *_make_command(campaign, job, node_rank, master, port)]
    if _by_apptainer(campaign):
        # Apptainer sets variables with this prefix only inside; its own settings must be set outside.
        kept = ("APPTAINER", "SINGULARITY")
        assigned = {
            name if name.startswith(kept) else f"APPTAINERENV_{name}": value for name, value in assigned.items()
        }
    if "=" in str(command[0][0]):
        # `env` would take it for a variable.
        command.insert(0, ["nice", "-n", "0", "--"])
    lines = [*(f"{name}={value}" for name, value in assigned.items()), *(_fold(words) for words in command)]
    return _NODE.format(
        what=what,
        folder=quoted(str(campaign.job_folder(job).absolute())),
        foreign=FOREIGN_RANKS,
        threads=_render_threads(campaign, job),
        before=_fold([*before, "env"]),
        words=" \\\n  ".join(lines),
    )


def _fold(words: Sequence[Word]) -> str:
    """Break a command into readable lines."""
    lines = [""]
    for text in map(quoted, words):
        if lines[-1] and len(lines[-1]) + len(text) > READABLE_COLUMNS:
            lines.append("")
        lines[-1] += f" {text}" if lines[-1] else text
    return " \\\n    ".join(lines)


def _assign_variables(campaign: Campaign, job: JobArray, master: Raw, port: Raw) -> dict[str, str]:
    """Return the variables of the run with quoted values. They are passed to `env`, because this shell would apply
    some, such as PATH or IFS, to itself.
    """
    place, shape = campaign.plan.place, job.shape
    values: dict[str, str] = {}
    if shape.threads is None and shape.processes_per_node > 1:
        values["OMP_NUM_THREADS"] = '"${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}"'
    if not _needs_starter(campaign, job) and shape.processes_per_node > 1:
        # All ranks are here; a host name that cannot be resolved must not matter.
        values["GLOO_SOCKET_IFNAME"] = '"${GLOO_SOCKET_IFNAME:-lo}"'
    given = {**place.site.environment, **place.pool.environment}
    values |= {name: quoted(value) for name, value in given.items()}
    if shape.threads is not None:
        values["OMP_NUM_THREADS"] = str(shape.threads)
    if _needs_starter(campaign, job) and place.pool.start == "tasks":
        values |= {"MASTER_ADDR": quoted(master), "MASTER_PORT": quoted(port)}
    values["PYTHONPATH"] = _python_path(campaign, given.get("PYTHONPATH"))
    values["PYTHONSAFEPATH"] = "1"
    return values


def _python_path(campaign: Campaign, given: str | None) -> str:
    """Return PYTHONPATH: our worker first and, without a container, what modules have set after it."""
    worker = str((campaign.path / "worker").absolute())
    if ":" in worker:
        raise InputError(
            f"Python cannot import from a path with a colon: {worker}", next_step="give another folder with --results"
        )
    if given is not None:
        return quoted(f"{worker}:{given}")
    return quoted(worker) + ("" if campaign.plan.image else '"${PYTHONPATH:+:$PYTHONPATH}"')


def _make_container_words(campaign: Campaign, names: list[str]) -> tuple[list[Word], list[list[Word]]]:
    """Return the container's command line in two parts. Our shells come before the variables, because a shell would
    apply some of them, such as BASH_ENV, to itself or even execute them; the runtime itself comes after.
    """
    if campaign.plan.image is None:
        return [], []
    # Apptainer gets ours under another name; only the node's own variables are looked up.
    passed = [] if _by_apptainer(campaign) else names
    of_node = [name for name in PLACE_VARIABLES if name not in names]
    words = run_words(campaign.plan, campaign.path.absolute(), [*passed, *of_node])
    first = words.index(campaign.plan.site.container.runtime) if words else 0
    return words[:first], [words[first:]] if words else []


def _by_apptainer(campaign: Campaign) -> bool:
    return campaign.plan.image is not None and campaign.plan.site.container.runtime == "apptainer"


def _make_command(campaign: Campaign, job: JobArray, node_rank: Raw, master: Raw, port: Raw) -> list[list[Word]]:
    """Return the command of the worker, or of torchrun and the worker.

    Not `python -P`: older versions of Python lack it. PYTHONSAFEPATH does the same; versions that ignore it import
    from the job's folder, which holds nothing to import.
    """
    python: list[Word] = [campaign.plan.python, "-m"]
    shape = job.shape
    if job.kind == "packed":
        folder = quoted(str(campaign.job_folder(job).absolute()))
        done, tasks = Raw(f'{folder}/"$1".done'), Raw(f"{folder}/tasks")
        return [[*python, "steelyard.worker", "--lease", "--done", done, "--task", tasks, Raw('"$1"')]]
    worker: list[Word] = [*python, "steelyard.worker", Raw('"$1"')]
    if shape.nodes * shape.processes_per_node == 1:
        return [worker]
    if campaign.plan.place.pool.start == "tasks":
        return [[*worker, "--ranks-from", "slurm"]]
    # Without a directory for its logs torchrun would create one in /tmp on every start.
    torchrun: list[Word] = [*python, "torch.distributed.run", Raw('--log-dir="$1"/torchrun')]
    if shape.nodes == 1:
        meeting: list[Word] = ["--standalone"]
    else:
        meeting = [f"--nnodes={shape.nodes}", Raw(f"--node-rank={node_rank}"), "--rdzv-backend=static"]
        meeting += [Raw(f"--master-addr={master}"), Raw(f"--master-port={port}")]
    return [[*torchrun, *meeting, f"--nproc-per-node={shape.processes_per_node}", "--no-python"], worker]


def _render_threads(campaign: Campaign, job: JobArray) -> str:
    count = job.shape.processes_per_node
    if job.shape.threads is not None or count == 1:
        return ""
    said = "# Each process gets an equal share of the CPUs, unless OMP_NUM_THREADS is set.\n"
    cpus = "$(env -u OMP_NUM_THREADS nproc)"
    if campaign.plan.place.pool.start == "tasks":
        # Slurm may or may not have bound the task to its own CPUs.
        share = f"threads=$((${{SLURM_CPUS_ON_NODE:-1}} / {count})) cpus={cpus}\n"
        return f"{said}{share}((threads > cpus)) && threads=$cpus\n"
    return f"{said}threads=$(({cpus} / {count}))\n"


# -- TASK.done ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Done:
    """A line of TASK.done: a run that has ended."""

    run_id: str
    exit_code: int
    """As bash reports it: 128 and more for a signal, LIMIT_HIT for the time limit."""
    began_unix_s: float
    ended_unix_s: float


_DONE = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,79}) (\d{1,3}) (\d{1,10}\.\d{1,9}) (\d{1,10}\.\d{1,9})\n", re.ASCII)


def read_done(path: Path) -> Iterator[Done]:
    """Yield the ended runs of a task; none without a file. An incomplete last line is ignored."""
    try:
        file = path.open(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return
    with file:
        while text := file.readline(MAX_DONE_LINE):
            found = _DONE.fullmatch(text)
            if found is None:
                if not text.endswith("\n") and len(text) < MAX_DONE_LINE:
                    return
                raise DamagedDataError(f"{path}: not a line RUN_ID EXIT BEGAN ENDED: {text[:80]!r}")
            if int(found[2]) > MAX_EXIT:
                raise DamagedDataError(f"{path}: {found[2]} is not an exit code")
            yield Done(found[1], int(found[2]), float(found[3]), float(found[4]))
