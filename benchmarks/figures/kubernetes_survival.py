"""[kubernetes_survival] What befalls pods on a real Kubernetes, replayed: no finished run is lost that could be kept.

Jobs, pods, events and answers are those that a real cluster gave (tests/data/kubernetes), for every attack; logs and
stored results are of a pod that was really run. Each attack meets a task of three runs, two of which have finished when
it happens, with results through logs, an object store and a claim, and with somebody who looks while pods run or only
afterwards. The quick form has logs with somebody who looks, and the object store afterwards.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from figure import Figure, arguments, at_least, at_most, finish

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "kubernetes"))

from attacks import ATTACKS, TRANSPORTS, Outcome, Transport, attacked

Way = tuple[Transport, bool]
QUICK: tuple[Way, ...] = (("logs", True), ("s3", False))


def main() -> None:
    """Let all attacks happen and print what became of them."""
    options = arguments(__doc__)
    ways: tuple[Way, ...] = (
        QUICK if options.quick else tuple((way, watched) for way in TRANSPORTS for watched in (True, False))
    )
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as home:
        os.environ["XDG_STATE_HOME"] = str(Path(home) / "state")
        for way, watched in ways:
            outcomes += attacked(Path(home) / f"{way}-{watched}", way, watched=watched)
    table(outcomes)
    wrong = [outcome for outcome in outcomes if outcome.wrong]
    for outcome in wrong:
        when = "while it runs" if outcome.watched else "afterwards"
        print(f"{outcome.attack.name}, {outcome.transport}, looked {when}: {'; '.join(outcome.wrong)}")
    finished = sum(outcome.attack.finished() for outcome in outcomes if outcome.transport != "logs")
    kept = sum(outcome.kept for outcome in outcomes if outcome.transport != "logs")
    finish(
        [
            at_least("kubernetes_survival: attacks", len(ATTACKS), "attacks", 30),
            at_most(
                "kubernetes_survival: attacks with another outcome than the transport allows", len(wrong), "outcomes", 0
            ),
            at_most(
                "kubernetes_survival: called never started, but begun",
                sum(o.called_unbegun for o in outcomes),
                "runs",
                0,
            ),
            Figure(
                "kubernetes_survival: finished runs kept outside the log",
                kept,
                "runs",
                f"= {finished}",
                kept == finished and finished > 0,
            ),
        ]
    )


def table(outcomes: list[Outcome]) -> None:
    """Print how many finished runs each way has kept, and the status of the others."""
    ways = list(dict.fromkeys((outcome.transport, outcome.watched) for outcome in outcomes))
    heads = [f"{way} {'watched' if watched else 'after'}" for way, watched in ways]
    print(f"{'attack':<32}{'finished':>9}  " + "".join(f"{head:<26}" for head in heads))
    for attack in ATTACKS:
        cells = []
        for way, watched in ways:
            found = next(o for o in outcomes if (o.attack, o.transport, o.watched) == (attack, way, watched))
            rest = ", ".join(dict.fromkeys(found.codes))
            cells.append(f"{found.kept} kept{f', {rest}' if rest else ''}")
        print(f"{attack.name:<32}{attack.finished():>9}  " + "".join(f"{cell:<26}" for cell in cells))
    print()


if __name__ == "__main__":
    main()
