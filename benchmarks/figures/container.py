"""[container] Real training inside Podman containers that Slurm starts, in an image with Python alone, without network.

The image is a root file system made by debootstrap; numpy and torch are mounted from this environment with what torch
itself imports; our worker is mounted read-only, the root is read-only, there is no network. A study of the `tiny`
workload with 1 and 2 ranks goes through `steelyard study --site` and a real Slurm, in the image of this machine's
architecture that is found in an index of two, and in the root file system itself. In the full form two nodes, too,
each with a container of its own. Then: what a process inside can write and import; what has changed outside; and that
an image for another architecture is refused before anything is queued. In the full form also a run that goes on past
its time limit: nothing of it is left.
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
ranks = {ranks}
"""
OWN = platform.machine()
OTHER = rootfs.OTHERS[OWN]
LIMIT_S = 300

# Run inside: where can be written, what can be reached, what can be imported.
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
    """A site of that cluster whose nodes run containers of an image."""
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
    """The command a person would type."""
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
    """Every file and folder below, with what changes when it is written."""
    found = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        found[str(path)] = (status.st_mtime_ns, status.st_size)
    return found


def records(scratch: Path, name: str, digest: str | None) -> tuple[int, int]:
    """Completed runs of a study, and those whose record has the digest."""
    there = [record for record in ResultFolder(scratch / "results").records() if record.spec.study == name]
    done = [record for record in there if record.status.code == "completed" and record.steps_seen >= 50]
    for record in there:
        if record not in done:
            print(name, record.spec.ranks, record.status)
    launches = [record.launch.scheduled for record in done if record.launch is not None]
    return len(done), sum(said is not None and said.digest == digest for said in launches)


def run_studies(cluster: Cluster, made: rootfs.Made, scratch: Path, *, quick: bool) -> list[Figure]:
    index = f"oci:{made.index}:{rootfs.TAG}"
    cases: list[tuple[str, str, list[int], dict[str, Any], str | None]] = [
        ("index", index, [2] if quick else [1, 2], {}, made.digests[OWN]),
        ("root", str(made.root), [1] if quick else [1, 2], {}, None),
    ]
    if not quick:
        # Two nodes meet by the host's network.
        cases.append(("nodes", index, [2], {"ranks": 1, "network": "host"}, made.digests[OWN]))
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
    """A run that goes on past its limit: its record says so, and no container of it is left."""
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
    """Those that were started with a word, also inside containers: a node sees them as its own."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if word.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def look_inside(scratch: Path) -> list[Figure]:
    """What a process inside can do, by the words of the product itself."""
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
    """An image for another architecture alone."""
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
    """For either architecture the image that skopeo says is its."""
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
