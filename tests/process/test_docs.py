"""What the documents tell people to type and to write works."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pytest
from cmarkgfm import github_flavored_markdown_to_html

from conftest import make_spec
from steelyard.cli.main import VERBS, main
from steelyard.cli.verb import make_parser
from steelyard.contracts.base import to_json_object
from steelyard.contracts.observe import SPEC_FILE
from steelyard.contracts.sample_files import FILE_MAGIC, write_chunk
from steelyard.contracts.sim import Collective, Power, Sensor, SimTruth, State
from steelyard.contracts.spec import Budget, Data, Loader, Quality
from steelyard.contracts.wrap import Program, ProgramEnd, Wrapped
from steelyard.derive.epochs import quality_quantities
from steelyard.derive.record import derive
from steelyard.results.store import record_text
from steelyard.version import VERSION
from steelyard.worker.engine.run import run_directory

if TYPE_CHECKING:
    from steelyard.contracts.record import Quantity

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OWN_MODEL = (ROOT / "docs" / "howto" / "workloads.md").read_text(encoding="utf-8")
ADDING = (ROOT / "docs" / "adding-a-workload.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "docs" / "examples" / "steelyard-mixer"


def test_the_example_of_an_own_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = re.search(r"```python\n(# my\.py\n.*?)```", OWN_MODEL, re.DOTALL)
    assert found is not None
    assert len(found[1].splitlines()) <= 20
    (tmp_path / "my.py").write_text(found[1], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    command = re.search(r"^steelyard (run \./my\.py:build .*)$", OWN_MODEL, re.MULTILINE)
    assert command is not None
    quick = ["--max-steps", "30", "--min-steps", "30", "--min-seconds", "0", "--json"]
    assert main([*command[1].split(), *quick]) == 0
    record = json.loads(capsys.readouterr().out)["runs"][0]
    assert record["model"]["parameters"] == 64 * 512 + 512 + 512 * 10 + 10
    assert record["spec"]["batch"] == 128
    assert record["steps_seen"] == 30


def _blocks(kind: str, page: str = ADDING) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)


def test_a_package_adds_a_workload_by_its_entry_point(tmp_path: Path) -> None:
    said = _blocks("toml")[0].strip()
    assert said in (EXAMPLE / "pyproject.toml").read_text(encoding="utf-8")
    place = tmp_path / "site"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(place),
    ]
    subprocess.run([*install, str(EXAMPLE)], check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(place)}
    short = ["--batch", "4", "--threads", "1", "--device", "cpu", "--max-steps", "3", "--min-seconds", "0", "--json"]
    steelyard = [sys.executable, "-m", "steelyard.cli.main"]
    done = subprocess.run(
        [*steelyard, "run", "mixer", "--model", "layers=1", *short],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)["runs"][0]
    assert record["spec"]["workload"] == "mixer"
    assert record["steps_seen"] == 3
    assert record["model"]["flops_per_sample"] > 0
    listed = subprocess.run([*steelyard, "workloads"], env=environment, capture_output=True, text=True, check=True)
    assert "mixer" in listed.stdout


# -- the pages


def _made(module: str) -> Any:
    """A script of docs/tools/ as a module."""
    if str(DOCS / "tools") not in sys.path:
        # First: there is a package `build`, too.
        sys.path.insert(0, str(DOCS / "tools"))
    return importlib.import_module(module)


PAGES = sorted(DOCS.rglob("*.md"))
ALL_PAGES = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
# Blocks that need what CI does not have: an accelerator, a site, a minute of a real model, a script of the reader.
NOT_EXECUTED_AT_MOST = 26


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_a_result_of_an_accelerator_becomes_a_row(tmp_path: Path) -> None:
    tool = _made("accelerators")
    hopper = "| NVIDIA Hopper | H100, H200, GH200 | simulated only |"
    assert hopper in tool.table(tmp_path)
    checks = [{"name": name, "outcome": name.replace("-", " "), "text": "x"} for name in ("ok", "not-as-assumed")]
    report = {
        "version": "0.1.0", "date": "2026-11-20", "device": "NVIDIA GH200 480GB", "devices": 4, "memory_bytes": 1e11,
        "facts": {"torch.version": "2.9.1+cu130"}, "seconds": 200.0, "checks": checks,
    }  # fmt: skip
    (tmp_path / "gh200.json").write_text(json.dumps(report), encoding="utf-8")
    told = "4 x GH200, torch 2.9.1+cu130, 2026-11-20: 1 ok, 1 not as assumed"
    assert hopper.replace("simulated only", told) in tool.table(tmp_path)
    assert "| NVIDIA Ampere | A100, A40, A30, A10 | simulated only |" in tool.table(tmp_path)
    (tmp_path / "bad.json").write_text("{}", encoding="utf-8")
    with pytest.raises(_made("console").PageError, match=r"bad\.json is not a result"):
        tool.table(tmp_path)


def test_what_comes_from_code_is_current_in_every_page() -> None:
    build = _made("build")
    assert build.check(build.all_pages(), fast=True, exact=False) == []
    for path in ALL_PAGES:
        # A comment that begins a line ends the paragraph.
        assert "\n<!-- figure" not in path.read_text(encoding="utf-8"), _short(path)


def test_a_page_of_the_reference_that_nothing_makes_is_found() -> None:
    build = _made("build")
    with pytest.raises(_made("console").PageError, match="is not made any more; delete it"):
        build.make_page(DOCS / "reference" / "gone.md", fast=True)


def test_the_readme_is_short_and_has_its_sources() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 200
    links = set(re.findall(r"^\[([\w-]+)\]: https://", text, re.MULTILINE))
    assert links == set(re.findall(r"\]\[([\w-]+)\]", text))


def test_every_page_of_commands_is_executed_or_says_that_it_is_not() -> None:
    """`$ ` stands only in blocks that build.py knows; those that are not run are few."""
    console = _made("console")
    count = 0
    for path in ALL_PAGES:
        for kind, title, body in console.BLOCK.findall(path.read_text(encoding="utf-8")):
            assert (kind == "console") == (re.search(r"^\$ ", body, re.MULTILINE) is not None), (_short(path), body)
            assert title in ("", console.NOT_EXECUTED, console.VARIES) or kind != "console"
            count += title == console.NOT_EXECUTED
            # Wider commands are cut where a page does not wrap them, as on GitHub.
            assert [line for line in body.splitlines() if line.startswith("$ ") and len(line) > 105] == [], _short(path)
    assert 0 < count <= NOT_EXECUTED_AT_MOST


def test_verbs_and_options_that_pages_name_exist() -> None:
    options = {}
    for verb in VERBS:
        parser = make_parser(verb)
        parsers = [parser, *parser.actions().values()]
        options[verb] = {word for each in parsers for action in each._actions for word in action.option_strings}
    named = 0
    for path in ALL_PAGES:
        code = "\n".join(re.findall(r"```.*?```|`[^`]+`", path.read_text(encoding="utf-8"), re.DOTALL))
        for command in re.findall(r"(?:^\s*(?:\$ )?|`)steelyard ((?:[^`\n]*\\\n)*[^`\n]*)", code, re.MULTILINE):
            # What follows `--` is somebody's own command.
            words = command.replace("\\\n", " ").split()
            words = words[: words.index("--")] if "--" in words else words
            # The page on verbs adds `lost`.
            if not words or not re.fullmatch(r"[a-z]+", words[0]) or words[0] == "lost":
                continue
            assert words[0] in VERBS, (_short(path), command)
            for option in (word.partition("=")[0] for word in words[1:] if word.startswith("--")):
                assert option in options[words[0]], (_short(path), command)
                named += 1
    assert named > 50


class Links(HTMLParser):
    """What a page links, and the names of its headings, as GitHub shows it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self._heading: str | None = None
        self.feed(github_flavored_markdown_to_html(page.read_text(encoding="utf-8")))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.targets += [unquote(value) for name, value in attrs if name in ("href", "src") and value]
        if re.fullmatch(r"h[1-6]", tag):
            self._heading = ""

    def handle_data(self, data: str) -> None:
        if self._heading is not None:
            self._heading += data

    def handle_endtag(self, tag: str) -> None:
        if self._heading is not None and re.fullmatch(r"h[1-6]", tag):
            name = plain = re.sub(r"[^\w\- ]", "", self._heading.strip().lower()).replace(" ", "-")
            number = 0
            while name in self.anchors:
                number += 1
                name = f"{plain}-{number}"
            self.anchors.add(name)
            self._heading = None


def dead_links(page: Path) -> list[str]:
    """Links that lead to no file or heading of the repository; of others' addresses, those of a wrong form."""
    dead = []
    for target in Links(page).targets:
        if re.match(r"[a-z]+:", target):
            if not re.fullmatch(r"https?://[\w.-]+\.[a-z]{2,}(:\d+)?(/[^\s<>\"]*)?", target):
                dead.append(target)
            continue
        file, _, anchor = target.partition("#")
        place = (page.parent / file).resolve() if file else page
        inside = place.is_relative_to(ROOT.resolve()) or place.is_relative_to(page.parent)
        if not inside or not place.exists() or (anchor and anchor not in Links(place).anchors):
            dead.append(target)
    return dead


def test_every_link_leads_to_a_file_or_a_heading() -> None:
    """Of all pages in the repository, as people read them there: without a built site."""
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob(".github/**/*.md")]
    dead = {_short(page): links for page in pages if (links := dead_links(page))}
    assert dead == {}
    assert sum(len(Links(page).targets) for page in pages) > 500
    assert {DOCS / "reference" / "rules.md", ROOT / "README.md"} <= set(pages)


def test_dead_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# A `code` heading, and more\n\n## Twice\n\n## Twice\n", encoding="utf-8")
    page.write_text(
        "# Here\n[a](other.md) [b](other.md#a-code-heading-and-more) [c](#here) [d](other.md#twice-1) [e][e]\n"
        "`[f](code.md)`\n\n```\n[g](block.md)\n```\n[e]: https://example.org/x\n\n"
        "[h](gone.md) [i](other.md#gone) [j](#gone) ![k](gone.png) [l][l] [m](ftp://example.org) [n](/etc/hosts)\n\n"
        "[l]: gone-too.md\n",
        encoding="utf-8",
    )
    wrong = ["gone.md", "other.md#gone", "#gone", "gone.png", "gone-too.md", "ftp://example.org", "/etc/hosts"]
    assert dead_links(page) == wrong


def test_what_the_page_on_architecture_names_is_there() -> None:
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w./-]+/[\w./-]*)`", page)
    assert len(named) > 20
    assert [path for path in named if not (ROOT / path).exists()] == []
    rooms = re.findall(r"^ │ ([\w.]+/?) ", page, re.MULTILINE)
    assert [room for room in rooms if room.endswith("/") and not (ROOT / "src/steelyard" / room).is_dir()] == []
    path = re.search(r"## The path of one number\n(.*?)\n## ", page, re.DOTALL)
    assert path is not None
    steps = re.findall(r"^\| `([\w./]+)` \| (`[^|]+`) \|", path[1], re.MULTILINE)
    assert 5 < len(steps) <= 12
    for file, functions in steps:
        source = (ROOT / file).read_text(encoding="utf-8")
        for name in re.findall(r"`([\w.]+)`", functions):
            assert f"def {name.rpartition('.')[2]}(" in source, (file, name)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(folder),
    ]
    # Its theme's authors advertise on standard output unless told not to.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_asks_nobody_else_for_anything(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 80
    loading = re.compile(r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?([^\s\">]+)|<link[^>]*\shref=\"?([^\s\">]+)")
    for page in pages:
        for found in loading.findall(page.read_text(encoding="utf-8")):
            assert "//" not in "".join(found), (page.name, found)
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style.name


def test_the_site_is_searched_offline_and_holds_no_source(site: Path) -> None:
    assert "SY301" in (site / "search" / "search_index.js").read_text(encoding="utf-8")
    assert list(site.rglob("*.py")) == []
    assert (site / "examples" / "sites" / "lumi.toml").exists()


# -- how pages are run


def _page(*blocks: str) -> str:
    return "# A page\n\n" + "\n".join(blocks)


def test_a_page_s_commands_are_run_in_order_with_its_files(tmp_path: Path) -> None:
    console, seen = _made("console"), []

    def run(words: list[str], folder: Path) -> str:
        seen.append((words, sorted(path.name for path in folder.iterdir())))
        return "new\n"

    page = _page(
        "```toml\n# a.toml\nx = 1\n```\n",
        "The table, `b.csv`:\n\n```csv\ny\n1\n```\n",
        "```console\n$ steelyard one \\\n    --two\nold\n$ steelyard three\n```\n",
        '```console title="not executed in CI"\n$ rm -r /\n```\n',
    )
    made = console.run_page(page, tmp_path, run)
    files = ["a.toml", "b.csv"]
    assert seen == [(["steelyard", "one", "--two"], files), (["steelyard", "three"], files)]
    assert "$ steelyard one \\\n    --two\nnew\n$ steelyard three\nnew\n```" in made
    assert "$ rm -r /\n```" in made


@pytest.mark.parametrize(
    ("old", "new", "stays"),
    [
        ("took 1.5 s\n", "took 12,000.5 s\n", True),
        ("a   1\n--- --\n", "a 100\n-- ---\n", True),
        ("took 1.5 s\n", "takes 1.5 s\n", False),
        ("head\n...\n", "head\nwhatever\n", True),
        ("head\n...\n", "foot\nwhatever\n", False),
        ("...\n", "", True),
    ],
)
def test_where_numbers_differ_the_words_are_held(old: str, new: str, *, stays: bool, tmp_path: Path) -> None:
    page = _page(f'```console title="numbers differ by machine"\n$ steelyard run\n{old}```\n')
    made = _made("console").run_page(page, tmp_path, lambda _words, _folder: new)
    assert (made == page) is stays


def test_an_update_keeps_what_a_page_leaves_out(tmp_path: Path) -> None:
    page = _page('```console title="numbers differ by machine"\n$ steelyard run\nhead\n...\n```\n')
    made = _made("console").run_page(page, tmp_path, lambda _words, _folder: "new head\nnew\nmore\n")
    assert made == page.replace("\nhead\n", "\nnew head\n")


def test_update_writes_pages_and_reports_those_that_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = _made("build")
    good, bad = tmp_path / "good.md", tmp_path / "bad.md"
    good.write_text(_page("```console\n$ steelyard --version\nold\n```\n"), encoding="utf-8")
    bad.write_text(_page("```console\n$ steelyard no-such-verb\nold\n```\n"), encoding="utf-8")
    (problem,) = build.update([bad, good])
    assert "bad.md: steelyard no-such-verb: exit code 2" in problem
    assert "\nold\n" in bad.read_text(encoding="utf-8")
    assert f"$ steelyard --version\nsteelyard {VERSION}\n" in good.read_text(encoding="utf-8")
    assert build.update([good]) == []
    assert [line.rpartition(" ")[2] for line in capsys.readouterr().out.splitlines()] == ["updated", "unchanged"]


def test_a_recorded_terminal_has_colours_and_needs_no_internet(tmp_path: Path) -> None:
    terminal = _made("terminal")
    recorded = terminal.record(["steelyard explain SY103", "steelyard --version"], tmp_path)
    assert recorded[1] == ("steelyard --version", f"steelyard {VERSION}\n")
    drawn = terminal.svg([*recorded, ("steelyard it", "\x1b[31mred\x1b[0m text")], "title")
    assert "steelyard&#160;explain&#160;SY103" in drawn
    assert re.findall(r"(?:url\(|href=|src=)[\"']?(?!#|[\"']?#)", drawn) == []
    assert {"red", "&#160;text"} <= set(re.findall(r">([^<>]+)</text>", drawn))


def test_the_table_of_verbs_has_them_all() -> None:
    made = _made("generated").fill("<!-- verbs -->\n<!-- end of verbs -->")
    assert sorted(re.findall(r"^\| [^|]*\| `(\w+)` \|", made, re.MULTILINE)) == sorted(VERBS)


@pytest.mark.parametrize(
    "block",
    ['```console title="now and then"\n$ steelyard run\n```\n', "```console\nno command\n```\n"],
)
def test_a_block_that_cannot_be_read_is_an_error(block: str, tmp_path: Path) -> None:
    console = _made("console")
    with pytest.raises(console.PageError):
        console.run_page(_page(block), tmp_path, lambda _words, _folder: "")


def test_only_our_own_commands_are_run_and_a_wrong_one_stops(tmp_path: Path) -> None:
    console = _made("console")
    with pytest.raises(console.PageError, match="only steelyard"):
        console.command(["rm", "-r"], tmp_path)
    with pytest.raises(console.PageError, match="exit code 2"):
        console.command(["steelyard", "no-such-verb"], tmp_path)


def test_a_figure_or_a_piece_of_code_that_is_gone_is_an_error() -> None:
    generated, console = _made("generated"), _made("console")
    with pytest.raises(console.PageError, match="did you mean 'startup: --help over"):
        generated.fill("<!-- figure: startup: --help over python -->0<!-- end -->")
    with pytest.raises(console.PageError, match="no class or function Gone"):
        generated.fill("<!-- code: src/steelyard/plugins.py Gone -->\n<!-- end of code -->")
    with pytest.raises(console.PageError, match="unknown part: <!-- table: gone -->"):
        generated.fill("<!-- table: gone -->\n<!-- end of table -->")
    with pytest.raises(console.PageError, match="<!-- verbs --> has no <!-- end of verbs -->"):
        generated.fill("<!-- verbs -->\nold\n")


# -- metrics


def test_metrics_are_those_that_records_hold(tmp_path: Path) -> None:
    """Every name of every record is in the list, with its unit, scope, window and aggregation; and the reverse."""
    listed = {
        name: metric
        for group in _made("reference").metrics()["group"]
        for metric in group["metric"]
        for name in metric["names"]
    }
    found = _all_quantities(tmp_path)
    assert sorted({name for name, _ in found}) == sorted(listed)
    for name, quantity in found:
        metric = listed[name]
        assert quantity.unit == metric["unit"] or name == "quality", name
        assert quantity.scope in metric["scope"], name
        assert quantity.window in metric["window"], name
        assert quantity.aggregation in metric["aggregation"], name


def _all_quantities(raw: Path) -> list[tuple[str, Quantity]]:
    """Of one simulated job with sensors, told in turn of its memory, that it ran a model, a collective, made tokens."""
    truth = SimTruth(
        step_time_s=0.05, setup_s=5.0, compile_s=5.0, power=Power(idle_w=80, compute_w=300, host_w=50),
        sensors=(Sensor(period_s=0.02), Sensor(scope="cpu", period_s=0.02)), collective=Collective(message_bytes=10**8),
        states=(State(clock_mhz=1980.0),),
    )  # fmt: skip
    spec = make_spec(devices=2, epoch_samples=6400, sim=truth)
    (raw / SPEC_FILE).write_text(record_text(spec), encoding="utf-8")
    run_directory(raw)
    model = {"parameters": 9, "flops_per_sample": 1e9, "bytes_per_sample": 1e6, "tokens_per_sample": 128, "method": "-"}
    memory = {"peak_bytes": 2e9, "reserved_bytes": 3e9, "driver_used_bytes": 4e9, "method": "-"}
    found = [_told(raw, "memory", memory), _told(raw, "model", model)]
    found.append(_told(raw, "model", {**model, "bus_factor": 1.5}))
    (raw / SPEC_FILE).write_text(
        record_text(dataclasses.replace(spec, mode="generate", workload="gpt", device="cpu")), encoding="utf-8"
    )
    quality = make_spec(
        workload="tiny", loader=Loader(place="host"), data=Data(format="cifar10", path="/x"), budget=Budget(epochs=3),
        quality=Quality(target=0.9),
    )  # fmt: skip
    found += [derive(raw).quantities, quality_quantities([], quality), _of_program(raw / "program")]
    return [(name, quantity) for quantities in found for name, quantity in quantities.items()]


def _of_program(raw: Path) -> dict[str, Quantity]:
    """A program of one rank whose batches have tokens."""
    raw.mkdir()
    spec = make_spec(workload="train", program=Program(command=("python", "train.py")))
    (raw / SPEC_FILE).write_text(record_text(spec), encoding="utf-8")
    end = ProgramEnd(
        exit_code=0, start_s=0.0, wall_s=9.0, cpu_s=9.0, peak_rss_bytes=1e9, output_bytes=0, ended_by="itself"
    )
    (raw / "program-00000.json").write_text(record_text(end), encoding="utf-8")
    for name, columns in (("steps", (0.0, np.nan, np.nan, 8.0)), ("work", (1.0, 5.0, 2.0, 6.0))):
        with (raw / f"{name}-00000.bin").open("wb") as file:
            file.write(FILE_MAGIC)
            write_chunk(file, 0, 0, np.array([[0.1 * step, 0.1, *columns] for step in range(50)]).T)
    seen = Wrapped(
        rank=0, world=1, device="cpu", timing="host clock", steps=50, updates=50, samples_known=True, tokens_known=True
    )
    return _told(raw, "wrapped", to_json_object(seen))


def _told(raw: Path, kind: str, fields: dict[str, Any]) -> dict[str, Quantity]:
    with (raw / "events-00000.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"kind": kind, **fields}) + "\n")
    return derive(raw).quantities


def test_every_kind_of_plot_has_its_picture() -> None:
    page = (DOCS / "pictures.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"\(pictures/([a-z-]+)\.png\)", page))
    assert shown == {path.stem for path in (DOCS / "pictures").glob("*.png")}
    kinds = {path.stem for path in (DOCS.parent / "src/steelyard/report/charts").glob("*.py")}
    # What a chart is drawn with, and the charts of published tables, which are no measurements.
    kinds -= {"__init__", "style", "published"}
    named = {"loss": "scaling-loss", "power_svg": "power", "scaling": "scaling-throughput"}
    for kind in kinds:
        assert any(name.startswith(named.get(kind, kind)) for name in shown), kind
