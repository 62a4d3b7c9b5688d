"""GPT-2 of transformers as a user's file: a model that is not ours, and how it generates."""

from functools import partial

import torch
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

from steelyard.worker.workloads.bundle import Generation, ModelBundle

VOCABULARY, SEQUENCE = 101, 32


def batch(samples, generator):
    tokens = torch.randint(VOCABULARY, (samples, SEQUENCE + 1), generator=generator)
    return {"input_ids": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()


def prefill(module, tokens):
    return decode(module, tokens, None)


def decode(module, tokens, cache):
    found = module(input_ids=tokens, past_key_values=cache, use_cache=True)
    return found.logits[:, -1].argmax(dim=-1, keepdim=True), found.past_key_values


def build():
    sizes = {"vocab_size": VOCABULARY, "n_positions": SEQUENCE, "n_embd": 32, "n_layer": 3, "n_head": 4}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    return ModelBundle(
        GPT2LMHeadModel(config),
        lambda output, target: functional.cross_entropy(output.logits.flatten(0, 1), target.flatten()),
        partial(torch.optim.AdamW, lr=1e-4),
        batch,
        generation=Generation(16, 8, prefill, decode),
        tokens=SEQUENCE,
    )
