"""Site files of public machines: each line has a page, and a study of two nodes asks for what the site's own example
script asks for. None of them was run there.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from steelyard.cli.main import main
from steelyard.inputs.site import Place, find_place
from steelyard.inputs.study import Study, expand
from steelyard.inputs.validate import parse_object
from steelyard.launch.plan import make_campaign
from steelyard.launch.slurm.scheduler import Slurm
from steelyard.results.store import ResultFolder

if TYPE_CHECKING:
    from steelyard.launch.campaign import Campaign

SITES = sorted((Path(__file__).parents[2] / "docs" / "examples" / "sites").glob("*.toml"))
NAMES = [path.stem for path in SITES]
OURS = "ours: the name, the output and the time limit say which run it is"
OWN = {"--job-name": OURS, "--output": OURS, "--error": OURS, "--time": OURS, "--account": "of the user",
       "--reservation": "of the course"}  # fmt: skip

# The options of each site's example script, and of its srun; the page is named in the site file. An example with
# several tasks starts a rank with each; one with a single task starts torchrun.
EXAMPLES: dict[str, tuple[list[str], list[str]]] = {
    "lumi": (
        ["--job-name", "--output", "--error", "--partition=standard-g", "--nodes=2", "--ntasks-per-node=8",
         "--gpus-per-node=8", "--time", "--account"],
        ["export MPICH_GPU_SUPPORT_ENABLED=1", "ROCR_VISIBLE_DEVICES=$SLURM_LOCALID",
         "--cpu-bind=mask_cpu:7e000000000000,7e00000000000000,7e0000,7e000000,7e,7e00,7e00000000,7e0000000000"],
    ),
    "olivia": (
        ["--account", "--job-name", "--output", "--error", "--time", "--partition=accel", "--nodes=2",
         "--ntasks-per-node=1", "--gpus-per-node=4", "--cpus-per-task=72", "--mem=450560M"],
        ["ml reset", "ml load NRIS/GPU", "ml load NCCL/2.26.6-GCCcore-14.2.0-CUDA-12.8.0",
         "ml use /cluster/work/support/pytorch_module", "ml load PyTorch/2.8.0", "export PYTORCH_OVERLAY_MODE=ro",
         "--nnodes=2", "--nproc-per-node=4"],
    ),
    "perlmutter": (
        ["--constraint=gpu", "--account", "--qos=regular", "--ntasks-per-node=4", "--cpus-per-task=32",
         "--gpus-per-node=4", "--time", "--reservation", "--job-name", "--output"],
        ["export CUDA_VISIBLE_DEVICES=3,2,1,0", "FI_MR_CACHE_MONITOR=userfaultfd", "HDF5_USE_FILE_LOCKING=FALSE",
         "--unbuffered", "shifter", "--image=nersc/pytorch:ngc-23.07-v0", "--module=gpu,nccl-2.18", "--volume="],
    ),
    "juwels-booster": (
        ["--nodes=2", "--gres=gpu:4", "--ntasks-per-node=4", "--cpus-per-task=24", "--time", "--partition=booster",
         "--account", "--output", "--error", "--reservation"],
        # SRUN_CPUS_PER_TASK does in the example what the option of srun does here.
        ["export CUDA_VISIBLE_DEVICES=0,1,2,3", "--cpus-per-task=24"],
    ),
    "jupiter": (
        ["--partition=booster", "--gres=gpu:4", "--time"],
        ["--cpu-bind=sockets", "--unbuffered"],
    ),
}  # fmt: skip


def rendered(place: Place, folder: Path) -> Campaign:
    """Plan a study that fills two nodes."""
    run = {"workload": "resnet50", "device": "cuda", "devices": 2 * place.pool.devices_per_node, "time_limit_s": 600.0}
    study = expand(parse_object(Study, {"name": "two-nodes", "repeats": 1, "run": run}, "a study"))
    made = make_campaign(ResultFolder(folder), study, place, Slurm({}), dry_run=True)
    assert made is not None
    return made


@pytest.mark.parametrize("path", SITES, ids=NAMES)
def test_every_line_has_a_page(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "not run there" in text
    pages = dict(re.findall(r"^# \[([a-z]+)\] +(https://\S+|a field of steelyard itself)$", text, re.MULTILINE))
    for line in text.splitlines():
        if not line or line.startswith(("#", "[")) or line in ("prologue = [", "]"):
            continue
        found = re.search(r"  # \[([a-z]+)\]", line)
        assert found, f"no page: {line}"
        assert found[1] in pages, line


@pytest.mark.parametrize("path", SITES, ids=NAMES)
def test_the_file_is_valid_offline(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["site", "check", str(path), "--offline"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("path", SITES, ids=NAMES)
def test_two_nodes_ask_for_what_the_example_asks_for(path: Path, tmp_path: Path) -> None:
    made = rendered(find_place(str(path)), tmp_path)
    home = made.job_folder(made.plan.jobs[0])
    script, node = (home / "job.sh").read_text(), (home / "node.sh").read_text()
    asked = re.findall(r"^#SBATCH (\S+)$", script, re.MULTILINE)
    theirs, others = EXAMPLES[path.stem]
    for line in theirs:
        if line in OWN:
            assert "=" not in line
        else:
            assert line in asked, line
    # What we ask for beyond the example, each for its reason.
    ours = {"--comment", "--open-mode", "--no-requeue", "--export", "--array", "--exclusive", "--nodes",
            "--ntasks-per-node", *OWN}  # fmt: skip
    assert {line.partition("=")[0] for line in asked if line not in theirs} <= ours
    both = f"{script}\n{node}".replace('"${SLURM_LOCALID}"', "$SLURM_LOCALID")
    for line in others:
        assert line in both, line


@pytest.mark.parametrize("path", SITES, ids=NAMES)
def test_options_of_srun_do_not_reach_sbatch(path: Path, tmp_path: Path) -> None:
    place = find_place(str(path))
    pool = replace(place.pool, srun_options=("--cpu-bind=cores", "--mpi=none"), gpu_request="gpus-per-task")
    site = replace(place.site, pools={place.pool_name: pool}, meeting_host="{node}i")
    made = rendered(Place(site, place.pool_name), tmp_path)
    script = (made.job_folder(made.plan.jobs[0]) / "job.sh").read_text()
    assert "#SBATCH --cpu-bind" not in script
    assert script.count("--cpu-bind=") == 1
    each = 1 if pool.start == "tasks" else pool.devices_per_node
    assert f"#SBATCH --gpus-per-task={each}\n" in script
    assert 'head -n 1)"i\n' in script


# Options in the documentation of runtimes that cannot run here.
PYXIS = {"--container-image", "--container-mounts", "--container-workdir", "--container-readonly",
         "--no-container-mount-home", "--no-container-entrypoint"}  # fmt: skip
"""README of github.com/NVIDIA/pyxis."""
SHIFTER = {"--image", "--volume", "--module"}
"""Usage in src/shifter.c of github.com/NERSC/shifter; --module is the tutorial's of the site file of Perlmutter."""


def contained(runtime: str, folder: Path) -> str:
    """Return the scripts of a study of two nodes in a container."""
    place = find_place(str(next(path for path in SITES if path.stem == "perlmutter")))
    images = {"x86_64": "docker://nvcr.io/x:1" if runtime == "singularity" else "nvcr.io/x:1"}
    container = replace(place.site.container, runtime=runtime, devices="nvidia", options=(), images=images)
    made = rendered(Place(replace(place.site, container=container), place.pool_name), folder)
    home = made.job_folder(made.plan.jobs[0])
    return (home / "job.sh").read_text() + (home / "node.sh").read_text()


def test_pyxis_is_options_of_srun(tmp_path: Path) -> None:
    text = contained("pyxis", tmp_path)
    (start,) = re.findall(r"^start=\((.*)\)$", text, re.MULTILINE)
    used = {word.partition("=")[0] for word in start.split() if "container" in word}
    assert used == PYXIS
    assert "--container-image=nvcr.io/x:1" in start
    # The script of a node runs inside, where the image's own PYTHONPATH is known.
    assert '"${PYTHONPATH:+:$PYTHONPATH}"' in text


@pytest.mark.parametrize(
    ("runtime", "words"),
    [
        ("singularity", ["singularity exec --cleanenv --no-eval --no-home", "--nv", "SINGULARITYENV_MASTER_ADDR="]),
        ("podman-hpc", ["podman-hpc run --rm", "--gpu", "--env=MASTER_ADDR"]),
        ("shifter", ["shifter --image=nvcr.io/x:1", "--module=gpu", ":ro"]),
    ],
)
def test_command_lines_follow_the_documentation(tmp_path: Path, runtime: str, words: list[str]) -> None:
    text = contained(runtime, tmp_path)
    for word in words:
        assert word in text, word
    assert "APPTAINERENV_" not in text
    if runtime == "shifter":
        command = re.sub(r"\\\n", " ", text[text.index("shifter --image") :]).partition("/bin/sh")[0]
        assert {word.partition("=")[0] for word in command.split() if word.startswith("--")} <= SHIFTER
