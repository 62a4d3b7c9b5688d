"""Hugging Face's Trainer on a tiny Llama from scratch, with padded texts, evaluations and checkpoints."""

import os
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from truth import Truth, options

VOCABULARY, PAD, PROMPT = 128, 0, 3


class Texts(Dataset):
    """Random texts of 8 to 40 tokens."""

    def __init__(self, texts):
        self.texts = [torch.randint(1, VOCABULARY, (8 + number * 7 % 33,)) for number in range(texts)]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return {"input_ids": self.texts[index]}


def collate(items):
    """Pad to the longest text of the batch. The first tokens are a prompt, on which nothing is learned."""
    texts = [item["input_ids"] for item in items]
    input_ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=PAD)
    places = torch.arange(input_ids.shape[1])
    attention_mask = (places < torch.tensor([len(text) for text in texts])[:, None]).long()
    labels = input_ids.masked_fill((attention_mask == 0) | (places < PROMPT), -100)
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


class CountingTrainer(Trainer):
    """A Trainer that counts what it trains on, as people write one to log more."""

    def __init__(self, truth, **rest):
        super().__init__(**rest)
        self.truth, self.total = truth, 0.0

    def training_step(self, model, inputs, num_items_in_batch=None):
        ids, mask, labels = inputs["input_ids"], inputs["attention_mask"], inputs["labels"]
        self.truth.batch(len(ids), ids.numel(), (mask == 0).sum(), (labels != -100).sum())
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.total += loss.item()
        return loss

    def evaluate(self, *args, **kwargs):
        with self.truth.evaluation():
            return super().evaluate(*args, **kwargs)

    def _save_checkpoint(self, *args, **kwargs):
        with self.truth.checkpoint():
            return super()._save_checkpoint(*args, **kwargs)


class StepEnds(TrainerCallback):
    """Notes the end of each step."""

    def __init__(self):
        self.trainer = None

    def on_step_end(self, args, state, control, **kwargs):
        self.trainer.truth.step(self.trainer.total)
        self.trainer.total = 0.0


def main():
    args = options(__doc__)
    torch.manual_seed(args.seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=PAD, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    ends = StepEnds()
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder, max_steps=args.steps, per_device_train_batch_size=args.batch,
            gradient_accumulation_steps=args.accumulation, eval_strategy="steps", eval_steps=20, save_steps=30,
            logging_steps=10, learning_rate=1e-3, seed=args.seed, torch_compile=bool(args.compile), use_cpu=True,
            report_to="none", disable_tqdm=True, ddp_backend="gloo" if "RANK" in os.environ else None,
        )  # fmt: skip
        ends.trainer = trainer = CountingTrainer(
            Truth(), model=LlamaForCausalLM(config), args=settings, data_collator=collate,
            train_dataset=Texts(600), eval_dataset=Texts(40), callbacks=[ends],
        )  # fmt: skip
        trainer.train()
        trainer.truth.write()


if __name__ == "__main__":
    main()
