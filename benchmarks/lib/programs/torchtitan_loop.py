"""torchtitan's Trainer on its debug model, cut down, with random tokens.

torchtitan chooses CUDA where it finds no accelerator, and stops without a driver. So its device is set to the CPU
before its trainer is imported; everything else is its own: model, loader, optimizers, loop and FSDP.
"""

import os
import tempfile
from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torchtitan.tools.utils
from truth import Truth, options

torchtitan.tools.utils.device_type = "cpu"
torchtitan.tools.utils.device_module = SimpleNamespace(
    set_device=lambda device: None, device_count=lambda: 1, current_device=lambda: 0, empty_cache=lambda: None,
    get_device_name=lambda device: "CPU", reset_peak_memory_stats=lambda: None, synchronize=lambda: None,
    get_device_properties=lambda device: SimpleNamespace(total_memory=2**30), memory_stats=lambda device: {},
)  # fmt: skip

from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torch.utils.data import IterableDataset  # noqa: E402
from torchtitan.components.dataloader import ParallelAwareDataloader  # noqa: E402
from torchtitan.components.loss import CrossEntropyLoss  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.common.config_utils import decoder_vocab_size  # noqa: E402
from torchtitan.models.llama3 import model_registry  # noqa: E402
from torchtitan.models.llama3.config_registry import llama3_debugmodel  # noqa: E402
from torchtitan.tools.logging import init_logger  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402

VOCABULARY, LENGTH, LAYERS = 128, 16, 1


class RandomTokens(IterableDataset):
    """Random tokens without an end, different on each rank."""

    def __init__(self, seed, rank):
        self.generator = torch.Generator().manual_seed(seed + 1000 * rank)

    def __iter__(self):
        while True:
            text = torch.randint(VOCABULARY, (LENGTH + 1,), generator=self.generator)
            yield {"input": text[:-1]}, text[1:]


class RandomLoader(ParallelAwareDataloader):
    """torchtitan's loader over random tokens."""

    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        seed: int = 1

    def __init__(self, config, *, dp_world_size, dp_rank, local_batch_size, **rest):
        super().__init__(RandomTokens(config.seed, dp_rank), dp_rank, dp_world_size, batch_size=local_batch_size)


class NoTokenizer(BaseTokenizer):
    """The tokens are random: there is no text."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, *, tokenizer_path, **rest):
        super().__init__()

    def encode(self, *args, **kwargs):
        raise NotImplementedError

    def decode(self, *args, **kwargs):
        raise NotImplementedError

    def get_vocab_size(self):
        return VOCABULARY


class CountingTrainer(Trainer):
    """A Trainer that counts what it trains on."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        pass

    def __init__(self, config):
        super().__init__(config)
        self.truth, self.total = Truth(), 0.0

    def forward_backward_step(self, *, input_dict, labels, global_valid_tokens):
        tokens = input_dict["input"]
        self.truth.batch(len(tokens), tokens.numel(), None, labels.numel())
        loss = super().forward_backward_step(
            input_dict=input_dict, labels=labels, global_valid_tokens=global_valid_tokens
        )
        self.total += loss.item()
        return loss

    def train_step(self, data_iterator):
        super().train_step(data_iterator)
        self.truth.step(self.total)
        self.total = 0.0


def main():
    args = options(__doc__)
    init_logger()
    base = llama3_debugmodel()
    spec = model_registry("debugmodel")
    del spec.model.layers[LAYERS:]
    spec.model.vocab_size = spec.model.tok_embeddings.num_embeddings = spec.model.lm_head.out_features = VOCABULARY
    for layer in spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    with tempfile.TemporaryDirectory() as folder:
        config = CountingTrainer.Config(
            model_spec=spec, dump_folder=folder, optimizer=base.optimizer, lr_scheduler=base.lr_scheduler,
            training=base.training, metrics=base.metrics, tokenizer=NoTokenizer.Config(),
            dataloader=RandomLoader.Config(seed=args.seed),
            loss=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(spec)),
        )  # fmt: skip
        config.training.disable_cuda_graphs = True
        config.training.steps = args.steps
        config.training.seq_len = LENGTH
        config.training.local_batch_size = args.batch
        config.training.global_batch_size = args.batch * args.accumulation * int(os.environ["WORLD_SIZE"])
        config.training.mixed_precision_param = "float32"
        config.debug.seed = args.seed
        config.compile.enable = bool(args.compile)
        config.metrics.log_freq = 10
        config.activation_checkpoint = None
        trainer = CountingTrainer(config)
        for module in trainer.model_parts[0].modules():
            if isinstance(module, FSDPModule):
                # gloo cannot scale while it sums.
                module.set_force_sum_reduction_for_comms(True)
        trainer.train()
        trainer.truth.write()
        trainer.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
