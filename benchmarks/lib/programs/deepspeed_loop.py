"""DeepSpeed's engine: initialize, engine.backward and engine.step, which decides when the parameters are updated."""

import deepspeed
import torch
from torch import nn
from torch.utils.data import TensorDataset
from truth import Truth, options

SAMPLES, FEATURES, CLASSES = 1024, 256, 10


def main():
    args = options(__doc__, zero={"type": int, "default": 0, "help": "ZeRO's stage"})
    torch.manual_seed(args.seed)
    deepspeed.init_distributed("gloo")
    dataset = TensorDataset(torch.randn(SAMPLES, FEATURES), torch.randint(CLASSES, (SAMPLES,)))
    model = nn.Sequential(
        nn.Linear(FEATURES, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, CLASSES)
    )  # fmt: skip
    config = {
        "train_micro_batch_size_per_gpu": args.batch,
        "gradient_accumulation_steps": args.accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": args.zero},
        "steps_per_print": 10,
    }
    engine, _, loader, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), training_data=dataset, config=config
    )
    if args.compile:
        engine.compile(backend=args.compile)

    truth = Truth()
    total = 0.0
    while truth.steps < args.steps:
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(engine(inputs), labels)
            engine.backward(loss)
            engine.step()
            total += loss.item() / args.accumulation
            truth.batch(len(inputs))
            if engine.global_steps > truth.steps:
                truth.step(total)
                if engine.global_rank == 0 and truth.steps % 10 == 0:
                    print(f"step {truth.steps} loss {total:.4f}", flush=True)
                total = 0.0
                if truth.steps == args.steps:
                    break

    truth.write()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
