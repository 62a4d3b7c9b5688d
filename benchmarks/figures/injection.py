"""[injection] Hostile names, paths, images, variables and arguments in rendered scripts, run by a real bash.

Campaigns are random: folder, study, variables of the site, modules, image, mounts, Python and rendezvous host contain
quotes, newlines, `$()`, semicolons, leading dashes and bytes that are not text, and most try to create a file. Values
that the contracts refuse are left out. The scripts are rendered and run by bash. Every command is a stub that records
its arguments and environment byte for byte. Slurm directives and Kubernetes manifests, which no shell reads, are parsed
as Slurm and Kubernetes do. The figures count values that arrive changed and files created by injected commands; both
must be 0.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, given, seed, settings

from figure import arguments, at_least, at_most, finish
from injection_cases import Bench, Case, Outcome, cases, check


def main() -> None:
    options = arguments(__doc__)
    count, budget_s = (300, 15) if options.quick else (2500, 3600)
    outcomes: list[Outcome] = []
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch).resolve())

        @seed(7)
        @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(case=cases())
        def each(case: Case) -> None:
            if time.monotonic() - begin_s < budget_s:
                outcomes.append(check(bench, case))

        each()
    ran = [outcome for outcome in outcomes if not outcome.impossible]
    changed = [text for outcome in ran for text in outcome.changed]
    made = [text for outcome in ran for text in outcome.made]
    for text in [*changed, *made][:20]:
        print(text, file=sys.stderr)
    values = sum(outcome.values for outcome in ran)
    refused = sum(outcome.refused for outcome in outcomes)
    print(f"{len(outcomes)} campaigns, {len(outcomes) - len(ran)} of them refused; {len(ran)} run")
    print(f"{refused} values refused by the contracts, {values} looked at where they arrived")
    finish(
        [
            at_least(
                "injection: campaigns whose scripts were run", len(ran), "campaigns", 30 if options.quick else 2000
            ),
            at_most("injection: values that arrived changed", len(changed), "values", 0),
            at_most("injection: files made by injected commands", len(made), "files", 0),
        ]
    )


if __name__ == "__main__":
    main()
