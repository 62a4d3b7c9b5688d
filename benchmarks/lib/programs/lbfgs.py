"""LBFGS: the optimizer calls a closure that runs forward and backward passes, several times in one step."""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from truth import Truth, options

SAMPLES, FEATURES = 2048, 32


def main():
    args = options(__doc__, iterations={"type": int, "default": 4, "help": "of LBFGS in one step"})
    torch.manual_seed(args.seed)
    distributed = "RANK" in os.environ
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    inputs = torch.randn(SAMPLES, FEATURES)
    dataset = TensorDataset(inputs, torch.sin(inputs.sum(1, keepdim=True)))
    sampler = DistributedSampler(dataset, seed=args.seed) if distributed else None
    loader = DataLoader(dataset, args.batch, shuffle=sampler is None, sampler=sampler, drop_last=True)
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 1))
    if distributed:
        model = DistributedDataParallel(model)
    forward = torch.compile(model, backend=args.compile) if args.compile else model
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=args.iterations, history_size=5)

    truth = Truth()
    stream = iter(loader)
    while truth.steps < args.steps:
        batches = []
        while len(batches) < args.accumulation:
            batch = next(stream, None)
            if batch is None:
                stream = iter(loader)
                continue
            batches.append(batch)
            truth.batch(len(batch[0]))
        passes = 0

        def closure(batches=batches):
            nonlocal passes
            optimizer.zero_grad()
            total = 0.0
            for number, (x, y) in enumerate(batches, 1):
                passes += 1
                with contextlib.nullcontext() if number == len(batches) or not distributed else model.no_sync():
                    loss = nn.functional.mse_loss(forward(x), y) / len(batches)
                    loss.backward()
                total += loss.item()
            if distributed:
                # Every rank must take the same decisions inside the optimizer.
                mean = torch.tensor(total)
                dist.all_reduce(mean)
                total = mean.item() / dist.get_world_size()
            return total

        loss = optimizer.step(closure)
        truth.step(loss, backwards=passes)
        if rank == 0 and truth.steps % 10 == 0:
            print(f"step {truth.steps} loss {loss:.5f} evaluations {passes}", flush=True)

    truth.write()
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
