"""Llama models of transformers in their published shapes, without weights: nothing is downloaded."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from steelyard.errors import InputError, Problem
from steelyard.worker.workloads import tasks
from steelyard.worker.workloads.about import About, about
from steelyard.worker.workloads.bundle import Generation, ModelBundle
from steelyard.worker.workloads.options import at_least, library, multiple_of, padded


@dataclass(frozen=True)
class LlamaShape:
    """Determines the number of parameters."""

    layers: int
    width: int
    heads: int
    groups: int
    """Number of key-value heads, shared by the query heads."""
    hidden: int
    """Width inside the MLP."""
    vocabulary: int
    tied: bool
    """Whether the head shares the embeddings' weights."""
    theta: float
    """Base of the rotary frequencies; does not change the work."""


SIZES = {
    "1B": LlamaShape(16, 2048, 32, 8, 8192, 128_256, tied=True, theta=500_000.0),
    "8B": LlamaShape(32, 4096, 32, 8, 14_336, 128_256, tied=False, theta=500_000.0),
    "7B": LlamaShape(32, 4096, 32, 32, 11_008, 32_000, tied=False, theta=10_000.0),
    "13B": LlamaShape(40, 5120, 40, 40, 13_824, 32_000, tied=False, theta=10_000.0),
    "70B": LlamaShape(80, 8192, 64, 8, 28_672, 32_000, tied=False, theta=10_000.0),
}
"""1B is Llama 3.2, 8B is Llama 3.1, and 7B, 13B and 70B are Llama 2; each from its config.json on Hugging Face."""

PUBLISHED = {
    "1B": (1.23e9, "model card of Llama 3.2 (meta-llama/llama-models, models/llama3_2/MODEL_CARD.md): 1B (1.23B)"),
    "8B": (8.03e9, "model page of meta-llama/Llama-3.1-8B on Hugging Face: 8.03B, 8,030,261,248 in its weights"),
    "7B": (6.7e9, "LLaMA, arXiv 2302.13971, table 2: 6.7B; Llama 2 7B has the same shape"),
    "13B": (13.0e9, "LLaMA, arXiv 2302.13971, table 2: 13.0B; Llama 2 13B has the same shape"),
    "70B": (69.0e9, "model page of meta-llama/Llama-2-70b-hf on Hugging Face: 69B, 68,976,648,192 in its weights"),
}


@about(
    About(
        family="language",
        title="Llama: --model size=1B, 7B, 8B, 13B or 70B",
        needs=("transformers",),
        data=("tokens",),
        metric="perplexity",
        modes=("train", "infer", "generate", "load"),
        reduced={
            "layers": 2,
            "width": 64,
            "heads": 4,
            "groups": 2,
            "hidden": 128,
            "sequence": 32,
            "vocabulary": 256,
            "prompt": 8,
            "new_tokens": 4,
        },
        parameters=PUBLISHED["1B"][0],
        source=PUBLISHED["1B"][1],
    )
)
def build(
    size: str = "1B",
    sequence: int = 2048,
    vocabulary: int | None = None,
    vocabulary_multiple: int = 1,
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    groups: int | None = None,
    hidden: int | None = None,
    prompt: int = 512,
    new_tokens: int = 64,
) -> ModelBundle:
    """A Llama of one of the SIZES, modified by the given options; one sample is one sequence.

    `vocabulary_multiple`: pad embeddings and head to a multiple; parameters and operations include the padding.
    The rotary frequencies are unscaled at every length: the scaling of Llama 3.1 and 3.2 for long contexts does not
    change the work. The learning rate is that of Llama 2's training.
    """
    given = {"vocabulary": vocabulary, "layers": layers, "width": width, "heads": heads}
    given |= {"groups": groups, "hidden": hidden}
    at_least(1, "Llama", **given, sequence=sequence, prompt=prompt, new_tokens=new_tokens)
    at_least(1, "Llama", vocabulary_multiple=vocabulary_multiple)
    if size not in SIZES:
        problem = Problem("size", f"unknown size {size}", ", ".join(SIZES))
        raise InputError("unknown Llama size", problems=(problem,))
    values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    shape = replace(SIZES[size], **values)
    multiple_of(shape.heads, "Llama", width=shape.width)
    multiple_of(shape.groups, "Llama", heads=shape.heads)
    multiple_of(2 * shape.heads, "Llama", width=shape.width)
    wide = replace(shape, vocabulary=padded(shape.vocabulary, vocabulary_multiple))
    module = Llama(wide, max(sequence, prompt + new_tokens))
    static = partial(_static, module, prompt + new_tokens)

    def batch(samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.randint(shape.vocabulary, (samples, sequence + 1), generator=generator, device="cpu")
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return ModelBundle(
        module,
        lambda scores, target: functional.cross_entropy(scores.flatten(0, 1), target.flatten()),
        partial(torch.optim.AdamW, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1),
        batch,
        task=tasks.language(sequence, shape.vocabulary),
        generation=Generation(prompt, new_tokens, _prefill, _decode, static),
        tokens=sequence,
    )


def closed_flops(shape: LlamaShape, sequence: int) -> float:
    """Return the operations of a forward pass by formula: matrix products, and attention without a mask's saving."""
    shared = shape.width * shape.groups // shape.heads
    a_layer = 2 * (2 * shape.width**2 + 2 * shape.width * shared + 3 * shape.width * shape.hidden)
    attention = 4 * shape.width * sequence
    return float(sequence * (shape.layers * (a_layer + attention) + 2 * shape.width * shape.vocabulary))


class Llama(nn.Module):
    """The library's model: from tokens to scores; with a cache only to the scores of the next token."""

    def __init__(self, shape: LlamaShape, positions: int) -> None:
        super().__init__()
        transformers = library("transformers", "transformers", "the workload llama")
        sizes = asdict(shape)
        config = transformers.LlamaConfig(
            vocab_size=sizes["vocabulary"],
            hidden_size=sizes["width"],
            intermediate_size=sizes["hidden"],
            num_hidden_layers=sizes["layers"],
            num_attention_heads=sizes["heads"],
            num_key_value_heads=sizes["groups"],
            tie_word_embeddings=sizes["tied"],
            rope_theta=sizes["theta"],
            rms_norm_eps=1e-5,
            max_position_embeddings=positions,
            use_cache=False,
        )
        self.inner = transformers.LlamaForCausalLM(config)

    def forward(self, tokens: torch.Tensor, cache: Any = None) -> torch.Tensor:
        """Return scores at every position; with a cache, which grows, at the last one."""
        if cache is None:
            every: torch.Tensor = self.inner(input_ids=tokens, use_cache=False).logits
            return every
        hidden = self.inner.model(input_ids=tokens, past_key_values=cache, use_cache=True).last_hidden_state
        # Only the last scores of the prompt are needed; all of them would take more memory than the model.
        last: torch.Tensor = self.inner.lm_head(hidden[:, -1:])
        return last


def _prefill(module: Any, tokens: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """Read the prompts; the state is the key-value cache that the library's own `generate` uses."""
    cache = library("transformers", "transformers", "the workload llama").DynamicCache()
    return _decode(module, tokens, cache)


def _static(module: Llama, length: int) -> Any:
    """Return the library's cache of fixed size."""
    transformers = library("transformers", "transformers", "the workload llama")
    if hasattr(transformers.StaticCache, "early_initialization"):
        cache = transformers.StaticCache(config=module.inner.config, max_cache_len=length)
        if hasattr(cache.layers[0], "cumulative_length"):
            return cache
    # Earlier releases find the position by reading stored values back, which a graph cannot do.
    raise InputError(
        f"the static cache of transformers {transformers.__version__} does not hold its position in a tensor",
        next_step="install a newer transformers, or leave --kv-cache static out",
    )


def _decode(module: Any, tokens: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]:
    return module(tokens, cache)[:, -1].argmax(dim=-1, keepdim=True), cache
