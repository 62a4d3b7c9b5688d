"""Counts, own clock and losses of a training program, written as one JSON line at its end."""

import argparse
import contextlib
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

FIRST_STEPS = 10
"""Steps that the program's own mean leaves out."""


def options(description, **extra):
    """Parse the options that every program has, and its own from `extra`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=32, help="samples of a micro-batch of one rank")
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--compile", metavar="BACKEND", help="compile the model by this backend of torch.compile")
    parser.add_argument("--seed", type=int, default=1)
    for name, value in extra.items():
        parser.add_argument(f"--{name}", **value)
    return parser.parse_args()


class Truth:
    """Counts of one rank; `write` adds those of all ranks.

    accumulations: micro-batches of each step; accumulation: of most steps, for the last of an epoch may have fewer.
    tokens: positions of the input, padding among them. label_tokens: positions that count in the loss. samples and
    tokens are summed over all ranks; backwards and updates are those of one rank, over all its optimizers. losses are
    those of rank 0. step_s is the mean from the end of step 10 to the end of the last one, without evaluations and
    checkpoints; durations_s are the parts of which it is made.
    """

    def __init__(self):
        self.steps = self.samples = self.skipped = self.evaluations = self.checkpoints = 0
        self.backwards = self.updates = 0
        self.tokens = self.padding_tokens = self.label_tokens = None
        self.micro_batches = 0
        self.accumulations = []
        self.losses = []
        self.durations_s = []
        self.away_s = 0.0
        self.last = None

    def batch(self, samples, tokens=None, padding_tokens=None, label_tokens=None):
        """Count a micro-batch and what it holds; None: a program without tokens."""
        self.samples += samples
        self.micro_batches += 1
        counts = {"tokens": tokens, "padding_tokens": padding_tokens, "label_tokens": label_tokens}
        for name, count in counts.items():
            if count is not None:
                setattr(self, name, (getattr(self, name) or 0) + int(count))

    def step(self, *losses, backwards=None, updates=1, accumulation=None):
        """Note the end of a step. backwards: None for one per micro-batch; accumulation: None for all micro-batches."""
        now = time.perf_counter()
        if self.last is not None:
            self.durations_s.append(now - self.last - self.away_s)
        self.last, self.away_s = now, 0.0
        self.steps += 1
        self.backwards += self.micro_batches if backwards is None else backwards
        self.accumulations.append(self.micro_batches if accumulation is None else accumulation)
        self.micro_batches = 0
        self.updates += updates
        self.losses += [float(loss).hex() for loss in losses]

    @contextlib.contextmanager
    def away(self):
        """Time that belongs to no step."""
        start = time.perf_counter()
        yield
        self.away_s += time.perf_counter() - start

    @contextlib.contextmanager
    def evaluation(self):
        """Take the time of an evaluation out of the steps."""
        self.evaluations += 1
        with self.away():
            yield

    @contextlib.contextmanager
    def checkpoint(self):
        """Take the time of a checkpoint out of the steps."""
        self.checkpoints += 1
        with self.away():
            yield

    def write(self):
        """Write one line to the file named by TRUTH, or to the output if there is none; on rank 0 only."""
        # The one before the first duration is the first step, whose start nobody noted.
        timed = self.durations_s[FIRST_STEPS - 1 :]
        truth = {
            "steps": self.steps,
            "samples": over_ranks(self.samples),
            "tokens": over_ranks(self.tokens),
            "padding_tokens": over_ranks(self.padding_tokens),
            "label_tokens": over_ranks(self.label_tokens),
            "accumulation": max(self.accumulations, key=self.accumulations.count, default=None),
            "accumulations": self.accumulations,
            "step_s": sum(timed) / len(timed) if timed else None,
            "durations_s": self.durations_s,
            "losses": self.losses,
            "skipped": self.skipped,
            "backwards": self.backwards,
            "updates": self.updates,
            "evaluations": self.evaluations,
            "checkpoints": self.checkpoints,
        }
        if int(os.environ.get("RANK", "0")) != 0:
            return
        line = json.dumps({"truth": truth})
        if "TRUTH" in os.environ:
            Path(os.environ["TRUTH"]).write_text(line + "\n", encoding="utf-8")
        else:
            print(line, flush=True)


def over_ranks(count):
    """Return the sum of a count over all ranks; None stays None."""
    if count is None or not dist.is_initialized():
        return count
    total = torch.tensor(count)
    dist.all_reduce(total)
    return int(total)
