"""Questions about many runs that have a name: `steelyard query slow-nodes`."""

from __future__ import annotations

from typing import NamedTuple


class NamedQuestion(NamedTuple):
    """A question with a name."""

    text: str
    sql: str


QUESTIONS = {
    "studies": NamedQuestion(
        "Which studies are there, and how did their runs end?",
        """SELECT study, count(*) AS runs, count(*) FILTER (status = 'completed') AS completed,
       min(started) AS first, max(started) AS last
FROM runs GROUP BY study ORDER BY last DESC""",
    ),
    "slow-nodes": NamedQuestion(
        "Which nodes are slower than others with the same settings?",
        """WITH done AS (FROM runs WHERE status = 'completed' AND throughput > 0),
usual AS (SELECT workload, mode, device, devices, batch, accumulation, precision, compile, parallel,
                 median(throughput) AS usual FROM done GROUP BY ALL HAVING count(DISTINCT node) >= 3)
SELECT node, count(*) AS runs, round(median(throughput / usual), 4) AS of_usual
FROM done JOIN usual USING (workload, mode, device, devices, batch, accumulation, precision, compile, parallel)
GROUP BY node ORDER BY of_usual LIMIT 20""",
    ),
    "best-batch": NamedQuestion(
        "Which batch is fastest for each workload?",
        """SELECT workload, mode, device, devices, precision, arg_max(batch, rate) AS best_batch,
       max(rate) AS throughput, arg_max(throughput_unit, rate) AS unit, count(*) AS batches
FROM (SELECT workload, mode, device, devices, precision, batch, throughput_unit, median(throughput) AS rate
      FROM runs WHERE status = 'completed' AND throughput > 0 GROUP BY ALL)
GROUP BY ALL ORDER BY ALL""",
    ),
    "findings": NamedQuestion(
        "Which findings do runs have, most frequent first?",
        """SELECT code, severity, count(DISTINCT study || '/' || run_id) AS runs, any_value(message) AS example
FROM findings GROUP BY code, severity ORDER BY runs DESC, code""",
    ),
    "failures": NamedQuestion(
        "Which runs did not complete, where and why?",
        """SELECT status, workload, device, node, count(*) AS runs, max(started) AS last, any_value(reason) AS example
FROM runs WHERE status <> 'completed' GROUP BY ALL ORDER BY runs DESC, last DESC LIMIT 50""",
    ),
    "months": NamedQuestion(
        "How did throughput change from month to month, with the same settings?",
        """SELECT date_trunc('month', started)::DATE AS month, workload, mode, device, devices, batch, accumulation,
       precision, compile, parallel, count(*) AS runs, median(throughput) AS throughput,
       any_value(throughput_unit) AS unit
FROM runs WHERE status = 'completed' AND throughput > 0 GROUP BY ALL ORDER BY ALL""",
    ),
}
