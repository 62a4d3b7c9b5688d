"""Results that survive what happens to pods on real platforms, and states as a real API showed them."""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path
from typing import Any

import pytest

import recorded
from attacks import ATTACKS, Outcome, Transport, attacked
from platform_kubernetes import ObjectStore, Platform
from steelyard.launch.kubernetes import events
from steelyard.launch.kubernetes.api import Api
from steelyard.launch.kubernetes.check import exceeds_whole_quota
from steelyard.launch.kubernetes.copies import Copy
from steelyard.launch.kubernetes.logs import Arrived, PodLog, _choose_attempt, _is_complete
from steelyard.launch.kubernetes.store import Key, SignedRequest, presign, sign
from steelyard.worker import pod as pod_entry
from test_kubernetes import collected, look, make_campaign, make_site, patient, platform, send, shape, sim, terminated

__all__ = ["patient", "platform"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kubernetes.md"
ON_A_CLAIM = ("none", "pod deleted", "TTL", "node lost", "log rotated", "pod deleted, second pod")


def check(outcomes: list[Outcome]) -> None:
    assert {outcome.attack.name: outcome.wrong for outcome in outcomes if outcome.wrong} == {}


def test_attacks_while_somebody_looks(tmp_path: Path) -> None:
    outcomes = attacked(tmp_path / "x", "logs", watched=True)
    check(outcomes)
    assert sum(outcome.kept for outcome in outcomes) == 70


def test_attacks_that_nobody_saw(tmp_path: Path) -> None:
    check(attacked(tmp_path / "x", "logs", watched=False))


@pytest.mark.parametrize("transport", ["s3", "claim"])
def test_results_outside_the_pod_survive(tmp_path: Path, transport: Transport) -> None:
    some = tuple(attack for attack in ATTACKS if attack.name in ON_A_CLAIM)
    outcomes = attacked(tmp_path / "x", transport, watched=False, attacks=some)
    check(outcomes)
    assert [outcome.kept for outcome in outcomes] == [attack.finished() for attack in some]


def test_a_second_pod_does_not_repeat_what_is_on_the_claim(tmp_path: Path, platform: Platform) -> None:
    platform.claims = tmp_path / "claims"
    (platform.claims / "shared").mkdir(parents=True)
    cluster = {"jobset": False, "results": "claim", "claim": "shared"}
    campaign = make_campaign(tmp_path, [[sim(0)]], site=make_site(cluster=make_site().cluster.__class__(**cluster)))
    send(campaign, tmp_path)
    (job,) = platform.things["jobs"].values()
    for attempt in ("first", "second"):
        platform.run(job, tmp_path / attempt, {})
    begun = [b"#steelyard begin" in log for log in platform.logs.values()]
    assert begun == [True, False]
    look(tmp_path)
    assert collected(tmp_path)["run-r0000"].status.code == "completed"


# -- signatures

KEY = ObjectStore.KEY
MOMENT = dt.datetime(2013, 5, 24, tzinfo=dt.UTC)
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
WELCOME = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"
HOST = {"host": "examplebucket.s3.amazonaws.com", "x-amz-date": "20130524T000000Z"}
VECTORS = [
    (SignedRequest("GET", "/test.txt", {}, {**HOST, "range": "bytes=0-9", "x-amz-content-sha256": EMPTY}, EMPTY),
     "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
    (SignedRequest("PUT", "/test$file.text", {}, {
        **HOST, "date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-content-sha256": WELCOME,
        "x-amz-storage-class": "REDUCED_REDUNDANCY"}, WELCOME),
     "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"),
    (SignedRequest("GET", "/", {"lifecycle": ""}, {**HOST, "x-amz-content-sha256": EMPTY}, EMPTY),
     "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
    (SignedRequest("GET", "/", {"max-keys": "2", "prefix": "J"}, {**HOST, "x-amz-content-sha256": EMPTY}, EMPTY),
     "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "signature"), VECTORS)
def test_signatures_of_the_aws_documentation(request_: SignedRequest, signature: str) -> None:
    """Examples of the Amazon S3 API Reference: Authenticating Requests (AWS Signature Version 4)."""
    assert sign(request_, KEY, "us-east-1", MOMENT) == signature


def test_the_address_of_the_aws_documentation() -> None:
    address = presign("GET", f"https://{HOST['host']}/test.txt", KEY, "us-east-1", MOMENT, 86400)
    assert address.endswith("X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404")


def test_an_address_allows_one_thing(tmp_path: Path) -> None:
    store = ObjectStore()
    now = dt.datetime.now(dt.UTC)
    host = store.url.split("/")[2]

    def signed(method: str, address: str) -> bool:
        return store.is_signed(method, address.partition(host)[2], host)

    address = presign("PUT", f"{store.url}/a", KEY, "us-east-1", now, 600)
    try:
        assert signed("PUT", address)
        assert not signed("GET", address)
        assert not signed("PUT", address.replace("/a?", "/b?"))
        assert not signed("PUT", address.replace("Expires=600", "Expires=6000"))
        assert not signed("PUT", presign("PUT", f"{store.url}/a", KEY, "us-east-1", now - dt.timedelta(hours=1), 600))
        other = Key(KEY.name, "another")
        assert not signed("PUT", presign("PUT", f"{store.url}/a", other, "us-east-1", now, 600))
        parcel = tmp_path / "parcel"
        parcel.write_bytes(b"results")
        assert pod_entry.Store([address]).keep(0, "", parcel, lambda: False)
        assert store.objects == {"/bucket/results/a": b"results"}
        assert not pod_entry.Store([address.replace("/a?", "/b?")]).keep(0, "", parcel, lambda: False)
    finally:
        store.close()
    assert "another" not in repr(other)


# -- judgements


def one(scenario: str, job: str, kind: str) -> list[dict[str, Any]]:
    return [step.thing for step in recorded.read(scenario, job) if step.kind == kind]


def test_a_run_killed_for_memory_in_a_container_that_completed(tmp_path: Path, platform: Platform) -> None:
    """Control groups of the first version: the container goes on, and ends with 0 and the reason OOMKilled."""
    send(make_campaign(tmp_path, [[sim(0), sim(1)]]), tmp_path)
    (job,) = platform.things["jobs"].values()
    platform.run(job, tmp_path / "nodes", {})
    ((name, log),) = platform.logs.items()
    # The first run was killed before its worker could report anything.
    lines = [line for line in log.splitlines(keepends=True) if not re.match(rb"#steelyard (file|data) 0 ", line)]
    text = b"".join(lines).replace(b"#steelyard end 0 run-r0000 0 ", b"#steelyard end 0 run-r0000 137 ")
    platform.logs[name] = re.sub(rb"all 2 \d+", b"all 2 %d" % (len(lines) - 1), text)
    state = one("09-out-of-memory", "child-caught", "Pod")[-1]["status"]
    assert state["phase"] == "Succeeded"
    platform.things["pods"][name]["status"] = state
    look(tmp_path)
    codes = {run: record.status.code for run, record in collected(tmp_path).items()}
    assert codes == {"run-r0000": "out_of_memory", "run-r0001": "completed"}


def test_a_run_that_counted_its_own_kills(tmp_path: Path, platform: Platform) -> None:
    """Where the platform says nothing: the pod counts what the memory limit killed during each run."""
    send(make_campaign(tmp_path, [[sim(0)]]), tmp_path)
    (job,) = platform.things["jobs"].values()
    platform.run(job, tmp_path / "nodes", {})
    ((name, log),) = platform.logs.items()
    lines = [line for line in log.splitlines(keepends=True) if not re.match(rb"#steelyard (file|data) 0 ", line)]
    text = re.sub(rb"(end 0 run-r0000) 0 (\S+ \S+) 0", rb"\1 137 \2 1", b"".join(lines))
    platform.logs[name] = re.sub(rb"all 1 \d+", b"all 1 %d" % (len(lines) - 1), text)
    look(tmp_path)
    status = collected(tmp_path)["run-r0000"].status
    assert (status.code, status.evidence and status.evidence["oom_kills"]) == ("out_of_memory", 1)


@pytest.mark.parametrize("text", ["low 0\noom_kill 3\n", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"])
def test_kills_are_counted_in_both_versions_of_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "count").write_text(text)
    monkeypatch.setattr(pod_entry, "MEMORY_COUNTS", (str(tmp_path / "none"), str(tmp_path / "count")))
    assert pod_entry.memory_kills() == 3


def test_a_dead_node_does_not_run_for_ever() -> None:
    """A pod that was told to end and is shown without end, in a Job that never says Failed."""
    steps = recorded.read("06-node-lost", "on-b")
    waits = [step for step in steps if step.kind == "Job" and "Failed" not in json.dumps(step.thing["status"])]
    shown = [step.thing for step in steps if step.kind == "Pod" and step.thing["status"]["phase"] == "Running"]
    pod = json.loads(json.dumps(shown[-1]))
    pod["metadata"]["labels"] = {"batch.kubernetes.io/job-completion-index": "0"}
    seen = events.Seen(waits[-1].thing, [pod])
    deleted_s = events.unix_s(pod["metadata"]["deletionTimestamp"])
    assert deleted_s is not None
    now, later = events.state_of(seen, deleted_s + 5)[0], events.state_of(seen, deleted_s + 300)[0]
    assert (now.phase, now.began) == ("running", True)
    assert later.said is not None
    assert (later.phase, later.said.cause) == ("ended", "node_failure")


def test_events_of_healthy_pods_are_no_failure() -> None:
    """After an interruption of the API healthy pods have the event NodeNotReady."""
    told = [step.thing for step in recorded.read("14-api-server-restarted", "c1") if step.kind == "Event"]
    job = {"metadata": {"name": "c1"}, "status": {"conditions": [{"type": "Failed", "status": "True"}]}}
    told += [{"reason": "NodeNotReady", "message": "Node is not ready", "involvedObject": {"name": "c1-0-abcde"}}]
    told += [{**told[-1], "reason": "TaintManagerEviction", "message": "Cancelling deletion of Pod x/c1-0-abcde"}]
    state, _ = events.state_of(events.Seen(job, (), told), 0.0)
    assert state.said is not None
    assert "unknown reason" in state.said.reason


def test_a_list_whose_continuation_has_expired_goes_on(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = next(row["body"] for row in recorded.answers() if row["label"] == "continue after compaction")
    for number in range(4):
        platform.put("configmaps", {"metadata": {"name": f"m{number}"}})
    platform.page = 2
    answer = platform.answer

    def expiring(method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        if query.get("continue") == "2":
            return 410, gone
        if query.get("continue") == gone["metadata"]["continue"]:
            query = {**query, "continue": "2"}
        return answer(method, path, query, body)

    monkeypatch.setattr(platform, "answer", expiring)
    found = [item["metadata"]["name"] for item in Api(None).list("/api/v1/namespaces/default/configmaps", {})]
    assert found == ["m0", "m1", "m2", "m3"]


def test_jobset_without_permission_falls_back_to_jobs(tmp_path: Path, platform: Platform) -> None:
    platform.groups = ("batch", "jobset.x-k8s.io")
    platform.denied = {"create jobsets"}
    platform.refusals.append(("GET", "/jobsets", 403, "jobsets.jobset.x-k8s.io is forbidden"))
    site = make_site({"devices_per_node": 1}, cluster=make_site().cluster.__class__())
    campaign = make_campaign(tmp_path, [[sim(0)]], site=site, form=shape(2, 1))
    send(campaign, tmp_path)
    assert list(platform.things["jobs"]) == ["sy-0123456789ab-000-0"]
    assert set(look(tmp_path).waiting.values()) == {"queued"}


def test_states_of_jobset_and_kueue() -> None:
    """By their published types (jobset.x-k8s.io/v1alpha2, kueue.x-k8s.io/v1beta1): no controller was run."""
    done = {"type": "Completed", "status": "True", "reason": "AllJobsCompleted"}
    failed = {
        "type": "Failed",
        "status": "True",
        "reason": "FailedJobs",
        "message": "jobset failed due to one or more job failures",
    }
    metadata = {"name": "set", "creationTimestamp": "2026-11-15T00:00:00Z"}
    for condition, cause in ((done, None), (failed, "node_failure")):
        job = events.as_job({"metadata": metadata, "spec": {}, "status": {"conditions": [condition]}})
        state, _ = events.state_of(events.Seen(job), 0.0)
        assert state.said is not None
        assert (state.phase, state.said.cause) == ("ended", cause)
    words = "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu"
    reserved = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": words}
    evicted = {
        "type": "Evicted",
        "status": "True",
        "reason": "Preempted",
        "message": "Preempted to accommodate a workload",
    }
    owner = {"name": "job-x", "ownerReferences": [{"kind": "Job", "name": "set"}]}
    for condition, start in ((reserved, "not yet admitted"), (evicted, "evicted by its queue")):
        said = events.queue_messages([{"metadata": owner, "status": {"conditions": [condition]}}])
        assert said["set"].startswith(start)
        waiting = events.Seen({"metadata": metadata, "spec": {"suspend": True}}, queue=said["set"])
        assert events.state_of(waiting, 0.0)[0].why == said["set"]


def test_a_quota_that_is_full_and_one_that_is_too_small() -> None:
    full = "exceeded quota: pods, requested: pods=1, used: pods=1, limited: pods=1"
    assert not exceeds_whole_quota(full)
    assert exceeds_whole_quota(recorded.answer("dry run of a pod over quota")[1])


# -- copies and attempts


def stamped(number: int, text: str) -> bytes:
    return f"2026-11-15T12:00:{number:02d}.5Z {text}\n".encode()


def test_a_copy_grows_without_gaps_or_repetition(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "0.0.0123456789abcdef.log", 1 << 20)
    lines = [stamped(number, f"#steelyard data {number}") for number in range(6)]
    copy.add([b"".join(lines[:3])])
    assert copy.since() == "2026-11-15T12:00:02Z"
    # A line of the other stream, written earlier and stored later.
    copy.add([b"".join([*lines[2:4], stamped(1, "noise"), *lines[4:]])], last=True)
    assert [line.decode() for line in copy.lines()] == [
        *(f"#steelyard data {number}" for number in range(4)), "noise", "#steelyard data 4", "#steelyard data 5",
    ]  # fmt: skip
    assert copy.closed


def test_a_run_comes_from_one_attempt_as_a_whole() -> None:
    """Two pods, started twice: the first attempt lost one of them."""

    def part(index: int, attempt: str, *, ended: bool) -> tuple[PodLog, Arrived]:
        return PodLog(index, "n", attempt), Arrived(begun="1.0", end=(0, "1.0", "2.0", 0) if ended else None)

    parts = [part(0, "a", ended=True), part(1, "a", ended=False), part(0, "b", ended=True), part(1, "b", ended=True)]
    assert {pod.attempt for pod, _ in _choose_attempt(parts)} == {"b"}
    whole = [PodLog(0, "n", "a", whole=True), PodLog(1, "n", "b", whole=True)]
    assert not _is_complete(whole, 2)
    assert _is_complete([*whole, PodLog(0, "n", "b", whole=True)], 2)


def test_a_pod_that_is_gone_is_lost_at_once(tmp_path: Path, platform: Platform) -> None:
    send(make_campaign(tmp_path, [[sim(0)]]), tmp_path)
    (job,) = platform.things["jobs"].values()
    pod = platform.pod_of(job, 0, terminated(0, "Completed"))
    platform.finish(job, "Complete")
    platform.refusals.append(("GET", "/log ", 404, f'pods "{pod["metadata"]["name"]}" not found'))
    look(tmp_path)
    status = collected(tmp_path)["run-r0000"].status
    assert (status.code, status.reason.startswith("results lost: ")) == ("lost", True)


def test_the_page_names_tests_that_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text(encoding="utf-8")))
    here = Path(__file__).parent
    there = set(re.findall(r"^def (test_\w+)", "".join(p.read_text() for p in here.glob("test_*.py")), re.MULTILINE))
    assert len(named) >= 20
    assert named <= there
