"""A tiny model in a plain loop, in turns with others: numbers, or texts with a mask and labels."""

import argparse
import contextlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from turns import Turns

SAMPLES, BATCH, FEATURES, CLASSES, VOCABULARY, LENGTH = 1024, 8, 16, 10, 64, 32


class Texts(Dataset):
    """Random texts, padded; nothing is learned on their first tokens."""

    def __init__(self):
        self.ids = torch.randint(1, VOCABULARY, (SAMPLES, LENGTH))
        self.mask = (torch.arange(LENGTH) < torch.randint(8, LENGTH, (SAMPLES, 1))).long()
        self.labels = self.ids.masked_fill((self.mask == 0) | (torch.arange(LENGTH) < 3), -100)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "attention_mask": self.mask[index], "labels": self.labels[index]}


class TextModel(nn.Module):
    """The next token from the one before."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(VOCABULARY, FEATURES), nn.Linear(FEATURES, VOCABULARY))

    def forward(self, input_ids, attention_mask, labels):
        """Return the loss, as transformers' models do."""
        logits = self.layers(input_ids).flatten(0, 1)
        return {"loss": nn.functional.cross_entropy(logits, labels.flatten(), ignore_index=-100)}


def numbers():
    """Return a model, its data and its loss."""
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    data = TensorDataset(torch.randn(SAMPLES, FEATURES), torch.randint(CLASSES, (SAMPLES,)))
    return model, data, lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1])


def texts():
    """Return a model, its data and its loss."""
    model = TextModel()
    return model, Texts(), lambda batch: model(**batch)["loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", action="store_true")
    parser.add_argument("--traceml", action="store_true", help="with the lines that TraceML needs in a plain loop")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model, data, loss_of = texts() if args.texts else numbers()
    around = contextlib.nullcontext
    if args.traceml:
        import traceml_ai

        traceml_ai.init(mode="auto")
        around = traceml_ai.trace_step
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    turns = Turns()
    while True:
        for batch in DataLoader(data, BATCH, shuffle=True):
            with around(model):
                optimizer.zero_grad()
                loss_of(batch).backward()
                optimizer.step()
            if not turns.step_ended():
                return


if __name__ == "__main__":
    main()
