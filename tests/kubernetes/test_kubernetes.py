"""Kubernetes: manifests against the published schemas, the client against a recording API, results through pods' logs.

No test here runs on a real cluster. The pods' entry, torchrun and the worker run for real, as processes.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import kubernetes_validate
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import recorded
from conftest import HANG_S
from platform_kubernetes import ObjectStore, Platform, stamp
from ports import port_block
from program_cases import PROGRAMS
from steelyard.cli.main import main
from steelyard.contracts.base import from_json_object
from steelyard.contracts.sim import Memory, Noise, SimTruth
from steelyard.contracts.spec import Budget, RunSpec, Source
from steelyard.contracts.wrap import Program
from steelyard.errors import InputError, SteelyardError
from steelyard.extras import install_line
from steelyard.inputs.site import Cluster, Container, Limits, Mount, Place, Pool, Site, Toleration
from steelyard.inputs.suites import suite_names
from steelyard.launch import follow, registry, staging
from steelyard.launch.campaign import MANIFEST_FILE, Campaign, Image, JobArray, JobKind, Plan, RunShape
from steelyard.launch.images.ask import CommandOutput
from steelyard.launch.kubernetes import events as kubernetes_events
from steelyard.launch.kubernetes.logs import MAX_LINE_BYTES, LogReader, PodLog, bounded_lines, lay_down
from steelyard.launch.kubernetes.scheduler import Kubernetes
from steelyard.launch.price import price
from steelyard.launch.submit import submit
from steelyard.results.store import ResultFolder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import RunRecord

LATEST = int(kubernetes_validate.latest_version().split(".")[1])
VERSIONS = [f"1.{minor}" for minor in (LATEST - 2, LATEST - 1, LATEST)]
JOBSET_SCHEMA = json.loads((Path(__file__).parent / "schemas/jobset-v1alpha2.json").read_text())
NAME = "0123456789ab"
STUDY = "study"
QUICK = Budget(min_steps=200, min_seconds=0.0, max_steps=200)
TORCH = Budget(min_steps=3, min_seconds=0.0, max_steps=3, max_seconds=HANG_S)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is late on a busy machine is waited for, and no registry is asked."""
    for limit in ("COPY_S", "LOG_READ_S", "READER_WAIT_S"):
        monkeypatch.setattr(f"steelyard.launch.kubernetes.scheduler.{limit}", HANG_S)
    monkeypatch.setattr("steelyard.launch.images.image.ask", lambda _: CommandOutput(None, "no registry here"))


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    with Platform() as running:
        monkeypatch.setenv("KUBECONFIG", str(running.kubeconfig(tmp_path / "kubeconfig")))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        yield running


@pytest.fixture
def meeting() -> Iterator[dict[str, str]]:
    """Variables of pods that share the network of this machine: where they meet, which nobody else here does."""
    with port_block() as ports:
        yield {"STEELYARD_MEETING_PORT": str(ports[0]), "GLOO_SOCKET_IFNAME": "lo"}


def make_site(pool: dict[str, Any] | None = None, **changes: Any) -> Site:
    given: dict[str, Any] = {"architecture": "x86_64", "devices_per_node": 4, "resource": "nvidia.com/gpu"}
    given |= {"cpus_per_node": 32, "memory_per_node_mib": 65536} | (pool or {})
    values: dict[str, Any] = {"name": "platform", "scheduler": "kubernetes", "cluster": Cluster(jobset=False)}
    values["container"] = Container(images={"x86_64": "registry.example/torch:1", "aarch64": "registry.example/arm:1"})
    return Site(pools={"pool": Pool(**given)}, **(values | changes))


def sim(number: int, **changes: Any) -> RunSpec:
    return RunSpec(
        run_id=f"run-r{number:04d}", configuration="run", study=STUDY, repeat=number, budget=QUICK, **changes
    )


def shape(nodes: int = 1, processes: int = 1, devices: int = 0, run_limit_s: int = 300) -> RunShape:
    return RunShape(
        nodes=nodes, processes_per_node=processes, devices_per_node=devices, threads=None, sharing=processes,
        run_limit_s=run_limit_s,
    )  # fmt: skip


def make_campaign(
    folder: Path,
    tasks: list[list[RunSpec]],
    *,
    site: Site | None = None,
    kind: JobKind = "runs",
    form: RunShape | None = None,
    task_limit_s: int = 900,
) -> Campaign:
    """A campaign of one job, written as the planner writes it."""
    site = site or make_site()
    job = JobArray(
        number=0,
        name=f"sy-{NAME}-000",
        kind=kind,
        shape=form or shape(),
        task_limit_s=task_limit_s,
        tasks=tuple(tuple(spec.run_id for spec in task) for task in tasks),
    )
    path = folder / "campaigns" / STUDY / "0001"
    path.mkdir(parents=True)
    image = site.container.images[site.pools["pool"].architecture]
    plan = Plan(
        study=STUDY,
        campaign=NAME,
        created_at="2026-11-15T00:00:00+00:00",
        made_by="test",
        site=site,
        pool="pool",
        image=Image(name=image, reference=image, architecture=None, digest=None),
        worker_sha256=staging.stage(path / "worker"),
        python="python3",
        jobs=(job,),
        price=price(Place(site, "pool"), [job]),
    )
    campaign = Campaign(path, plan)
    specs = staging.write_specs(path, (spec for task in tasks for spec in task))
    files = staging.job_files(job, specs, Kubernetes().render(campaign, job))
    registry.prepare()
    staging.write_campaign_plan(campaign, {"0": staging.write_job(campaign, job, files)})
    ResultFolder(folder).prepare()
    return campaign


def objects(campaign: Campaign) -> list[dict[str, Any]]:
    text = (campaign.job_folder(campaign.plan.jobs[0]) / MANIFEST_FILE).read_text()
    items: list[dict[str, Any]] = json.loads(text)["items"]
    return items


def of_kind(campaign: Campaign, kind: str) -> dict[str, Any]:
    return next(item for item in objects(campaign) if item["kind"] == kind)


def pod_spec(campaign: Campaign) -> dict[str, Any]:
    job = next(item for item in objects(campaign) if item["kind"] in ("Job", "JobSet"))
    if job["kind"] == "JobSet":
        job = job["spec"]["replicatedJobs"][0]["template"]
    spec: dict[str, Any] = job["spec"]["template"]["spec"]
    return spec


# -- manifests ---------------------------------------------------------------------------------------------------

RESTRICTED: dict[str, Any] = {
    "spec": {"securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}}
}
ADDED: dict[str, Any] = {
    "metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "rdma-net"}},
    "spec": {
        "serviceAccountName": "bench",
        "imagePullSecrets": [{"name": "registry"}],
        "priorityClassName": "batch",
        "runtimeClassName": "nvidia",
        "schedulerName": "other",
        "securityContext": {"fsGroup": 2000},
        "tolerations": [{"key": "reserved", "operator": "Exists"}],
    },
    "container": {
        "resources": {
            "limits": {"rdma/hca": "1", "ephemeral-storage": "20Gi"},
            "requests": {"cpu": "500m", "ephemeral-storage": "10Gi"},
        },
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
    },
}
SHAPES: dict[str, dict[str, Any]] = {
    "one pod": {"form": shape(1, 2, 2)},
    "several pods": {"form": shape(3, 4, 4)},
    "JobSet": {"form": shape(3, 4, 4), "cluster": {"jobset": True}},
    "arm64": {"form": shape(1, 4, 4), "pool": {"architecture": "aarch64"}},
    "CPU only": {"form": shape(2, 4, 0), "pool": {"resource": None, "device": "cpu"}},
    "nothing asked": {"pool": {"resource": None, "cpus_per_node": None, "memory_per_node_mib": None}},
    "Kueue": {"form": shape(1, 4, 4), "cluster": {"queue": "team-a"}},
    "Kueue and JobSet": {"form": shape(2, 4, 4), "cluster": {"queue": "team-a", "jobset": True}},
    "added fields": {"cluster": {"pod": ADDED}},
    "no root": {"form": shape(2, 4, 4), "cluster": {"pod": RESTRICTED}},
    "object store": {"cluster": {"results": "s3", "bucket": "https://s3.example/bucket"}},
    "claim": {"cluster": {"results": "claim", "claim": "shared"}},
    "whole nodes": {"form": shape(1, 1, 1), "pool": {"exclusive": True}},
    "tainted": {
        "pool": {
            "node_selector": {"gpu.example/kind": "a100"},
            "tolerations": (
                Toleration(key="gpu"),
                Toleration(key="a", operator="Equal", value="b", effect="NoSchedule"),
            ),
        }
    },
    "mounts": {
        "container": Container(
            images={"x86_64": "i"},
            mounts=(Mount(source="/data"), Mount(source="/sets", target="/sets", claim="shared", writable=True)),
        )
    },
    "packed": {"kind": "packed"},
    "search": {"kind": "search", "form": shape(1, 4, 4)},
}


def shaped(tmp_path: Path, kind: str) -> Campaign:
    given = dict(SHAPES[kind])
    cluster = Cluster(**({"jobset": False} | given.pop("cluster", {})))
    container = {"container": given.pop("container")} if "container" in given else {}
    site = make_site(given.pop("pool", None), cluster=cluster, environment={"A": "$(B) $HOME '\"\n"}, **container)
    return make_campaign(tmp_path, [[sim(0), sim(1)], [sim(2)]], site=site, **given)


def check_strictly(item: dict[str, Any], version: str) -> None:
    if item["kind"] == "JobSet":
        jsonschema.validate(item, JOBSET_SCHEMA)
        for member in item["spec"]["replicatedJobs"]:
            head = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}
            kubernetes_validate.validate({**head, "spec": member["template"]["spec"]}, version, strict=True)
    else:
        kubernetes_validate.validate(item, version, strict=True)


@pytest.mark.parametrize("kind", SHAPES)
def test_every_shape_is_valid_for_three_versions(tmp_path: Path, kind: str) -> None:
    items = objects(shaped(tmp_path, kind))
    # The tasks are alike: one is enough.
    for item in items[: len(items) // 2 + 1]:
        for version in VERSIONS:
            check_strictly(item, version)


def test_the_validator_itself(tmp_path: Path) -> None:
    campaign = shaped(tmp_path, "several pods")
    files = []
    for number, item in enumerate(objects(campaign)):
        files.append(tmp_path / f"{number}.json")
        files[-1].write_text(json.dumps(item))
    validator = Path(sys.executable).with_name("kubernetes-validate")
    command = [str(validator), "--strict", "-k", VERSIONS[-1], *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("passed") == len(files)


def test_unknown_fields_fail(tmp_path: Path) -> None:
    job = of_kind(shaped(tmp_path / "a", "one pod"), "Job")
    job["spec"]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        check_strictly(job, VERSIONS[-1])
    whole = of_kind(shaped(tmp_path / "b", "JobSet"), "JobSet")
    whole["spec"]["replicatedJob"] = []
    with pytest.raises(jsonschema.ValidationError):
        check_strictly(whole, VERSIONS[-1])


def test_a_job_of_several_pods(tmp_path: Path) -> None:
    campaign = shaped(tmp_path, "several pods")
    job, service = of_kind(campaign, "Job"), of_kind(campaign, "Service")
    spec = job["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"], spec["backoffLimit"]) == (
        3,
        3,
        "Indexed",
        0,
    )
    assert service["spec"]["clusterIP"] == "None"
    labels = spec["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    pod = pod_spec(campaign)
    assert pod["subdomain"] == service["metadata"]["name"]
    told = json.loads(objects(campaign)[1]["data"]["task.json"])
    assert told["master"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert pod["affinity"]["podAntiAffinity"]


def test_a_set_finds_its_first_pod(tmp_path: Path) -> None:
    campaign = shaped(tmp_path, "JobSet")
    name = of_kind(campaign, "JobSet")["metadata"]["name"]
    assert not [item for item in objects(campaign) if item["kind"] == "Service"]
    told = json.loads(objects(campaign)[1]["data"]["task.json"])
    assert told["master"] == f"{name}-w-0-0.{name}"
    assert len(f"{name}-w-0-99999") <= 63


def test_what_is_asked_is_what_is_used(tmp_path: Path) -> None:
    campaign = shaped(tmp_path / "a", "one pod")
    pod = pod_spec(campaign)
    resources = pod["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"] == {"cpu": "16", "memory": "32768Mi", "nvidia.com/gpu": "2"}
    shm = next(volume for volume in pod["volumes"] if volume["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "1024Mi"}
    assert pod["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    assert pod_spec(shaped(tmp_path / "b", "arm64"))["nodeSelector"] == {"kubernetes.io/arch": "arm64"}
    whole = pod_spec(shaped(tmp_path / "c", "whole nodes"))["containers"][0]["resources"]["limits"]
    assert whole == {"cpu": "32", "memory": "65536Mi", "nvidia.com/gpu": "4"}
    assert pod_spec(shaped(tmp_path / "d", "nothing asked"))["containers"][0]["resources"]["limits"] == {}


def test_nothing_reaches_a_shell_or_is_expanded(tmp_path: Path) -> None:
    container = pod_spec(shaped(tmp_path, "one pod"))["containers"][0]
    assert container["command"][0] == "python3"
    assert {"name": "A", "value": "$$(B) $$HOME '\"\n"} in container["env"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_fields_that_the_site_adds_to_its_pods(tmp_path: Path) -> None:
    pod = pod_spec(shaped(tmp_path / "a", "added fields"))
    container = pod["containers"][0]
    assert container["resources"]["limits"]["rdma/hca"] == "1"
    assert (container["resources"]["requests"]["cpu"], container["resources"]["limits"]["cpu"]) == ("500m", "1")
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert (pod["priorityClassName"], pod["securityContext"]) == ("batch", {"fsGroup": 2000})
    template = of_kind(shaped(tmp_path / "b", "added fields"), "Job")["spec"]["template"]
    assert template["metadata"]["annotations"] == ADDED["metadata"]["annotations"]
    assert template["metadata"]["labels"]["steelyard-task"] == "0"
    profile = {"type": "RuntimeDefault"}
    restricted = pod_spec(shaped(tmp_path / "c", "no root"))["securityContext"]
    assert restricted == {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": profile}
    # A vendor's image mostly has no user but root.
    assert "securityContext" not in pod_spec(shaped(tmp_path / "d", "one pod"))


def test_addresses_are_not_in_the_plan(tmp_path: Path) -> None:
    campaign = shaped(tmp_path, "object store")
    texts = [path.read_text() for path in campaign.path.rglob("*") if path.is_file() and "worker" not in path.parts]
    assert not any("X-Amz" in text for text in texts)
    volume = next(volume for volume in pod_spec(campaign)["volumes"] if volume["name"] == "kept")
    assert volume["secret"]["secretName"] == of_kind(campaign, "Job")["metadata"]["name"]


def test_the_same_campaign_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (shaped(tmp_path / name, "several pods") for name in "ab")
    assert objects(first) == objects(second)
    code = objects(first)[0]
    assert len(json.dumps(code)) < 600_000
    assert code["immutable"] is True


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"kind": "search", "form": shape(2, 4, 4)}, "search"),
        ({"site": make_site({"shm_mib": 65536})}, "shm_mib"),
        (
            {"site": make_site(cluster=Cluster(results="s3", bucket="https://s3.example/b")), "task_limit_s": 604_000},
            "expires before",
        ),
        ({"site": make_site(cluster=Cluster(pod={"spec": {"restartPolicy": "Always"}}))}, "restartPolicy"),
    ],
)
def test_what_cannot_run_is_refused(tmp_path: Path, changes: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        make_campaign(tmp_path, [[sim(0)]], **changes)


def test_specs_that_do_not_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steelyard.launch.kubernetes.manifests.MAX_CONFIG_BYTES", 400_000)
    # Texts that cannot be compressed.
    noise = [hashlib.sha512(str(n).encode()).hexdigest() * 30 for n in range(400)]
    specs = [sim(n, model={"text": "".join(noise[n : n + 1])[:3900]}) for n in range(400)]
    for spec in specs:
        spec.model.update({f"m{i}": hashlib.sha512(f"{spec.run_id}{i}".encode()).hexdigest() for i in range(40)})
    with pytest.raises(InputError, match="ConfigMap"):
        make_campaign(tmp_path, [specs])


# -- the whole path ----------------------------------------------------------------------------------------------


def collected(folder: Path) -> dict[str, RunRecord]:
    return {record.run_id: record for record in ResultFolder(folder).records(STUDY)}


def look(folder: Path, scheduler: Kubernetes | None = None) -> follow.StudyStatus:
    scheduler = scheduler or Kubernetes()
    return follow.look(ResultFolder(folder), STUDY, lambda _: scheduler)


def send(campaign: Campaign, folder: Path) -> None:
    submit(ResultFolder(folder), STUDY, lambda _: Kubernetes())
    assert campaign.job_id(campaign.plan.jobs[0]) is not None


def create(campaign: Campaign, job: JobArray) -> None:
    """What submission does after its checks."""
    Kubernetes().submit(campaign, job, Kubernetes().render(campaign, job))


def test_from_submission_to_record(tmp_path: Path, platform: Platform) -> None:
    campaign = make_campaign(tmp_path, [[sim(0), sim(1)], [sim(2)]])
    send(campaign, tmp_path)
    assert platform.asked("POST", "/jobs$")[0][2]["spec"]["backoffLimit"] == 0
    assert look(tmp_path).waiting == dict.fromkeys((f"run-r000{n}" for n in range(3)), "queued")
    platform.run_all(tmp_path / "nodes")
    standing = look(tmp_path)
    assert (standing.problems, standing.collected) == ([], 3)
    records = collected(tmp_path)
    assert {record.status.code for record in records.values()} == {"completed"}
    record = records["run-r0001"]
    assert record.quantities["throughput"].value
    assert record.environment is not None
    assert record.environment.node == "node-0"
    assert record.environment.allocation == f"sy-{NAME}-000-0"
    assert record.launch is not None
    assert record.launch.command[:3] == ("kubectl", "create", "-f")
    assert record.launch is not None
    assert record.launch.scheduled is not None
    assert record.launch.scheduled.digest == "sha256:" + "ab" * 32
    assert record.launch.scheduled.nodes == ("node-0",)
    # All is removed from the platform, by few calls.
    assert not any(platform.things[kind] for kind in ("jobs", "pods", "configmaps"))


SITE_TOML = """
name = "platform"
scheduler = "kubernetes"
container = { images = { x86_64 = "registry.example/torch@sha256:DIGEST" } }
cluster = { namespace = "bench", jobset = false }
[pools.gpu]
architecture = "x86_64"
devices_per_node = 4
resource = "nvidia.com/gpu"
"""
STUDY_TOML = """
name = "study"
repeats = 2
run = { workload = "sim", budget = { min_steps = 200, max_steps = 200, min_seconds = 0.0 } }
sweep = { batch = [8, 16] }
"""


def test_the_commands_that_a_user_types(tmp_path: Path, platform: Platform, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "site.toml").write_text(SITE_TOML.replace("DIGEST", "ab" * 32))
    (tmp_path / "study.toml").write_text(STUDY_TOML)
    platform.nodes = [node("a")]
    results = ["--results", str(tmp_path / "results")]
    assert main(["study", str(tmp_path / "study.toml"), "--site", str(tmp_path / "site.toml"), *results]) == 0
    assert "bench/sy-" in capsys.readouterr().out
    assert {path for path, _, _ in platform.asked("POST", "/jobs$")} == {"/apis/batch/v1/namespaces/bench/jobs"}
    platform.run_all(tmp_path / "nodes")
    assert main(["status", "study", *results]) == 0
    assert "all 4 runs collected" in capsys.readouterr().out
    assert [record.status.code for record in collected(tmp_path / "results").values()] == ["completed"] * 4


@pytest.mark.parametrize("name", suite_names())
def test_a_suite_is_rendered_as_valid_objects(
    tmp_path: Path, platform: Platform, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / "site.toml").write_text(SITE_TOML.replace("DIGEST", "ab" * 32))
    platform.nodes = [node("a")]
    words = ["suite", "run", name, "--synthetic", "--devices", "1,4", "--site", str(tmp_path / "site.toml")]
    assert main([*words, "--dry-run", "--json", "--results", str(tmp_path / "results")]) == 0
    parts = json.loads(capsys.readouterr().out)["parts"]
    assert parts
    manifests = sorted((tmp_path / "results").glob(f"campaigns/{name}-*/**/{MANIFEST_FILE}"))
    assert len(manifests) >= len(parts)
    for path in manifests:
        # The tasks of a job are alike: one is enough.
        items = json.loads(path.read_text())["items"]
        for item in {item["kind"]: item for item in items}.values():
            check_strictly(item, VERSIONS[-1])


def test_the_calls_do_not_grow_with_the_runs(tmp_path: Path, platform: Platform) -> None:
    campaign = make_campaign(tmp_path, [[sim(n)] for n in range(30)])
    send(campaign, tmp_path)
    platform.requests.clear()
    platform.page = 10
    # Before the minute is over after which the events of a Job without pods are asked for, too.
    states = Kubernetes(lambda: 0.0).poll(campaign, campaign.plan.jobs)
    assert len(states) == 30
    # Three pages of Jobs, one of pods: by their number of objects, never by one.
    assert [path.rsplit("/", 1)[1] for _, path, *_ in platform.requests] == ["jobs", "jobs", "jobs", "pods"]


def test_a_packed_task(tmp_path: Path, platform: Platform) -> None:
    campaign = make_campaign(tmp_path, [[sim(n) for n in range(12)]], kind="packed")
    send(campaign, tmp_path)
    platform.run_all(tmp_path / "nodes")
    assert look(tmp_path).collected == 12
    assert {record.status.code for record in collected(tmp_path).values()} == {"completed"}


def test_a_search_for_the_largest_batch(tmp_path: Path, platform: Platform) -> None:
    truth = SimTruth(memory=Memory(limit_bytes=1000.0, bytes_per_sample=10.0))
    batches = [1, 2, 4, 8, 16, 32, 64, 80, 96, 100, 104, 128, 256]
    specs = [sim(n, batch=batch, sim=truth) for n, batch in enumerate(batches)]
    send(make_campaign(tmp_path, [specs], kind="search"), tmp_path)
    platform.run_all(tmp_path / "nodes")
    look(tmp_path)
    codes = {record.spec.batch: record.status.code for record in collected(tmp_path).values()}
    assert codes[100] == "completed"
    assert codes[104] == "out_of_memory"
    assert 256 not in codes
    assert max(batch for batch, code in codes.items() if code == "completed") == 100


def test_torch_in_one_pod(tmp_path: Path, platform: Platform) -> None:
    spec = RunSpec(
        run_id="t", configuration="t", study=STUDY, workload="tiny", device="cpu", devices=2, batch=4, budget=TORCH
    )
    send(make_campaign(tmp_path, [[spec]], form=shape(1, 2)), tmp_path)
    platform.run_all(tmp_path / "nodes")
    look(tmp_path)
    record = collected(tmp_path)["t"]
    assert record.status.code == "completed", record.status
    assert record.ranks_seen == 2


def test_torch_over_two_pods(tmp_path: Path, platform: Platform, meeting: dict[str, str]) -> None:
    spec = RunSpec(
        run_id="t", configuration="t", study=STUDY, workload="tiny", device="cpu", devices=2, batch=4, budget=TORCH
    )
    platform.groups = ("batch", "jobset.x-k8s.io")
    site = make_site({"devices_per_node": 1}, meeting_host="127.0.0.1", environment=meeting, cluster=Cluster())
    campaign = make_campaign(tmp_path, [[spec]], site=site, form=shape(2, 1))
    assert of_kind(campaign, "JobSet")
    send(campaign, tmp_path)
    platform.run_all(tmp_path / "nodes")
    standing = look(tmp_path)
    assert standing.problems == []
    record = collected(tmp_path)["t"]
    assert record.status.code == "completed", record.status
    assert record.ranks_seen == 2
    assert record.launch is not None
    assert record.launch.scheduled is not None
    assert record.launch.scheduled.nodes == ("node-0", "node-1")
    steps = [file.name for file in record.raw if file.name.startswith("steps")]
    assert steps == ["steps-00000.bin", "steps-00001.bin"]


@pytest.mark.parametrize(
    "nodes", [pytest.param(1, marks=pytest.mark.full("takes long: 10 s; the gate has the one over two pods")), 2]
)
def test_a_program_that_is_in_the_image(
    tmp_path: Path, platform: Platform, meeting: dict[str, str], monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    """It starts in the folder of its image, and torchrun learns from variables in which pod it is."""
    for name in ("plain.py", "truth.py"):
        shutil.copy(PROGRAMS / name, tmp_path)
    monkeypatch.setattr("platform_kubernetes.IMAGE_FOLDER", str(tmp_path))
    command = ("torchrun", "plain.py", "--steps", "30", "--batch", "16", "--accumulation", "{accumulation}")
    program = Program(command=command, parameters={"accumulation": 2})
    spec = RunSpec(
        run_id="t", configuration="t", study=STUDY, workload="train", program=program, device="cpu", devices=2, batch=1
    )
    pool = {"devices_per_node": 2 // nodes, "resource": None}
    site = make_site(pool, meeting_host="127.0.0.1", environment={**meeting, "OMP_NUM_THREADS": "1"})
    form = replace(shape(nodes, 1), sharing=2 // nodes, program=True)
    campaign = make_campaign(tmp_path, [[spec]], site=site, form=form)
    assert pod_spec(campaign)["containers"][0]["resources"]["requests"]["cpu"] == "32"
    send(campaign, tmp_path)
    platform.run_all(tmp_path / "nodes")
    assert look(tmp_path).problems == []
    record = collected(tmp_path)["t"]
    assert record.status.code == "completed", record.status
    seen = record.wrapped
    assert seen is not None
    assert (seen.level, seen.world, seen.ranks_reported, seen.steps) == (2, 2, 2, 30)
    assert (record.spec.batch, record.spec.accumulation, seen.samples) == (16, 2, "seen")
    assert "program_time" in record.quantities


def test_a_users_own_workload_travels_along(tmp_path: Path, platform: Platform) -> None:
    text = "raise RuntimeError('my own file was here')\n"
    (tmp_path / "mine.py").write_text(text)
    source = Source(path=str(tmp_path / "mine.py"), function="build", sha256=hashlib.sha256(text.encode()).hexdigest())
    spec = RunSpec(
        run_id="t", configuration="t", study=STUDY, workload="mine", source=source, device="cpu", budget=TORCH
    )
    send(make_campaign(tmp_path, [[spec]]), tmp_path)
    (tmp_path / "mine.py").unlink()
    platform.run_all(tmp_path / "nodes")
    look(tmp_path)
    assert "my own file was here" in collected(tmp_path)["t"].status.reason


def test_a_pod_alone_that_should_be_two(tmp_path: Path, platform: Platform, meeting: dict[str, str]) -> None:
    site = make_site({"devices_per_node": 1}, meeting_host="127.0.0.1", environment=meeting)
    send(make_campaign(tmp_path, [[sim(0)]], site=site, form=shape(2, 1)), tmp_path)
    job = next(iter(platform.things["jobs"].values()))
    told = platform.things["configmaps"][job["metadata"]["name"]]["data"]
    told["task.json"] = told["task.json"].replace('"meeting_s": 900', '"meeting_s": 1')
    job["spec"]["completions"] = 1
    assert platform.run(job, tmp_path / "nodes", {}) == [71]
    look(tmp_path)
    status = collected(tmp_path)["run-r0000"].status
    assert status.code == "refused"
    assert "pods 1 of 2 did not start in time" in str(status.evidence)


@pytest.mark.full("limits of 2 and 3 s: which run they meet depends on how long the others take")
def test_the_time_limit_of_a_run_and_of_a_task(tmp_path: Path, platform: Platform) -> None:
    slow = {"sim": SimTruth(step_time_s=1.0, wall_s_per_s=1.0)}
    specs = [
        replace(sim(n, **slow), budget=Budget(min_steps=10**5, max_steps=10**5, max_seconds=1e6)) for n in range(3)
    ]
    # The entry keeps 30 s of a task's time for shipping.
    send(make_campaign(tmp_path, [specs], form=shape(run_limit_s=2), task_limit_s=33), tmp_path)
    platform.run_all(tmp_path / "nodes")
    look(tmp_path)
    statuses = {name: record.status for name, record in collected(tmp_path).items()}
    assert {status.code for status in statuses.values()} == {"time_limit"}
    assert "before this run could start" in statuses["run-r0002"].reason


def test_what_the_log_cannot_hold_is_said(tmp_path: Path, platform: Platform) -> None:
    budget = Budget(min_steps=60_000, max_steps=60_000, min_seconds=0.0, max_seconds=1e6)
    truth = SimTruth(noise=Noise(kind="normal"))
    specs = [replace(sim(0, sim=truth), budget=budget), sim(1)]
    site = make_site(limits=Limits(log_mib=1))
    send(make_campaign(tmp_path, [specs], site=site), tmp_path)
    job = next(iter(platform.things["jobs"].values()))
    told = platform.things["configmaps"][job["metadata"]["name"]]["data"]
    told["task.json"] = told["task.json"].replace(f'"log_bytes": {1 << 20}', '"log_bytes": 100000')
    platform.run_all(tmp_path / "nodes")
    assert len(next(iter(platform.logs.values()))) < 100_000
    assert look(tmp_path).problems == []
    records = collected(tmp_path)
    status = records["run-r0000"].status
    assert status.code == "failed"
    assert "steps-00000.bin: left out" in status.reason
    assert "limits.log_mib" in status.reason
    assert status.evidence is not None
    assert status.evidence["steps-00000.bin"] == pytest.approx(60_000 * 48, rel=0.1)
    assert records["run-r0001"].status.code == "completed"


def test_a_pod_that_is_told_to_end(tmp_path: Path, platform: Platform) -> None:
    slow = {"sim": SimTruth(step_time_s=1.0, wall_s_per_s=1.0)}
    spec = replace(sim(0, **slow), budget=Budget(min_steps=10**5, max_steps=10**5, max_seconds=1e6))
    send(make_campaign(tmp_path, [[spec]]), tmp_path)
    job = next(iter(platform.things["jobs"].values()))
    assert platform.run(job, tmp_path / "nodes", {}, tell=signal.SIGTERM) == [143]
    pod = next(iter(platform.things["pods"].values()))
    pod["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]
    look(tmp_path)
    record = collected(tmp_path)["run-r0000"]
    assert record.status.code == "preempted"
    # What it had written until then came along.
    assert "events-00000.jsonl" in [file.name for file in record.raw]


# -- what goes wrong ---------------------------------------------------------------------------------------------


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"name": "worker", "state": state}]}


def terminated(code: int, reason: str, message: str = "") -> dict[str, Any]:
    end = {"exitCode": code, "reason": reason, "message": message, "startedAt": stamp(9), "finishedAt": stamp(2)}
    return {"phase": "Failed", "containerStatuses": [{"name": "worker", "state": {"terminated": end}}]}


def running() -> dict[str, Any]:
    return {
        "phase": "Running",
        "containerStatuses": [{"name": "worker", "state": {"running": {"startedAt": stamp(9)}}}],
    }


def failed_pod(reason: str, message: str = "") -> dict[str, Any]:
    return {"phase": "Failed", "reason": reason, "message": message}


def disrupted(reason: str) -> dict[str, Any]:
    return {"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}]}


UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/12 nodes are available: 12 Insufficient nvidia.com/gpu.",
        }
    ],
}
NO_PLATFORM = "no match for platform in manifest: not found"
TOO_MUCH_SHM = 'Usage of EmptyDir volume "shm" exceeds the limit "1Gi".'

ENDED = [
    (terminated(137, "OOMKilled"), "out_of_memory", "OOMKilled"),
    (terminated(255, "Error", "exec /usr/bin/python3: exec format error"), "refused", "exec format error"),
    (terminated(1, "Error", "standard_init_linux.go:228: exec user process caused: exec format error"), "refused",
     "exec format error"),
    (terminated(128, "StartError", 'exec: "python3": executable file not found in $PATH'), "refused", "StartError"),
    (terminated(1, "Error", "Traceback ..."), "failed", "Error"),
    (terminated(137, "Error"), "killed", "Error"),
    (failed_pod("Evicted", "The node was low on resource: memory."), "preempted", "Evicted"),
    (failed_pod("Evicted", TOO_MUCH_SHM), "out_of_memory", "Evicted"),
    (failed_pod("Evicted", "Pod ephemeral local storage usage exceeds the total limit"), "failed", "Evicted"),
    (failed_pod("DeadlineExceeded", "Pod was active on the node longer than the deadline"), "time_limit",
     "DeadlineExceeded"),
    ({**waiting("ImagePullBackOff", "Back-off"), "phase": "Failed", "reason": "DeadlineExceeded"}, "refused",
     "ImagePullBackOff"),
    (failed_pod("NodeLost"), "node_failure", "NodeLost"),
    (failed_pod("NodeShutdown"), "node_failure", "NodeShutdown"),
    (failed_pod("UnexpectedAdmissionError", "Allocate failed due to no healthy devices"), "refused",
     "UnexpectedAdmissionError"),
    (disrupted("PreemptionByScheduler"), "preempted", "PreemptionByScheduler"),
    (disrupted("DeletionByTaintManager"), "node_failure", "DeletionByTaintManager"),
    (disrupted("DeletionByPodGC"), "node_failure", "DeletionByPodGC"),
    (disrupted("EvictionByEvictionAPI"), "preempted", "EvictionByEvictionAPI"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "cause", "state"), ENDED, ids=lambda value: value if isinstance(value, str) else "")
def test_a_pod_that_failed(tmp_path: Path, platform: Platform, status: dict[str, Any], cause: str, state: str) -> None:
    send(make_campaign(tmp_path, [[sim(0)]]), tmp_path)
    job = next(iter(platform.things["jobs"].values()))
    platform.pod_of(job, 0, status)
    platform.finish(job, "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    look(tmp_path)
    record = collected(tmp_path)["run-r0000"]
    assert record.status.code == cause
    assert record.status.reason
    assert record.status.evidence is not None
    assert record.status.evidence["state"] == state
    assert str(record.status.evidence["pod"]).startswith(f"sy-{NAME}-000-0-0-")


def event(job: dict[str, Any], reason: str, message: str, name: str | None = None) -> dict[str, Any]:
    of = {"name": name or f"{job['metadata']['name']}-0-abcde"}
    return {
        "metadata": {"name": f"event-{reason}"}, "reason": reason, "message": message, "involvedObject": of,
        "lastTimestamp": stamp(),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "cause"),
    [("Preempted", "preempted"), ("TaintManagerEviction", "node_failure"), ("Evicted", "preempted"),
     (None, "node_failure")],
)  # fmt: skip
def test_a_pod_of_which_only_events_are_left(
    tmp_path: Path, platform: Platform, reason: str | None, cause: str
) -> None:
    send(make_campaign(tmp_path, [[sim(0)]]), tmp_path)
    job = next(iter(platform.things["jobs"].values()))
    if reason is not None:
        platform.put("events", event(job, reason, "by system-node-critical pod"))
    platform.finish(job, "Failed", "BackoffLimitExceeded")
    platform.requests.clear()
    look(tmp_path)
    assert collected(tmp_path)["run-r0000"].status.code == cause
    (asked,) = platform.asked("GET", "/events$")
    assert "reason!=Pulled" in asked[1]["fieldSelector"]
    assert asked[1]["limit"] == "500"


STUCK = [
    (waiting("ErrImagePull", "rpc error: code = NotFound"), 601, "ErrImagePull"),
    (waiting("ImagePullBackOff", "Back-off pulling image"), 601, "ImagePullBackOff"),
    (waiting("ErrImagePull", NO_PLATFORM), 1, "ErrImagePull"),
    (waiting("InvalidImageName", "couldn't parse image name"), 1, "InvalidImageName"),
    (waiting("CreateContainerConfigError", 'configmap "x" not found'), 301, "CreateContainerConfigError"),
    (UNSCHEDULABLE, 86_401, "Unschedulable"),
]


@pytest.mark.parametrize(("status", "age_s", "state"), STUCK, ids=lambda value: value if isinstance(value, str) else "")
def test_what_waits_in_vain_is_given_up(
    tmp_path: Path, platform: Platform, status: dict[str, Any], age_s: float, state: str
) -> None:
    campaign = make_campaign(tmp_path, [[sim(0)], [sim(1)]])
    send(campaign, tmp_path)
    job, other = platform.things["jobs"].values()
    platform.pod_of(job, 0, status, age_s)
    platform.pod_of(other, 0, {"phase": "Running"})
    job_name, other_name = job["metadata"]["name"], other["metadata"]["name"]
    look(tmp_path)
    record = collected(tmp_path)["run-r0000"]
    assert (record.status.code, record.status.evidence["state"]) == ("refused", state)  # type: ignore[index]
    # It is taken away, so that it cannot begin later; what runs stays.
    assert job_name not in platform.things["jobs"]
    assert other_name in platform.things["jobs"]
    # Whoever looks next says the same.
    state_later = Kubernetes().poll(campaign, campaign.plan.jobs)[0, 0]
    assert state_later.said is not None
    assert state_later.said.state == state


@pytest.mark.parametrize(
    ("status", "_age_s", "state"), STUCK[:2] + STUCK[5:], ids=lambda v: v if isinstance(v, str) else ""
)
def test_what_waits_not_too_long_is_waited_for(
    tmp_path: Path, platform: Platform, status: dict[str, Any], _age_s: float, state: str
) -> None:
    campaign = make_campaign(tmp_path, [[sim(0)]])
    send(campaign, tmp_path)
    job = next(iter(platform.things["jobs"].values()))
    pod = platform.pod_of(job, 0, status, 60)
    platform.put("events", event(job, "Failed", "Failed to pull image: connection refused", pod["metadata"]["name"]))
    found = Kubernetes().poll(campaign, campaign.plan.jobs)[0, 0]
    assert found.phase == "queued"
    assert found.why


def test_what_moves_at_the_last_moment_is_not_taken_away(tmp_path: Path, platform: Platform) -> None:
    campaign = make_campaign(tmp_path, [[sim(0)]])
    send(campaign, tmp_path)
    job = next(iter(platform.things["jobs"].values()))
    platform.pod_of(job, 0, waiting("ImagePullBackOff"), 9999)
    platform.refusals.append(("DELETE", "/jobs/", 409, "the object has been modified"))
    assert Kubernetes().poll(campaign, campaign.plan.jobs)[0, 0].phase == "queued"
    assert platform.things["jobs"]
    asked = platform.asked("DELETE", "/jobs/")[0][2]
    assert asked["preconditions"]["resourceVersion"] == job["metadata"]["resourceVersion"]


def test_pods_that_are_not_let_in(tmp_path: Path, platform: Platform) -> None:
    campaign = make_campaign(tmp_path, [[sim(0)]])
    send(campaign, tmp_path)
    job = next(iter(platform.things["jobs"].values()))
    words = "pods is forbidden: failed quota: memory: must specify limits.memory for: worker"
    platform.put("events", event(job, "FailedCreate", words, job["metadata"]["name"]))
    job["metadata"]["creationTimestamp"] = stamp(120)
    found = Kubernetes().poll(campaign, campaign.plan.jobs)[0, 0]
    assert (found.phase, words in found.why) == ("queued", True)
    job["metadata"]["creationTimestamp"] = stamp(4000)
    look(tmp_path)
    assert collected(tmp_path)["run-r0000"].status.code == "refused"


def test_a_suspended_job_waits_for_its_queue(tmp_path: Path, platform: Platform) -> None:
    site = make_site(cluster=Cluster(jobset=False, queue="team-a"))
    campaign = make_campaign(tmp_path, [[sim(0)]], site=site)
    send(campaign, tmp_path)
    job = next(iter(platform.things["jobs"].values()))
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    job["metadata"]["creationTimestamp"] = stamp(10**6)
    found = Kubernetes().poll(campaign, campaign.plan.jobs)[0, 0]
    assert (found.phase, "admitted" in found.why) == ("queued", True)


def test_a_job_deleted_by_hand(tmp_path: Path, platform: Platform) -> None:
    send(make_campaign(tmp_path, [[sim(0)]]), tmp_path)
    platform.things["jobs"].clear()
    look(tmp_path)
    record = collected(tmp_path)["run-r0000"]
    assert record.status.code == "cancelled"
    assert "deleted" in record.status.reason


def test_a_deadline_of_the_job(tmp_path: Path, platform: Platform) -> None:
    send(make_campaign(tmp_path, [[sim(0)]]), tmp_path)
    job = next(iter(platform.things["jobs"].values()))
    platform.finish(job, "Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
    look(tmp_path)
    assert collected(tmp_path)["run-r0000"].status.code == "time_limit"


def test_what_was_measured_before_the_end_is_kept(tmp_path: Path, platform: Platform) -> None:
    """Two runs in a pod; the second is cut off in the middle of the log."""
    send(make_campaign(tmp_path, [[sim(0), sim(1)]]), tmp_path)
    job = next(iter(platform.things["jobs"].values()))
    platform.run(job, tmp_path / "nodes", {})
    ((name, log),) = platform.logs.items()
    end = log.index(b"#steelyard file 1 ") if b"#steelyard file 1 " in log else len(log)
    platform.logs[name] = log[: end + 150]
    platform.things["pods"][name]["status"] = terminated(137, "OOMKilled")
    platform.finish(job, "Failed", "BackoffLimitExceeded")
    look(tmp_path)
    codes = {run: record.status.code for run, record in collected(tmp_path).items()}
    assert codes == {"run-r0000": "completed", "run-r0001": "out_of_memory"}


# -- sending, ending ---------------------------------------------------------------------------------------------


def test_a_submission_that_was_broken_off_is_completed(tmp_path: Path, platform: Platform) -> None:
    campaign = make_campaign(tmp_path, [[sim(n)] for n in range(4)])
    job = campaign.plan.jobs[0]
    assert Kubernetes().find(campaign, [job]) == {}
    create(campaign, job)
    # As after a death in the middle: the third was created, and nobody wrote it down.
    (campaign.job_folder(job) / "sent").write_text("0\n1\n")
    del platform.things["jobs"][f"sy-{NAME}-000-3"]
    # Asking creates nothing; submitting again does.
    assert Kubernetes().find(campaign, [job]) == {}
    assert len(platform.things["jobs"]) == 3
    create(campaign, job)
    assert Kubernetes().find(campaign, [job]) == {0: f"default/sy-{NAME}-000"}
    assert len(platform.things["jobs"]) == 4
    assert (campaign.job_folder(job) / "sent").read_text().split() == ["0", "1", "2", "3"]


def test_a_task_that_is_gone_is_not_sent_again(tmp_path: Path, platform: Platform) -> None:
    campaign = make_campaign(tmp_path, [[sim(n)] for n in range(2)])
    job = campaign.plan.jobs[0]
    create(campaign, job)
    del platform.things["jobs"][f"sy-{NAME}-000-0"]
    create(campaign, job)
    assert list(platform.things["jobs"]) == [f"sy-{NAME}-000-1"]


def test_another_platform_is_not_an_end(tmp_path: Path, platform: Platform) -> None:
    """Whoever has switched the context since must not have all runs recorded as deleted, or made again there."""
    campaign = make_campaign(tmp_path, [[sim(n)] for n in range(2)])
    job = campaign.plan.jobs[0]
    create(campaign, job)
    server = campaign.job_folder(job) / "server"
    server.write_text("https://another.example:6443\n")
    platform.things["jobs"].clear()
    for act in (Kubernetes().poll, Kubernetes().find, Kubernetes().cancel):
        with pytest.raises(SteelyardError, match=r"another\.example"):
            act(campaign, [job])
    assert not platform.things["jobs"]
    # A campaign of an older version does not say it.
    server.unlink()
    assert {state.phase for state in Kubernetes().poll(campaign, [job]).values()} == {"ended"}


def test_a_platform_that_takes_nothing(tmp_path: Path, platform: Platform) -> None:
    campaign = make_campaign(tmp_path, [[sim(0)]])
    platform.refusals.append(("POST", "/jobs", 403, 'jobs.batch is forbidden: User "me" cannot create\x1b[31m'))
    with pytest.raises(SteelyardError, match="cannot create") as caught:
        create(campaign, campaign.plan.jobs[0])
    assert "\x1b" not in str(caught.value)


def test_a_platform_that_takes_only_some(tmp_path: Path, platform: Platform) -> None:
    campaign = make_campaign(tmp_path, [[sim(n)] for n in range(3)])
    platform.refusals.append(("POST", f"/jobs sy-{NAME}-000-[12]$", 403, "denied by policy"))
    send(campaign, tmp_path)
    look(tmp_path)
    records = collected(tmp_path)
    assert {name: record.status.code for name, record in records.items()} == {
        "run-r0001": "refused",
        "run-r0002": "refused",
    }
    assert "denied by policy" in records["run-r0001"].status.reason


def test_what_a_quota_has_no_room_for_is_sent_later(tmp_path: Path, platform: Platform) -> None:
    campaign = make_campaign(tmp_path, [[sim(n)] for n in range(3)])
    words = "exceeded quota: jobs, requested: count/jobs.batch=1, used: count/jobs.batch=1, limited: count/jobs.batch=1"
    platform.refusals.append(("POST", f"/jobs sy-{NAME}-000-[12]$", 403, words))
    send(campaign, tmp_path)
    standing = look(tmp_path)
    assert set(standing.waiting.values()) == {"queued"}
    assert standing.why[words] == 2
    assert list(platform.things["jobs"]) == [f"sy-{NAME}-000-0"]
    platform.refusals.clear()
    look(tmp_path)
    assert len(platform.things["jobs"]) == 3


def test_a_job_that_a_quota_holds_back_is_sent_only_as_it_was_planned(tmp_path: Path, platform: Platform) -> None:
    campaign = make_campaign(tmp_path, [[sim(n)] for n in range(2)])
    platform.refusals.append(("POST", f"/jobs sy-{NAME}-000-1$", 403, "exceeded quota: jobs"))
    send(campaign, tmp_path)
    platform.refusals.clear()
    manifest = campaign.job_folder(campaign.plan.jobs[0]) / MANIFEST_FILE
    manifest.write_text(manifest.read_text().replace("python3", "sh"))
    assert "was changed" in look(tmp_path).problems[0]
    assert len(platform.things["jobs"]) == 1


@pytest.mark.parametrize("status", [401, 429, 500, 503])
def test_a_platform_that_is_busy_refuses_no_run(tmp_path: Path, platform: Platform, status: int) -> None:
    campaign = make_campaign(tmp_path, [[sim(n)] for n in range(2)])
    job = campaign.plan.jobs[0]
    platform.refusals.append(("POST", f"/jobs sy-{NAME}-000-1$", status, "try again later"))
    with pytest.raises(SteelyardError, match="try again later"):
        create(campaign, job)
    platform.refusals.clear()
    create(campaign, job)
    assert list(Kubernetes().find(campaign, [job])) == [job.number]
    assert list(platform.things["jobs"]) == [f"sy-{NAME}-000-0", f"sy-{NAME}-000-1"]


def test_a_log_that_cannot_be_read_is_waited_for_from_the_first_failed_look(tmp_path: Path, platform: Platform) -> None:
    """However long ago the pod has ended. The run must not be recorded without what it measured."""
    campaign = make_campaign(tmp_path, [[sim(0)]])
    send(campaign, tmp_path)
    platform.run(next(iter(platform.things["jobs"].values())), tmp_path / "nodes", {})
    (pod,) = platform.things["pods"].values()
    end_s = kubernetes_events.ended_s(pod)
    assert end_s is not None
    job, late_s = campaign.plan.jobs[0], end_s + 10**6
    platform.refusals.append(("GET", "/log ", 500, "dial tcp: no route to host"))
    for waited_s in (0, 60, 899):
        with pytest.raises(SteelyardError, match="no route"):
            Kubernetes(functools.partial(float, late_s + waited_s)).fetch(campaign, job, 0)
    lost = Kubernetes(lambda: late_s + 901).fetch(campaign, job, 0)
    assert "no route to host" in lost
    platform.refusals[:] = [("GET", "/log ", 403, "pods/log is forbidden")]
    with pytest.raises(SteelyardError, match="forbidden"):
        Kubernetes(lambda: late_s + 10**6).fetch(campaign, job, 0)
    platform.refusals.clear()
    assert Kubernetes().fetch(campaign, job, 0) == ""
    assert campaign.done_file(job, 0).exists()


def test_cancelling_keeps_what_was_measured(tmp_path: Path, platform: Platform) -> None:
    campaign = make_campaign(tmp_path, [[sim(0), sim(1)]])
    send(campaign, tmp_path)
    job = next(iter(platform.things["jobs"].values()))
    platform.run(job, tmp_path / "nodes", {})
    ((name, log),) = platform.logs.items()
    platform.logs[name] = log[: log.index(b"#steelyard begin 1 ")]
    platform.things["pods"][name]["status"] = running()
    job["status"] = {}
    Kubernetes().cancel(campaign, campaign.plan.jobs)
    assert not platform.things["jobs"]
    look(tmp_path)
    codes = {run: record.status.code for run, record in collected(tmp_path).items()}
    assert codes == {"run-r0000": "completed", "run-r0001": "cancelled"}


def test_an_api_that_is_not_there(tmp_path: Path, platform: Platform) -> None:
    campaign = make_campaign(tmp_path, [[sim(0)]])
    platform.server.shutdown()
    platform.server.server_close()
    with pytest.raises(SteelyardError, match="does not answer"):
        Kubernetes().poll(campaign, campaign.plan.jobs)
    (check,) = Kubernetes().check(campaign.plan.place)
    assert (check.name, check.verdict) == ("API", "wrong")


def test_no_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    (check,) = Kubernetes().check(Place(make_site(), "pool"))
    assert (check.name, check.verdict) == ("API", "wrong")
    assert "KUBECONFIG" in check.fix


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    (check,) = Kubernetes().check(Place(make_site(), "pool"))
    assert check.fix == install_line("kubernetes")


def test_the_token_is_sent_and_never_said(tmp_path: Path, platform: Platform) -> None:
    platform.refusals.append(("GET", "/version", 401, "Unauthorized"))
    (check,) = Kubernetes().check(Place(make_site(), "pool"))
    assert "Unauthorized" in check.found
    assert "secret-token" not in check.found


# -- checks ------------------------------------------------------------------------------------------------------


def node(name: str, architecture: str = "amd64", devices: str = "4") -> dict[str, Any]:
    labels = {"kubernetes.io/arch": architecture}
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": {"nvidia.com/gpu": devices}}}


def verdicts(pool: dict[str, Any] | None = None, **changes: Any) -> dict[str, str]:
    return {check.name: check.verdict for check in Kubernetes().check(Place(make_site(pool, **changes), "pool"))}


def test_a_platform_that_is_ready(platform: Platform) -> None:
    platform.nodes = [node("a"), node("b", "arm64")]
    assert verdicts() == {"API": "ok", "namespace": "ok", "rights": "ok", "dry run": "ok", "nodes": "ok"}


REFUSED_DRY_RUNS = recorded.dry_runs()


@pytest.mark.parametrize(("name", "verdict", "said"), REFUSED_DRY_RUNS, ids=lambda value: str(value)[:30])
def test_what_a_dry_run_finds(platform: Platform, name: str, verdict: str, said: tuple[int, str]) -> None:
    platform.refusals.append(("POST", "/pods sy-check-dry-run$", *said))
    found = {check.name: check for check in Kubernetes().check(Place(make_site(), "pool"))}
    assert found[name].verdict == verdict
    assert said[1] in found[name].found
    # Nothing was created.
    assert not platform.things
    assert {query["dryRun"] for _, query, _ in platform.asked("POST", "/(pods|jobs)$")} == {"All"}


def test_where_results_are_kept_is_checked(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    store = Cluster(results="s3", bucket="https://s3.example/bucket")
    with pytest.raises(InputError, match="AWS_ACCESS_KEY_ID"):
        verdicts(cluster=store)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ObjectStore.KEY.name)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", ObjectStore.KEY.secret)
    assert verdicts(cluster=store)["results kept"] == "ok"
    assert verdicts({"max_time_s": 604_800}, cluster=store)["results kept"] == "wrong"
    platform.put("persistentvolumeclaims", {"metadata": {"name": "one"}, "spec": {"accessModes": ["ReadWriteOnce"]}})
    platform.put("persistentvolumeclaims", {"metadata": {"name": "all"}, "spec": {"accessModes": ["ReadWriteMany"]}})
    for claim, verdict in (("all", "ok"), ("one", "wrong"), ("none", "wrong")):
        assert verdicts(cluster=Cluster(results="claim", claim=claim))["results kept"] == verdict


def test_what_a_platform_lacks(platform: Platform) -> None:
    platform.nodes = [node("a", devices="2")]
    platform.denied = {"create jobs", "get pods", "list events"}
    platform.refusals.append(("GET", "^/api/v1/namespaces/default ", 404, "not found"))
    found = {
        check.name: check
        for check in Kubernetes().check(Place(make_site(cluster=Cluster(jobset=True, queue="q")), "pool"))
    }
    assert {name: check.verdict for name, check in found.items()} == {
        "API": "ok", "namespace": "wrong", "JobSet": "wrong", "Kueue": "wrong", "rights": "wrong", "events": "note",
        "dry run": "ok", "nodes": "wrong",
    }  # fmt: skip
    assert "create jobs" in found["rights"].found
    assert "get pods/log" in found["rights"].found


def test_extensions_that_are_there(platform: Platform) -> None:
    platform.groups = ("batch", "jobset.x-k8s.io", "kueue.x-k8s.io")
    platform.put("localqueues", {"metadata": {"name": "q"}})
    found = verdicts(cluster=Cluster(queue="q"))
    assert (found["JobSet"], found["Kueue"], found["nodes"]) == ("ok", "ok", "note")
    assert verdicts(cluster=Cluster(queue="other"))["Kueue"] == "wrong"


OURS = ["spec.json", "launch.json", "events-transport.jsonl"]

# -- logs that lie -----------------------------------------------------------------------------------------------


def shipped(
    name: str,
    data: bytes,
    *,
    number: int = 0,
    size: int | None = None,
    sha: str | None = None,
    packed: bytes | None = None,
) -> list[bytes]:
    packed = zlib.compress(data) if packed is None else packed
    blocks = [packed[i : i + 9000] for i in range(0, len(packed), 9000)]
    digest = sha or hashlib.sha256(data).hexdigest()
    said = len(data) if size is None else size
    head = f"#steelyard file 0 {number} {name} {said} {len(packed)} {len(blocks)} {digest}"
    lines = [head.encode()]
    for line, block in enumerate(blocks):
        text = base64.b64encode(block).decode()
        lines.append(f"#steelyard data 0 {number} {line} {len(block)} {zlib.crc32(block):08x} {text}".encode())
    return lines


def read(tmp_path: Path, lines: list[bytes], log_bytes: int = 1 << 20) -> PodLog:
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    reader = LogReader(["run-r0000"], scratch, log_bytes, PodLog(0, "node"))
    return reader.read(lines)


def test_an_honest_log_whatever_is_between_its_lines(tmp_path: Path) -> None:
    one, two = shipped("events-00000.jsonl", b"{}\n" * 9999), shipped("worker.log", bytes(range(256)) * 999, number=1)
    mixed = [line for pair in zip(one, two, strict=False) for line in (pair[0], b"noise", pair[1], b"\xff#steelyard x")]
    rest = [*one[len(two) :], *two[len(one) :]]
    ours = sum(line.startswith(b"#steelyard ") for line in [*mixed, *rest])
    end = [b"#steelyard end 0 run-r0000 0 1.0 2.0 0", b"#steelyard all 1 %d" % (ours + 1)]
    log = read(tmp_path, [*mixed, *rest, *end])
    assert log.runs[0].problems == []
    assert log.runs[0].files["events-00000.jsonl"].read_bytes() == b"{}\n" * 9999
    assert log.whole
    assert log.other.count(b"noise") == len(one[: len(two)])


EVIL_NAMES = ["../../x", "/etc/passwd", "..", ".hidden", "-rf", "a/b", "a\\b", "n\xe4me", "x" * 101, *OURS]


@pytest.mark.parametrize("name", EVIL_NAMES)
def test_names_that_are_not_taken(tmp_path: Path, name: str) -> None:
    log = read(tmp_path, shipped(name, b"evil"))
    assert not any(arrived.files for arrived in log.runs.values())
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_bomb(tmp_path: Path) -> None:
    zeros = bytes(50 << 20)
    honest = read(tmp_path, shipped("steps-00000.bin", zeros))
    assert "exceeds the limits" in honest.runs[0].problems[0]
    lying = read(tmp_path, shipped("steps-00000.bin", zeros, size=1000))
    assert "unpacks to more" in lying.runs[0].problems[0]
    assert list((tmp_path / "scratch").iterdir()) == []


def test_many_files_of_the_largest_size_are_bounded(tmp_path: Path) -> None:
    lines = [line for n in range(40) for line in shipped(f"f{n}", bytes(1 << 20), number=n)]
    log = read(tmp_path, lines, log_bytes=1 << 20)
    assert len(log.runs[0].files) == 32


@pytest.mark.parametrize("harm", ["sha", "crc", "length", "cut", "twice", "lost", "garbage", "base64"])
def test_damage_is_found_and_said(tmp_path: Path, harm: str) -> None:
    data = hashlib.sha512(b"x").digest() * 999
    lines = shipped("steps-00000.bin", data, packed=zlib.compress(data, 0), sha="0" * 64 if harm == "sha" else None)
    words = lines[2].split(b" ")
    if harm == "crc":
        words[6] = b"00000000"
    elif harm == "length":
        words[5] = b"1"
    elif harm == "cut":
        lines = lines[:-1]
    elif harm == "twice":
        lines.insert(2, lines[2])
    elif harm == "lost":
        del lines[2]
    elif harm == "garbage":
        words[7] = words[7][:10] + b"\x00" + words[7][11:]
    elif harm == "base64":
        words[7] = words[7][:-1]
    if harm in ("crc", "length", "garbage", "base64"):
        lines[2] = b" ".join(words)
    log = read(tmp_path, lines)
    assert log.runs[0].files == {}
    assert len(log.runs[0].problems) == 1


HONEST = [
    b"#steelyard begin 0 run-r0000 1.0",
    *shipped("events-00000.jsonl", b"{}\n" * 99),
    *shipped("steps-00000.bin", hashlib.sha512(b"s").digest() * 500, number=1),
    b"#steelyard end 0 run-r0000 0 1.0 2.0 0",
]


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(["flip", "cut", "drop", "twice", "swap"])), max_size=6),
    st.integers(1, 5000),
)
@example([(1, "twice"), (362879, "flip"), (0, "drop"), (2681, "swap")], 1)
@settings(max_examples=150)
def test_whatever_happens_to_a_log_nothing_wrong_is_taken(harms: list[tuple[int, str]], chunk: int) -> None:
    text = b"\n".join(HONEST) + b"\n"
    for place, harm in harms:
        at = place % max(1, len(text))
        if harm == "flip":
            text = text[:at] + bytes([text[at] ^ (1 + place % 255)]) + text[at + 1 :] if text else text
        elif harm == "cut":
            text = text[:at]
        else:
            lines = text.split(b"\n")
            one, two = place % len(lines), (place // 7) % len(lines)
            if harm == "swap":
                lines[one], lines[two] = lines[two], lines[one]
            else:
                lines[one : one + 1] = [] if harm == "drop" else [lines[one]] * 2
            text = b"\n".join(lines)
    with tempfile.TemporaryDirectory() as folder:
        reader = LogReader(["run-r0000"], Path(folder), 1 << 20, PodLog(0, "node"))
        log = reader.read(bounded_lines(text[i : i + chunk] for i in range(0, len(text), chunk)))
        taken = {name: path.read_bytes() for arrived in log.runs.values() for name, path in arrived.files.items()}
    truth = {b"{}\n" * 99, hashlib.sha512(b"s").digest() * 500}
    assert set(taken.values()) <= truth
    assert all(name.isascii() and "/" not in name for name in taken)


def test_words_of_other_runs_and_impossible_numbers(tmp_path: Path) -> None:
    lines = [
        b"#steelyard begin 7 run-r0000 1.0", b"#steelyard begin 0 other 1.0",
        b"#steelyard end 0 run-r0000 999 1.0 2.0 0",
        b"#steelyard end 0 other 0 1.0 2.0 0", b"#steelyard stop now", b"#steelyard", b"#steelyard data",
        b"#steelyard data 0 0 0 4 00000000 AAAA", b"#steelyard file 0 0 a 99999999999999999 1 1 " + b"0" * 64,
    ]  # fmt: skip
    log = read(tmp_path, lines)
    assert log.runs == {}
    assert (log.stopped, log.whole) == (None, False)


def test_lines_without_end_are_bounded() -> None:
    chunks = [b"a" * 70_000, b"b" * 70_000, b"\nshort\n", b"cut off"]
    assert list(bounded_lines(chunks)) == [b"short"]
    assert MAX_LINE_BYTES > 16_000


def test_two_pods_with_one_file(tmp_path: Path, platform: Platform) -> None:
    campaign = make_campaign(tmp_path, [[sim(0)]], form=shape(2, 1))
    job = campaign.plan.jobs[0]
    pods = []
    for index in range(2):
        scratch = tmp_path / f"scratch{index}"
        scratch.mkdir()
        lines = [
            *shipped("events-00000.jsonl", b'{"kind": "x%d"}\n' % index),
            *shipped("worker.log", b"log %d\n" % index, number=1),
        ]
        lines += [b"#steelyard end 0 run-r0000 %d 1%d.0 2%d.0 0" % (index, index, index)]
        pods.append(LogReader(["run-r0000"], scratch, 1 << 20, PodLog(index, f"n{index}")).read(lines))
    lay_down(campaign, job, 0, pods)
    raw = campaign.raw("run-r0000")
    assert (raw / "events-00000.jsonl").read_text() == '{"kind": "x0"}\n'
    assert "came from another pod" in (raw / "events-transport.jsonl").read_text()
    assert (raw / "worker.log").read_text() == "---- pod 1 on n1\nlog 1\n\n---- pod 0 on n0\nlog 0\n\n"
    assert campaign.done_file(job, 0).read_text() == "run-r0000 1 10.0 21.0 0\n"


def test_a_run_that_was_collected_meanwhile_is_left_alone(tmp_path: Path, platform: Platform) -> None:
    campaign = make_campaign(tmp_path, [[sim(0)]])
    job = campaign.plan.jobs[0]
    raw = campaign.raw("run-r0000")
    raw.parent.rename(tmp_path / "collected")
    lay_down(campaign, job, 0, [read(tmp_path, shipped("worker.log", b"x"))])
    assert not raw.exists()


def test_platform_words_are_bounded_and_harmless() -> None:
    words = kubernetes_events.text("\x1b[2J" + "x" * 10**6)
    assert "\x1b" not in words
    assert len(words) <= kubernetes_events.SAID_CHARACTERS


def test_specs_arrive_as_they_were(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path, [[sim(0)]])
    packed = base64.b64decode(objects(campaign)[1]["binaryData"]["specs.json.gz"])
    specs = json.loads(gzip.decompress(packed))
    assert from_json_object(RunSpec, specs["run-r0000"]) == sim(0)
