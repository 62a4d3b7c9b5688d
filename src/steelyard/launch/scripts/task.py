"""Write the scripts of a campaign: job.sh, which runs a task, and node.sh, which runs on each node for a run.

They are plain bash 4 with coreutils, because a node may have no Python outside containers, and people can read them
and run them by hand. Every value from outside is quoted here: text from an untrusted file is one word to the shell.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard import nofollow
from steelyard.contracts import observe, threads, wrap
from steelyard.errors import DamagedDataError, InputError
from steelyard.launch.scripts.bash import Raw, Word, expanding, line, quoted
from steelyard.launch.scripts.container import PREFIXES, run_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from steelyard.launch.campaign import Campaign, JobArray

MEETING_HOST, MEETING_PORT = wrap.HOST_VARIABLE, wrap.PORT_VARIABLE
# Below the ports that systems use for outgoing connections, above those of well-known services.
FIRST_PORT, PORTS = 10_000, 20_000
NODE = "{node}"
"""In meeting_host: the name of the first node."""
LIMIT_HIT = 124
"""Exit code in a line of TASK.done: the run reached its time limit (as `timeout` reports it)."""
CHANGED_CODE = 78
"""Exit code of a script that finds that its campaign's files were changed."""
REQUEUED = "steelyard: the scheduler started this job again"
"""Printed by a task that was requeued: it does not repeat the run during which that happened."""
TORCHRUN_LOGS = "torchrun"
BY_HAND = "by-hand"
"""In a lease, in place of the scheduler's job: somebody started the script."""
CHANGED = "steelyard: files of the campaign were changed after it was planned"
GRACE_S = 30
MAX_DONE_LINE = 1000
MAX_EXIT = 255
READABLE_COLUMNS = 110

# The place of a process in its job, and its devices: a container gets these from outside.
PLACE_VARIABLES = (
    *("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS"),
    *("SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES"),
    *("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
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
# The scheduler has its own copy of this script; what it reads must be what was planned, before each run.
compare() {{
  (cd "$job" && sha256sum --status --check) <<'END' && return
{digests}END
  echo '{changed}' >&2
  exit {changed_code}
}}
compare
((${{SLURM_RESTART_COUNT:-0}})) && echo '{requeued}'
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
holder={holder}
make_run() {{
  compare
  local raw="$campaign"/runs/$1/raw since=$SECONDS began said
  if ! said=$( (set -C; echo "$HOSTNAME $holder" >"$raw"/{lease}) 2>&1 ); then
    echo "$1: already started, or its folder is missing (${{said##*: }})"
    return 1
  fi
  began=$(date +%s.%3N)
  await timeout --kill-after={grace} {limit} "${{start[@]}}" bash "$job"/node.sh "$raw" >"$raw"/{log} 2>&1
  rm -rf "$raw"/{logs}
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


def task_script(
    campaign: Campaign, job: JobArray, node: str, *, head: Sequence[str] = (), start: Sequence[Word] = ()
) -> str:
    """Return job.sh. `node`: its node.sh; `head`: lines right after the first, such as #SBATCH; `start`: command that
    starts another on all nodes, such as srun.
    """
    values: dict[str, object] = {
        "grace": GRACE_S,
        "limit": job.shape.run_limit_s,
        "task_limit": job.task_limit_s,
        "hit": LIMIT_HIT,
        "lease": observe.LEASE_FILE,
        "log": observe.WORKER_LOG,
        "logs": TORCHRUN_LOGS,
        "spec": observe.SPEC_FILE,
        "memory_words": MEMORY_WORDS,
        # Of an array the job of all its tasks: a copy of the array has another one.
        "holder": f"${{SLURM_ARRAY_JOB_ID:-${{SLURM_JOB_ID:-{BY_HAND}}}}}",
    }
    read = {"node.sh": node, "tasks": task_lines(job)}
    task = _TASK.format(
        name=job.name,
        changed=CHANGED,
        changed_code=CHANGED_CODE,
        requeued=REQUEUED,
        digests="".join(f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n" for name, text in read.items()),
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


def task_lines(job: JobArray) -> str:
    """Return the file `tasks`: the run ids of each task, one line per task."""
    return "".join(" ".join(task) + "\n" for task in job.tasks)


def _render_modules(campaign: Campaign) -> str:
    site = campaign.plan.site
    modules = site.modules
    failed = "|| { echo 'cannot load modules' >&2; exit 1; }"
    lines = []
    if modules.init is not None:
        lines.append(f"source {quoted(modules.init)} || exit")
    if modules.purge:
        lines.append(f"module purge {failed}")
    if modules.use:
        lines.append(f"{line(['module', 'use', *modules.use])} {failed}")
    if modules.load:
        lines.append(f"{line(['module', 'load', *modules.load])} {failed}")
    if site.prologue:
        lines += ["# From the site file (prologue).", *site.prologue]
    return "\n".join(["", "# First of all, so that the runs see what is set here.", *lines, ""] if lines else [""])


def _render_start(campaign: Campaign, job: JobArray, words: Sequence[Word]) -> str:
    """Return the lines that define how a command starts on all nodes, also outside Slurm."""
    if not words and not _needs_starter(campaign, job):
        return "start=()\n"
    alone = "  start=()"
    if _needs_starter(campaign, job) or campaign.plan.site.container.runtime == "pyxis":
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
    before, node, after = (campaign.plan.site.meeting_host or NODE).partition(NODE)
    first = '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"' if node else ""
    return (
        "\n# Rendezvous of the ranks: on the first node, at a port that no other job uses.\n"
        f"export {MEETING_HOST}={quoted(before) if before else ''}{first}{quoted(after) if after else ''}\n"
        f"export {MEETING_PORT}=$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))\n"
    )


# -- node.sh ------------------------------------------------------------------------------------------------------

_NODE = """\
#!/bin/bash
# Runs on each node for {what}
cd {folder} || exit
# The code must be what was planned. Its digest is that of the sorted lines that sha256sum prints for all its files.
digest=$(
  shopt -s globstar dotglob nullglob
  files=()
  cd {worker} || exit
  for path in **; do
    [[ -L $path ]] && exit
    [[ -d $path ]] || files+=("$path")
  done
  sha256sum -- "${{files[@]}}" </dev/null | LC_ALL=C sort | sha256sum
)
[[ $digest == {sha256}* ]] || {{ echo '{changed}' >&2; exit {changed_code}; }}
unset {foreign}
{share}exec {before} \\
  {words}
"""


def node_script(campaign: Campaign, job: JobArray, *, node_rank: Raw, master: Raw, port: Raw) -> str:
    """Return node.sh. The three values are the node's rank and the rendezvous address."""
    what = f"one run of job {job.name}; $1: the run's raw folder. Started by job.sh."
    if job.kind == "packed":
        what = f"one task of job {job.name}; $1: its number. Started by job.sh."
    assigned = _assign_variables(campaign, job, master, port) | _place_program(campaign, job, node_rank, master, port)
    before, starter = _make_container_words(campaign, [*assigned])
    if starter:
        # The container's command line puts our worker first itself, and keeps the image's own path.
        assigned.pop("PYTHONPATH")
    command = [*starter, *_make_command(campaign, job, node_rank, master, port)]
    if prefix := _inside_prefix(campaign):
        # Apptainer sets variables with this prefix only inside; its own settings must be set outside.
        kept = ("APPTAINER", "SINGULARITY")
        assigned = {name if name.startswith(kept) else f"{prefix}{name}": value for name, value in assigned.items()}
    if "=" in str(command[0][0]):
        # `env` would take it for a variable.
        command.insert(0, ["nice", "-n", "0", "--"])
    lines = [*(f"{name}={value}" for name, value in assigned.items()), *(_fold(words) for words in command)]
    return _NODE.format(
        what=what,
        folder=quoted(str(campaign.job_folder(job).absolute())),
        worker=quoted(str((campaign.path / "worker").absolute())),
        sha256=campaign.plan.worker_sha256,
        changed=CHANGED,
        changed_code=CHANGED_CODE,
        foreign=FOREIGN_RANKS,
        share=_render_share(campaign, job),
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
    # Empty where threads are set: a job that was submitted from inside a run of ours may inherit that of the run.
    values = {threads.SHARE: "''"}
    if _is_shared(campaign, job):
        values = {threads.OMP: '"${OMP_NUM_THREADS:-1}"', threads.SHARE: '"$share"'}
    if not _needs_starter(campaign, job) and shape.processes_per_node > 1:
        # All ranks are here; a host name that cannot be resolved must not matter.
        values["GLOO_SOCKET_IFNAME"] = '"${GLOO_SOCKET_IFNAME:-lo}"'
    given = place.variables
    values |= {name: quoted(value) for name, value in given.items()}
    values |= {name: expanding(value) for name, value in place.expanded.items()}
    if shape.threads is not None:
        values[threads.OMP] = str(shape.threads)
    if _needs_starter(campaign, job) and place.pool.start == "tasks":
        values |= {"MASTER_ADDR": quoted(master), "MASTER_PORT": quoted(port)}
    values["PYTHONPATH"] = _python_path(campaign, given.get("PYTHONPATH"))
    values["PYTHONSAFEPATH"] = "1"
    # Compiled files beside the code would change its digest.
    values["PYTHONDONTWRITEBYTECODE"] = "1"
    return values


def _place_program(campaign: Campaign, job: JobArray, node_rank: Raw, master: Raw, port: Raw) -> dict[str, str]:
    """Return the variables that tell the worker of a program where to start it, and which of the nodes this is."""
    if not job.shape.program or campaign.plan.folder is None:
        return {}
    values = {wrap.FOLDER_VARIABLE: quoted(campaign.plan.folder)}
    place, python = campaign.plan.place, campaign.plan.python
    if campaign.plan.image is None and python.startswith("/") and "PATH" not in {**place.variables, **place.expanded}:
        # The job has no login environment, but torchrun and others are where Python is.
        values["PATH"] = f'{quoted(os.path.dirname(python))}:"$PATH"'  # noqa: PTH120 -- plain text
    if job.shape.nodes > 1:
        values |= {wrap.NODES_VARIABLE: str(job.shape.nodes), wrap.NODE_VARIABLE: quoted(node_rank)}
        values |= {MEETING_HOST: quoted(master), MEETING_PORT: quoted(port)}
    return values


def _python_path(campaign: Campaign, given: str | None) -> str:
    """Return PYTHONPATH: our worker first and, if this shell is where the run is, what is set there after it."""
    worker = str((campaign.path / "worker").absolute())
    if ":" in worker:
        raise InputError(
            f"Python cannot import from a path with a colon: {worker}", next_step="give another folder with --results"
        )
    if given is not None:
        return quoted(f"{worker}:{given}")
    outside = campaign.plan.image is not None and campaign.plan.site.container.runtime != "pyxis"
    return quoted(worker) + ("" if outside else '"${PYTHONPATH:+:$PYTHONPATH}"')


def _make_container_words(campaign: Campaign, names: list[str]) -> tuple[list[Word], list[list[Word]]]:
    """Return the container's command line in two parts. Our shells come before the variables, because a shell would
    apply some of them, such as BASH_ENV, to itself or even execute them; the runtime itself comes after.
    """
    if campaign.plan.image is None:
        return [], []
    # Apptainer gets ours under another name; only the node's own variables are looked up.
    passed = [] if _inside_prefix(campaign) else names
    of_node = [name for name in PLACE_VARIABLES if name not in names]
    words = run_words(campaign.plan, campaign.path.absolute(), [*passed, *of_node])
    first = words.index(campaign.plan.site.container.runtime) if words else 0
    return words[:first], [words[first:]] if words else []


def _inside_prefix(campaign: Campaign) -> str:
    """Return what comes before the names of variables that the container's runtime sets only inside; empty: nothing."""
    return "" if campaign.plan.image is None else PREFIXES.get(campaign.plan.site.container.runtime, "")


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
    if shape.program or shape.nodes * shape.processes_per_node == 1:
        return [worker]
    if campaign.plan.place.pool.start == "tasks":
        return [[*worker, "--ranks-from", "slurm"]]
    # Without a directory for its logs torchrun would create one in /tmp on every start.
    torchrun: list[Word] = [*python, "torch.distributed.run", Raw(f'--log-dir="$1"/{TORCHRUN_LOGS}')]
    if shape.nodes == 1:
        meeting: list[Word] = ["--standalone"]
    else:
        meeting = [f"--nnodes={shape.nodes}", Raw(f"--node-rank={node_rank}"), "--rdzv-backend=static"]
        meeting += [Raw(f"--master-addr={master}"), Raw(f"--master-port={port}")]
    return [[*torchrun, *meeting, f"--nproc-per-node={shape.processes_per_node}", "--no-python"], worker]


def _is_shared(campaign: Campaign, job: JobArray) -> bool:
    """Return whether ranks share the CPUs of a node: nobody has set their threads, and it is not a program."""
    place, shape = campaign.plan.place, job.shape
    given = threads.OMP in {**place.variables, **place.expanded}
    return shape.threads is None and not shape.program and not given and job.kind != "packed"


def _render_share(campaign: Campaign, job: JobArray) -> str:
    if not _is_shared(campaign, job):
        return ""
    # Slurm may or may not have bound a task to CPUs of its own.
    cpus = "${SLURM_CPUS_ON_NODE:-}" if campaign.plan.place.pool.start == "tasks" else ""
    said = "# Each rank finds its share of the CPUs, unless OMP_NUM_THREADS is set.\n"
    return f'{said}share=; [[ ${{OMP_NUM_THREADS:-}} ]] || share="{cpus}/{job.shape.sharing}"\n'


# -- TASK.done ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Done:
    """A line of TASK.done: a run that has ended."""

    run_id: str
    exit_code: int
    """As bash reports it: 128 and more for a signal, LIMIT_HIT for the time limit."""
    began_unix_s: float
    ended_unix_s: float
    oom_kills: int = 0
    """Processes that the memory limit killed during the run, where the task counts them."""


_DONE = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9_.-]{0,79}) (\d{1,3}) (\d{1,10}\.\d{1,9}) (\d{1,10}\.\d{1,9})( \d{1,9})?\n", re.ASCII
)


def read_done(path: Path) -> Iterator[Done]:
    """Yield the ended runs of a task; none without a file. An incomplete last line is ignored."""
    try:
        file = nofollow.open_file(path)
    except FileNotFoundError:
        return
    with file:
        while line := file.readline(MAX_DONE_LINE):
            text = line.decode("ascii", "replace")
            match = _DONE.fullmatch(text)
            if match is None:
                if not text.endswith("\n") and len(text) < MAX_DONE_LINE:
                    return
                raise DamagedDataError(f'{path}: not a line RUN_ID EXIT BEGAN ENDED: "{text[:80]}"')
            if int(match[2]) > MAX_EXIT:
                raise DamagedDataError(f"{path}: {match[2]} is not an exit code")
            yield Done(match[1], int(match[2]), float(match[3]), float(match[4]), int(match[5] or 0))


TAKEN = "never-began:"
"""Marks a lease taken by a collector. A host name has no colon."""
_HOLDER = re.compile(r"\S{1,300} (\d{1,10})\n", re.ASCII)


def lease_holder(raw: Path) -> str | None:
    """Return the scheduler's job that started a run, BY_HAND if it is not known; None if none did."""
    try:
        with nofollow.open_file(raw / observe.LEASE_FILE) as file:
            text = file.read(400).decode("ascii", "replace")
    except OSError:
        return None
    match = _HOLDER.fullmatch(text)
    return match[1] if match else None if text.startswith(TAKEN) else BY_HAND


def read_tail(path: Path, limit_bytes: int) -> str:
    """Return the end of the output of a task; empty if there is none."""
    try:
        with nofollow.open_file(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - limit_bytes))
            text: bytes = file.read(limit_bytes)
    except OSError:
        return ""
    return text.decode("utf-8", "replace")
