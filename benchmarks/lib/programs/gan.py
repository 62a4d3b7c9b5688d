"""A GAN with one optimizer for each network, in the way of the DCGAN tutorial; --critic 5 trains D five times per step.

A step is one update of G and those of D before it. D takes two backward passes per micro-batch, one on real and one on
generated samples.
"""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from truth import Truth, options

SAMPLES, FEATURES, NOISE = 2048, 64, 32


def main():
    args = options(__doc__, critic={"type": int, "default": 1, "help": "updates of D per update of G"})
    torch.manual_seed(args.seed)
    distributed = "RANK" in os.environ
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    dataset = TensorDataset(torch.randn(SAMPLES, FEATURES) * 0.5 + 1)
    sampler = DistributedSampler(dataset, seed=args.seed) if distributed else None
    loader = DataLoader(dataset, args.batch, shuffle=sampler is None, sampler=sampler, drop_last=True)

    generator = nn.Sequential(nn.Linear(NOISE, 256), nn.ReLU(), nn.Linear(256, FEATURES))
    critic = nn.Sequential(nn.Linear(FEATURES, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1))
    if args.compile:
        generator, critic = (torch.compile(model, backend=args.compile) for model in (generator, critic))
    if distributed:
        generator, critic = DistributedDataParallel(generator), DistributedDataParallel(critic)
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(args.batch, 1), torch.zeros(args.batch, 1)

    def batches():
        epoch = 0
        while True:
            if sampler is not None:
                sampler.set_epoch(epoch)
            for (batch,) in loader:
                yield batch
            epoch += 1

    def hold(model, held):
        return model.no_sync() if distributed and held else contextlib.nullcontext()

    truth = Truth()
    real_batches = batches()
    for _ in range(args.steps):
        loss_d = loss_g = 0.0
        for _ in range(args.critic):
            optimizer_d.zero_grad()
            for micro in range(args.accumulation):
                real = next(real_batches)
                truth.batch(len(real))
                with hold(critic, True):
                    error_real = criterion(critic(real), ones) / args.accumulation
                    error_real.backward()
                with hold(critic, micro < args.accumulation - 1):
                    fake = generator(torch.randn(args.batch, NOISE)).detach()
                    error_fake = criterion(critic(fake), zeros) / args.accumulation
                    error_fake.backward()
                loss_d += error_real.item() + error_fake.item()
            optimizer_d.step()

        optimizer_g.zero_grad()
        for micro in range(args.accumulation):
            with hold(generator, micro < args.accumulation - 1), hold(critic, True):
                error_g = criterion(critic(generator(torch.randn(args.batch, NOISE))), ones) / args.accumulation
                error_g.backward()
            loss_g += error_g.item()
        optimizer_g.step()
        truth.step(
            loss_d, loss_g, backwards=args.accumulation * (2 * args.critic + 1), updates=args.critic + 1,
            accumulation=args.accumulation,
        )  # fmt: skip
        if rank == 0 and truth.steps % 10 == 0:
            print(f"[{truth.steps}/{args.steps}] Loss_D: {loss_d:.4f} Loss_G: {loss_g:.4f}", flush=True)

    truth.write()
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
