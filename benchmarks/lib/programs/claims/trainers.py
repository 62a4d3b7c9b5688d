"""The trainers of Hugging Face and of Lightning as they are: what they print is theirs."""

import argparse
import tempfile

import torch
from loop import BATCH, OnHost, Texts, collate
from torch.utils.data import DataLoader

STEPS = 101


class Model(torch.nn.Module):
    """The model of the loop, which gives its loss as a Hugging Face model does."""

    def __init__(self):
        super().__init__()
        self.job = OnHost(distributed=False)
        self.layers = self.job.model

    def forward(self, input_ids, attention_mask, labels):
        return {"loss": self.job.loss({"input_ids": input_ids, "labels": labels})}


def hugging_face(accumulation):
    """Train with the Trainer."""
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder, max_steps=STEPS, per_device_train_batch_size=BATCH, logging_steps=20, use_cpu=True,
            gradient_accumulation_steps=accumulation, save_strategy="no", report_to="none",
            include_num_input_tokens_seen="non_padding",
        )  # fmt: skip
        Trainer(Model(), settings, data_collator=collate, train_dataset=Texts()).train()


def lightning(accumulation):
    """Train with Lightning."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, batch, _number):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu", max_steps=STEPS, accumulate_grad_batches=accumulation, logger=False,
            enable_checkpointing=False, enable_model_summary=False, default_root_dir=folder,
        )  # fmt: skip
        trainer.fit(Module(), DataLoader(Texts(), batch_size=BATCH, collate_fn=collate))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trainer", choices=("hugging_face", "lightning"))
    parser.add_argument("--accumulation", type=int, default=1)
    args = parser.parse_args()
    {"hugging_face": hugging_face, "lightning": lightning}[args.trainer](args.accumulation)


if __name__ == "__main__":
    main()
