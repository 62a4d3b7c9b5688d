"""Decoder-only language models of published sizes; one sample is one sequence.

For generation the keys and values of earlier tokens are cached; see `Cache` and `StaticCache`.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils import checkpoint

from steelyard.errors import InputError, Problem
from steelyard.worker.workloads import tasks
from steelyard.worker.workloads.about import About, about
from steelyard.worker.workloads.batches import share
from steelyard.worker.workloads.bundle import Generation, ModelBundle
from steelyard.worker.workloads.options import one_of, padded

DEVIATION = 0.02
"""Standard deviation of the initial weights, as in GPT-2."""
POSITIONS = ("learned", "rotary")
"""learned: an embedding of each position, as in GPT-2. rotary: queries and keys are turned by angles that grow with the
position ("RoFormer", Su et al., arXiv 2104.09864), in all of a head's width; they have no parameters."""
RECOMPUTE = ("none", "attention", "all")
"""What the backward pass computes again instead of reading it from memory. attention: scores, softmax and weighted sum,
which Megatron-LM calls selective; all: whole layers, of which only the inputs are kept."""
ROTARY_BASE = 10_000.0
"""Base of the rotary frequencies, as in RoFormer and Megatron-LM."""


@dataclass(frozen=True)
class GptShape:
    """Determines the number of parameters, together with vocabulary and sequence length."""

    layers: int
    width: int
    heads: int


SIZES = {
    "10M": GptShape(6, 160, 5),
    "25M": GptShape(7, 320, 5),
    "117M": GptShape(12, 768, 12),
    "350M": GptShape(24, 1024, 16),
    "800M": GptShape(16, 2048, 8),
    "1.3B": GptShape(24, 2048, 32),
    "2.7B": GptShape(32, 2560, 32),
    "6.7B": GptShape(32, 4096, 32),
    "13B": GptShape(40, 5120, 40),
    "30B": GptShape(48, 7168, 56),
    "66B": GptShape(64, 9216, 72),
    "175B": GptShape(96, 12288, 96),
}
"""Configurations by their usual names.

350M, and 1.3B to 175B: table 1 of "OPT: Open Pre-trained Transformer Language Models" (Zhang et al., arXiv
2205.01068), which follows table 2.1 of "Language Models are Few-Shot Learners" (Brown et al., arXiv 2005.14165) except
for 1.3B, where GPT-3 has 24 heads that do not divide its width, and 13B, where it is 5140 wide.
117M: GPT-2 small ("Language Models are Unsupervised Multitask Learners", Radford et al. 2019, table 2). 117M is its
usual name; with tied embeddings of 50257 tokens and 1024 positions it has 124 million parameters.
800M: the CARAML benchmark (github.com/FZJ-JSC/CARAML, llm_training/llm_benchmark_nvidia_amd.yaml): 805 million
parameters in the layers, 910 million with the embeddings of 50257 tokens. CARAML's 117M has the shape given here; its
13B has 32 heads (`--model heads=32`), which changes neither parameters nor operations.
10M, 25M: our own; they have that many parameters with 50257 tokens and 1024 positions.
"""


@about(
    About(
        family="language",
        title="GPT of a published size",
        data=("tokens",),
        metric="perplexity",
        modes=("train", "infer", "generate", "load"),
        reduced={
            "size": "custom",
            "sequence": 32,
            "vocabulary": 101,
            "layers": 2,
            "heads": 2,
            "width": 16,
            "prompt": 24,
            "new_tokens": 8,
        },
        parameters=124_439_808,
        source="GPT-2 small as its authors released it: 12 layers, 768 wide, 50257 tokens, 1024 positions, tied head",
    )
)
def build(
    size: str = "117M",
    sequence: int = 1024,
    vocabulary: int = 50257,
    vocabulary_multiple: int = 1,
    layers: int | None = None,
    heads: int | None = None,
    width: int | None = None,
    positions: str = "learned",
    recompute: str = "none",
    dropout: float = 0.0,
    prompt: int = 512,
    new_tokens: int = 64,
) -> ModelBundle:
    """A GPT of one of the SIZES, modified by `layers`, `heads` and `width`; `custom` needs these three.

    `positions` are learned or rotary. `recompute` saves memory in training: none, attention or all. It changes neither
    results nor the operations that are counted, which are those of the model. `dropout`: the share of values that
    training sets to zero, after the embeddings, in the attention and after both parts of a layer.

    `vocabulary_multiple`: pad embeddings and head to a multiple, such as 64, that matrix units like; the data still has
    `vocabulary` tokens. The padding is computed, so parameters and operations include it.
    `prompt` and `new_tokens` are only for generation; together they must fit in the `sequence` positions.
    """
    given = {"layers": layers, "heads": heads, "width": width}
    more = {"sequence": sequence, "vocabulary": vocabulary, "prompt": prompt, "new_tokens": new_tokens}
    more["vocabulary_multiple"] = vocabulary_multiple
    shape = _check_shape(size, given, more)
    one_of(POSITIONS, "GPT", positions=positions)
    one_of(RECOMPUTE, "GPT", recompute=recompute)
    if not 0 <= dropout < 1:
        problem = Problem("dropout", f"is {dropout}", "a share from 0 to below 1")
        raise InputError("invalid option of GPT", problems=(problem,))
    if positions == "rotary" and shape.width // shape.heads % 2:
        problem = Problem("heads", f"are {shape.width // shape.heads} wide", "an even width, for rotary positions")
        raise InputError("invalid option of GPT", problems=(problem,))

    def batch(samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.randint(vocabulary, (samples, sequence + 1), generator=generator, device="cpu")
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def prefill(module: Any, prompts: torch.Tensor) -> tuple[torch.Tensor, Cache]:
        return decode(module, prompts, Cache(shape.layers, prompt + new_tokens))

    def decode(module: Any, tokens: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]:
        # Greedy: the token with the highest score.
        return module(tokens, cache).argmax(dim=-1), cache

    learned = sequence if positions == "learned" else None
    model = Gpt(shape, learned, padded(vocabulary, vocabulary_multiple), recompute, dropout)
    return ModelBundle(
        model,
        lambda scores, target: functional.cross_entropy(scores.flatten(0, 1), target.flatten()),
        partial(torch.optim.AdamW, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1),
        batch,
        task=tasks.language(sequence, vocabulary),
        generation=Generation(
            prompt, new_tokens, prefill, decode, static=lambda: StaticCache(shape.layers, prompt + new_tokens)
        ),
        tokens=sequence,
        stages=partial(divided, model),
    )


def divided(model: Gpt, stages: int) -> list[nn.Module]:
    """Return the stages of a pipeline, as equal as possible in layers."""
    layers = len(model.layers)
    if stages > layers:
        raise InputError(
            f"{layers} layers cannot be divided over a pipeline of {stages} devices",
            next_step=f"use at most {layers} devices, or --model layers={stages}",
        )
    ends = list(itertools.accumulate(share(layers, number, stages) for number in range(stages)))
    return [Stage(model, start, stop) for start, stop in itertools.pairwise([0, *ends])]


def closed_flops(layers: int, width: int, sequence: int, vocabulary: int) -> float:
    """Return the floating-point operations of one sample's forward pass; a training step takes 3 times as many.

    With s tokens per sample and width w, a matrix of m x n takes 2 m n operations per token:
        queries, keys and values   2 x w x 3 w   =  6 w^2
        output of the attention    2 x w x w     =  2 w^2
        two layers of the MLP      2 x 2 x w x 4 w = 16 w^2
        scores of s keys           2 x w x s, for any number of heads
        sum over s values          2 x w x s
        head, once                 2 x w x vocabulary
    The total per sample is s (layers (24 w^2 + 4 w s) + 2 w vocabulary). The causal mask leaves half of the scores
    unused; they are counted in full, as is usual, whether or not a kernel computes them. Embedding lookups,
    normalisation, GELU and softmax are not matrix products and are not counted. In the backward pass every product
    becomes two of the same size, one for the gradient of each factor. This includes the first layer's inputs, because
    the embeddings are trained.
    """
    a_layer = 24 * width**2 + 4 * width * sequence
    return float(sequence * (layers * a_layer + 2 * width * vocabulary))


def closed_generation_flops(layers: int, width: int, vocabulary: int, prompt: int, new_tokens: int) -> float:
    """Return the floating-point operations of one request, counted like `closed_flops`.

    Reading p tokens takes p layers (24 w^2 + 4 w p) and one pass of the head, because only the last token's scores are
    needed. Each further token attends to itself and all before it.
    """
    head = 2 * width * vocabulary
    total = prompt * layers * (24 * width**2 + 4 * width * prompt) + head
    for length in range(prompt + 1, prompt + new_tokens):
        total += layers * (24 * width**2 + 4 * width * length) + head
    return float(total)


def _check_shape(size: str, given: dict[str, int | None], more: dict[str, int]) -> GptShape:
    """Return the shape of a size, modified by the given options; `more` are options that are only checked."""
    base = SIZES.get(size)
    if base is None and size != "custom":
        valid = ", ".join([*SIZES, "custom"])
        raise InputError("unknown GPT size", problems=(Problem("size", f"unknown size {size}", valid),))
    whole = {name: value if value is not None else getattr(base, name, None) for name, value in given.items()}
    values = {name: value for name, value in whole.items() if value is not None}
    missing = [name for name in whole if name not in values]
    if missing:
        absent = tuple(Problem(name, "is missing", "a whole number, with size 'custom'") for name in missing)
        raise InputError("a custom GPT needs its layers, heads and width", problems=absent)
    shape = GptShape(**values)
    problems = [Problem(name, f"is {value}", "at least 1") for name, value in {**values, **more}.items() if value < 1]
    if not problems and shape.width % shape.heads:
        problems.append(Problem("width", f"is {shape.width}", f"a multiple of the {shape.heads} heads"))
    if problems:
        raise InputError("this GPT cannot be built", problems=tuple(problems))
    return shape


class LayerCache:
    """One layer's keys and values, with room for all tokens of the request."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._used = 0
        self._held: tuple[torch.Tensor, torch.Tensor] | None = None

    def extend(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the keys and values of new tokens; return those of all tokens."""
        if self._held is None:
            # In the dtype they are computed in, which depends on autocast.
            samples, heads, _, width = key.shape
            shape = samples, heads, self._length, width
            self._held = key.new_empty(shape), value.new_empty(shape)
        start, self._used = self._used, self._used + key.shape[2]
        for held, new in zip(self._held, (key, value), strict=True):
            held[:, :, start : self._used] = new
        keys, values = self._held
        return keys[:, :, : self._used], values[:, :, : self._used]


class Cache:
    """Keys and values of a request: one cache per layer, allocated once when the prompt is read."""

    mask = None

    def __init__(self, layers: int, length: int) -> None:
        self.layers = [LayerCache(length) for _ in range(layers)]
        self.used = 0

    def advance(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the positions of new tokens."""
        start, self.used = self.used, self.used + tokens.shape[1]
        return torch.arange(start, self.used, device=tokens.device)


class StaticLayerCache:
    """One layer's keys and values. Their shape does not depend on how many tokens are stored."""

    def __init__(self, cache: StaticCache) -> None:
        self._cache = cache
        self._held: tuple[torch.Tensor, torch.Tensor] | None = None

    def extend(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the keys and values of new tokens; return all for a single token, and the new ones for a prompt."""
        if self._held is None:
            samples, heads, _, width = key.shape
            shape = samples, heads, self._cache.length, width
            self._held = key.new_zeros(shape), value.new_zeros(shape)
        for held, new in zip(self._held, (key, value), strict=True):
            held.index_copy_(2, self._cache.places, new)
        return (key, value) if key.shape[2] > 1 else self._held


class StaticCache:
    """Keys and values in memory of fixed size, for batch after batch of requests of one size.

    The position is a tensor, and a mask hides the places that are not used yet: a decode is the same operators on the
    same memory for every token.
    """

    def __init__(self, layers: int, length: int) -> None:
        self.length = length
        self.layers = [StaticLayerCache(self) for _ in range(layers)]
        self._all: torch.Tensor | None = None

    def reset(self) -> None:
        """Forget all tokens. Memory is kept."""
        if self._all is not None:
            self._next.zero_()

    def advance(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the positions of new tokens."""
        if self._all is None:
            self._all = torch.arange(self.length, device=tokens.device)
            self._next = self._all.new_zeros(1)
        self.places = self._next + self._all[: tokens.shape[1]]
        self._next += tokens.shape[1]
        # A prompt attends to itself only, and needs no mask.
        self.mask = self._all <= self.places[:, None] if tokens.shape[1] == 1 else None
        return self.places


class Attention(nn.Module):
    """Causal self-attention with torch's own function, which selects the kernel."""

    def __init__(self, shape: GptShape, recompute: str, dropout: float) -> None:
        super().__init__()
        self.heads = shape.heads
        self.dropout = dropout
        self.twice = recompute == "attention"
        self.inner = nn.Linear(shape.width, 3 * shape.width)
        self.outer = nn.Linear(shape.width, shape.width)

    def forward(
        self,
        hidden: torch.Tensor,
        cache: LayerCache | StaticLayerCache | None = None,
        mask: torch.Tensor | None = None,
        turn: Turn | None = None,
    ) -> torch.Tensor:
        """Return the attention output of each token."""
        samples, tokens, width = hidden.shape
        apart = self.inner(hidden).view(samples, tokens, 3, self.heads, width // self.heads)
        query, key, value = apart.permute(2, 0, 3, 1, 4).unbind(0)
        if turn is not None:
            query, key = turned(query, turn), turned(key, turn)
        if cache is not None:
            key, value = cache.extend(key, value)
        attend = partial(
            functional.scaled_dot_product_attention,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            # A single token attends to all others that are stored.
            is_causal=tokens > 1,
        )
        mixed = _twice(attend, query, key, value) if self.twice and self.training else attend(query, key, value)
        result: torch.Tensor = self.outer(mixed.transpose(1, 2).reshape(samples, tokens, width))
        return result


class Layer(nn.Module):
    """Attention and MLP, each with layer norm and residual connection."""

    def __init__(self, shape: GptShape, recompute: str, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.twice = recompute == "all"
        self.norm1 = nn.LayerNorm(shape.width)
        self.attention = Attention(shape, recompute, dropout)
        self.norm2 = nn.LayerNorm(shape.width)
        self.widen = nn.Linear(shape.width, 4 * shape.width)
        self.narrow = nn.Linear(4 * shape.width, shape.width)

    def forward(
        self,
        hidden: torch.Tensor,
        cache: LayerCache | StaticLayerCache | None = None,
        mask: torch.Tensor | None = None,
        turn: Turn | None = None,
    ) -> torch.Tensor:
        """Return the layer's output."""
        # Inside the layer, so that a sharded layer is gathered once for both.
        if self.twice and self.training:
            return _twice(self._once, hidden, cache, mask, turn)
        return self._once(hidden, cache, mask, turn)

    def _once(self, hidden: torch.Tensor, cache: Any, mask: torch.Tensor | None, turn: Turn | None) -> torch.Tensor:
        hidden = hidden + self.dropout(self.attention(self.norm1(hidden), cache, mask, turn))
        result: torch.Tensor = hidden + self.dropout(self.narrow(functional.gelu(self.widen(self.norm2(hidden)))))
        return result


def _twice(function: Any, *inputs: Any) -> torch.Tensor:
    """Call a function of which only the inputs are kept; the backward pass calls it again."""
    # By the module's name, because the count of operations replaces the function there.
    output: torch.Tensor = checkpoint.checkpoint(function, *inputs, use_reentrant=False)
    return output


Turn = tuple[torch.Tensor, torch.Tensor]
"""Cosine and sine of each position's angles."""


def turn_of(positions: torch.Tensor, width: int) -> Turn:
    """Return by which angles the queries and keys at these positions are turned, in heads of this width.

    The first and the second half of a head are the two parts of its `width / 2` pairs, as in Megatron-LM.
    """
    pairs = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
    angles = positions[:, None].float() * ROTARY_BASE ** (-pairs / width)
    return angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)


def turned(heads: torch.Tensor, turn: Turn) -> torch.Tensor:
    """Return queries or keys, turned."""
    cosine, sine = (part.to(heads.dtype) for part in turn)
    first, second = heads.chunk(2, dim=-1)
    return heads * cosine + torch.cat((-second, first), dim=-1) * sine


class Gpt(nn.Module):
    """Token and position embeddings, the layers, and a head that shares the token embeddings' weights."""

    def __init__(
        self, shape: GptShape, positions: int | None, vocabulary: int, recompute: str = "none", dropout: float = 0.0
    ) -> None:
        """`positions`: how many have an embedding; None: they are rotary."""
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, shape.width)
        self.positions = None if positions is None else nn.Embedding(positions, shape.width)
        self.rotary = positions is None
        self.head_width = shape.width // shape.heads
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList([Layer(shape, recompute, dropout) for _ in range(shape.layers)])
        self.norm = nn.LayerNorm(shape.width)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=DEVIATION)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
            # Every layer adds twice to the residual stream; this scaling keeps its variance independent of depth.
            if isinstance(module, Layer):
                for last in (module.attention.outer, module.narrow):
                    nn.init.normal_(last.weight, std=DEVIATION / math.sqrt(2 * shape.layers))

    def forward(self, tokens: torch.Tensor, cache: Cache | StaticCache | None = None) -> torch.Tensor:
        """Return the vocabulary scores at each position; with a cache at the last one only.

        Either the cache is empty, or there is one token per sample.
        """
        if cache is not None:
            positions = cache.advance(tokens)
            hidden, turn = self.embed(tokens, positions), self.turn(positions)
            for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
                hidden = layer(hidden, layer_cache, cache.mask, turn)
            return self.score(hidden[:, -1:])
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.score(self.pass_layers(self.embed(tokens, positions)))

    def embed(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the input of the first layer."""
        hidden = self.tokens(tokens)
        result: torch.Tensor = self.dropout(hidden if self.positions is None else hidden + self.positions(positions))
        return result

    def pass_layers(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the output of the last layer for the input of the first one."""
        turn = self.turn(torch.arange(hidden.shape[1], device=hidden.device))
        for layer in self.layers:
            hidden = layer(hidden, turn=turn)
        return hidden

    def turn(self, positions: torch.Tensor) -> Turn | None:
        """Return by which angles queries and keys are turned; None: positions are learned."""
        return turn_of(positions, self.head_width) if self.rotary else None

    def score(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the vocabulary scores for the output of the last layer."""
        scores: torch.Tensor = functional.linear(self.norm(hidden), self.tokens.weight)
        return scores


class Stage(Gpt):
    """Some layers of a GPT. The first stage has the embeddings and the last one the head, whose weights they share."""

    def __init__(self, model: Gpt, start: int, stop: int) -> None:
        nn.Module.__init__(self)
        self._first, self._last = start == 0, stop == len(model.layers)
        self.layers = model.layers[start:stop]
        self.rotary, self.head_width = model.rotary, model.head_width
        if self._first:
            self.positions, self.dropout = model.positions, model.dropout
        if self._last:
            self.norm = model.norm
        if self._first or self._last:
            self.tokens = model.tokens

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Return the input of the next stage, or the vocabulary scores."""
        positions = torch.arange(inputs.shape[1], device=inputs.device)
        hidden = self.pass_layers(self.embed(inputs, positions) if self._first else inputs)
        return self.score(hidden) if self._last else hidden
