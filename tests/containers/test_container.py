"""Containers: what an image is, found without starting it, and the words that start a command in one."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import io
import json
import os
import platform
import random
import signal
import struct
import subprocess
import tarfile
import tempfile
import threading
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conftest import HANG_S, until
from steelyard.errors import InputError
from steelyard.inputs.site import Container, Mount, Place, Pool, Site
from steelyard.launch.campaign import Image, Plan, Price
from steelyard.launch.images import ask as image_ask
from steelyard.launch.images import oci
from steelyard.launch.images.image import look_at_image
from steelyard.launch.images.sif import ARCHITECTURES, sif_architecture
from steelyard.launch.scripts.bash import line
from steelyard.launch.scripts.container import container_checks, run_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

OWN = platform.machine()
OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}[OWN]

# Everything before the data of an image that Apptainer 1.4.5 has built, and how large that image was.
REAL_SIF = zlib.decompress(
    base64.b85decode(
        "c-rmQJxT*X7zW^pN)RiLponG6nnvvW0VPF1@Bk7ugalnfeuM~G>;c5e&O3Mj?L<%D3A})<g<zJAkl5I%;Pb%pE^IgR&Ihv#^Tl4LUEFWP#aeti"
        "*Y3rIP9v`Oj;ifOw?7kh%UgSu_3iRzh?YZC3d#M&*<-6xzf1bp$;w0W^7PgW1D{z4nP`|{HjCTiVV-BXv+<q}0002MkI1bJo?QA8!t3Y-eKCyZ"
        "*NZ-k%BMw|7%9^8ut=BF<M~~Y8gZvpJLndUYu)N$wOd_kc1~jJ`)^F8MVcHbQn(s^iLzgYH>+9x^@)^D)$~9_C7TKW000000000000000000000"
        "000000000zv=@mIY)#"
    )
)
REAL_SIF_BYTES = 117_293_056


def place(
    image: str | None, *, runtime: str = "podman", architecture: str = OWN, start: str = "torchrun", **container: Any
) -> Place:
    pool = Pool(architecture=architecture, devices_per_node=2, start=start)  # type: ignore[arg-type]
    images = {} if image is None else {architecture: image}
    given = Container(runtime=runtime, images=images, **container)  # type: ignore[arg-type]
    return Place(Site(name="site", scheduler="slurm", pools={"nodes": pool}, container=given), "nodes")


# -- SIF ----------------------------------------------------------------------------------------------------------


def sif(path: Path, code: bytes = b"02", **changes: Any) -> Path:
    """A small image: a header and one descriptor of a system partition. `changes` break it."""
    at = {"total": 1, "offset": 128, "part_at": 1000, "part_size": 24, "version": b"01", "part_code": code, **changes}
    header = struct.pack(
        "<32s10s3s3s16s8q", b"#!/usr/bin/env run-singularity\n", b"SIF_MAGIC\0", at["version"], code, b"",
        0, 0, 0, at["total"], at["offset"], 585, 1000, 24,
    )  # fmt: skip
    extra = struct.pack("<ii3s", 1, 2, at["part_code"])
    part = struct.pack(
        "<i?III7q128s384s", 0x4004, True, 1, 1, 0, at["part_at"], at["part_size"], 24, 0, 0, 0, 0, b"", extra
    )
    path.write_bytes((header + part).ljust(1024, b"\0"))
    return path


def test_a_real_header(tmp_path: Path) -> None:
    path = tmp_path / "real.sif"
    path.write_bytes(REAL_SIF)
    with pytest.raises(InputError, match=r"truncated: .* of 117293056 bytes"):
        sif_architecture(path)
    os.truncate(path, REAL_SIF_BYTES)
    assert sif_architecture(path) == "x86_64"


def test_an_image_for_the_nodes(tmp_path: Path) -> None:
    path = sif(tmp_path / "arm.sif", b"04")
    found = look_at_image(place(str(path), runtime="apptainer", architecture="aarch64"))
    assert found is not None
    assert (found.architecture, found.reference) == ("aarch64", str(path))
    assert found.digest == "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
    assert found.torch is None
    assert "torch not checked" in found.unknown


def test_an_image_for_other_nodes(tmp_path: Path) -> None:
    path = sif(tmp_path / "arm.sif", b"04")
    with pytest.raises(InputError) as caught:
        look_at_image(place(str(path), runtime="apptainer", architecture="x86_64"))
    text = str(caught.value)
    assert "the image is for aarch64, but the nodes of site:nodes are x86_64" in text
    assert "container.images.x86_64" in text
    assert "next: use an image for x86_64; on a node of site:nodes: apptainer build x86_64.sif" in text


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"total": 2**62}, "table of contents"),
        ({"total": -1}, "table of contents"),
        ({"total": 0}, "table of contents"),
        ({"offset": -5}, "table of contents"),
        ({"offset": 2**62}, "table of contents"),
        ({"offset": 900}, "table of contents"),
        ({"part_at": 2**62}, "truncated"),
        ({"part_size": -1}, "negative offset or size"),
        ({"version": b"99"}, "version"),
        ({"part_code": b"77"}, "architecture"),
        ({"part_code": b"\xff\xff"}, "architecture"),
    ],
)
def test_a_damaged_image(tmp_path: Path, changes: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        sif_architecture(sif(tmp_path / "x.sif", **changes))


def test_any_bytes_end_in_an_answer_or_an_error(tmp_path: Path) -> None:
    chance = random.Random(3)
    sound = sif(tmp_path / "x.sif").read_bytes()
    path = tmp_path / "y.sif"
    answers, whole = [], 0
    for _ in range(200):
        broken = bytearray(sound[: chance.randrange(len(sound) + 1) if chance.random() < 0.5 else None])
        for _ in range(chance.randrange(8)):
            if broken:
                broken[chance.randrange(min(len(broken), 720))] = chance.randrange(256)
        path.write_bytes(broken)
        whole += broken == sound
        with contextlib.suppress(InputError):
            answers.append(sif_architecture(path))
    assert set(answers) <= set(ARCHITECTURES.values())
    # What is sound has an answer, and so have images with a change where nobody looks; many have none.
    assert 0 < whole < answers.count("x86_64") <= len(answers) < 150


# -- the OCI's layout ---------------------------------------------------------------------------------------------


class Layout:
    """Writes a layout."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "blobs/sha256").mkdir(parents=True)
        (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    def blob(self, document: Any) -> str:
        text = document if isinstance(document, bytes) else json.dumps(document).encode()
        digest = hashlib.sha256(text).hexdigest()
        (self.path / "blobs/sha256" / digest).write_bytes(text)
        return f"sha256:{digest}"

    def image(self, go: str) -> str:
        text = json.dumps({"architecture": go, "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}}).encode()
        media = "application/vnd.oci.image.{}.v1+json"
        config = {"mediaType": media.format("config"), "digest": self.blob(text), "size": len(text)}
        return self.blob({"schemaVersion": 2, "mediaType": media.format("manifest"), "config": config, "layers": []})

    def index(self, images: dict[str, str]) -> str:
        entries = [{"digest": digest, "platform": {"architecture": go, "os": "linux"}} for go, digest in images.items()]
        # As builders add it: a document about an image.
        entries.append({"digest": self.blob(b"{}"), "platform": {"architecture": "unknown", "os": "unknown"}})
        return self.blob({"schemaVersion": 2, "manifests": entries})

    def top(self, *digests: str, tag: str = "v1") -> Path:
        entries = [{"digest": digest, "annotations": {oci.NAME_KEY: tag}} for digest in digests]
        (self.path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))
        return self.path


def two(path: Path) -> tuple[Path, dict[str, str]]:
    layout = Layout(path)
    images = {go: layout.image(go) for go in ("amd64", "arm64")}
    return layout.top(layout.index(images)), {"x86_64": images["amd64"], "aarch64": images["arm64"]}


def archive(folder: Path, target: Path) -> Path:
    with tarfile.open(target, "w") as file:
        file.add(folder, ".")
    return target


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
@pytest.mark.parametrize("form", ["folder", "archive"])
def test_the_right_image_of_an_index(tmp_path: Path, architecture: str, form: str) -> None:
    path, digests = two(tmp_path / "all")
    name = f"oci:{path}:v1"
    if form == "archive":
        name = f"oci-archive:{archive(path, tmp_path / 'all.tar')}:v1"
    found = look_at_image(place(name, architecture=architecture))
    assert found is not None
    assert (found.architecture, found.digest, found.reference) == (architecture, digests[architecture], name)


def test_an_index_without_the_architecture(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "all")
    path = layout.top(layout.index({"arm64": layout.image("arm64"), "ppc64le": layout.image("ppc64le")}))
    with pytest.raises(InputError, match="has no image for x86_64; it has: aarch64, ppc64le"):
        look_at_image(place(f"oci:{path}", architecture="x86_64"))
    with pytest.raises(InputError, match="has no image tagged v2") as caught:
        look_at_image(place(f"oci:{path}:v2", architecture="aarch64"))
    assert "v1" in str(caught.value)


def test_an_index_that_lies_about_an_image(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "all")
    path = layout.top(layout.index({"amd64": layout.image("arm64")}))
    with pytest.raises(InputError, match="the image is for aarch64, but the nodes of site:nodes are x86_64"):
        look_at_image(place(f"oci:{path}:v1", architecture="x86_64"))


def deep(layout: Layout) -> str:
    digest = layout.image("amd64")
    for _ in range(10):
        digest = layout.index({"amd64": digest})
    return digest


def damaged(layout: Layout) -> str:
    digest = layout.image("amd64")
    (layout.path / "blobs/sha256" / digest[7:]).write_bytes(b"{}")
    return digest


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (deep, "more than 4 deep"),
        (damaged, "is damaged"),
        (lambda _: "sha256:" + "0" * 64, "is missing"),
        (lambda _: "sha256:../../etc/passwd", "not valid"),
        (lambda layout: layout.blob(b"[" * 100_000), "not a JSON object"),
        (lambda layout: layout.blob(b" " * (oci.MAX_DOCUMENT_BYTES + 1)), "has more than"),
        (lambda layout: layout.blob({"manifests": [{"digest": "sha256:" + "0" * 64}] * 5000}), "not valid"),
        (lambda layout: layout.blob({"manifests": [{"digest": 5, "annotations": 7}]}), "not valid"),
        (lambda layout: layout.blob({"manifests": {"a": 1}}), "not valid"),
    ],
)
def test_a_hostile_layout(tmp_path: Path, make: Any, word: str) -> None:
    layout = Layout(tmp_path / "all")
    path = layout.top(make(layout))
    with pytest.raises(InputError, match=word):
        look_at_image(place(f"oci:{path}:v1", architecture="x86_64"))


def test_a_hostile_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oci, "MAX_ARCHIVE_MEMBERS", 100)
    path = tmp_path / "many.tar"
    with tarfile.open(path, "w") as file:
        for number in range(oci.MAX_ARCHIVE_MEMBERS + 1):
            file.addfile(tarfile.TarInfo(str(number)), io.BytesIO())
    with pytest.raises(InputError, match="more than 100 members"):
        look_at_image(place(f"oci-archive:{path}"))
    # Compressed without end, or anything else: not looked into.
    (tmp_path / "x.tar").write_bytes(zlib.compress(b"\0" * 10_000))
    with pytest.raises(InputError, match="not a known kind of image"):
        look_at_image(place(str(tmp_path / "x.tar")))
    link = tmp_path / "link.tar"
    with tarfile.open(link, "w") as file:
        for name in ("oci-layout", "index.json"):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            file.addfile(member)
    with pytest.raises(InputError, match="not a known kind of image"):
        look_at_image(place(str(link)))


# -- files that do not fit ----------------------------------------------------------------------------------------


def test_images_that_a_runtime_cannot_start(tmp_path: Path) -> None:
    path, _ = two(tmp_path / "all")
    upper, _ = two(tmp_path / "All")
    root = tmp_path / "root"
    (root / "usr/bin").mkdir(parents=True)
    cases = [
        (place(str(sif(tmp_path / "x.sif"))), "podman cannot start an Apptainer image"),
        (place(f"oci:{path}:v1", runtime="docker"), "docker cannot start an OCI layout"),
        (place(str(root), runtime="docker"), "docker cannot start a folder"),
        (place(f"oci:{upper}:v1"), "Podman cannot derive an image name"),
        (place("x.sif", runtime="apptainer"), "not an absolute path"),
        (place(str(tmp_path / "none.sif"), runtime="apptainer"), "does not exist"),
        (place(None), f"there is no image for {OWN}"),
    ]
    for where, words in cases:
        with pytest.raises(InputError) as caught:
            look_at_image(where)
        assert words in str(caught.value)
    assert look_at_image(place(None, runtime="none")) is None


def test_a_root_file_system_tells_its_architecture(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "usr/bin").mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    (root / "usr/bin/dash").write_bytes(b"\x7fELF\x02\x01".ljust(18, b"\0") + struct.pack("<H", 183) + bytes(40))
    # As Debian has it, and one that would lead out of the root, and a circle.
    (root / "usr/bin/sh").symlink_to("/bin/dash")
    (root / "usr/bin/env").symlink_to("../../../../../../../../../../usr/bin/env")
    (root / "usr/bin/bash").symlink_to("bash")
    found = look_at_image(place(str(root), architecture="aarch64"))
    assert found is not None
    assert (found.architecture, found.digest) == ("aarch64", None)
    with pytest.raises(InputError, match="the image is for aarch64"):
        look_at_image(place(str(root), architecture="x86_64"))
    (root / "usr/bin/sh").unlink()
    (root / "usr/bin/dash").unlink()
    unknown = look_at_image(place(str(root), architecture="aarch64"))
    assert unknown is not None
    assert unknown.architecture is None


# -- names --------------------------------------------------------------------------------------------------------


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Podman's and buildah's own place, empty, and locks that nobody else on this machine uses.

    Its sockets do not work below a long path.
    """
    with tempfile.TemporaryDirectory(prefix="sy-") as folder:
        path, engine = Path(folder) / "storage.conf", Path(folder) / "containers.conf"
        lines = ["[storage]", 'driver = "vfs"', f'graphroot = "{folder}/graph"', f'runroot = "{folder}/run"']
        path.write_text("\n".join(lines) + "\n")
        engine.write_text(f'[engine]\ntmp_dir = "{folder}/engine"\nlock_type = "file"\n')
        monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(path))
        monkeypatch.setenv("CONTAINERS_CONF", str(engine))
        yield path
        # Podman cleans up behind a container in a process of its own.
        until(lambda: not living(folder), "the end of Podman's own processes")


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout.strip()


def build(name: str, go: str) -> str:
    """An image that holds one file; its digest."""
    work = run("buildah", "from", "scratch")
    run("buildah", "copy", "--quiet", work, __file__, "/about")
    run("buildah", "config", f"--arch={go}", "--os=linux", work)
    run("buildah", "commit", "--quiet", "--format=oci", work, name)
    return run("buildah", "images", "--format={{.Digest}}", name)


@pytest.mark.full("Podman, buildah and skopeo")
def test_names_that_podman_knows(storage: Path, tmp_path: Path) -> None:
    digests = {go: build(f"localhost/one:{go}", go) for go in ("amd64", "arm64")}
    run("buildah", "manifest", "create", "localhost/one:all")
    for go in digests:
        run("buildah", "manifest", "add", "localhost/one:all", f"containers-storage:localhost/one:{go}")
    for architecture, go in oci.GO_NAMES.items():
        found = look_at_image(place("localhost/one:all", architecture=architecture))
        assert found is not None
        assert (found.architecture, found.digest) == (architecture, digests[go])
        assert found.reference == f"localhost/one@{digests[go]}"
        assert json.loads(run("podman", "image", "inspect", found.reference))[0]["Architecture"] == go
    with pytest.raises(InputError) as caught:
        look_at_image(place(f"localhost/one:{oci.GO_NAMES[OTHER]}"))
    assert f"the image is for {OTHER}, but the nodes of site:nodes are {OWN}" in str(caught.value)
    assert f"podman pull --platform=linux/{oci.GO_NAMES[OWN]}" in str(caught.value)
    # The same index as another tool writes it.
    run("buildah", "manifest", "push", "--all", "localhost/one:all", f"oci:{tmp_path}/pushed:v1")
    said = json.loads(run("skopeo", "inspect", "--raw", f"oci:{tmp_path}/pushed:v1"))
    for entry in said["manifests"]:
        architecture = {go: name for name, go in oci.GO_NAMES.items()}[entry["platform"]["architecture"]]
        found = look_at_image(place(f"oci:{tmp_path}/pushed:v1", architecture=architecture, runtime="apptainer"))
        assert found is not None
        assert found.digest == entry["digest"]


class Registry(http.server.BaseHTTPRequestHandler):
    """Serves the documents of a layout as a registry does."""

    layout: Path

    def do_GET(self) -> None:
        self.do_HEAD(body=True)

    def do_HEAD(self, *, body: bool = False) -> None:
        kind, _, name = self.path.rpartition("/")
        if self.path == "/v2/":
            text: bytes | None = b"{}"
        elif name == "latest":
            top = json.loads((self.layout / "index.json").read_bytes())["manifests"][0]["digest"]
            text = self.read(top)
        else:
            text = self.read(name)
        self.send_response(200 if text is not None else 404)
        media = (
            "application/vnd.oci.image.index.v1+json"
            if text and b'"manifests"' in text
            else "application/vnd.oci.image.manifest.v1+json"
        )
        self.send_header("Content-Type", media if "manifests" in kind else "application/octet-stream")
        self.send_header("Content-Length", str(len(text or b"")))
        self.end_headers()
        if body:
            self.wfile.write(text or b"")

    def read(self, digest: str) -> bytes | None:
        path = self.layout / "blobs/sha256" / digest.removeprefix("sha256:")
        return path.read_bytes() if path.is_file() else None

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Host and port of a registry that serves `tmp_path / "served"`."""
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Served", (Registry,), {"layout": tmp_path / "served"})
    )
    where = f"127.0.0.1:{server.server_port}"
    settings = tmp_path / "home/.config/containers/registries.conf"
    settings.parent.mkdir(parents=True)
    settings.write_text(f'[[registry]]\nlocation = "{where}"\ninsecure = true\n')
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield where
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.full("Podman, buildah and skopeo")
@pytest.mark.parametrize("runtime", ["apptainer", "podman", "none"])
def test_names_that_a_registry_knows(storage: Path, registry: str, tmp_path: Path, runtime: str) -> None:
    _, digests = two(tmp_path / "served")
    prefix = "docker://" if runtime == "apptainer" else ""
    where = place(f"{prefix}{registry}/team/image:latest", runtime=runtime, architecture=OTHER)
    if runtime == "none":
        where = Place(
            Site(name="site", scheduler="kubernetes", pools=where.site.pools, container=where.site.container), "nodes"
        )
    found = look_at_image(where)
    assert found is not None
    assert found.architecture == OTHER
    assert found.reference == f"{prefix}{registry}/team/image@{digests[OTHER]}"


@pytest.mark.full("Podman, buildah and skopeo")
def test_a_registry_with_one_image(storage: Path, registry: str, tmp_path: Path) -> None:
    layout = Layout(tmp_path / "served")
    digest = layout.image(oci.GO_NAMES[OTHER])
    layout.top(digest)
    with pytest.raises(InputError, match=f"the image is for {OTHER}"):
        look_at_image(place(f"docker://{registry}/image:latest", runtime="apptainer"))
    found = look_at_image(place(f"{registry}/image:latest", architecture=OTHER))
    assert found is not None
    assert found.digest == digest


@pytest.mark.full("Podman, buildah and skopeo")
def test_a_name_that_nobody_knows(storage: Path, registry: str) -> None:
    found = look_at_image(place(f"{registry}/none:latest"))
    assert found is not None
    assert (found.architecture, found.digest, found.reference) == (None, None, f"{registry}/none:latest")
    assert found.unknown.startswith("skopeo: ")


# -- asking -------------------------------------------------------------------------------------------------------


def test_answers_have_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_ask, "MAX_ANSWER_BYTES", 1000)
    assert image_ask.ask(["yes"]).text is None
    assert image_ask.ask(["sleep", "100"], limit_s=0.1).text is None
    assert image_ask.ask(["/nowhere"]).why == "/nowhere: No such file or directory"
    answer = image_ask.ask(["sh", "-c", "printf 'one\\n\\033[31mtwo' >&2; exit 3"], limit_s=HANG_S)
    assert (answer.text, answer.why) == (None, "\\x1b[31mtwo")


# -- starting -----------------------------------------------------------------------------------------------------


def plan_for(where: Place, reference: str) -> Plan:
    image = Image(name=reference, reference=reference, architecture=OWN, digest=None)
    price = Price(device_hours=0, node_hours=0, charge=0, charge_unit="", expected_s=None, basis="")
    return Plan(
        study="s", campaign="c", created_at="", made_by="", site=where.site, pool=where.pool_name, image=image,
        worker_sha256="0" * 64, python="python3", jobs=(), price=price,
    )  # fmt: skip


def words_of(where: Place, folder: Path, names: Sequence[str] = ("OMP_NUM_THREADS",)) -> list[str]:
    assert where.image is not None
    return [str(word) for word in run_words(plan_for(where, where.image), folder, names)]


@pytest.mark.parametrize(
    ("runtime", "devices", "words"),
    [
        ("apptainer", "nvidia", ["--nv", "--cleanenv", "--no-eval", "--no-home"]),
        ("apptainer", "amd", ["--rocm"]),
        (
            "podman",
            "nvidia",
            ["--device=nvidia.com/gpu=all", "--network=host", "--ipc=host", "--user=0:0", "--read-only"],
        ),
        ("podman", "amd", ["--device=/dev/kfd", "--device=/dev/dri"]),
        ("docker", "nvidia", ["--gpus=all", "--ulimit=memlock=-1:-1", '--user="$(id -u):$(id -g)"']),
        ("docker", "amd", ["--device=/dev/kfd", '--group-add="$(stat -c %g /dev/kfd)"']),
        ("docker", "intel", ["--device=/dev/dri"]),
    ],
)
def test_run_lines(runtime: str, devices: str, words: list[str]) -> None:
    found = words_of(place("/i.sif", runtime=runtime, devices=devices, mounts=(Mount(source="/data"),)), Path("/r/c"))
    assert not set(words) - set(found)
    joined = " ".join(found)
    if runtime == "apptainer":
        assert "--bind=/data:/data:ro --bind=/r/c:/r/c --bind=/r/c/worker:/r/c/worker:ro" in joined
    else:
        assert (
            "--mount=type=bind,source=/data,target=/data,readonly --mount=type=bind,source=/r/c,target=/r/c " in joined
        )
        assert "source=/r/c/worker,target=/r/c/worker,readonly" in joined


def test_what_a_site_says_replaces_ours() -> None:
    options = ("--network=none", "--user=5:5", "--shm-size=1g")
    found = words_of(place("name", options=options), Path("/r"))
    assert set(options) <= set(found)
    assert not {"--network=host", "--user=0:0", "--pid=host"} & set(found)
    assert "--pid=host" in words_of(place("name", start="tasks"), Path("/r"))


@pytest.mark.parametrize("path", ["/a:b", "/a,b", '/a"b', "/a\nb", "/a\\b"])
def test_paths_that_no_container_can_be_given(path: str) -> None:
    for runtime in ("apptainer", "podman", "docker"):
        with pytest.raises(InputError, match="cannot be mounted into a container"):
            words_of(place("name", runtime=runtime), Path(path))
        with pytest.raises(InputError, match="cannot be mounted into a container"):
            words_of(place("name", runtime=runtime, mounts=(Mount(source="/x", target=path),)), Path("/r"))


@pytest.mark.parametrize("name", ["A;B", "a b", "$(id)", "1A", "", "A\n"])
def test_names_of_variables_are_names(name: str) -> None:
    with pytest.raises(InputError, match="not a valid variable name"):
        words_of(place("name"), Path("/r"), [name])


INSIDE = """
import json, os, sys
def writes(path):
    try:
        open(path + "/was-here", "w").close()
        return True
    except OSError:
        return False
print(json.dumps({"variables": dict(os.environ), "uid": os.getuid(), "folder": os.getcwd(),
                  "writes": [path for path in sys.argv[1:] if writes(path)]}))
"""
NASTY = "a,b 'c' \"d\" $(id) `id` $HOME;\\ \n-x"


PARTS = ("usr", "bin", "lib", "lib64", "proc", "dev", "sys", "tmp", "etc")


@pytest.fixture
def boxed(tmp_path: Path, storage: Path) -> Callable[..., list[str]]:
    """Makes a command to be run by Podman in an empty root into which this machine's programs are mounted."""
    root, folder = tmp_path / "root", tmp_path / "it's a $(folder)"
    for part in PARTS:
        (root / part).mkdir(parents=True)
    for part in ("worker", "runs"):
        (folder / part).mkdir(parents=True)
    mounts = [Mount(source=f"/{part}") for part in ("usr", "bin", "lib", "lib64") if Path(f"/{part}").exists()]
    options = ("--runtime=runc", "--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096", "--network=none")
    where = place(str(root), mounts=tuple(mounts), options=(*options, f"--timeout={round(HANG_S)}"))

    def command(*words: str, names: Sequence[str] = ()) -> list[str]:
        return ["bash", "-c", "exec " + line([*run_words(plan_for(where, str(root)), folder, names), *words])]

    return command


def test_podman_for_real(tmp_path: Path, boxed: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    root, folder = tmp_path / "root", tmp_path / "it's a $(folder)"
    monkeypatch.setenv("NASTY", NASTY)
    monkeypatch.setenv("UNNAMED", "1")
    places = ["/", "/usr", str(folder), str(folder / "worker"), str(folder / "runs"), "/tmp"]
    command = boxed("/usr/bin/python3", "-c", INSIDE, *places, names=["NASTY", "NOT_SET"])
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["variables"]["NASTY"] == NASTY
    assert not {"NOT_SET", "UNNAMED"} & set(said["variables"])
    assert said["variables"]["PYTHONPATH"] == str(folder / "worker")
    assert said["variables"]["HOME"] == "/tmp"
    assert (said["uid"], said["folder"]) == (0, str(folder))
    assert said["writes"] == [str(folder), str(folder / "runs"), "/tmp"]
    assert sorted(path.name for path in root.iterdir()) == sorted(PARTS)
    assert not any((root / "tmp").iterdir())
    assert (folder / "runs/was-here").owner() == Path("/proc/self").owner()


# Says that it runs, and for ever does; on the order to end it says that, too.
TOLD = 5
ENDLESS = f"""
trap 'echo told > runs/told; exit {TOLD}' TERM
echo $$ > runs/begun
while :; do sleep 0.1; done
"""


def living(word: str) -> list[str]:
    """Numbers of the processes that were started with a word."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if word.encode() in (entry / "cmdline").read_bytes():
                    found.append(entry.name)
    return found


def start_and_end(boxed: Callable[..., list[str]], runs: Path, number: signal.Signals) -> int:
    """Start something endless in a container, and send a signal to its starter; how that has ended."""
    mark = f"mark-{runs.parents[1].name}-{os.getpid()}"
    starter = subprocess.Popen(boxed("/bin/sh", "-c", ENDLESS, mark), stdin=subprocess.DEVNULL)
    until(lambda: (runs / "begun").exists() and len(living(mark)) > 1, "its start")
    starter.send_signal(number)
    code = starter.wait(HANG_S)
    until(lambda: not living(mark), "its end")
    return code


@pytest.mark.full("the moment from which Podman hands orders on cannot be seen")
def test_a_container_is_told_to_end(tmp_path: Path, boxed: Callable[..., list[str]]) -> None:
    runs = tmp_path / "it's a $(folder)/runs"
    codes = []
    # An order that comes before Podman hands orders on ends Podman alone: then the lifeline ends what runs, untold.
    while not codes or (codes[-1] != TOLD and len(codes) < 10):
        (runs / "begun").unlink(missing_ok=True)
        codes.append(start_and_end(boxed, runs, signal.SIGTERM))
        assert (runs / "told").exists() == (codes[-1] == TOLD), codes
    assert codes[-1] == TOLD, codes


@pytest.mark.full("ends containers while they start")
def test_a_container_ends_with_its_starter(tmp_path: Path, boxed: Callable[..., list[str]]) -> None:
    runs = tmp_path / "it's a $(folder)/runs"
    assert start_and_end(boxed, runs, signal.SIGKILL) == -signal.SIGKILL
    assert not (runs / "told").exists(), "nobody could tell it"


STAND_IN = """#!/bin/bash
# What Apptainer does with the words, as far as a shell can: variables, and the command after the image.
for name in ${!APPTAINERENV_@}; do export "${name#APPTAINERENV_}=${!name}"; unset "$name"; done
export PYTHONPATH=/of/the/image
while [[ $1 != /i.sif ]]; do shift; done
shift
exec "$@"
"""


def test_the_words_around_apptainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apptainer itself is in benchmarks/figures/apptainer_real.py; here its place is taken by a script."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/apptainer").write_text(STAND_IN)
    (tmp_path / "bin/apptainer").chmod(0o755)
    (tmp_path / "scratch").mkdir()
    for name, value in {
        "NASTY": NASTY,
        "EMPTY": "",
        "APPTAINERENV_PYTHONPATH": "x",
        "TMPDIR": str(tmp_path / "scratch"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    where = place("/i.sif", runtime="apptainer")
    words = run_words(plan_for(where, "/i.sif"), Path("/r"), ["NASTY", "EMPTY", "NOT_SET"])
    code = "import json, os, sys; print(json.dumps([dict(os.environ), os.path.isdir(os.environ['HOME'])])); sys.exit(7)"
    command = ["bash", "-c", line([*words, "/usr/bin/python3", "-c", code])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 7, done.stderr
    variables, home = json.loads(done.stdout)
    assert (variables["NASTY"], variables["EMPTY"], "NOT_SET" in variables) == (NASTY, "", False)
    assert variables["PYTHONPATH"] == "/r/worker:/of/the/image"
    assert variables["HOME"] == variables["TMPDIR"]
    assert home
    assert not any((tmp_path / "scratch").iterdir())


# -- checks -------------------------------------------------------------------------------------------------------


def test_checks(tmp_path: Path) -> None:
    assert list(container_checks(place(None, runtime="none"))) == []
    arm = sif(tmp_path / "arm.sif", b"04")
    wrong = place(str(arm), runtime="apptainer", architecture="x86_64", mounts=(Mount(source="/not/there"),))
    found = {check.name: check for check in container_checks(wrong)}
    assert found["container image"].verdict == "wrong"
    assert "the image is for aarch64, but the nodes of site:nodes are x86_64" in found["container image"].found
    assert found["container mount"].verdict == "note"
    right = {
        check.name: check for check in container_checks(place(str(arm), runtime="apptainer", architecture="aarch64"))
    }
    assert right["container image"].verdict == "ok"
    missing = {check.name: check for check in container_checks(place(None))}
    assert missing["container image"].verdict == "wrong"


def test_devices_that_the_container_is_not_given(tmp_path: Path) -> None:
    arm = str(sif(tmp_path / "arm.sif", b"04"))
    pool = Pool(architecture="aarch64", devices_per_node=4, gpus="gpu")
    for devices, options, wrong in (("none", (), True), ("nvidia", (), False), ("none", ("--nv",), False)):
        given: dict[str, Any] = {"devices": devices, "options": options}
        container = Container(runtime="apptainer", images={"aarch64": arm}, **given)
        site = Site(name="site", scheduler="slurm", pools={"nodes": pool}, container=container)
        names = [check.name for check in container_checks(Place(site, "nodes")) if check.verdict == "wrong"]
        assert names == (["container devices"] if wrong else [])


@pytest.mark.parametrize(
    ("runtime", "gpus", "exclusive", "verdict"),
    [("podman", None, False, "note"), ("podman", "gpu", True, "note"), ("podman", "gpu", False, "wrong"),
     ("docker", "gpu", False, "wrong"), ("apptainer", "gpu", False, None)],
)  # fmt: skip
def test_two_jobs_that_would_share_a_device(
    monkeypatch: pytest.MonkeyPatch, runtime: str, gpus: str | None, *, exclusive: bool, verdict: str | None
) -> None:
    # No program that would ask a registry for the image.
    monkeypatch.setenv("PATH", "")
    pool = Pool(architecture=OWN, devices_per_node=2, gpus=gpus, exclusive=exclusive)  # type: ignore[arg-type]
    container = Container(runtime=runtime, images={OWN: "x"}, devices="nvidia")  # type: ignore[arg-type,dict-item]
    site = Site(name="site", scheduler="slurm", pools={"nodes": pool}, container=container)
    found = {check.name: check.verdict for check in container_checks(Place(site, "nodes"))}
    assert found.get("container limits") == verdict
