"""The observer in the processes of a wrapped program: which steps they take, how long, and on how much data.

Only the standard library is used, and torch after the program itself has imported it: nothing is imported for it. At
the start of a process nothing is loaded but what Python has loaded anyway, because a file beside the program may have
the name of a module of the library. The rest is loaded when the program asks for torch, or marks a step.
"""

from __future__ import annotations

import os
import sys

from .imports import offer_marks, watch_imports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .training import SeenTraining

MAX_ARGUMENTS, MAX_ARGUMENT = 3, 200
MAX_ANCESTORS = 100

_raw = ""
_training: SeenTraining | None = None


def start() -> None:
    """Report that this process exists, and observe what it imports."""
    global _raw
    _raw = os.environ.get("STEELYARD_WRAP", "")
    if not _raw:
        return
    try:
        report()
        watch_imports(begin)
        offer_marks(mark_step)
    except Exception as error:  # noqa: BLE001 -- the program must run as if we were not here
        _note(error)


def begin() -> SeenTraining | None:
    """Begin to observe; None if that fails."""
    global _training
    if _training is None and _raw:
        try:
            _training = _begin()
        except Exception as error:  # noqa: BLE001 -- see above
            _note(error)
    return _training


def mark_step() -> None:
    """End a step of the program here: for steps that cannot be told otherwise."""
    training = begin()
    if training is not None:
        training.marked()


def _begin() -> SeenTraining:
    import atexit
    import json

    from . import hooks  # noqa: F401 -- so that an error in it is ours
    from .endings import before_ending
    from .training import SeenTraining, StopLimits

    options = json.loads(os.environ.get("STEELYARD_WRAP_OPTIONS") or "{}")
    zero_s = float(os.environ.get("STEELYARD_WRAP_ZERO") or 0.0)
    limits = StopLimits(
        options.get("max_steps"), options.get("max_seconds"), second_pass=options.get("second_pass", False)
    )
    training = SeenTraining(_raw, zero_s, limits)
    atexit.register(training.finish)
    before_ending(training)
    # A forked process has the state of its parent, but none of its steps.
    os.register_at_fork(after_in_child=training.begin_again)
    return training


def report(*facts: str) -> None:
    """Append one line on this process, with what is true of it, to the file of its node."""
    # orig_argv has the interpreter's own options too.
    words = [_quoted(word[:MAX_ARGUMENT]) for word in sys.orig_argv[: MAX_ARGUMENTS + 1]]
    about = {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "argv": f"[{', '.join(words)}]",
        "rank": _number("RANK", "null"),
        "world": _number("WORLD_SIZE", "null"),
        "python": _quoted(".".join(map(str, sys.version_info[:3]))),
        **dict.fromkeys(facts, "true"),
        **({} if _is_below_supervisor() else {"elsewhere": "true"}),
    }
    line = f"{{{', '.join(f'{_quoted(name)}: {value}' for name, value in about.items())}}}\n"
    node = int(_number("STEELYARD_WRAP_NODE", _number("GROUP_RANK", _number("SLURM_NODEID", "0"))))
    path = os.path.join(_raw, f"processes-{node:05d}.jsonl")
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
    try:
        # One write, so that lines of several processes do not mix.
        os.write(handle, line.encode("utf-8", "backslashreplace"))
    finally:
        os.close(handle)


def _is_below_supervisor() -> bool:
    """Whether our supervisor started this process, or a process that did; not so under srun or a container's engine."""
    supervisor, number = int(_number("STEELYARD_WRAP_PID", "0")), os.getpid()
    for _ in range(MAX_ANCESTORS):
        if number in (0, supervisor):
            break
        try:
            with open(f"/proc/{number}/stat", encoding="utf-8", errors="replace") as file:
                # The name in this line may hold blanks and brackets.
                number = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return number == supervisor


def _quoted(text: str) -> str:
    """Return a text as JSON has it."""
    letters = (letter if letter >= " " and letter not in '"\\' else f"\\u{ord(letter):04x}" for letter in text)
    return f'"{"".join(letters)}"'


def _note(error: Exception) -> None:
    """Write what went wrong at the start."""
    try:
        with open(os.path.join(_raw, "observer.log"), "a", encoding="utf-8") as log:
            log.write(f"{os.getpid()}: {error!r}\n"[:1000])
    except OSError:
        # There is nobody to tell.
        pass


def _number(name: str, otherwise: str) -> str:
    word = os.environ.get(name, "")
    return str(int(word)) if word.isascii() and word.isdigit() and len(word) < 10 else otherwise
