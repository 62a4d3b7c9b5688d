"""Find out why Slurm ended a job from what its own processes print into the job's output.

Slurm ends a step by its own rules (time, memory, preemption) and often reports the reason nowhere else.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from steelyard.contracts.observe import StatusCode

# The prefix of a line: slurmstepd (with its node where several share a machine), or srun on its behalf. Since 25.05
# slurmstepd prints the time instead of its name. A progress bar of the program may leave its line unfinished before
# it. Lengths are bounded: the search must stay linear in the length of the text.
_SPEAKER: Final = (
    r"(?:(?:^|(?<=[^\w\"'`]))(?:slurmstepd(?:-[\w.-]+)?|srun): (?:error: )?|"
    r"\[\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[^\]\s]{0,20}\] error: )"
)
# The most specific first: each of the others also leaves the line of the last.
# Seen in 22.05; the texts about oom_kill are from src/plugins/task/cgroup and 23.11's "OOM Killed".
_WORDS: Final[tuple[tuple[StatusCode, re.Pattern[str]], ...]] = (
    (
        "out_of_memory",
        re.compile(
            _SPEAKER + r"[^\n]{0,300}?(?:[Ee]xceeded (?:job |step )?memory limit|oom[_-]kill event|"
            r"Out Of Memory|OOM[ -]Killed|out-of-memory handler)[^\n]*",
            re.MULTILINE,
        ),
    ),
    (
        "time_limit",
        re.compile(_SPEAKER + r"\*\*\* [^\n]{0,300}? CANCELLED AT [^\n]{0,100}?DUE TO TIME LIMIT[^\n]*", re.MULTILINE),
    ),
    (
        "preempted",
        re.compile(_SPEAKER + r"\*\*\* [^\n]{0,300}? CANCELLED AT [^\n]{0,100}?DUE TO PREEMPTION[^\n]*", re.MULTILINE),
    ),
    (
        "node_failure",
        re.compile(
            _SPEAKER + r"(?:\*\*\* [^\n]{0,300}? CANCELLED AT [^\n]{0,100}?DUE TO NODE FAILURE|Node failure on )[^\n]*",
            re.MULTILINE,
        ),
    ),
    (
        "cancelled",
        re.compile(
            _SPEAKER + r"\*\*\* (?:JOB|STEP) [^\n]{0,300}? CANCELLED AT "
            r"(?![^\n]{0,100}DUE TO (?:TASK FAILURE|JOB REQUEUE))[^\n]*",
            re.MULTILINE,
        ),
    ),
)
# After a failed task srun ends the rest of its step: that is not a cause. Before 25.05 slurmstepd does not tell.
_LEFT_OVER: Final = re.compile(r"^srun: (?:[\w/]+: )*Terminating (?:StepId=|job step )", re.MULTILINE)
MAX_LINE: Final = 400


def cause_in(output: str) -> tuple[StatusCode, str] | None:
    """Return why Slurm ended the job with this output, and the line that shows it; None if no line does.

    Often there is no other trace: a step over its memory limit is FAILED with signal 9, and only slurmstepd tells why.
    """
    for cause, pattern in _WORDS:
        if match := pattern.search(output):
            if cause == "cancelled" and "*** STEP" in match[0] and _LEFT_OVER.search(output, 0, match.start()):
                return None
            return cause, match[0].strip()[:MAX_LINE]
    return None
