"""Texts of different lengths: padded by collate_fn, with an attention mask and labels of -100."""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from truth import Truth, options

VOCABULARY, WIDTH, LONGEST, TEXTS, PAD, PROMPT = 128, 64, 40, 600, 0, 3


class Texts(Dataset):
    """Random texts whose length depends on their number: 8 to 40 tokens."""

    def __init__(self):
        self.texts = [torch.randint(1, VOCABULARY, (8 + number * 7 % 33,)) for number in range(TEXTS)]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.texts[index]


def collate_fn(texts):
    """Pad to the longest text of the batch. The first tokens are a prompt, on which nothing is learned."""
    input_ids = nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=PAD)
    lengths = torch.tensor([len(text) for text in texts])
    places = torch.arange(input_ids.shape[1])
    attention_mask = (places < lengths[:, None]).long()
    labels = input_ids.masked_fill((attention_mask == 0) | (places < PROMPT), -100)
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


class Model(nn.Module):
    """One layer of attention over embeddings."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 128, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids, attention_mask, labels):
        """Return the loss of the tokens that have a label."""
        hidden = self.tokens(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        logits = self.head(self.layer(hidden, src_key_padding_mask=attention_mask == 0))
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def main():
    args = options(__doc__)
    torch.manual_seed(args.seed)
    distributed = "RANK" in os.environ
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    dataset = Texts()
    sampler = DistributedSampler(dataset, seed=args.seed) if distributed else None
    loader = DataLoader(dataset, args.batch, shuffle=sampler is None, sampler=sampler, collate_fn=collate_fn)
    model = Model()
    if distributed:
        model = DistributedDataParallel(model)
    forward = torch.compile(model, dynamic=True, backend=args.compile) if args.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    truth = Truth()
    total, waiting, epoch = 0.0, 0, 0
    while truth.steps < args.steps:
        if sampler is not None:
            sampler.set_epoch(epoch)
        for batch in loader:
            waiting += 1
            last = waiting == args.accumulation
            with contextlib.nullcontext() if last or not distributed else model.no_sync():
                loss = forward(**batch) / args.accumulation
                loss.backward()
            total += loss.item()
            padding, learned = (batch["attention_mask"] == 0).sum(), (batch["labels"] != -100).sum()
            truth.batch(len(batch["input_ids"]), batch["input_ids"].numel(), padding, learned)
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
