"""Real Apptainer on a system without it: training in a SIF image, started by the scripts of a campaign.

Debian unstable has Apptainer. It is bootstrapped into a folder (a minute, 400 MB) and entered with its own mount
namespace and pivot_root, because chroot is not enough for Apptainer. Inside, an image is built from
containers/local.def on the root file system of rootfs.py. Outside, without Apptainer, the image is inspected and a
campaign is written; inside, its scripts run as on a node; outside again, the records are derived. Needs root and
debootstrap. Not part of CI; its output is in docs/containers.md.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

import rootfs
from figure import Figure, arguments, at_least, at_most, finish
from steelyard.contracts.observe import Scheduled
from steelyard.inputs.site import Container, Mount, Place, Pool, Site
from steelyard.inputs.study import expand, load_study
from steelyard.launch.collect import collect_task
from steelyard.launch.plan import make_campaign
from steelyard.launch.scripts.bash import line
from steelyard.launch.scripts.container import run_words
from steelyard.launch.slurm.scheduler import Slurm
from steelyard.results.store import ResultFolder

STUDY: Final = """
name = "sif"
repeats = 1
[run]
workload = "tiny"
device = "cpu"
crosscheck_steps = 0
budget = { min_steps = 50, max_steps = 50, min_seconds = 0.0, max_seconds = 30.0 }
[sweep]
devices = [1, 2]
"""
# Apptainer changes mounts, which needs a real root mount: chroot is not enough.
ENTER: Final = """
set -e
root=$1; shift
mount --make-rprivate /
mount --bind "$root" "$root"
for part in proc sys dev; do mount --rbind /$part "$root/$part"; done
while [ "$1" != -- ]; do
  mkdir -p "$root$1"
  mount --bind "$1" "$root$1"
  shift
done
shift
mkdir -p "$root/outside"
cd "$root"
pivot_root . outside
umount -l /outside
exec "$@"
"""
INSIDE: Final = """
import json, os, sys
def writes(path):
    try:
        with open(os.path.join(path, "was-here"), "w"):
            return True
    except OSError:
        return False
names = ("PYTHONPATH", "HOME", "LANG")
print(json.dumps({"variables": {name: os.environ.get(name) for name in names},
                  "written": [path for path in sys.argv[1:] if writes(path)]}))
"""
NASTY: Final = "a,b 'c' \"d\" $(touch /tmp/steelyard-was-here) `id` $HOME;\\ \n-x"
DEFINITION: Final = Path(__file__).parents[2] / "containers" / "local.def"


def unstable(cache: Path) -> Path:
    """A root file system with Apptainer."""
    root, part = cache / "sid", cache / "sid.part"
    if not root.is_dir():
        shutil.rmtree(part, ignore_errors=True)
        begin_s = time.monotonic()
        command = ["debootstrap", "--variant=minbase", "--include=apptainer", "sid", str(part), rootfs.MIRROR]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        # Apptainer copies this file into every container, and ranks find each other by the name of this machine.
        shutil.copy("/etc/hosts", part / "etc/hosts")
        part.rename(root)
        print(f"debootstrap of sid: {time.monotonic() - begin_s:.0f} s")
    return root


def inside(root: Path, folders: list[Path], *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the root; the folders are mounted at their own paths."""
    words = ["unshare", "--mount", "bash", "-c", ENTER, "bash", str(root), *map(str, folders), "--", *command]
    # Not the variables of this environment: its Python and its torch are not to be found by accident.
    kept = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "TERM": "dumb"}
    done = subprocess.run(words, env=kept, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{' '.join(command)}: code {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done


def build(root: Path, base: Path, scratch: Path) -> Path:
    """An image from the definition file."""
    image = scratch / "image.sif"
    begin_s = time.monotonic()
    # Without its test, which needs all capabilities; a machine that is itself a container lacks some.
    command = ["apptainer", "build", "--notest", f"--build-arg=root={base}", str(image), str(DEFINITION)]
    inside(root, [base, scratch, DEFINITION.parent], *command)
    print(f"apptainer build: {time.monotonic() - begin_s:.0f} s, {image.stat().st_size / 2**20:.0f} MiB")
    print(inside(root, [scratch], "apptainer", "sif", "header", str(image)).stdout)
    return image


def place_of(image: Path) -> Place:
    pool = Pool(
        architecture="x86_64" if platform.machine() == "x86_64" else "aarch64", devices_per_node=2, device="cpu"
    )
    container = Container(
        runtime="apptainer",
        images={pool.architecture: str(image)},
        mounts=tuple(Mount(source=source, target=target) for source, target in rootfs.mounts()),
        # Root must give up its privileges itself where the system has no more than these.
        options=("--no-privs",),
    )
    environment = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_DEBUG_FILE": NASTY}
    site = Site(name="sid", scheduler="slurm", pools={"cpu": pool}, container=container, environment=environment)
    return Place(site, "cpu")


def run(root: Path, place: Place, scratch: Path) -> list[Figure]:
    (scratch / "study.toml").write_text(STUDY, encoding="utf-8")
    folder = ResultFolder(scratch / "results")
    campaign = make_campaign(folder, expand(load_study(scratch / "study.toml"), scratch), place, Slurm())
    assert campaign is not None
    print(f"as the login node sees it: {campaign.plan.image}")
    print((campaign.job_folder(campaign.plan.jobs[-1]) / "node.sh").read_text(encoding="utf-8"))
    packages = sorted({Path(source).parent for source, _ in rootfs.mounts()})
    temporary = scratch / "node-tmp"
    temporary.mkdir()
    for job in campaign.plan.jobs:
        script = str(campaign.job_folder(job) / "job.sh")
        inside(root, [scratch, *packages], "env", f"TMPDIR={temporary}", "bash", script, "0")
    for job in campaign.plan.jobs:
        for (run_id,) in job.tasks:
            log = (campaign.raw(run_id) / "worker.log").read_text(encoding="utf-8", errors="replace").strip()
            print(f"{run_id} printed: {log[-2000:]}" if log else f"{run_id} printed nothing")
        state = Scheduled(scheduler="slurm", job="by hand", state="COMPLETED")
        collect_task(folder, campaign, job, 0, state, {run for task in job.tasks for run in task})
    own = str(campaign.path)
    words = [*run_words(campaign.plan, campaign.path, []), "python3", "-c", INSIDE, "/", "/usr", f"{own}/worker", own]
    said = inside(root, [scratch, *packages], "env", f"TMPDIR={temporary}", "bash", "-c", line(words)).stdout
    print(f"inside: {said.strip()}")
    found = json.loads(said)
    path = f"{own}/worker:/opt/vendor"
    return [
        *judge(folder, scratch),
        at_most("apptainer: places that could be written", len(set(found["written"]) - {own}), "places", 0),
        at_least("apptainer: the image's PYTHONPATH stays", int(found["variables"]["PYTHONPATH"] == path), "of 1", 1),
        at_most("apptainer: left in the node's temporary folder", len(list(temporary.iterdir())), "entries", 0),
    ]


def judge(folder: ResultFolder, scratch: Path) -> list[Figure]:
    """What the records say."""
    command = ["sha256sum", str(scratch / "image.sif")]
    digest = "sha256:" + subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    completed = digests = kinds = values = 0
    for record in folder.records():
        facts = record.environment.facts if record.environment is not None else {}
        said = record.launch.scheduled if record.launch is not None else None
        completed += record.status.code == "completed"
        digests += said is not None and said.digest == digest
        kinds += facts.get("container.kind") == "apptainer"
        values += facts.get("env.NCCL_DEBUG_FILE") == NASTY
        kind, torch = facts.get("container.kind"), facts.get("torch.version")
        print(f"{record.spec.devices} ranks: {record.status.code}, {record.steps_seen} steps, {kind}, torch {torch}")
    return [
        at_least("apptainer: runs completed", completed, "runs", 2),
        at_least("apptainer: records with the file's digest", digests, "records", 2),
        at_least("apptainer: records that name the container", kinds, "records", 2),
        at_least("apptainer: values passed unchanged", values, "records", 2),
    ]


def main() -> None:
    arguments(__doc__)
    made = rootfs.make(rootfs.default_cache())
    root = unstable(rootfs.default_cache())
    print(inside(root, [], "apptainer", "--version").stdout.strip())
    with tempfile.TemporaryDirectory(prefix="sy-", dir="/var/tmp") as folder:
        scratch = Path(folder)
        image = build(root, made.root, scratch)
        finish(run(root, place_of(image), scratch))


if __name__ == "__main__":
    main()
