"""Sites: templates that are whole, checks that find each trap, prices against tables computed by hand."""

from __future__ import annotations

import json
import platform
import re
import sys
import textwrap
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from steelyard.cli.main import main
from steelyard.contracts.base import to_json_object
from steelyard.doctor.node import Check, HostView
from steelyard.errors import InputError, SteelyardError
from steelyard.inputs.site import Charge, Container, Limits, Mount, Place, Pool, Site
from steelyard.inputs.templates import PLACEHOLDER, kinds, template
from steelyard.inputs.validate import parse_object, parse_toml
from steelyard.launch import site_check
from steelyard.launch.campaign import JobArray, RunShape
from steelyard.launch.price import price
from steelyard.launch.site_check import checks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[2]
HERE = platform.machine()
OTHER = "aarch64" if HERE == "x86_64" else "x86_64"


def pool(**settings: Any) -> Pool:
    return Pool(**({"architecture": HERE, "devices_per_node": 4, "device": "cuda", "gpus": "gpu"} | settings))


def place(name: str = "gpu", **settings: Any) -> Place:
    given = {"name": "here", "scheduler": "slurm", "pools": {name: settings.pop("pool", pool())}}
    return Place(Site(**(given | settings)), name)


def job(tasks: int = 1, runs: int = 1, **settings: Any) -> JobArray:
    shape = {"nodes": 1, "processes_per_node": 4, "devices_per_node": 4, "threads": None, "run_limit_s": 1800}
    shape["sharing"] = 4
    limit = settings.pop("task_limit_s", 3600)
    names = tuple(tuple(f"r{task}-{run}" for run in range(runs)) for task in range(tasks))
    kind = settings.pop("kind", "runs")
    return JobArray(
        number=0, name="job", kind=kind, shape=RunShape(**(shape | settings)), task_limit_s=limit, tasks=names
    )


# -- prices ---------------------------------------------------------------------------------------------------

DEVICE, NODE = Charge(), Charge(unit="node-hour", per_device_hour=0.0, per_node_hour=1.0)
BILLING = Charge(unit="billing-hour", per_device_hour=16.0, per_node_hour=8.0)
HALF = Charge(per_device_hour=0.5)


@pytest.mark.parametrize(
    ("rule", "exclusive", "jobs", "device_hours", "node_hours", "charge"),
    [
        # 10 tasks of an hour on one node with 4 devices.
        (DEVICE, False, [job(10)], 40, 10, 40),
        (NODE, False, [job(10)], 40, 10, 10),
        (BILLING, False, [job(10)], 40, 10, 40 * 16 + 10 * 8),
        (HALF, False, [job(10)], 40, 10, 20),
        # One device of a node's 4: shared nodes charge the one, exclusive ones all.
        (DEVICE, False, [job(10, devices_per_node=1, processes_per_node=1)], 10, 10, 10),
        (DEVICE, True, [job(10, devices_per_node=1, processes_per_node=1)], 40, 10, 40),
        (NODE, True, [job(10, devices_per_node=1, processes_per_node=1)], 40, 10, 10),
        # 3 tasks of half an hour on 8 nodes, and 2 of two hours on one.
        (DEVICE, False, [job(3, nodes=8, task_limit_s=1800), job(2, task_limit_s=7200)], 48 + 16, 12 + 4, 64),
        (BILLING, False, [job(3, nodes=8, task_limit_s=1800), job(2, task_limit_s=7200)], 64, 16, 64 * 16 + 16 * 8),
        # Simulated runs ask for no device; they take a part of a node, and an exclusive one whole.
        (DEVICE, False, [job(1, devices_per_node=0, processes_per_node=1)], 0, 1, 0),
        (NODE, False, [job(1, devices_per_node=0, processes_per_node=1)], 0, 1, 1),
        (DEVICE, True, [job(1, devices_per_node=0, processes_per_node=1)], 4, 1, 4),
        (DEVICE, False, [], 0, 0, 0),
    ],
)
def test_prices(
    rule: Charge, exclusive: bool, jobs: list[JobArray], device_hours: float, node_hours: float, charge: float
) -> None:
    found = price(place(charge=rule, pool=pool(exclusive=exclusive)), jobs)
    assert (found.device_hours, found.node_hours, found.charge) == (device_hours, node_hours, charge)
    assert found.charge_unit == rule.unit


@pytest.mark.parametrize(
    ("running", "jobs", "expected_s"),
    [
        (None, [job(10)], None),
        (None, [job(1)], 1800),
        (None, [], 0),
        (1, [job(10)], 18_000),
        (4, [job(10)], 5400),
        (100, [job(10)], 1800),
        # Three runs of 1800 s a task, whatever more the task was allowed.
        (2, [job(4, runs=3, task_limit_s=6000)], 10_800),
        # Six runs of a second in one process, and the start of that process.
        (None, [job(1, runs=6, run_limit_s=1, task_limit_s=366, kind="packed")], 366),
        # Never longer than the task.
        (1, [job(1, runs=3, task_limit_s=3600)], 3600),
        # In their order on two: 1800 1800 | 1800 600 600: ends 1800, 1800, then 3600 and 2400, 3000.
        (2, [job(3), job(2, run_limit_s=600)], 3600),
    ],
)
def test_the_expected_end(running: int | None, jobs: list[JobArray], expected_s: float | None) -> None:
    found = price(place(limits=Limits(max_running=running)), jobs)
    assert found.expected_s == expected_s
    assert ("unknown" in found.basis) == (expected_s is None)


def test_the_price_of_many_tasks_is_quick() -> None:
    found = price(place(limits=Limits(max_running=50)), [job(100_000)])
    assert found.expected_s == 2000 * 1800


# -- templates ------------------------------------------------------------------------------------------------


class MuteScheduler:
    """Finds nothing."""

    def check(self, _place: Place) -> Iterator[Check]:
        return iter(())


def read_template(kind: str, text: str | None = None) -> Site:
    return parse_object(Site, parse_toml((text or template("sites", kind)).encode(), kind), kind)


def test_every_kind_of_site_has_one() -> None:
    slurm = ("amd", "cpu", "gh200", "infiniband", "nvidia", "slingshot")
    assert kinds("sites") == ["kubernetes", *(f"slurm-{kind}" for kind in slurm)]


@pytest.mark.parametrize("kind", kinds("sites"))
def test_a_template_is_valid_and_its_gaps_are_found(kind: str) -> None:
    site = read_template(kind)
    for name in site.pools:
        found = by_name(checks(Place(site, name)))
        assert found["filled in"].verdict == "wrong"
        assert "name" in found["filled in"].found.split(": ")[1].split(", ")


@pytest.mark.parametrize("kind", kinds("sites"))
def test_a_template_that_is_filled_in_has_nothing_wrong_of_ours(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_check.plugins, "load", lambda *_: MuteScheduler)
    monkeypatch.setattr(site_check, "container_checks", lambda _place: iter(()))
    site = read_template(kind, re.sub("change-me", "filled", template("sites", kind), flags=re.IGNORECASE))
    for name, each in site.pools.items():
        found = list(checks(Place(site, name), node=HostView(machine=each.architecture)))
        assert [check for check in found if check.verdict == "wrong"] == []


@pytest.mark.parametrize("kind", kinds("sites"))
def test_what_a_template_offers_as_comments_is_valid_too(kind: str) -> None:
    """Every line that begins with "# " and a setting or a table; two of them name one table anew."""
    offered = re.sub(r"^# (\w+(\.\w+)? = |\[)", r"\1", template("sites", kind), flags=re.MULTILINE)
    site = read_template(kind, offered)
    left = [text for text in json.dumps(to_json_object(site)).split('"') if PLACEHOLDER.search(text)]
    assert any("/path/to/" in text for text in left)
    assert len(list(site.pools)) >= 1


@pytest.mark.parametrize("kind", kinds("sites"))
def test_every_setting_of_a_template_is_explained(kind: str) -> None:
    """Beside it, above its block, or where it stood first."""
    explained, block = {"scheduler", "description"}, False
    for line in template("sites", kind).splitlines():
        assert len(line) <= 120
        setting = re.match(r"(?:# )?([\w.\"/]+) = ", line)
        if setting is None:
            # A comment above a table belongs to the table.
            block = line.startswith("#") or (block and line.startswith("["))
        elif block or "  # " in line:
            explained.add(setting[1])
        else:
            assert setting[1] in explained, line


def test_templates_are_in_the_wheel(tmp_path: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"steelyard/sites/{kind}.toml" for kind in kinds("sites")} <= names


# -- checks ---------------------------------------------------------------------------------------------------


def by_name(found: Iterable[Check]) -> dict[str, Check]:
    """By name; of several with one name, the worst."""
    order = {"ok": 0, "note": 1, "wrong": 2}
    result: dict[str, Check] = {}
    for check in found:
        if check.name not in result or order[check.verdict] > order[result[check.name].verdict]:
            result[check.name] = check
        assert check.verdict != "wrong" or check.fix, f"no fix: {check}"
    return result


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without scheduler and container: those have tests of their own."""
    monkeypatch.setattr(site_check.plugins, "load", lambda *_: MuteScheduler)
    monkeypatch.setattr(site_check, "container_checks", lambda _place: iter(()))


def plant(root: Path, mount_kind: str = "lustre") -> HostView:
    """A machine on whose /shared lies a file system of this kind."""
    (root / "proc/self").mkdir(parents=True)
    (root / "shared/data").mkdir(parents=True)
    lines = "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:5 / /shared rw - {kind} server rw\n"
    (root / "proc/self/mountinfo").write_text(lines.format(kind=mount_kind))
    return HostView(root=root, machine=HERE)


@pytest.mark.usefixtures("own")
class TestOwnChecks:
    @pytest.mark.parametrize(
        ("settings", "name", "verdict", "words"),
        [
            ({"limits": Limits(setup_s=600), "pool": pool(max_time_s=500)}, "limits", "wrong", "setup_s = 600"),
            ({"limits": Limits(unbounded_s=9000), "pool": pool(max_time_s=7200)}, "limits", "wrong", "unbounded_s"),
            ({"pool": pool(cpus_per_node=2)}, "limits", "wrong", "2 CPUs per node for 4 devices"),
            ({"limits": Limits(max_running=2000)}, "limits", "note", "never reached"),
            ({}, "limits", "ok", "arrays of 1000"),
            ({"charge": Charge(unit="node-hour")}, "charge", "wrong", "costs 4 node-hours"),
            ({"charge": Charge(unit="node-hour", per_device_hour=0.5)}, "charge", "note", "costs 2 node-hours"),
            ({"charge": NODE}, "charge", "ok", "costs 1 node-hours"),
            ({"charge": HALF}, "charge", "note", "costs 2 device-hours and has 4"),
            ({"charge": Charge(per_device_hour=0.0)}, "charge", "note", "nothing is charged"),
            ({"charge": BILLING}, "charge", "ok", "costs 72 billing-hours"),
            ({"pool": pool(gpus="gpu:a100:4")}, "devices", "wrong", "contains a count"),
            ({"pool": pool(gpus=None)}, "devices", "note", "no device is requested"),
            ({"pool": pool(device="cpu")}, "devices", "note", "device = cpu, but gpu is requested"),
            ({"pool": pool(options=("--time=10", "--switches=1"))}, "options", "wrong", "sets itself: --time"),
            ({"pool": pool(resource="nvidia.com/gpu")}, "fields", "note", "no effect on this site: resource"),
            ({"container": Container(images={HERE: "x.sif"})}, "fields", "note", "runtime is none"),
            ({"environment": {"MASTER_ADDR": "n1"}}, "environment", "wrong", "MASTER_ADDR"),
            ({"pool": pool(environment={"PYTHONPATH": "/x"})}, "environment", "wrong", "PYTHONPATH"),
            ({"container": Container(runtime="apptainer")}, "image", "wrong", f"no image for {HERE}"),
            ({"meeting_host": "127.0.0.1"}, "meeting host", "note", "every node's own address"),
            ({"meeting_host": "no-such-host.invalid"}, "meeting host", "note", "cannot be resolved"),
            ({"python": "venv/bin/python"}, "python", "wrong", "depends on the current folder"),
            ({"python": "python3"}, "python", "note", "from the PATH of the jobs"),
            ({"python": "/no/such/python"}, "python", "note", "does not exist on this machine"),
            ({"python": sys.executable}, "python", "ok", f"for {HERE}"),
            ({"python": sys.executable, "pool": pool(architecture=OTHER)}, "python", "wrong", f"built for {HERE}"),
            ({"pool": pool(architecture=OTHER)}, "python", "wrong", "exec format error"),
        ],
    )
    def test_traps(self, settings: dict[str, Any], name: str, verdict: str, words: str) -> None:
        check = by_name(checks(place(**settings)))[name]
        assert check.verdict == verdict
        assert words in check.found

    def test_a_container_of_the_right_architecture_mends_it(self) -> None:
        container = Container(runtime="apptainer", images={OTHER: "x.sif"}, devices="nvidia")
        found = by_name(checks(place(pool=pool(architecture=OTHER), container=container)))
        assert not {"python", "image"} & found.keys()

    def test_kubernetes(self) -> None:
        settings: dict[str, Any] = {"scheduler": "kubernetes", "container": Container(images={HERE: "r/x:1"})}
        bare = pool(gpus=None, partition="p", memory_per_node_mib=1000, shm_mib=1000)
        found = by_name(checks(place(pool=bare, **settings)))
        assert {name for name, check in found.items() if check.verdict == "wrong"} == {"limits", "devices"}
        assert "partition" in found["fields"].found
        assert not {"python", "results", "mounts"} & found.keys()

    def test_gaps_of_another_pool_do_not_matter(self) -> None:
        site = replace(place().site, pools={"gpu": pool(), "other": pool(partition="CHANGE-ME")})
        assert by_name(checks(Place(site, "gpu")))["filled in"].verdict == "ok"
        assert "pools.other.partition" in by_name(checks(Place(site, "other")))["filled in"].found

    @pytest.mark.parametrize(
        ("kind", "verdict"), [("lustre", "ok"), ("nfs4", "ok"), ("xfs", "note"), ("tmpfs", "note")]
    )
    def test_where_results_lie(self, tmp_path: Path, kind: str, verdict: str) -> None:
        found = by_name(checks(place(), results=Path("/shared/results"), node=plant(tmp_path, kind)))
        assert found["results"].verdict == verdict
        assert kind in found["results"].found

    def test_mounts_that_are_not_there(self, tmp_path: Path) -> None:
        mounts = (Mount(source="/shared/data"), Mount(source="/shared/dota"), Mount(source="/opt/cray"))
        container = Container(runtime="apptainer", images={HERE: "x.sif"}, mounts=mounts)
        node = plant(tmp_path)
        found = [check for check in checks(place(container=container), node=node) if check.name == "mounts"]
        assert [(check.verdict, "/shared/dota does not exist" in check.found) for check in found] == [("wrong", True)]
        twice = replace(container, mounts=(Mount(source="/shared/data"), Mount(source="/x", target="/shared/data")))
        assert "mounted twice" in by_name(checks(place(container=twice), node=node))["mounts"].found


def test_a_check_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def check(self, _place: Place) -> Iterator[Check]:
            yield Check("Slurm", "ok", "said before")
            raise ValueError("unexpected words")

    class Refusing:
        def check(self, _place: Place) -> Iterator[Check]:
            raise SteelyardError("Slurm is not here", next_step="log in there")

    monkeypatch.setattr(site_check.plugins, "load", lambda _kind, _name: Broken)
    found = list(checks(place()))
    assert ("Slurm", "ok") in {(check.name, check.verdict) for check in found}
    assert by_name(found)["slurm"].found == "the check itself failed: ValueError: unexpected words"
    monkeypatch.setattr(site_check.plugins, "load", lambda _kind, _name: Refusing)
    broken = by_name(checks(place()))["slurm"]
    assert (broken.verdict, broken.found, broken.fix) == ("wrong", "Slurm is not here", "log in there")


def test_no_slurm_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = by_name(checks(place()))
    assert any(check.verdict == "wrong" and "scontrol" in check.found for check in found.values())


# -- the verb -------------------------------------------------------------------------------------------------


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEELYARD_SITES", str(tmp_path / "sites"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sites").mkdir()
    return tmp_path / "sites"


def test_new_list_show(sites: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["site", "list"]) == 0
    assert "No sites found" in capsys.readouterr().out
    assert main(["site", "new", "slurm-gh200", "--output", str(sites / "olive.toml")]) == 0
    assert "steelyard site check" in capsys.readouterr().out
    (sites / "broken.toml").write_text("name = 3")
    assert main(["site", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[2:4]] == [["broken", "not", "valid"], ["olive", "slurm", "gh200"]]
    assert main(["site", "list", "--json"]) == 0
    assert [site["site"] for site in json.loads(capsys.readouterr().out)["sites"]] == ["broken", "olive"]
    assert main(["site", "show", "olive"]) == 0
    shown = capsys.readouterr().out
    assert "aarch64" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert main(["site", "--json", "show", "olive"]) == 0
    assert json.loads(capsys.readouterr().out)["site"]["pools"]["gh200"]["devices_per_node"] == 4


def test_new_overwrites_nothing(sites: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["site", "new", "slurm-cpu"]) == 0
    there = sites.parent / "slurm-cpu.toml"
    there.write_text("mine")
    assert main(["site", "new", "slurm-cpu"]) == 2
    assert "already exists" in capsys.readouterr().err
    assert there.read_text() == "mine"
    assert main(["site", "new", "slurm-cpu", "--output", "-"]) == 0
    assert capsys.readouterr().out == template("sites", "slurm-cpu")
    assert main(["site", "new", "slurm-cpv"]) == 2
    assert "did you mean slurm-cpu?" in capsys.readouterr().err


@pytest.mark.parametrize("kind", kinds("sites"))
def test_shown_sites_fit_a_terminal(kind: str, sites: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = template("sites", kind).replace('partition = "CHANGE-ME"', f'partition = "{"p" * 200}"')
    (sites / "x.toml").write_text(text)
    assert main(["site", "show", "x"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.usefixtures("own")
def test_check_says_the_same_once(sites: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["site", "new", "kubernetes", "--output", str(sites / "k.toml")]) == 0
    capsys.readouterr()
    assert main(["site", "check", "k"]) == 1
    shown = capsys.readouterr().out
    assert shown.splitlines()[0] == "amd64:"
    assert shown.count("tasks in the queue") == 1
    assert max(map(len, shown.splitlines())) <= 80
    assert main(["site", "check", "k:arm64", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["checks"]
    assert {entry["pool"] for entry in found} == {"arm64"}
    assert {"name", "verdict", "found", "fix", "pool"} == found[0].keys()
    assert main(["site", "check", "k:ia64"]) == 2
    assert "k has no pool" not in capsys.readouterr().err


@pytest.mark.usefixtures("own")
def test_check_of_a_good_site_ends_well(sites: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f'name = "here"\nscheduler = "slurm"\n[pools.cpu]\narchitecture = "{HERE}"\ndevices_per_node = 1\n'
    (sites / "here.toml").write_text(text)
    assert main(["site", "check", "here:cpu"]) == 0
    assert capsys.readouterr().out.endswith("\nNo problems found.\n")


def test_words_of_strangers_do_not_steer_the_terminal(sites: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = 'name = "x"\nscheduler = "slurm"\ndescription = "\\u001b[31mred\\u202e"\n[environment]\nA = "\\u001b]0;t"\n'
    (sites / "x.toml").write_text(f'{text}[pools.p]\narchitecture = "{HERE}"\ndevices_per_node = 1\n')
    assert main(["site", "show", "x"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\u202e" not in shown


def test_a_scheduler_is_one_that_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no such scheduler: mine; valid: kubernetes, slurm"):
        place(scheduler="mine")
    monkeypatch.setitem(site_check.plugins.BUILTIN["scheduler"], "mine", "nowhere:Mine")
    assert place(scheduler="mine").site.scheduler == "mine"


def test_a_kind_that_is_not_there() -> None:
    for kind in ("../catalogue", "nothing", ""):
        with pytest.raises(InputError, match="no such template"):
            template("sites", kind)


# -- the page -------------------------------------------------------------------------------------------------


def test_the_page_s_study_can_be_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs/sites.md").read_text(encoding="utf-8")
    found = re.search(r"```toml\n(.*?)```", text, re.DOTALL)
    assert found is not None
    (tmp_path / "first.toml").write_text(textwrap.dedent("   " + found[1].strip()), encoding="utf-8")
    assert main(["study", str(tmp_path / "first.toml"), "--dry-run", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["configurations"]) == 3
