"""The entry point: finds the verb, imports it alone, and turns errors into words and exit codes."""

import sys

VERBS = {
    "doctor": "what this node is and what would go wrong",
    "workloads": "which workloads there are, how large, and what a sample costs",
    "run": "one measured run here, or several with --repeats",
    "loader": "the input pipeline without the model, and which runs would wait for it",
    "study": "a sweep from a file: --dry-run shows it, starting again resumes it",
    "status": "how studies stand that were sent to a site; collects what has ended",
    "site": "sites to send studies to: list, new, show, check",
    "show": "what has been measured",
    "compare": "two results held against each other: may they be, and what is the ratio",
    "batch": "the knee of a batch-size sweep, and the largest batch that fits",
    "scaling": "speed-up and efficiency over devices, what the loss is, where to stop",
    "energy": "joules of a sample, an epoch, a phase; power over time as a picture",
    "report": "a page of a study, a selection or a run: HTML, Markdown, LaTeX, CSV",
    "pack": "the part of a proposal on performance and resources, with a checklist",
    "verify": "run a documented recipe and hold it against its stated figure",
    "audit": "what the figures of tables, claims and results contradict, hide or leave open",
    "data": "data sets: which there are, checked, made small, put into shards",
    "explain": "what the code of a finding means, with examples and the fix",
    "derive": "derive a record again from its raw observations",
    "selftest": "prove the arithmetic on simulated accelerators",
    "schema": "the contracts as JSON Schema",
}

USAGE = """usage: steelyard VERB [options]

Measures what an AI accelerator really does, so that the number can be believed.

{verbs}

steelyard VERB --help explains one of them; steelyard --version tells the version.
Every verb takes --json. Results go to standard output, progress to standard error.
Exit codes: 0 what was asked happened; 1 a run or check failed; 2 the input is not valid; 130 interrupted.
"""


def main(argv: list[str] | None = None) -> int:
    """Run one verb."""
    words = sys.argv[1:] if argv is None else argv
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE.format(verbs="\n".join(f"  {name:<10}{text}" for name, text in VERBS.items())), end="")
        return 0 if words else 2
    if words[0] == "--version":
        from steelyard.version import VERSION

        print(f"steelyard {VERSION}")
        return 0
    if words[0] not in VERBS:
        import difflib

        near = difflib.get_close_matches(words[0], VERBS, n=1)
        print(f"error: no verb is called {words[0]!r}; valid: {', '.join(VERBS)}", file=sys.stderr)
        print(f"next: steelyard {near[0] if near else '--help'}", file=sys.stderr)
        return 2
    from steelyard.cli.verb import run_verb

    return run_verb(words[0], words[1:])


if __name__ == "__main__":
    sys.exit(main())
