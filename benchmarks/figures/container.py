"""[container] Real training in Podman containers started by Slurm, in an image with only Python, without network.

The image is a root file system made by debootstrap. numpy, torch and the imports of torch are mounted from this
environment; the worker is mounted read-only, the root is read-only, there is no network. A study of the `tiny` workload
with 1 and 2 ranks runs through `steelyard study --site` and a real Slurm, in the image for this architecture from an
index of two, and in the root file system itself; in the full form also on two nodes, each with its own container. Then
it checks what a process inside can write and import, what changed outside, and that an image for another architecture
is refused before anything is queued. The full form also checks that a run beyond its time limit leaves no processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import rootfs
from cluster import Cluster
from figure import Figure, arguments, at_least, at_most, finish
from steelyard.inputs.site import find_place
from steelyard.launch.images.image import look_at_image
from steelyard.launch.plan import campaigns
from steelyard.launch.scripts.bash import line
from steelyard.launch.scripts.container import run_words
from steelyard.results.store import ResultFolder

STUDY = """
name = "{name}"
repeats = 1
seed = 7

[run]
workload = "tiny"
device = "cpu"
crosscheck_steps = 0
budget = {{ min_steps = 50, max_steps = 50, min_seconds = 0.0, max_seconds = 30.0 }}

[sweep]
devices = {ranks}
"""
OWN = platform.machine()
OTHER = rootfs.OTHERS[OWN]
LIMIT_S = 300

# Runs inside: which places are writable, which networks exist, which modules can be imported.
INSIDE = """
import importlib.util, json, os, sys
written = []
for place in sys.argv[1:]:
    try:
        with open(os.path.join(place, "steelyard-was-here"), "w") as file:
            file.write("x")
        os.remove(file.name)
        written.append(place)
    except OSError:
        pass
names = ("numpy", "torch", "steelyard.worker", "scipy", "pydantic", "torchvision", "steelyard.cli")
def there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
print(json.dumps({"written": written, "network": sorted(os.listdir("/sys/class/net")), "home": os.environ["HOME"],
                  "modules": [name for name in names if there(name)]}))
"""


def site(cluster: Cluster, made: rootfs.Made, image: str, *, ranks: int = 2, network: str = "none") -> Path:
    """Write a site for the cluster whose nodes run containers of an image."""
    pool = {"devices_per_node": ranks, "cpus_per_node": 2, "memory_per_node_mib": 3000, "architecture": OWN}
    options = [*rootfs.PODMAN_OPTIONS, *made.storage, f"--network={network}"]
    container = {"runtime": "podman", "images": {OWN: image}, "options": options}
    path = cluster.site(container=container, pools={"cpu": pool}, python="python3")
    with path.open("a", encoding="utf-8") as file:
        for source, target in rootfs.mounts():
            file.write(f"[[container.mounts]]\nsource = {json.dumps(source)}\ntarget = {json.dumps(target)}\n")
    return path


def study(
    cluster: Cluster, scratch: Path, name: str, text: str, place: Path, *more: str
) -> subprocess.CompletedProcess[str]:
    """Run the command as a user types it."""
    file = scratch / f"{name}.toml"
    file.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "steelyard.cli.main", "study", str(file), "--site", str(place), *more]
    return subprocess.run(
        [*command, "--results", str(scratch / "results")],
        env={**os.environ, **cluster.variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """List all files and folders below, with attributes that change when they are written."""
    found = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        found[str(path)] = (status.st_mtime_ns, status.st_size)
    return found


def records(scratch: Path, name: str, digest: str | None) -> tuple[int, int]:
    """Count the completed runs of a study, and those whose record has the digest."""
    there = [record for record in ResultFolder(scratch / "results").records() if record.spec.study == name]
    done = [record for record in there if record.status.code == "completed" and record.steps_seen >= 50]
    for record in there:
        if record not in done:
            print(name, record.spec.devices, record.status)
    launches = [record.launch.scheduled for record in done if record.launch is not None]
    return len(done), sum(said is not None and said.digest == digest for said in launches)


def run_studies(cluster: Cluster, made: rootfs.Made, scratch: Path, *, quick: bool) -> list[Figure]:
    index = f"oci:{made.index}:{rootfs.TAG}"
    cases: list[tuple[str, str, list[int], dict[str, Any], str | None]] = [
        ("index", index, [2] if quick else [1, 2], {}, made.digests[OWN]),
        ("root", str(made.root), [1] if quick else [1, 2], {}, None),
    ]
    if not quick:
        # Two nodes need the network of the host.
        cases.append(("nodes", index, [2], {"devices": 1, "network": "host"}, made.digests[OWN]))
    before = tree(made.root)
    wanted = completed = digests = 0
    for name, image, ranks, changes, digest in cases:
        text = STUDY.format(name=name, ranks=ranks)
        done = study(cluster, scratch, name, text, site(cluster, made, image, **changes), "--wait")
        if done.returncode:
            print(done.stdout[-3000:], done.stderr[-3000:])
        found, right = records(scratch, name, digest)
        wanted, completed, digests = wanted + len(ranks), completed + found, digests + right
    changed = before.items() ^ tree(made.root).items()
    return [
        Figure("container: runs completed inside", completed, "runs", f"= {wanted}", completed == wanted),
        Figure("container: records with the right digest", digests, "records", f"= {wanted}", digests == wanted),
        at_most("container: changes of the root file system", len(changed), "entries", 0),
    ]


def over_time(cluster: Cluster, made: rootfs.Made, scratch: Path) -> Figure:
    """A run beyond its time limit: the record has the status, and no container is left."""
    text = STUDY.format(name="late", ranks=[2]).replace("[sweep]", "time_limit_s = 12.0\n[sweep]")
    text = text.replace("= 50", "= 1000000000").replace("max_seconds = 30.0", "max_seconds = 100000.0")
    study(cluster, scratch, "late", text, site(cluster, made, str(made.root)), "--wait")
    there = [record for record in ResultFolder(scratch / "results").records() if record.spec.study == "late"]
    right = [record for record in there if record.status.code == "time_limit"]
    left = processes(str(scratch / "results"))
    print(f"over time: {[record.status for record in there]}, processes left: {left}")
    good = len(right) == 1 and not left
    return Figure("container: ended at the time limit", int(good), "runs", "= 1", good)


def processes(word: str) -> list[int]:
    """Count processes with a word in their command line, including those inside containers."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if word.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def look_inside(scratch: Path) -> list[Figure]:
    """Check what a process inside can do, started with the command that steelyard writes."""
    campaign = campaigns(ResultFolder(scratch / "results"), "root")[0]
    folder = campaign.path
    places = ["/", "/usr/lib/python3/dist-packages", "/etc", "/root", "/var/tmp", str(folder / "worker"), "/tmp",
              str(folder / "runs")]  # fmt: skip
    words = [*run_words(campaign.plan, folder, ["PYTHONSAFEPATH"]), "python3", "-c", INSIDE, *places]
    done = subprocess.run(
        ["bash", "-c", line(words)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    print(f"inside: {done.stdout.strip()} {done.stderr.strip()[-1000:]}")
    found = json.loads(done.stdout)
    # Podman keeps these as memory of the container; the last is where results go.
    allowed = {"/tmp", "/var/tmp", str(folder / "runs")}
    modules = ["numpy", "torch", "steelyard.worker"]
    return [
        at_most("container: places that could be written", len(set(found["written"]) - allowed), "places", 0),
        at_most("container: networks but loopback", len(set(found["network"]) - {"lo"}), "networks", 0),
        at_most("container: modules more or less", len(set(found["modules"]) ^ set(modules)), "modules", 0),
    ]


def refuse(cluster: Cluster, made: rootfs.Made, scratch: Path) -> list[Figure]:
    """Check that an image for another architecture is refused."""
    alone = f"oci:{scratch / 'alone'}:{rootfs.TAG}"
    copy = ["skopeo", "copy", "--quiet", f"--override-arch={rootfs.GO_NAMES[OTHER]}"]
    subprocess.run([*copy, f"oci:{made.index}:{rootfs.TAG}", alone], check=True, capture_output=True)
    text = STUDY.format(name="refused", ranks=[1])
    said = study(cluster, scratch, "refused", text, site(cluster, made, alone))
    print(said.stderr.strip())
    words = (f"the image is for {OTHER}", f"the nodes of {cluster.name}:cpu are {OWN}", f"an image for {OWN}", "next:")
    right = said.returncode == 2 and all(text in said.stderr for text in words)
    nothing = not cluster.queue() and not campaigns(ResultFolder(scratch / "results"), "refused")
    return [
        Figure("container: another architecture refused", int(right and nothing), "refusals", "= 1", right and nothing)
    ]


def choose(cluster: Cluster, made: rootfs.Made) -> Figure:
    """Check that each architecture gets the image that skopeo reports for it."""
    right = 0
    for architecture in (OWN, OTHER):
        image = f"oci:{made.index}:{rootfs.TAG}"
        container = {"runtime": "podman", "images": {architecture: image}}
        found = look_at_image(
            find_place(str(cluster.site(container=container, pools={"cpu": {"architecture": architecture}})))
        )
        right += found is not None and (found.architecture, found.digest) == (architecture, made.digests[architecture])
    return at_least("container: right image of an index", right, "of 2", 2)


def main() -> None:
    options = arguments(__doc__)
    made = rootfs.make(rootfs.default_cache())
    with tempfile.TemporaryDirectory(prefix="sy-") as folder:
        scratch = Path(folder)
        with Cluster(scratch / "slurm", nodes=2) as cluster:
            figures = run_studies(cluster, made, scratch, quick=options.quick)
            figures += look_inside(scratch)
            figures += refuse(cluster, made, scratch)
            figures.append(choose(cluster, made))
            if not options.quick:
                figures.append(over_time(cluster, made, scratch))
    finish(figures)


if __name__ == "__main__":
    main()
