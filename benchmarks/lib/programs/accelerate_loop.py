"""Hugging Face's Accelerate around a plain loop: prepare, accumulate, backward, and an evaluation every 25 steps."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from truth import Truth, options

SAMPLES, FEATURES, CLASSES, EVALUATE_EVERY = 1024, 256, 10, 25


def main():
    args = options(__doc__)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulation)
    set_seed(args.seed)
    inputs, labels = torch.randn(SAMPLES, FEATURES), torch.randint(CLASSES, (SAMPLES,))
    train = DataLoader(TensorDataset(inputs, labels), args.batch, shuffle=True, drop_last=True)
    validation = DataLoader(TensorDataset(inputs[:256], labels[:256]), 64)
    model = nn.Sequential(
        nn.Linear(FEATURES, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, CLASSES)
    )  # fmt: skip
    if args.compile:
        model = torch.compile(model, backend=args.compile)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=args.steps)
    model, optimizer, train, validation, scheduler = accelerator.prepare(model, optimizer, train, validation, scheduler)

    def evaluate():
        model.eval()
        right = 0
        for x, y in validation:
            with torch.no_grad():
                predictions = model(x).argmax(-1)
            predictions, y = accelerator.gather_for_metrics((predictions, y))
            right += (predictions == y).sum().item()
        model.train()
        return right / len(validation.dataset)

    truth = Truth()
    total = 0.0
    model.train()
    while truth.steps < args.steps:
        for x, y in train:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            total += loss.item() / args.accumulation
            truth.batch(len(x))
            if not accelerator.sync_gradients:
                continue
            truth.step(total)
            if truth.steps % 10 == 0:
                accelerator.print(f"step {truth.steps} loss {total:.4f}", flush=True)
            total = 0.0
            if truth.steps % EVALUATE_EVERY == 0:
                with truth.evaluation():
                    accuracy = evaluate()
                accelerator.print(f"step {truth.steps} accuracy {accuracy:.3f}", flush=True)
            if truth.steps == args.steps:
                break

    truth.write()
    accelerator.end_training()


if __name__ == "__main__":
    main()
