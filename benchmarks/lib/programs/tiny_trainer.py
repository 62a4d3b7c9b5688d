"""The tiny model of tiny.py in Hugging Face's Trainer, in turns with others; --count times and counts by a callback."""

import argparse
import tempfile
import time

import torch
from tiny import BATCH, TextModel, Texts
from torch.utils.data import default_collate
from transformers import Trainer, TrainerCallback, TrainingArguments
from turns import Turns

FLUSH_S = 0.5


class TakeTurns(TrainerCallback):
    """Ends each step."""

    def __init__(self):
        self.turns = Turns()

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = not self.turns.step_ended()


class Count(TrainerCallback):
    """Times of steps, samples, tokens and labels, as people write it. A callback sees no batch, but a collator does."""

    def __init__(self, file):
        self.file, self.rows, self.written_s = file, [], 0.0
        self.samples = self.tokens = self.labels = 0

    def collate(self, items):
        batch = default_collate(items)
        self.samples += len(batch["input_ids"])
        self.tokens += batch["attention_mask"].sum().item()
        self.labels += (batch["labels"] != -100).sum().item()
        return batch

    def on_step_begin(self, args, state, control, **kwargs):
        self.begin_s = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        now_s = time.perf_counter()
        self.rows.append((self.begin_s, now_s - self.begin_s, self.samples, self.tokens, self.labels))
        self.samples = self.tokens = self.labels = 0
        if now_s - self.written_s > FLUSH_S:
            self.file.writelines(f"{row}\n" for row in self.rows)
            self.file.flush()
            self.rows, self.written_s = [], now_s


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w") as file:
        count = Count(file)
        settings = TrainingArguments(
            output_dir=folder, max_steps=10**6, per_device_train_batch_size=BATCH, save_strategy="no",
            logging_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True, seed=1, optim="sgd",
        )  # fmt: skip
        trainer = Trainer(
            model=TextModel(), args=settings, train_dataset=Texts(), callbacks=[*([count] if args.count else [])],
            data_collator=count.collate if args.count else default_collate,
        )  # fmt: skip
        trainer.add_callback(TakeTurns())
        trainer.train()


if __name__ == "__main__":
    main()
