"""One optimizer per parameter, stepped in hooks during the backward pass, in the way of PyTorch's tutorial.

The gradients are gone after the backward pass: there is no accumulation, and DDP would average them too late.
"""

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from truth import Truth, options

SAMPLES, FEATURES = 1024, 128


def main():
    args = options(__doc__)
    if args.accumulation != 1 or int(os.environ.get("WORLD_SIZE", "1")) != 1:
        sys.exit("per_parameter.py: one rank without accumulation is valid only")
    torch.manual_seed(args.seed)
    dataset = TensorDataset(torch.randn(SAMPLES, FEATURES), torch.randn(SAMPLES, 1))
    loader = DataLoader(dataset, args.batch, shuffle=True, drop_last=True)
    model = nn.Sequential(*(nn.Linear(FEATURES, FEATURES) for _ in range(4)), nn.Linear(FEATURES, 1))
    optimizers = {parameter: torch.optim.Adam([parameter], foreach=False) for parameter in model.parameters()}

    def optimizer_hook(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(optimizer_hook)
    forward = torch.compile(model, backend=args.compile) if args.compile else model

    truth = Truth()
    while truth.steps < args.steps:
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(forward(inputs), targets)
            loss.backward()
            truth.batch(len(inputs))
            truth.step(loss.item(), updates=len(optimizers))
            if truth.steps % 10 == 0:
                print(f"step {truth.steps} loss {loss.item():.4f}", flush=True)
            if truth.steps == args.steps:
                break
    truth.write()


if __name__ == "__main__":
    main()
