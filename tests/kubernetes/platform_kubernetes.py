"""A Kubernetes API on a real socket that records what it is asked, and a kubelet that starts pods as real processes.

What it answers is scripted by the tests: by the forms that the API documents, or as recorded from a real one
(attacks.py). It schedules nothing by itself. ObjectStore is an object store that checks the signatures of addresses.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from steelyard.launch.kubernetes.store import Key, presign

Object = dict[str, Any]
PATIENCE_S = 300.0
"""Ends a hang and judges nothing, as HANG_S of tests/conftest.py does; figures use this file without that one."""
IMAGE_FOLDER = "/"
"""Where containers start, if their pod does not say it."""
ITEM = re.compile(r"(/api/v1|/apis/[^/]+/[^/]+)/namespaces/([^/]+)/([a-z]+)(?:/([^/]+))?(/log)?")


def stamp(age_s: float = 0.0) -> str:
    return (dt.datetime.now(dt.UTC) - dt.timedelta(seconds=age_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def stamped(number: int, line: bytes) -> bytes:
    """A line with the time that the node writes before it: nanoseconds apart, so that none is before `sinceTime`."""
    return f"2026-11-15T12:00:00.{number:09d}Z ".encode() + line


class Platform:
    """The API's objects by kind and name, and every request."""

    def __init__(self, *, page: int = 500, groups: tuple[str, ...] = ("batch",)) -> None:
        self.things: dict[str, dict[str, Object]] = {}
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.logs: dict[str, bytes] = {}
        self.refusals: list[tuple[str, str, int, str]] = []
        self.denied: set[str] = set()
        self.nodes: list[Object] = []
        self.page, self.groups = page, groups
        self.claims: Path | None = None
        """Where volumes that all pods share are folders."""
        self.version = 0
        platform = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # An answer in one piece: in two, the second waits for the client's word on the first.
            wbufsize = -1

            def log_message(self, *_: object) -> None:
                pass

            def handle_any(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                parts = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                platform.requests.append((self.command, parts.path, query, body))
                status, answer = platform.answer(self.command, parts.path, query, body)
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
                self.wfile.flush()

            do_GET = do_POST = do_DELETE = handle_any  # noqa: N815

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self) -> Platform:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def kubeconfig(self, path: Path) -> Path:
        url = f"http://127.0.0.1:{self.server.server_port}"
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": url}}],
            "users": [{"name": "me", "user": {"token": "secret-token"}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "me"}}],
        }  # fmt: skip
        path.write_text(json.dumps(config))
        return path

    def asked(self, method: str, pattern: str) -> list[tuple[str, dict[str, str], Any]]:
        return [
            (path, query, body) for m, path, query, body in self.requests if m == method and re.search(pattern, path)
        ]

    # -- answers

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        for wanted, pattern, status, message in self.refusals:
            if method == wanted and re.search(pattern, path + " " + str((body or {}).get("metadata", {}).get("name"))):
                return status, failure(status, message)
        fixed = {
            "/version": {"major": "1", "minor": "37", "gitVersion": "v1.37.0"},
            "/apis": {"kind": "APIGroupList", "groups": [{"name": name} for name in self.groups]},
        }
        if path in fixed:
            return 200, fixed[path]
        return self.answer_rest(method, path, query, body)

    def answer_rest(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        if re.fullmatch(r"/apis/[^/]+", path) and path.split("/")[2] in self.groups:
            return 200, {"kind": "APIGroup", "preferredVersion": {"version": "v1beta1"}}
        if path == "/api/v1/nodes":
            return 200, {"items": [node for node in self.nodes if matches(node, query.get("labelSelector", ""))]}
        if path.endswith("/selfsubjectaccessreviews"):
            asked = body["spec"]["resourceAttributes"]
            return 201, {"status": {"allowed": f"{asked['verb']} {asked['resource']}" not in self.denied}}
        found = ITEM.fullmatch(path)
        if found is None:
            return (200, {}) if path.startswith("/api/v1/namespaces/") else (404, failure(404, "no such path"))
        group, _, kind, name, log = found.groups()
        if group.startswith("/apis/") and group.split("/")[2] not in self.groups:
            return 404, failure(404, "the server could not find the requested resource")
        if log:
            return self.log(str(name), query)
        found_answer: tuple[int, Any] = getattr(self, method.lower())(kind, name, query, body)
        return found_answer

    def log(self, name: str, query: dict[str, str]) -> tuple[int, Any]:
        if name not in self.things.get("pods", {}):
            return 404, failure(404, f'pods "{name}" not found')
        states = self.things["pods"][name]["status"].get("containerStatuses", [])
        if name not in self.logs and not any("terminated" in entry["state"] for entry in states):
            return 400, failure(400, f"container in pod {name} is waiting to start")
        log = self.logs.get(name, b"")
        if query.get("timestamps") == "true":
            log = b"".join(stamped(number, line) for number, line in enumerate(log.splitlines(keepends=True)))
        return 200, log[: int(query.get("limitBytes", len(log)))]

    def post(self, kind: str, _name: None, query: dict[str, str], body: Object) -> tuple[int, Any]:
        name = body["metadata"]["name"]
        if "dryRun" in query:
            return 201, body
        if name in self.things.get(kind, {}):
            return 409, failure(409, f'{kind} "{name}" already exists')
        self.put(kind, body)
        if kind == "pods":
            # The scheduler and a kubelet.
            job = {"metadata": body["metadata"], "spec": {"template": body}}
            kubelet = Kubelet(self, job, 0, Path(tempfile.mkdtemp()), {})
            end = {"exitCode": kubelet.wait(), "startedAt": stamp(), "finishedAt": stamp()}
            body["status"] = {
                "phase": "Succeeded",
                "containerStatuses": [{"name": "worker", "state": {"terminated": end}}],
            }
            self.logs[name] = kubelet.log.read_bytes()
        return 201, body

    def put(self, kind: str, thing: Object, age_s: float = 0.0) -> Object:
        self.version += 1
        added = {"uid": secrets.token_hex(8), "resourceVersion": str(self.version), "creationTimestamp": stamp(age_s)}
        thing["metadata"] = {**added, **thing["metadata"]}
        self.things.setdefault(kind, {})[thing["metadata"]["name"]] = thing
        return thing

    def get(self, kind: str, name: str | None, query: dict[str, str], _body: None) -> tuple[int, Any]:
        if name is not None:
            thing = self.things.get(kind, {}).get(name)
            return (200, thing) if thing else (404, failure(404, f"{kind} {name} not found"))
        chosen = [
            thing for thing in self.things.get(kind, {}).values() if matches(thing, query.get("labelSelector", ""))
        ]
        for term in filter(None, query.get("fieldSelector", "").split(",")):
            reason = term.removeprefix("reason!=")
            chosen = [thing for thing in chosen if thing.get("reason") != reason]
        start, size = int(query.get("continue", 0)), min(int(query["limit"]), self.page)
        rest = {"continue": str(start + size)} if start + size < len(chosen) else {}
        return 200, {"kind": "List", "metadata": rest, "items": chosen[start : start + size]}

    def delete(self, kind: str, name: str | None, query: dict[str, str], body: Object) -> tuple[int, Any]:
        there = self.things.get(kind, {})
        if name is None:
            names = [key for key, thing in there.items() if matches(thing, query["labelSelector"])]
        elif name not in there:
            return 404, failure(404, f"{kind} {name} not found")
        else:
            version = (body.get("preconditions") or {}).get("resourceVersion")
            if version not in (None, there[name]["metadata"]["resourceVersion"]):
                return 409, failure(409, "the object has been modified")
            names = [name]
        for gone in names:
            thing = there.pop(gone)
            if kind == "jobs":
                # The collector of garbage.
                selector = ",".join(
                    f"{k}={v}" for k, v in thing["metadata"].get("labels", {}).items() if "steelyard" in k
                )
                pods = self.things.get("pods", {})
                for pod in [key for key, value in pods.items() if matches(value, selector)]:
                    del pods[pod]
                    self.logs.pop(pod, None)
        return 200, {"status": "Success"}

    # -- what the platform's own parts would do

    def pod_of(self, job: Object, index: int, status: Object, age_s: float = 0.0, node: str = "node-a") -> Object:
        template = job["spec"]["template"]
        name = f"{job['metadata']['name']}-{index}-{secrets.token_hex(3)[:5]}"
        labels = {**template["metadata"]["labels"], "batch.kubernetes.io/job-completion-index": str(index)}
        spec = {**template["spec"], "nodeName": node}
        pod = {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": status}
        return self.put("pods", pod, age_s)

    def child_jobs(self) -> None:
        """What JobSet's controller does."""
        for name, jobset in list(self.things.get("jobsets", {}).items()):
            for member in jobset["spec"]["replicatedJobs"]:
                child = f"{name}-{member['name']}-0"
                if child not in self.things.get("jobs", {}):
                    labels = member["template"]["metadata"]["labels"]
                    self.put(
                        "jobs", {"metadata": {"name": child, "labels": labels}, "spec": member["template"]["spec"]}
                    )

    def finish(self, job: Object, condition: str, reason: str = "", message: str = "") -> None:
        end = {"type": condition, "status": "True", "reason": reason, "message": message}
        job["status"] = {"conditions": [end]}
        self.version += 1
        job["metadata"]["resourceVersion"] = str(self.version)

    def run_all(self, root: Path, variables: dict[str, str] | None = None) -> None:
        """The kubelets: every pod of every Job that has none, as processes; then the Job controller."""
        self.child_jobs()
        for job in self.things.get("jobs", {}).values():
            if "status" not in job:
                self.run(job, root, variables or {})

    def run(self, job: Object, root: Path, variables: dict[str, str], tell: int | None = None) -> list[int]:
        """`tell`: a signal to send once a run has begun."""
        started = stamp()
        kubelets = [Kubelet(self, job, index, root, variables) for index in range(job["spec"]["completions"])]
        codes = [kubelet.wait(tell) for kubelet in kubelets]
        for index, (kubelet, code) in enumerate(zip(kubelets, codes, strict=True)):
            end = {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}
            end |= {"startedAt": started, "finishedAt": stamp(), "message": kubelet.last_words()}
            container = {"name": "worker", "image": "image", "imageID": "image@sha256:" + "ab" * 32}
            status = {
                "phase": "Succeeded" if code == 0 else "Failed",
                "containerStatuses": [{**container, "state": {"terminated": end}}],
            }
            pod = self.pod_of(job, index, status, node=f"node-{index}")
            self.logs[pod["metadata"]["name"]] = kubelet.log.read_bytes()
        failed = any(codes)
        self.finish(job, "Failed" if failed else "Complete", "BackoffLimitExceeded" if failed else "")
        return codes


class Kubelet:
    """One pod as a process: its volumes are folders, and its mount paths are those."""

    def __init__(self, platform: Platform, job: Object, index: int, root: Path, variables: dict[str, str]) -> None:
        spec = job["spec"]["template"]["spec"]
        home = root / f"{job['metadata']['name']}-{index}"
        container = spec["containers"][0]
        places = {mount["mountPath"]: home / mount["name"] for mount in container["volumeMounts"]}
        for volume in spec["volumes"]:
            home.mkdir(parents=True, exist_ok=True)
            if "persistentVolumeClaim" in volume and platform.claims is not None:
                (home / volume["name"]).symlink_to(platform.claims / volume["persistentVolumeClaim"]["claimName"])
                continue
            (home / volume["name"]).mkdir()
            if "secret" in volume:
                lay_map(
                    {"data": platform.things["secrets"][volume["secret"]["secretName"]]["stringData"]},
                    home / volume["name"],
                )
            if "configMap" in volume:
                lay_map(platform.things["configmaps"][volume["configMap"]["name"]], home / volume["name"])
        command = [expand(word) for word in container["command"]]
        given = {entry["name"]: expand(entry["value"]) for entry in container.get("env", ()) if "value" in entry}
        environment = {
            "PATH": os.environ["PATH"], "NODE_NAME": f"node-{index}", "JOB_COMPLETION_INDEX": str(index),
            **given, **variables,
        }  # fmt: skip
        self.log = home / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable if command[0] == "python3" else command[0],
                    *(mapped(word, places) for word in command[1:]),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=mapped(container.get("workingDir", IMAGE_FOLDER), places),
            )

    def wait(self, tell: int | None = None) -> int:
        if tell is not None:
            deadline_s = time.monotonic() + PATIENCE_S
            while b"events" not in self.written():
                assert time.monotonic() < deadline_s, "no run has begun"
                assert self.process.poll() is None, self.log.read_bytes()
                time.sleep(0.05)
            self.process.send_signal(tell)
        code = self.process.wait(timeout=PATIENCE_S)
        return code if code >= 0 else 128 - code

    def written(self) -> bytes:
        return b" ".join(path.name.encode() for path in self.log.parent.glob("results/runs/*/raw/*"))

    def last_words(self) -> str:
        return self.log.read_bytes()[-2048:].decode("utf-8", "replace") if self.process.returncode else ""


class ObjectStore:
    """Objects by path. A request counts if its address was signed for it with the key, and has not expired."""

    KEY = Key("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.refused: list[str] = []
        self.away = False
        store = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = urlsplit(self.path).path
                if store.away:
                    self.send_error(503)
                elif not store.is_signed(self.command, self.path, self.headers["Host"]):
                    store.refused.append(path)
                    self.send_error(403)
                elif self.command == "GET" and path not in store.objects:
                    self.send_error(404)
                else:
                    if self.command == "PUT":
                        store.objects[path] = body
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(store.objects[path] if self.command == "GET" else b"")

            do_GET = do_PUT = handle_any  # noqa: N815

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/bucket/results"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def is_signed(self, method: str, address: str, host: str) -> bool:
        query = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        try:
            at = dt.datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=dt.UTC)
            valid_s = int(query["X-Amz-Expires"])
        except (KeyError, ValueError):
            return False
        region = query["X-Amz-Credential"].split("/")[2]
        wanted = presign(method, f"http://{host}{urlsplit(address).path}", self.KEY, region, at, valid_s)
        late = dt.datetime.now(dt.UTC) > at + dt.timedelta(seconds=valid_s)
        return not late and wanted.rpartition("=")[2] == query.get("X-Amz-Signature")

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def lay_map(config: Object, folder: Path) -> None:
    for name, text in config.get("data", {}).items():
        (folder / name).write_text(text)
    for name, data in config.get("binaryData", {}).items():
        (folder / name).write_bytes(base64.b64decode(data))


def expand(text: str) -> str:
    """As Kubernetes does, where no variable of the name is there."""
    return text.replace("$$", "$")


def mapped(word: str, places: dict[str, Path]) -> str:
    for path, folder in places.items():
        if word == path or word.startswith(f"{path}/"):
            return str(folder) + word[len(path) :]
    return word


def matches(thing: Object, selector: str) -> bool:
    labels = thing["metadata"].get("labels", {})
    for term in filter(None, re.split(r",(?![^(]*\))", selector)):
        if found := re.fullmatch(r"(\S+) in \((.*)\)", term):
            if labels.get(found[1]) not in found[2].split(","):
                return False
        else:
            name, _, value = term.partition("=")
            if labels.get(name) != value:
                return False
    return True


def failure(status: int, message: str) -> Object:
    return {"kind": "Status", "status": "Failure", "message": message, "code": status}
