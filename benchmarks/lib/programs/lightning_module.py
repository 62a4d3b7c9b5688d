"""A LightningModule under Lightning's Trainer, with validations during training and a checkpoint callback."""

import contextlib
import os
import tempfile

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from truth import Truth, options

SAMPLES, FEATURES, CLASSES = 1024, 256, 10


class Classifier(lightning.LightningModule):
    """A small network and how it is trained."""

    def __init__(self, truth):
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(FEATURES, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, CLASSES)
        )  # fmt: skip
        self.truth = truth

    def training_step(self, batch, batch_idx):
        inputs, labels = batch
        self.truth.batch(len(inputs))
        return nn.functional.cross_entropy(self.network(inputs), labels)

    def validation_step(self, batch, batch_idx):
        inputs, labels = batch
        self.log("val_loss", nn.functional.cross_entropy(self.network(inputs), labels), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Clock(Callback):
    """Notes the end of each step."""

    def __init__(self, truth):
        self.truth, self.total = truth, 0.0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.total += outputs["loss"].item()
        if trainer.global_step > self.truth.steps:
            self.truth.step(self.total)
            self.total = 0.0


def time_validations(trainer, truth):
    """Take the whole validation loop out of the steps: what it prepares, and the checkpoint at its end too."""
    loop = trainer.fit_loop.epoch_loop.val_loop
    original = loop.run

    def run():
        with contextlib.nullcontext() if trainer.sanity_checking else truth.evaluation():
            return original()

    loop.run = run


def main():
    args = options(__doc__)
    lightning.seed_everything(args.seed, verbose=False)
    inputs, labels = torch.randn(SAMPLES, FEATURES), torch.randint(CLASSES, (SAMPLES,))
    train = DataLoader(TensorDataset(inputs, labels), args.batch, shuffle=True, drop_last=True)
    validation = DataLoader(TensorDataset(inputs[:256], labels[:256]), 64)
    truth = Truth()
    model = Classifier(truth)
    if args.compile:
        model.network.compile(backend=args.compile)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto", max_steps=args.steps,
            accumulate_grad_batches=args.accumulation, logger=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=folder, check_val_every_n_epoch=None,
            val_check_interval=20 * args.accumulation,
            callbacks=[Clock(truth), ModelCheckpoint(dirpath=folder, monitor="val_loss")],
        )  # fmt: skip
        time_validations(trainer, truth)
        trainer.fit(model, train, validation)
        truth.write()


if __name__ == "__main__":
    main()
