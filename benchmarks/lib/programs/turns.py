"""Lets programs take turns, a few steps each, and reads the clock of each turn.

Programs that run at the same time, but never in the same moment, meet the same speed of a machine whose speed varies.
"""

import os
import time
from pathlib import Path


class Turns:
    """The turns of this program, which its parent gives it by the pipes TURN_GO and TURN_DONE."""

    def __init__(self):
        self.go = Path(os.environ["TURN_GO"]).open(encoding="ascii")
        self.done = Path(os.environ["TURN_DONE"]).open("w", encoding="ascii", buffering=1)
        self.steps = self.left = 1
        self.begin_ns = self.begin_cpu_ns = 0

    def step_ended(self):
        """Count a step; after the last one of a turn say how long it took, and wait. Return whether to go on."""
        self.left -= 1
        if self.left:
            return True
        end_ns, end_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        self.done.write(f"{(end_ns - self.begin_ns) / self.steps} {(end_cpu_ns - self.begin_cpu_ns) / self.steps}\n")
        self.steps = self.left = int(self.go.readline() or 0)
        self.begin_ns, self.begin_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        return self.steps > 0
