"""A plain training loop: a DataLoader over tensors, SGD, and DDP under torchrun."""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from truth import Truth, options

SAMPLES, FEATURES, CLASSES = 1000, 256, 10


def main():
    args = options(__doc__)
    torch.manual_seed(args.seed)
    distributed = "RANK" in os.environ
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    dataset = TensorDataset(torch.randn(SAMPLES, FEATURES), torch.randint(CLASSES, (SAMPLES,)))
    sampler = DistributedSampler(dataset, seed=args.seed) if distributed else None
    loader = DataLoader(dataset, batch_size=args.batch, shuffle=sampler is None, sampler=sampler)

    model = nn.Sequential(
        nn.Linear(FEATURES, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, CLASSES)
    )  # fmt: skip
    if distributed:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    forward = torch.compile(model, dynamic=True, backend=args.compile) if args.compile else model

    truth = Truth()
    total, waiting, epoch = 0.0, 0, 0
    while truth.steps < args.steps:
        if sampler is not None:
            sampler.set_epoch(epoch)
        for images, labels in loader:
            waiting += 1
            last = waiting == args.accumulation
            with contextlib.nullcontext() if last or not distributed else model.no_sync():
                loss = criterion(forward(images), labels) / args.accumulation
                loss.backward()
            total += loss.item()
            truth.batch(len(images))
            if last:
                optimizer.step()
                optimizer.zero_grad()
                truth.step(total)
                if rank == 0 and truth.steps % 10 == 0:
                    print(f"epoch {epoch} step {truth.steps} loss {total:.4f}", flush=True)
                total, waiting = 0.0, 0
                if truth.steps == args.steps:
                    break
        epoch += 1

    truth.write()
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
