"""The exit codes of all verbs, in one table."""

DONE, FAILED, INVALID, UNDECIDED, INTERRUPTED = 0, 1, 2, 3, 130

MEANINGS = {
    DONE: "success",
    FAILED: "a run, check, comparison or the command itself failed",
    INVALID: "invalid option, name or file; nothing was run",
    UNDECIDED: "cannot tell yet, or an audit with warnings only",
    INTERRUPTED: "interrupted; finished runs are kept",
}
