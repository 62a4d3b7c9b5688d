"""Files that once made a reader fail, every reader on valid files, and the figure's own limits."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import fuzz_run
import steelyard
from conftest import HANG_S
from fuzz_readers import READERS, Reader
from fuzz_run import Bench, Case, Input, Pool, maker
from fuzz_seeds import make_seeds
from steelyard.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

CORPUS = Path(__file__).parents[1] / "fuzz_corpus"
PACKAGE = Path(steelyard.__file__).parent
READS = re.compile(
    r"open_file\(|\.open\(|read_bounded\(|read_bytes\(|read_text\(|json\.loads\(|tomllib\.|parse_json\(|parse_file\("
    r"|parse_toml\(|os\.open\(|tarfile\.open|read_at\(|read_whole\(|read_inside\(|open_files\(|json\.load\(|from_json\("
    r"|os\.pread\(|csv\.reader\(|read_parquet\(|read_json\(|stdin\.buffer"
)
# What reads the machine it runs on, files of installed packages, or what it has written itself.
OWN = (
    "worker/", "doctor/", "selftest/", "hostload.py", "launch/local.py", "launch/allocation.py",
    "launch/images/ask.py", "launch/kubernetes/manifests.py", "report/pack/claims.py",
    "report/audit/layout.py", "rules/table/devices.py", "inputs/suites.py",
)  # fmt: skip


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz").resolve() / "seeds"
    make_seeds(folder)
    return folder


def test_what_once_failed_is_read_or_refused(seeds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = sorted(path for path in CORPUS.glob("*/*") if path.is_file())
    assert len(cases) > 20
    assert max(path.stat().st_size for path in cases) < 4096
    monkeypatch.setattr(fuzz_run, "LIMIT_S", HANG_S)
    outcome = Pool(seeds, maker()).run(cases)
    assert [(failure.name, failure.what) for failure, _ in outcome.failures] == []
    assert outcome.peak_bytes < fuzz_run.LIMIT_BYTES


def test_valid_files_are_read_and_every_reading_module_has_a_reader(seeds: Path, tmp_path: Path) -> None:
    bench = Bench(seeds, tmp_path / "bench")
    called: set[str] = set()

    def note(frame: Any, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            called.add(frame.f_code.co_filename)

    for reader in READERS:
        path = bench.files(reader)[0]
        sys.setprofile(note)
        try:
            bench.read(Case(reader.name, f"valid-{path.name}", Input(path.read_bytes())))
        except InputError:
            assert reader.name.startswith("public")
        finally:
            sys.setprofile(None)
    modules = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    reading = {name for name, path in modules.items() if READS.search(path.read_text(encoding="utf-8"))}
    missing = {name for name in reading if str(modules[name]) not in called and not name.startswith(OWN)}
    assert missing == set(), "declare a reader in benchmarks/lib/fuzz_readers.py"


def hang(_path: Path) -> None:
    signal.pause()


def spin(_path: Path) -> None:
    while True:
        pass


def swell(_path: Path) -> None:
    bytes(range(256)) * (3 << 20)


@pytest.mark.parametrize(
    ("read", "says"),
    [(hang, "not within 1 s"), (spin, "not within 1 s"), (swell, "more than 500 MiB"),
     (lambda _: 1 // 0, "ZeroDivisionError"), (lambda _: sys.exit(0), "SystemExit")],
)  # fmt: skip
def test_what_a_reader_must_not_do_is_found(
    read: Callable[[Path], object], says: str, seeds: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fuzz_run, "LIMIT_S", 1 if read in (hang, spin) else HANG_S)
    monkeypatch.setitem(fuzz_run.BY_NAME, "bad", Reader("bad", "json", "answers/seen.json", read))
    case = Case("bad", "1-seen.json", Input(b"{}"))
    sound = Case("image-sif", "1-image.sif", Input(b""))
    (tmp_path / "seeds").symlink_to(seeds)
    outcome = Pool(tmp_path / "seeds", lambda _, given: given, 1).run([sound, case, sound])
    assert [failure.what[: len(says)] for failure, _ in outcome.failures] == [says]
