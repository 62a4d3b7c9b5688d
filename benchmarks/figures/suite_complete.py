"""[suite_complete] Whether every experiment of the documents runs, and how many run as the document states them.

The experiments, what each document states of them, and the configurations that run them are in
benchmarks/lib/experiments.toml; lib/experiments.py derives the state of each from its suite. A state or a difference
that is written otherwise in the file is a contradiction. --list prints every experiment.
"""

from __future__ import annotations

from collections import Counter

from experiments import STATES, derive, experiments, problems, suites
from figure import arguments, at_least, at_most, finish
from steelyard.terminal.text import many

MAIN = {"work", "data", "arithmetic", "batches", "devices"}


def main() -> None:
    options = arguments(__doc__, list={"action": "store_true", "help": "print every experiment"})
    by_name = suites()
    counted: Counter[tuple[str, str]] = Counter()
    wrong = []
    otherwise = 0
    for one in experiments():
        found = derive(one, by_name[one.suite])
        counted[one.suite, found.state] += 1
        wrong += problems(one, found)
        otherwise += found.state == "partly" and not MAIN & {*found.differs}
        if options.list:
            about = f" ({', '.join(found.differs)})" if found.differs else ""
            print(f"{one.id}: {found.state}{about}; {many(found.configurations, 'configuration')}; {one.name}")
            for text in (*(f"{name}: {text}" for name, text in found.unlike.items()), one.note):
                print(f"  {text}" if text else "", end="\n" if text else "")
    for text in wrong:
        print(text)
    for name in by_name:
        print(f"{name}: {', '.join(f'{counted[name, state]} {state}' for state in STATES if counted[name, state])}")
    print(f"partly, but not in {', '.join(sorted(MAIN))}: {otherwise}")
    totals = {state: sum(counted[name, state] for name in by_name) for state in STATES}
    unit = f"of {len(experiments())} experiments"
    finish(
        [
            at_least("suite_complete: as stated", totals["as stated"], unit, 30),
            at_most("suite_complete: substitutes", totals["substitute"], unit, 5),
            at_most("suite_complete: missing", totals["missing"], unit, 0),
            at_most("suite_complete: contradictions between the suites and the list", len(wrong), "contradictions", 0),
        ]
    )


if __name__ == "__main__":
    main()
