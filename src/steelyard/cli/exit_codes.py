"""The exit codes of all verbs, in one table."""

DONE, FAILED, INVALID, INTERRUPTED = 0, 1, 2, 130

MEANINGS = {
    DONE: "success",
    FAILED: "a run, check, comparison or the command itself failed",
    INVALID: "invalid option, name or file; nothing was run",
    INTERRUPTED: "interrupted; finished runs are kept",
}
