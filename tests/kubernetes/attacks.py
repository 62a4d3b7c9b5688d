"""What happens to pods on real platforms, replayed: each task of one campaign is the victim of another attack.

Jobs, pods and events are versions recorded from a real cluster (recorded.py). The logs, and what was stored outside
them, are of one pod that was really run; the names of its runs are replaced. In the middle of an attack a pod has
finished two of its three runs.
"""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import json
import os
import re
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import recorded
from platform_kubernetes import ObjectStore, Platform
from steelyard.contracts.spec import Budget, RunSpec
from steelyard.inputs.site import Cluster, Container, Place, Pool, Site
from steelyard.launch import follow, registry, staging
from steelyard.launch.campaign import Campaign, Image, JobArray, Plan, RunShape
from steelyard.launch.kubernetes.scheduler import Kubernetes
from steelyard.launch.price import price
from steelyard.launch.submit import submit
from steelyard.results.store import ResultFolder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import RunRecord

Object = dict[str, Any]
Transport = Literal["logs", "s3", "claim"]
TRANSPORTS: tuple[Transport, ...] = ("logs", "s3", "claim")
RUNS, HALF = 3, 2
STUDY = "attacked"
QUICK = Budget(min_steps=60, min_seconds=0.0, max_steps=60)
LATER_S = (0.0, 300.0, 5000.0)
"""When somebody looks after the recording has ended."""


@dataclass(frozen=True)
class Attack:
    """One attack and what must come of it."""

    name: str
    scenario: str
    job: str
    finishes: bool = False
    """The container finishes all its runs."""
    starts: bool = True
    again: bool = False
    """The platform starts a second pod, which finishes (as in 01)."""
    log: tuple[tuple[str, int], ...] = ()
    """Labels and statuses of the answers that the first requests for the log of the ended pod get."""
    log_gone: bool = False
    """The log cannot be read after the end, although the pod is shown."""
    rotated: bool = False
    """After the end only the newest part of the log is left, unless it was followed."""
    deletes: bool = False
    """The Job is deleted by the attack; otherwise by whoever cleaned up after the recording."""
    codes: tuple[str, ...] = ()
    """Statuses that runs without results may have, besides `lost`."""

    @property
    def steps(self) -> tuple[recorded.Step, ...]:
        """What the platform showed, until the recording was cleaned up."""
        steps = recorded.read(self.scenario, self.job)
        ends = [number for number, step in enumerate(steps) if step.kind == "Job" and _is_deleted(step)]
        return steps if self.deletes or not ends else steps[: ends[0]]

    @property
    def first_seen(self) -> int:
        """The step at which a look first sees that the container was started; at the second step, if none does."""
        started = [
            n for n, step in enumerate(self.steps) if step.kind == "Pod" and _worker(step.thing).get("startedAt")
        ]
        return started[0] if started else 1

    @property
    def seen_running(self) -> bool:
        return "finishedAt" not in _worker(self.steps[self.first_seen].thing)

    @property
    def log_stays(self) -> bool:
        """Whether the whole log can be read after the end."""
        last = {step.name: step for step in self.steps if step.kind == "Pod"}
        there = any(step.type != "DELETED" for step in last.values())
        return (there or self.again) and not self.log_gone

    def finished(self) -> int:
        """How many runs were finished on the platform."""
        if not self.starts:
            return 0
        return RUNS if self.finishes or self.again else HALF

    def kept(self, transport: Transport, *, watched: bool) -> int:
        """How many finished runs must be kept."""
        if transport != "logs" or (self.log_stays and not (self.rotated and not watched)):
            return self.finished()
        if watched and self.starts and not self.log_gone:
            return HALF if self.seen_running else RUNS
        return 1 if self.rotated else 0


KUBELET = (("log, kubelet away", 500), ("log, kubelet being started: answer has changed", 404))
DARK = (("log, nobody answers at the node's address", 500),)
ATTACKS = (
    Attack("none", "01-complete", "one", finishes=True),
    Attack("pod deleted", "02-pod-deleted", "ends", codes=("cancelled",)),
    Attack("pod deleted, ended with 0", "02-pod-deleted", "good", finishes=True),
    Attack("pod deleted by force", "02-pod-deleted", "forced", codes=("cancelled",)),
    Attack("pod deleted, second pod", "02-pod-deleted", "again", again=True),
    Attack("preempted", "03-preempted", "victim", codes=("preempted",)),
    Attack("evicted by the API", "04-evicted", "evicted", codes=("preempted", "cancelled")),
    Attack("evicted for its disk", "04-evicted", "disk", codes=("failed",)),
    Attack("TTL", "05-ttl", "short", finishes=True, deletes=True),
    Attack("node lost", "06-node-lost", "on-b", codes=("node_failure",)),
    Attack("node lost, default tolerations", "06-node-lost", "default-toleration", codes=("node_failure", "cancelled")),
    Attack("node lost after the end", "06-node-lost", "ended-before", finishes=True),
    Attack("node back, pod gone", "06b-node-back", "ends-unseen", finishes=True, codes=("node_failure",)),
    Attack("node back, pod there", "06b-node-back", "patient", finishes=True),
    Attack("log rotated", "07-log-rotated", "rotated", finishes=True, rotated=True),
    Attack("kubelet restarted", "08b-log-kubelet-restarted", "ended", finishes=True, log=KUBELET),
    Attack("node dark", "08b-log-kubelet-restarted", "ended", finishes=True, log_gone=True, log=DARK),
    Attack("out of memory, cgroup v2", "09-out-of-memory", "main", codes=("out_of_memory",)),
    Attack("out of memory, cgroup v1", "09-out-of-memory", "child-caught", finishes=True),
    Attack("quota full", "10-quota", "large", finishes=True),
    Attack("quota that demands limits", "10-quota", "nolimits", starts=False, codes=("refused",)),
    Attack("LimitRange", "11-dry-run", "overlimit", starts=False, codes=("refused",)),
    Attack("PodSecurity", "11-dry-run", "refused", starts=False, codes=("refused",)),
    Attack("image never pulled", "12-image", "waits-deadline", starts=False, codes=("refused",)),
    Attack("wrong command", "12-image", "wrong-command", starts=False, codes=("refused",)),
    Attack("sidecar goes on", "13-second-container", "first-ends-0", finishes=True),
    Attack("native sidecar", "13-second-container", "native-sidecar", finishes=True),
    Attack("sidecar until the deadline", "13-second-container", "deadline", finishes=True),
    Attack("API away", "14-api-server-restarted", "c1", finishes=True),
    Attack("suspended and resumed", "16-suspend", "preempted", again=True),
    Attack("deadline of the Job", "17-limits-and-policies", "job-deadline", codes=("time_limit",)),
    Attack("deadline of the pod", "17-limits-and-policies", "pod-deadline", codes=("time_limit",)),
    Attack("second pod by policy", "17b-policy-ignore", "ignored", again=True),
    Attack("namespace deleted", "20-namespace-deleted", "runs", deletes=True, codes=("cancelled",)),
)  # fmt: skip

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
_WORDS = re.compile(rb"(?m)^(#steelyard (?:begin|end) (\d+) )\S+")


def unix_s(text: str) -> float:
    return dt.datetime.fromisoformat(text).timestamp()


def shifted(thing: Object, by_s: float) -> Object:
    """An object with all its times moved."""

    def move(found: re.Match[str]) -> str:
        moment = dt.datetime.fromtimestamp(unix_s(found[0]) + by_s, dt.UTC)
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")

    moved: Object = json.loads(_TIME.sub(move, json.dumps(thing)))
    return moved


class Victims:
    """A campaign with one task for each attack, on a platform that the attacks befall."""

    def __init__(self, home: Path, attacks: tuple[Attack, ...], transport: Transport) -> None:
        self.home, self.attacks, self.transport = home, attacks, transport
        self.platform = Platform()
        self.store = ObjectStore() if transport == "s3" else None
        self.platform.claims = home / "claims"
        (home / "claims" / "shared").mkdir(parents=True)
        self.now_s = dt.datetime.now(dt.UTC).timestamp()
        self.scheduler = Kubernetes(lambda: self.now_s)
        self.requests_for_logs: dict[str, int] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[Victims]:
        """Submit the campaign."""
        key = {"AWS_ACCESS_KEY_ID": ObjectStore.KEY.name, "AWS_SECRET_ACCESS_KEY": ObjectStore.KEY.secret}
        given = {"KUBECONFIG": str(self.platform.kubeconfig(self.home / "kubeconfig")), **key}
        before = {name: os.environ.get(name) for name in given}
        os.environ.update(given)
        try:
            with self.platform:
                self.folder = ResultFolder(self.home / "results")
                self.campaign = self._plan()
                submit(self.folder, STUDY, lambda _: Kubernetes())
                self.names = dict(enumerate(self.platform.things["jobs"]))
                self.logs = self._run_one()
                self.platform.log = self._log  # type: ignore[method-assign]
                yield self
        finally:
            if self.store is not None:
                self.store.close()
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def _plan(self) -> Campaign:
        bucket = self.store.url if self.store is not None else None
        cluster = Cluster(jobset=False, results=self.transport, bucket=bucket, claim="shared")
        site = Site(
            name="platform", scheduler="kubernetes", cluster=cluster, container=Container(images={"x86_64": "image"}),
            pools={"pool": Pool(architecture="x86_64", devices_per_node=1)},
        )  # fmt: skip
        shape = RunShape(nodes=1, processes_per_node=1, devices_per_node=0, threads=None, sharing=1, run_limit_s=300)
        tasks = tuple(tuple(f"t{task:02d}-r{run:04d}" for run in range(RUNS)) for task in range(len(self.attacks)))
        job = JobArray(number=0, name="sy-000", kind="packed", shape=shape, task_limit_s=3600, tasks=tasks)
        path = self.folder.root / "campaigns" / STUDY / "0001"
        path.mkdir(parents=True)
        plan = Plan(
            study=STUDY, campaign="0123456789ab", created_at="2026-11-15T00:00:00+00:00", made_by="test", site=site,
            pool="pool", image=Image(name="image", reference="image", architecture=None, digest=None),
            worker_sha256=staging.stage(path / "worker"), python="python3", jobs=(job,),
            price=price(Place(site, "pool"), [job]),
        )  # fmt: skip
        campaign = Campaign(path, plan)
        specs = staging.write_specs(
            path,
            (
                RunSpec(run_id=run, configuration=run[:3], study=STUDY, repeat=number, budget=QUICK, crosscheck_steps=0)
                for task in tasks
                for number, run in enumerate(task)
            ),
        )
        files = staging.job_files(job, specs, Kubernetes().render(campaign, job))
        registry.prepare()
        staging.write_campaign_plan(campaign, {"0": staging.write_job(campaign, job, files)})
        self.folder.prepare()
        return campaign

    def _run_one(self) -> dict[str, bytes]:
        """Run the pod of the first task for real; return its log, whole and in the middle of its last run."""
        job = copy.deepcopy(self.platform.things["jobs"][self.names[0]])
        with tempfile.TemporaryDirectory() as nodes:
            self.platform.run(job, Path(nodes), {})
        ((name, whole),) = self.platform.logs.items()
        del self.platform.things["pods"][name]
        self.platform.logs.clear()
        middle = whole.index(b"#steelyard begin 2 ")
        return {"whole": whole, "middle": whole[: whole.index(b"\n", middle) + 1]}

    # -- what the platform shows

    def show(self, *, whole: bool) -> None:
        """Put the objects of all attacks there: as at the end, or when the containers were first seen running."""
        things = self.platform.things
        things["pods"], things["events"] = {}, {}
        self.present: dict[str, tuple[Attack, int, bool]] = {}
        for task, attack in enumerate(self.attacks):
            if self._is_collected(task):
                continue
            self._replay(task, attack, attack.steps if whole else attack.steps[: attack.first_seen + 1], ended=whole)
            if whole:
                self._store(task, attack)

    def _is_collected(self, task: int) -> bool:
        return not (self.campaign.path / "runs" / self.campaign.plan.jobs[0].tasks[task][0]).exists()

    def _replay(self, task: int, attack: Attack, steps: tuple[recorded.Step, ...], *, ended: bool) -> None:
        things, name = self.platform.things, self.names[task]
        by_s = self.now_s - unix_s(steps[-1].at)
        ours = self.platform.things["jobs"].get(name)
        if ours is None:
            return
        pods: dict[str, Object] = {}
        for step in steps:
            thing = shifted(step.thing, by_s)
            if step.kind == "Job":
                for part in ("metadata", "spec"):
                    ours[part] |= {key: value for key, value in thing[part].items() if key != "name"}
                ours["status"] = thing["status"]
                if step.type == "DELETED":
                    things["jobs"].pop(name, None)
                else:
                    things["jobs"][name] = ours
            elif step.kind == "Pod":
                pods[step.name] = thing
                if step.type == "DELETED":
                    del pods[step.name]
            else:
                of = thing["involvedObject"]
                of["name"] = name + of["name"].removeprefix(attack.job)
                thing["metadata"]["name"] = f"{task}-{thing['metadata']['name']}"
                things["events"][thing["metadata"]["name"]] = thing
        second = attack.again and ended
        if second:
            pods = self._finish_second(ours, [step.name for step in steps if step.kind == "Pod"][-1])
        for pod_name, thing in pods.items():
            self._put_pod(task, attack, name + pod_name.removeprefix(attack.job), thing, second=second)

    def _finish_second(self, ours: Object, name: str) -> dict[str, Object]:
        """Let the second pod of a Job end as a pod of 01 did."""
        last = {step.kind: step for step in ATTACKS[0].steps if step.kind != "Event"}
        by_s = self.now_s - unix_s(last["Job"].at)
        ours["status"] = shifted(last["Job"].thing, by_s)["status"]
        ours["spec"]["suspend"] = False
        return {name: shifted(last["Pod"].thing, by_s)}

    def _put_pod(self, task: int, attack: Attack, name: str, thing: Object, *, second: bool) -> None:
        template = self.platform.things["jobs"].get(self.names[task], {}).get("spec", {}).get("template")
        labels = dict(template["metadata"]["labels"]) if template else {}
        labels["batch.kubernetes.io/job-completion-index"] = "0"
        thing["metadata"] |= {"name": name, "labels": labels, "uid": name, "resourceVersion": "1"}
        self.platform.things["pods"][name] = thing
        self.present[name] = attack, task, second

    # -- what the nodes return

    def text_of(self, task: int, kind: str, attempt: str) -> bytes:
        runs = self.campaign.plan.jobs[0].tasks[task]
        text = _WORDS.sub(lambda found: found[1] + runs[int(found[2])].encode(), self.logs[kind])
        return re.sub(rb"(?m)^(#steelyard pod )[0-9a-f]+", rb"\g<1>" + attempt.encode(), text)

    def _log(self, name: str, query: dict[str, str]) -> tuple[int, Any]:
        if name not in self.present:
            return (200, self._stamp(self.platform.logs[name], query)) if name in self.platform.logs else _no_pod(name)
        attack, task, second = self.present[name]
        thing = self.platform.things["pods"].get(name)
        if thing is None:
            return _no_pod(name)
        state = next(e["state"] for e in thing["status"]["containerStatuses"] if e["name"] == "worker")
        over = "terminated" in state
        asked = self.requests_for_logs[name] = self.requests_for_logs.get(name, 0) + over
        if over and (attack.log_gone or 0 < asked <= len(attack.log)):
            status, message = recorded.answer(*attack.log[min(asked, len(attack.log)) - 1])
            return status, {"kind": "Status", "message": message.replace("ended-0-gkqj4", name), "code": status}
        if not state.get("running") and not state.get("terminated", {}).get("startedAt"):
            return 200, b""
        whole = over and (attack.finishes or second)
        text = self.text_of(task, "whole" if whole else "middle", "b" * 16 if second else "a" * 16)
        if not attack.starts:
            text = b""
        lines = text.splitlines(keepends=True)
        start = 0
        if attack.rotated and over:
            start = next(number for number, line in enumerate(lines) if line.startswith(b"#steelyard begin 2 "))
        return 200, self._stamp(b"".join(lines[start:]), query, start)

    def _stamp(self, text: bytes, query: dict[str, str], start: int = 0) -> bytes:
        if query.get("timestamps") != "true":
            return text
        lines = text.splitlines(keepends=True)
        return b"".join(f"2026-11-15T12:00:00.{n + start:09d}Z ".encode() + line for n, line in enumerate(lines))

    def _store(self, task: int, attack: Attack) -> None:
        """Put there what the pods had stored outside their logs when they ended."""
        for run in range(attack.finished()):
            second = attack.again and run >= HALF
            attempt = "b" * 16 if second else "a" * 16
            folder = f"0123456789ab/000-{task}"
            if self.store is not None:
                source = self.store.objects[f"/bucket/results/0123456789ab/000-0/0-{run}"]
                self.store.objects[f"/bucket/results/{folder}/0-{run}"] = self._renamed(task, source, attempt)
            elif self.transport == "claim":
                base = self.home / "claims" / "shared"
                (source_file,) = (base / "parcels").glob(f"*/0-{run}")
                place = base / folder / attempt
                place.mkdir(parents=True, exist_ok=True)
                (place / f"0-{run}").write_bytes(self._renamed(task, source_file.read_bytes(), attempt))

    def _renamed(self, task: int, parcel: bytes, attempt: str) -> bytes:
        runs = self.campaign.plan.jobs[0].tasks[task]
        text = _WORDS.sub(lambda found: found[1] + runs[int(found[2])].encode(), parcel)
        return re.sub(rb"(?m)^(#steelyard pod )[0-9a-f]+", rb"\g<1>" + attempt.encode(), text)

    # -- what the user does

    def look(self) -> follow.StudyStatus:
        """`steelyard status`, and what it started in the background."""
        status = follow.look(self.folder, STUDY, lambda _: self.scheduler)
        for thread in threading.enumerate():
            if thread.name.startswith("log "):
                thread.join()
        return status

    def records(self) -> dict[str, RunRecord]:
        return {record.run_id: record for record in self.folder.records(STUDY)}


def _worker(thing: Object) -> Object:
    """The state of our container, if it was started."""
    states = [entry["state"] for entry in thing["status"].get("containerStatuses", []) if entry["name"] == "worker"]
    found: Object = states[0].get("running") or states[0].get("terminated") or {} if states else {}
    return found


def _is_deleted(step: recorded.Step) -> bool:
    return step.type == "DELETED" or "deletionTimestamp" in step.thing["metadata"]


def _no_pod(name: str) -> tuple[int, Object]:
    return 404, {"kind": "Status", "message": f'pods "{name}" not found', "code": 404}


@dataclass(frozen=True)
class Outcome:
    """What became of one attack."""

    attack: Attack
    transport: Transport
    watched: bool
    kept: int
    codes: tuple[str, ...]
    """Of the runs that were not kept; `waiting` without a record."""
    reasons: tuple[str, ...]

    @property
    def called_unbegun(self) -> int:
        """Runs of a pod that had begun and are said never to have started."""
        return sum("never started" in reason for reason in self.reasons) if self.attack.starts else 0

    @property
    def wrong(self) -> list[str]:
        """What should not be."""
        found = []
        expected = self.attack.kept(self.transport, watched=self.watched)
        if self.kept != expected:
            found.append(f"{self.kept} of {expected} finished runs kept")
        if self.called_unbegun:
            found.append("called never started, but it had begun")
        found += [f"called {code}" for code in self.codes if code not in (*self.attack.codes, "lost")]
        finished = self.attack.finished()
        silent = [reason for reason in self.reasons[: finished - self.kept] if not reason.startswith("results lost")]
        found += [f"lost, but called: {reason[:100]}" for reason in silent]
        return found


def attacked(
    home: Path, transport: Transport, *, watched: bool, attacks: tuple[Attack, ...] = ATTACKS
) -> list[Outcome]:
    """Let all attacks happen, with or without somebody who looks while the pods run."""
    home.mkdir(parents=True)
    victims = Victims(home, attacks, transport)
    with victims.running():
        if transport == "claim":
            base = home / "claims" / "shared"
            (base / "0123456789ab" / "000-0").rename(base / "parcels")
        if watched:
            for _ in range(2):
                victims.show(whole=False)
                victims.look()
        end_s = victims.now_s + 600
        for later_s in LATER_S:
            victims.now_s = end_s
            victims.show(whole=True)
            victims.now_s = end_s + later_s
            victims.look()
        records = victims.records()
    outcomes = []
    for task, attack in enumerate(attacks):
        ends = [records.get(run) for run in victims.campaign.plan.jobs[0].tasks[task]]
        kept = sum(end is not None and end.status.code == "completed" for end in ends)
        rest = [end for end in ends if end is None or end.status.code != "completed"]
        codes = tuple("waiting" if end is None else end.status.code for end in rest)
        reasons = tuple("" if end is None else end.status.reason for end in rest)
        outcomes.append(Outcome(attack, transport, watched, kept, codes, reasons))
    return outcomes
