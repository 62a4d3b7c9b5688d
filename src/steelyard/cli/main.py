"""The entry point: find the verb and run it. `--help` imports nothing else."""

import os
import sys

from steelyard.cli.exit_codes import DONE, INVALID, MEANINGS

GROUPS: dict[str, dict[str, str]] = {
    "Measure": {
        "run": "measure a workload on this machine",
        "wrap": "measure your own program, as it is",
        "study": "run a sweep from a file, here or at a site",
        "suite": "run a published benchmark, compare with it",
        "status": "show submitted studies, collect finished runs",
        "show": "show studies, configurations and runs",
    },
    "Decide": {
        "best": "rank configurations: best, tied, unreliable",
        "compare": "compare two results: comparability, then ratio",
        "batch": "find the best batch size and the largest one",
        "scaling": "show speed-up, efficiency and where to stop",
        "energy": "show energy per sample and power over time",
        "query": "ask a question about all runs, in SQL",
    },
    "Check": {
        "doctor": "check this node and suggest fixes",
        "verify": "run a recipe and compare with its stated value",
        "expect": "say whether a figure is normal",
        "audit": "audit tables, claims and results",
        "selftest": "check the arithmetic, a device or its sensors",
    },
    "Share": {
        "report": "write a report: HTML, Markdown, LaTeX or CSV",
        "pack": "write the performance part of a proposal",
        "import": "read results of other benchmarks",
        "archive": "fold finished runs into few files",
    },
    "Set up and look up": {
        "workloads": "list workloads with their size and cost",
        "data": "list, check, make and convert data sets",
        "site": "list, create, show and check sites",
        "explain": "explain a finding, or the fields of a file",
        "completion": "print a completion script for your shell",
    },
}
VERBS = {name: text for verbs in GROUPS.values() for name, text in verbs.items()}

USAGE = """Benchmark AI accelerators with numbers you can trust.

usage: steelyard VERB [options]

{verbs}

steelyard help VERB explains a verb. Every verb takes
--json; --version prints the version. Results go to
standard output, progress and errors to standard error.

Exit codes:
{codes}
"""


def main(argv: list[str] | None = None) -> int:
    """Run one verb."""
    words = sys.argv[1:] if argv is None else argv
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # Closed by the caller (2>&-): nothing is shown, but the work is done and the exit code stays the same.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 -- without pathlib
    if words[:1] == ["help"] and len(words) > 1:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        print(_usage(), end="", file=sys.stdout if words else sys.stderr)
        return DONE if words else INVALID
    if words[0] in ("-V", "--version"):
        from steelyard.version import VERSION

        print(f"steelyard {VERSION}")
        return DONE
    from steelyard.cli.verb import run_verb

    return run_verb(words[0], words[1:], VERBS)


def _usage() -> str:
    verbs = "\n\n".join(
        "\n".join([f"{group}:", *(f"  {name:<12}{text}" for name, text in verbs.items())])
        for group, verbs in GROUPS.items()
    )
    return USAGE.format(verbs=verbs, codes="\n".join(f"  {code:<5}{text}" for code, text in MEANINGS.items()))


if __name__ == "__main__":
    sys.exit(main())
