"""A loop in the style of nanoGPT: its own get_batch, AdamW, micro steps, estimate_loss and a checkpoint file."""

import math
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from truth import Truth, options

VOCABULARY, BLOCK, WIDTH, HEADS, LAYERS = 64, 32, 64, 4, 2


class Block(nn.Module):
    """Attention and a small network, each with a residual connection."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.network = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        """Return the next hidden states."""
        batch, length, _ = x.shape
        heads = (
            part.view(batch, length, HEADS, -1).transpose(1, 2) for part in self.attention(self.first(x)).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.network(self.second(x))


class GPT(nn.Module):
    """A very small language model that returns logits and the loss."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, idx, targets):
        """Return the logits and the loss."""
        x = self.tokens(idx) + self.places(torch.arange(idx.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits, functional.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))


def main():
    args = options(__doc__, eval_interval={"type": int, "default": 20}, eval_iters={"type": int, "default": 4})
    ddp = int(os.environ.get("RANK", -1)) != -1
    if ddp:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if ddp else 0
    master_process = rank == 0
    torch.manual_seed(args.seed)
    data = {split: torch.randint(VOCABULARY, (20000,), dtype=torch.int16) for split in ("train", "val")}
    model = GPT()
    generator = torch.Generator().manual_seed(args.seed + 1000 * rank)

    def get_batch(split):
        ix = torch.randint(len(data[split]) - BLOCK, (args.batch,), generator=generator)
        x = torch.stack([data[split][i : i + BLOCK].long() for i in ix])
        y = torch.stack([data[split][i + 1 : i + 1 + BLOCK].long() for i in ix])
        return x, y

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    raw_model = model
    if args.compile:
        model = torch.compile(model, backend=args.compile)
    if ddp:
        model = DistributedDataParallel(model)

    @torch.no_grad()
    def estimate_loss():
        out = {}
        raw_model.eval()
        for split in ("train", "val"):
            losses = torch.zeros(args.eval_iters)
            for k in range(args.eval_iters):
                losses[k] = raw_model(*get_batch(split))[1].item()
            out[split] = losses.mean()
        raw_model.train()
        return out

    truth = Truth()
    checkpoint = Path(tempfile.mkdtemp()) / "ckpt.pt"
    best = math.inf
    x, y = get_batch("train")
    while True:
        if truth.steps % args.eval_interval == 0 and master_process:
            with truth.evaluation():
                losses = estimate_loss()
            print(f"step {truth.steps}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}", flush=True)
            if losses["val"] < best and truth.steps > 0:
                best = losses["val"]
                with truth.checkpoint():
                    torch.save({"model": raw_model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)
        if truth.steps == args.steps:
            break
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (1 + math.cos(math.pi * truth.steps / args.steps)) / 2
        total = 0.0
        for micro_step in range(args.accumulation):
            if ddp:
                model.require_backward_grad_sync = micro_step == args.accumulation - 1
            _, loss = model(x, y)
            loss = loss / args.accumulation
            truth.batch(len(x), x.numel(), 0, y.numel())
            x, y = get_batch("train")
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        truth.step(total)
        if truth.steps % 10 == 0 and master_process:
            print(f"iter {truth.steps}: loss {total:.4f}", flush=True)

    truth.write()
    checkpoint.unlink(missing_ok=True)
    checkpoint.parent.rmdir()
    if ddp:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
