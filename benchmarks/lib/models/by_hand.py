"""A careful hand-written training loop for the same model and data, without steelyard.

python by_hand.py SEED STEPS BATCH ACCUMULATION IN_TURN; under torchrun with DDP. IN_TURN: so many micro-batches take
turns; 0: each is new.
"""

import contextlib
import os
import sys

import torch
import torch.distributed as dist
from logged import batch, build
from torch.nn.parallel import DistributedDataParallel

seed, steps, size, accumulation, in_turn = (int(word) for word in sys.argv[1:])
rank = int(os.environ.get("RANK", "0"))
torch.manual_seed(seed)
module, loss, make_optimizer, _ = build()
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    module = DistributedDataParallel(module)
optimizer = make_optimizer(module.parameters())
number = 0
for _ in range(steps):
    optimizer.zero_grad()
    for micro in range(accumulation):
        place = number % in_turn if in_turn else number
        generator = torch.Generator().manual_seed((seed + rank * 0x9E3779B9 + place) % 2**32)
        number += 1
        x, y = batch(size, generator)
        held = "RANK" in os.environ and micro < accumulation - 1
        with module.no_sync() if held else contextlib.nullcontext():
            value = loss(module(x), y)
            if accumulation > 1:
                value = value / accumulation
            value.backward()
    optimizer.step()
if "RANK" in os.environ:
    # A rank that closes its connections while another still uses them makes gloo abort.
    dist.barrier()
    dist.destroy_process_group()
