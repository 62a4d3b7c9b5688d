"""What a job requests from Slurm: the #SBATCH lines of its script, and the srun that starts its runs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from steelyard.launch.scripts.container import srun_container

if TYPE_CHECKING:
    from steelyard.inputs.site import Pool
    from steelyard.launch.campaign import Campaign, JobArray
    from steelyard.launch.scripts.bash import Word


def is_array(campaign: Campaign, job: JobArray) -> bool:
    """Return whether a job is submitted as an array; with array_size 1 the site may not allow arrays at all."""
    return campaign.plan.site.limits.array_size > 1 or len(job.tasks) > 1


def sbatch_lines(campaign: Campaign, job: JobArray) -> list[str]:
    """Return the #SBATCH lines. Each value is a number of ours or was checked against the site contract."""
    pool, shape = campaign.plan.place.pool, job.shape
    tasks = tasks_per_node(pool, job)
    plan = campaign.plan
    options = [f"--job-name={job.name}", f"--comment=steelyard/{plan.study}/{job.number:03d}"]
    if is_array(campaign, job):
        most = campaign.plan.site.limits.max_running
        # Slurm has a limit per array, not one for all arrays.
        together = f"%{max(1, most // len(campaign.plan.jobs))}" if most is not None else ""
        options.append(f"--array=0-{len(job.tasks) - 1}{together}")
    options.append(f"--output=jobs/{campaign.job_folder(job).name}/{output_name(campaign, job)}")
    options += [f"--nodes={shape.nodes}", f"--ntasks-per-node={tasks}"]
    if (cpus := cpus_per_task(pool, job)) is not None:
        options.append(f"--cpus-per-task={cpus}")
    if pool.memory_per_node_mib is not None:
        options.append(f"--mem={_share(pool.memory_per_node_mib, pool, job)}M")
    if shape.devices_per_node:
        options += device_options(pool, shape.devices_per_node, tasks)
    # Slurm counts whole minutes, rounded up.
    minutes = math.ceil(job.task_limit_s / 60)
    # A requeued job, or a copy, must not erase what was printed before.
    options += [f"--time={minutes}", "--no-requeue", "--open-mode=append"]
    named = {
        "partition": pool.partition,
        "account": pool.account,
        "qos": pool.qos,
        "constraint": pool.constraint,
        "reservation": pool.reservation,
    }
    options += [f"--{name}={value}" for name, value in named.items() if value is not None]
    options += ["--exclusive"] if pool.exclusive else []
    if not any(option.startswith("--export=") for option in pool.options):
        # What the login shell happens to have set must not change a measurement.
        options.append("--export=NONE")
    return [f"#SBATCH {option}" for option in [*options, *pool.options]]


def device_options(pool: Pool, devices: int, tasks: int) -> list[str]:
    """Return the option that requests the devices of a node, which has this many tasks."""
    if pool.gpus is None:
        return []
    if pool.gpu_request == "gres":
        return [f"--gres={pool.gpus}:{devices}"]
    # Their values have the type alone: --gpus-per-node=a100:4.
    _, _, model = pool.gpus.partition(":")
    count = devices if pool.gpu_request == "gpus-per-node" else max(1, devices // tasks)
    return [f"--{pool.gpu_request}={model}{':' if model else ''}{count}"]


def output_name(campaign: Campaign, job: JobArray) -> str:
    """Return the name of a task's output file, as Slurm expands it."""
    return "%a.out" if is_array(campaign, job) else "0.out"


def tasks_per_node(pool: Pool, job: JobArray) -> int:
    """Return the number of Slurm tasks per node: one torchrun, or one per process."""
    return job.shape.processes_per_node if pool.start == "tasks" and job.kind != "packed" else 1


def cpus_per_task(pool: Pool, job: JobArray) -> int | None:
    """Return the CPUs of each Slurm task; None: the scheduler's default."""
    if pool.cpus_per_node is None:
        return None
    return max(1, _share(pool.cpus_per_node, pool, job) // tasks_per_node(pool, job))


def _share(amount: int, pool: Pool, job: JobArray) -> int:
    """Return the share of a node's CPUs or memory that matches its share of devices: other jobs need the rest."""
    if pool.exclusive:
        return amount
    devices = max(1, job.shape.devices_per_node, job.shape.processes_per_node)
    return max(1, math.ceil(amount * min(devices, pool.devices_per_node) / pool.devices_per_node))


def start_words(campaign: Campaign, job: JobArray) -> list[Word]:
    """Return the command that starts node.sh once per node or per process.

    Each run is a step, even on one node: if Slurm ends it for its memory, the next run can still start.
    """
    pool, contained = campaign.plan.place.pool, srun_container(campaign.plan, campaign.path.absolute())
    if job.kind == "packed" and not contained:
        return []
    tasks = tasks_per_node(pool, job)
    words: list[Word] = ["srun", f"--nodes={job.shape.nodes}", f"--ntasks={job.shape.nodes * tasks}"]
    words.append(f"--ntasks-per-node={tasks}")
    # Since 22.05 srun does not inherit it from the job.
    if (cpus := cpus_per_task(pool, job)) is not None:
        words.append(f"--cpus-per-task={cpus}")
    elif pool.exclusive and tasks == 1:
        # One torchrun has the whole node; a site's automatic binding would give it a single core.
        words.append("--cpu-bind=none")
    # If a rank dies, the others must not wait for it; standard input belongs to the script. In a job submitted with
    # --export=NONE, srun would hide from the run what modules and the script have set.
    words += ["--export=ALL", "--kill-on-bad-exit=1", "--input=none", "--unbuffered"]
    # The site's own options replace ours with the same name.
    given = {option.partition("=")[0] for option in pool.srun_options}
    return [*(word for word in words if word.partition("=")[0] not in given), *pool.srun_options, *contained]
