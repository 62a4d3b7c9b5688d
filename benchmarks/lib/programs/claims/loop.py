"""A small training loop that prints its speed. `--bug` makes one of the known mistakes in it.

The work of a micro-batch is a fixed time beside a tiny real model, so that the time of a step is stable. The program
knows the right figure as well. It writes how many times as much it prints, as JSON to the file that TRUTH names.
"""

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

BUGS = (
    "no accumulation", "accumulation twice", "padding", "one rank", "all ranks", "evaluation", "first step",
    "input wait", "samples", "no synchronisation", "other peak", "sparsity", "impossible",
)  # fmt: skip
BATCH, LENGTH, LENGTHS = 8, 64, (64, 56, 48, 40, 32, 24, 16, 8)
WORK_S, FETCH_S, FIRST_S, EVALUATION_S = 8e-3, 2e-3, 0.4, 60e-3
# On the scripted accelerator a step takes 80 ms, much longer than the host needs to put it into the queue.
WIDE, ROWS = 16384, 3072
PEAK, SPARSE_PEAK, OTHER_PEAK = 989.4e12, 2 * 989.4e12, 312e12
TIMES = ("time", "mean", "nanogpt", "megatron")
"""Styles that print a time, the others a rate."""


class Texts(Dataset):
    """Texts of different lengths; every batch has the same."""

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        if index % BATCH == 0:
            time.sleep(FETCH_S)
        return torch.ones(LENGTHS[index % BATCH], dtype=torch.long)


def collate(texts):
    """Pad the texts."""
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": ids}


class OnHost:
    """A tiny model on the CPU, and a pause as the work."""

    flops = None

    def __init__(self, distributed):
        self.model = torch.nn.Sequential(torch.nn.Embedding(8, 16), torch.nn.Linear(16, 8))
        self.trained = torch.nn.parallel.DistributedDataParallel(self.model) if distributed else self.model

    def loss(self, batch):
        """Work on one micro-batch."""
        out = self.trained(batch["input_ids"])
        time.sleep(WORK_S)
        return torch.nn.functional.cross_entropy(out.flatten(0, 1), batch["labels"].flatten())

    def backward(self, batch):
        """Work on one micro-batch, and keep its gradients."""
        loss = self.loss(batch)
        loss.backward()
        return loss

    def synchronize(self):
        """The host has done everything itself."""


class OnScripted:
    """A large model on the scripted accelerator, which computes nothing."""

    flops = 2 * ROWS * BATCH * WIDE * (2 * LENGTH + 3 * WIDE)
    """Per micro-batch: gradients of the input are needed for the second layer only."""

    def __init__(self):
        import scripted_device  # noqa: F401 -- as a vendor's library adds its device

        with torch.device("scripted"):
            self.model = torch.nn.Sequential(
                torch.nn.Linear(LENGTH, WIDE, dtype=torch.bfloat16), torch.nn.Linear(WIDE, WIDE, dtype=torch.bfloat16)
            )

    def backward(self, batch):
        """Put the work on one micro-batch into the queue."""
        rows = batch["input_ids"].to("scripted", dtype=torch.bfloat16).repeat(ROWS, 1)
        loss = self.model(rows).sum()
        loss.backward()
        return loss

    def synchronize(self):
        """Wait for the device."""
        torch.scripted.synchronize()


class Speed:
    """What the program counts and prints, and what would have been right."""

    def __init__(self, args, world, flops):
        self.bug, self.style, self.world, self.accumulation = args.bug, args.style, world, args.accumulation
        self.flops, self.every = flops, args.every
        self.peak = {"other peak": OTHER_PEAK, "sparsity": SPARSE_PEAK}.get(self.bug, PEAK)
        self.steps, self.printed = 0, []
        self.begin_again()

    def begin_again(self):
        self.told = self.counted_s = self.right = self.right_s = 0.0
        self.inside = 0

    def step(self, right, told, right_s, counted_s, loss):
        """Count a step; print a line now and then."""
        self.steps += 1
        first = self.steps == 1
        if not first or self.bug == "first step":
            self.told, self.counted_s = self.told + told, self.counted_s + counted_s
            self.inside += 1
        if not first:
            self.right, self.right_s = self.right + right, self.right_s + right_s
        if self.steps % self.every == 1 and not first and dist_rank() == 0:
            self.line(loss)
        if self.steps % self.every == 1 and not first and self.bug != "first step":
            self.begin_again()

    def line(self, loss):
        """Print the speed of the last steps in the style of a trainer."""
        number, each_s, rate = self.steps - 1, self.counted_s / self.inside, self.told / self.counted_s
        self.printed.append(rate / (self.right / self.right_s))
        ms = 1000 * each_s
        flops = self.flops and self.flops * self.accumulation
        mfu = 100 * flops / each_s / self.peak if flops else -100.0
        samples = BATCH * self.accumulation * self.world
        lines = {
            "samples": f"step {number} loss {loss:.3f} {rate:.2f} samples/s",
            "tokens": f"step {number} | loss {loss:.3f} | tokens/s: {rate:.2f}",
            "total": f"step {number} loss {loss:.3f} total throughput {rate:.2f} tokens/s",
            "device": f"step {number} loss {loss:.3f} {rate:.2f} tokens/s/GPU",
            "time": f"step {number}: {ms:.3f} ms/step",
            "mean": f"step {number}: average {ms:.3f} ms/step",
            "mfu": f"step {number}: dt {ms:.3f}ms MFU {mfu:.2f}%",
            "only mfu": f"step {number}: MFU {mfu:.2f}%",
            # karpathy/nanoGPT train.py
            "nanogpt": f"iter {number}: loss {loss:.4f}, time {ms:.2f}ms, mfu {mfu:.2f}%",
            # NVIDIA/Megatron-LM megatron/training/training.py
            "megatron": f" [{time.strftime('%Y-%m-%d %H:%M:%S')}] iteration {number:8d}/     101 | consumed samples: "
            f"{number * samples:12d} | elapsed time per iteration (ms): {ms:.1f} | learning rate: 1.000000E-03 | "
            f"global batch size: {samples:5d} | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: 1.000 | "
            "number of skipped iterations:   0 | number of nan iterations:   0 |",
            # AI-Hypercomputer/maxtext src/maxtext/common/metric_logger.py
            "maxtext": f"completed step: {number}, seconds: {each_s:.5f}, TFLOP/s/device: 0.001, "
            f"Tokens/s/device: {rate / self.world:.3f}, total_weights: 8192, loss: {loss:.3f}",
            "bar": "",
        }
        if lines[self.style]:
            print(lines[self.style], flush=True)

    def factor(self):
        """Return how many times the right figure the last lines show."""
        if self.peak != PEAK:
            return PEAK / self.peak
        used = self.printed[-1:] if self.bug == "first step" else self.printed[1:]
        rate = len(used) / math.fsum(1 / factor for factor in used)
        return 1 / rate if self.style in TIMES else rate


def dist_rank():
    return dist.get_rank() if dist.is_initialized() else 0


def evaluate(model):
    """Look at the model for a while, as an evaluation does."""
    model.eval()
    time.sleep(EVALUATION_S)
    model.train()


def work_of(batch, bug):
    """Return how many tokens or samples a batch holds, and how many the program counts."""
    tokens = int(batch["attention_mask"].sum())
    return tokens, {"padding": batch["input_ids"].numel(), "samples": len(batch["input_ids"])}.get(bug, tokens)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bug", choices=BUGS)
    parser.add_argument("--style", default="tokens")
    parser.add_argument("--steps", type=int, default=101)
    parser.add_argument("--every", type=int, default=20, help="steps of a line")
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--device", choices=("cpu", "scripted"), default="cpu")
    args = parser.parse_args()
    bug = args.bug
    distributed = "RANK" in os.environ
    if distributed:
        dist.init_process_group("gloo")
    world = dist.get_world_size() if distributed else 1
    job = OnScripted() if args.device == "scripted" else OnHost(distributed)
    optimizer = torch.optim.SGD(job.model.parameters(), lr=0.01)
    batches = iter(DataLoader(Texts(), batch_size=BATCH, collate_fn=collate))
    speed = Speed(args, world, job.flops)
    epoch = tqdm(range(args.steps), desc="train", disable=args.style != "bar", file=sys.stderr, mininterval=0.05)
    for step in epoch:
        begin = time.perf_counter()
        wait_s, right, told = 0.0, 0, 0
        for _ in range(args.accumulation):
            asked = time.perf_counter()
            batch = next(batches)
            wait_s += time.perf_counter() - asked
            if step == 0:
                time.sleep(FIRST_S)
            loss = job.backward(batch)
            one, counted = (BATCH, BATCH) if args.style == "samples" else work_of(batch, bug)
            right, told = right + one, told + counted
        optimizer.step()
        optimizer.zero_grad()
        if bug not in ("no synchronisation", "impossible"):
            job.synchronize()
        counted_s = time.perf_counter() - begin
        value = loss.item()
        right_s = time.perf_counter() - begin
        if args.evaluate and step and step % args.every == args.every // 2:
            evaluate(job.model)
        if bug == "evaluation":
            counted_s = time.perf_counter() - begin
        elif bug == "input wait":
            counted_s -= wait_s
        told *= {"no accumulation": 1 / args.accumulation, "accumulation twice": args.accumulation}.get(bug, 1)
        of_one = bug == "one rank" or (args.style == "device" and bug != "all ranks")
        speed.step(right if args.style == "device" else right * world, told if of_one else told * world,
                   right_s, counted_s, value)  # fmt: skip
    if dist_rank() == 0 and "TRUTH" in os.environ:
        Path(os.environ["TRUTH"]).write_text(json.dumps({"factor": speed.factor()}), encoding="utf-8")
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
