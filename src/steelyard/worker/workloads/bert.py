"""BERT for question answering from transformers, without weights: nothing is downloaded."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from steelyard.worker.workloads import tasks
from steelyard.worker.workloads.about import About, about
from steelyard.worker.workloads.bundle import ModelBundle
from steelyard.worker.workloads.options import at_least, library, multiple_of

HEAD_WIDTH = 64
POSITIONS = 512


def facts(title: str, published: float, source: str) -> About:
    """Return the description of one size."""
    return About(
        family="question answering",
        title=title,
        needs=("transformers",),
        data=("squad",),
        metric="F1",
        reduced={"layers": 2, "width": 64, "sequence": 64, "vocabulary": 1000},
        parameters=published,
        source=source,
    )


@about(
    facts(
        "BERT base for SQuAD",
        110e6 - 0.59e6,
        "arXiv 1810.04805, section 3: 110M; without the pooler (0.59 M), which this task does not use",
    )
)
def base(sequence: int = 384, layers: int = 12, width: int = 768, vocabulary: int = 30_522) -> ModelBundle:
    """BERT base (arXiv 1810.04805): 108.9 million parameters with the question-answering head, without the pooler."""
    return _built(sequence, layers, width, vocabulary)


@about(
    facts(
        "BERT large for SQuAD",
        336e6 - 1.05e6,
        "model card of google-bert/bert-large-uncased: 336M (340M in arXiv 1810.04805 is rounded); without the pooler "
        "(1.05 M), which this task does not use",
    )
)
def large(sequence: int = 384, layers: int = 24, width: int = 1024, vocabulary: int = 30_522) -> ModelBundle:
    """BERT large: 334.1 million parameters with the question-answering head, without the pooler."""
    return _built(sequence, layers, width, vocabulary)


def _built(sequence: int, layers: int, width: int, vocabulary: int) -> ModelBundle:
    """Build a BERT. The learning rate is that of fine-tuning: on random labels the loss stays near chance."""
    at_least(1, "BERT", layers=layers, width=width)
    at_least(8, "BERT", sequence=sequence, vocabulary=vocabulary)
    multiple_of(HEAD_WIDTH, "BERT", width=width)

    def batch(samples: int, generator: torch.Generator) -> tuple[Any, Any]:
        tokens = torch.randint(vocabulary, (samples, sequence), generator=generator, device="cpu")
        places = torch.randint(sequence, (samples, 2), generator=generator, device="cpu").sort(dim=1).values
        kinds = (torch.arange(sequence, device="cpu") >= sequence // 4).long().expand(samples, -1).contiguous()
        inputs = {"tokens": tokens, "kinds": kinds, "mask": torch.ones_like(tokens)}
        return inputs, {"start": places[:, 0].contiguous(), "end": places[:, 1].contiguous()}

    def loss(scores: tuple[torch.Tensor, torch.Tensor], target: dict[str, Any]) -> torch.Tensor:
        starts, ends = scores
        return (functional.cross_entropy(starts, target["start"]) + functional.cross_entropy(ends, target["end"])) / 2

    module = Bert(layers, width, vocabulary, max(sequence, POSITIONS))
    task = tasks.question_answering(sequence, vocabulary)
    return ModelBundle(
        module, loss, partial(torch.optim.AdamW, lr=3e-5, weight_decay=0.01), batch, task, tokens=sequence
    )


class Bert(nn.Module):
    """The library's model: from tokens to scores for the first and last token of an answer."""

    def __init__(self, layers: int, width: int, vocabulary: int, positions: int) -> None:
        super().__init__()
        transformers = library("transformers", "transformers", "the workload bert")
        config = transformers.BertConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=width // HEAD_WIDTH,
            intermediate_size=4 * width,
            max_position_embeddings=positions,
        )
        self.inner = transformers.BertForQuestionAnswering(config)

    def forward(
        self, tokens: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores per token; `kinds` separates question and paragraph, `mask` tokens and padding."""
        output = self.inner(input_ids=tokens, token_type_ids=kinds, attention_mask=mask)
        return output.start_logits, output.end_logits
