"""Mixed precision: autocast to fp16 with a GradScaler, which skips the update when a sample is too large."""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from truth import Truth, options

FEATURES, CLASSES, BROKEN_EVERY = 128, 10, 700


class Measured(Dataset):
    """Random samples; one in 700 is too large for fp16."""

    def __init__(self, samples):
        self.inputs = torch.randn(samples, FEATURES)
        self.inputs[BROKEN_EVERY - 1 :: BROKEN_EVERY] = 1e30
        self.labels = torch.randint(CLASSES, (samples,))

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.labels[index]


def main():
    args = options(__doc__)
    torch.manual_seed(args.seed)
    distributed = "RANK" in os.environ
    if distributed:
        dist.init_process_group("gloo")
    world, rank = (dist.get_world_size(), dist.get_rank()) if distributed else (1, 0)

    dataset = Measured(args.steps * args.batch * args.accumulation * world)
    sampler = DistributedSampler(dataset, shuffle=False) if distributed else None
    loader = DataLoader(dataset, batch_size=args.batch, sampler=sampler)
    model = nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, CLASSES))
    if distributed:
        model = DistributedDataParallel(model)
    forward = torch.compile(model, backend=args.compile) if args.compile else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=20)

    truth = Truth()
    total = 0.0
    for number, (inputs, labels) in enumerate(loader, 1):
        last = number % args.accumulation == 0
        with contextlib.nullcontext() if last or not distributed else model.no_sync():
            with torch.autocast("cpu", dtype=torch.float16):
                loss = criterion(forward(inputs), labels) / args.accumulation
            scaler.scale(loss).backward()
        total += loss.item()
        truth.batch(len(inputs))
        if not last:
            continue
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        skipped = scaler.get_scale() < before
        truth.skipped += skipped
        truth.step(total, updates=0 if skipped else 1)
        if rank == 0 and truth.steps % 10 == 0:
            print(f"step {truth.steps} loss {total:.4f} scale {scaler.get_scale():g}", flush=True)
        total = 0.0

    truth.write()
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
