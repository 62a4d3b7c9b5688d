"""The files around the code are valid: workflow, hooks, issue templates, citation, source package."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from steelyard.extras import EXTRAS, MODULES, install_line, line_for_modules, missing_modules
from steelyard.version import VERSION

ROOT = Path(__file__).parents[2]
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FIELDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


def _read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def _exists(program: str) -> bool:
    return shutil.which(program) is not None or (Path(sys.executable).parent / program).exists()


def test_the_workflows_run_commands_that_exist() -> None:
    jobs = [job for path in WORKFLOWS for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()]
    assert all((ROOT / job["uses"]).is_file() for job in jobs if "uses" in job)
    steps = [step for job in jobs for step in job.get("steps", [])]
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]) for step in steps if "uses" in step)
    commands = [line for step in steps for line in step.get("run", "").splitlines()]
    assert {"bash .ci/run", "bash .ci/lock --upgrade"} <= set(commands)
    for command in commands:
        words = shlex.split(command)
        # GitHub's machines have gh.
        assert _exists(words[0]) or words[0] == "gh", command
        assert words[0] not in ("bash", "python3") or (ROOT / words[1]).is_file(), command


def test_the_hooks_run_tools_of_the_development_environment() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    development = " ".join(project["optional-dependencies"]["dev"])
    packages = {"lint-imports": "import-linter"}
    hooks = [hook for repo in _read(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    assert len(hooks) >= 3
    for hook in hooks:
        program = hook["entry"].split()[0]
        assert packages.get(program, program) in development, hook["id"]
        assert _exists(program), hook["id"]


def test_the_lock_has_one_version_that_is_allowed_of_each_package() -> None:
    """If this fails, run `bash .ci/lock`."""
    pinned = {}
    for line in (ROOT / ".ci/requirements.txt").read_text(encoding="utf-8").splitlines():
        if not line.lstrip().startswith("#"):
            name, version = line.split("==")
            pinned[canonicalize_name(name)] = version
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for text in chain(project["dependencies"], *project["optional-dependencies"].values()):
        wanted = Requirement(text)
        if wanted.name != project["name"]:
            assert pinned[canonicalize_name(wanted.name)] in wanted.specifier, text


def test_the_line_for_modules_that_are_missing() -> None:
    assert shlex.split(line_for_modules(["transformers", "PIL"]))[2:] == [*EXTRAS["transformers"], *EXTRAS["images"]]
    # Both come together; torchvision alone must not replace the torch that is there.
    assert shlex.split(line_for_modules(["torch", "torchvision"]))[2:] == [*EXTRAS["torch"]]
    assert line_for_modules(["torchvision"]) == "pip install torchvision"
    assert line_for_modules(["ours"]) == "pip install ours"
    assert set(MODULES.values()) <= set(EXTRAS)
    assert missing_modules(["json", "no_such_module"]) == ["no_such_module"]


def test_the_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: tuple(needs) for name, needs in project["optional-dependencies"].items()}
    assert extras.pop("dev")
    assert extras.pop("all") == (f"steelyard[{','.join(EXTRAS)}]",)
    assert extras == EXTRAS


def test_install_lines_name_packages_that_pip_can_find() -> None:
    """No index has steelyard: it is installed from a folder or a file."""
    assert install_line("report") == "pip install 'vl-convert-python>=1.7'"
    assert shlex.split(install_line("images", "quality"))[2:] == [*EXTRAS["images"], *EXTRAS["quality"]]
    known = {package for packages in EXTRAS.values() for package in packages}
    known |= {f"{place}[torch,report]" for place in (".", f"steelyard-{VERSION}-py3-none-any.whl")}
    known |= {".", ".[torch]", ".[dev]", ".[dev,all]"}
    texts = chain((ROOT / "src").rglob("*.py"), (ROOT / "docs").rglob("*.md"), ROOT.glob("*.md"))
    lines = [found for path in texts for found in re.findall(r"pip install [^`\n]*", path.read_text(encoding="utf-8"))]
    quoted = {name for line in lines for name in re.findall(r"'([^']+)'", line)}
    assert {".[torch]", *EXTRAS["archive"], *EXTRAS["kubernetes"]} <= quoted
    assert quoted - known == {"numpy<2"}
    assert [line for line in lines if re.search(r" steelyard\b(?!-\d)", line) and "--find-links" not in line] == [
        'pip install torch, or start steelyard with the Python that has it",'
    ]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_issue_templates_are_valid(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.stem == "config":
        assert set(form) <= {"blank_issues_enabled", "contact_links"}
        return
    assert form["name"]
    assert form["description"]
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids))
    assert all(field["type"] in FIELDS and field["attributes"]["label"] for field in form["body"])


def test_the_citation_is_of_this_version() -> None:
    citation = _read("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == VERSION
    assert citation["authors"] == [{"name": "The steelyard authors"}]
    assert citation["title"]
    assert citation["message"]


def test_the_source_package_names_files_that_exist() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    included = build["targets"]["sdist"]["include"]
    assert [name for name in included if not (ROOT / name).exists()] == []
    assert {"src", "tests", "docs", "README.md", "LICENSE", "CITATION.cff", ".ci"} <= set(included)
