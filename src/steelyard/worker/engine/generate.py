"""Generation steps of a language model: prefill, then one decode per token.

A step is one batch of requests. Prefill processes the prompts and yields each request's first token; every decode
computes the next token from the one before. All of it is enqueued at once without waiting for the device. An event
after each token records its time.

This is offline generation with a fixed batch: all requests of a batch start together and have the same length. A server
lets requests come and go; its figures cannot be compared with these.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from steelyard.contracts import observe, sample_files
from steelyard.errors import InputError, Problem
from steelyard.worker.engine.flops import REASON_CHARACTERS, SAMPLES
from steelyard.worker.engine.replay import Replay, graphs_of
from steelyard.worker.engine.steps import Inference
from steelyard.worker.measure.writer import StepWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from steelyard.contracts.spec import RunSpec
    from steelyard.worker.devices.device import Device
    from steelyard.worker.engine.precision import Precision
    from steelyard.worker.workloads.batches import Batch
    from steelyard.worker.workloads.bundle import Generation, MakeBatch, ModelBundle
    from steelyard.worker.workloads.feed import Feed

_START_S, _INPUT_WAIT_S = sample_files.COLUMNS.index("start_s"), sample_files.COLUMNS.index("input_wait_s")


PROFILED_TOKENS = 128


def generation_of(bundle: ModelBundle, workload: str) -> Generation:
    """Return the model's generation functions; InputError if it has none or the request is too long."""
    made = bundle.generation
    if made is None:
        raise InputError(
            f"the workload {workload} cannot generate tokens",
            problems=(Problem("mode", "is generate", "train, infer"),),
        )
    if bundle.tokens is not None and made.prompt + made.new_tokens > bundle.tokens:
        raise InputError(
            "the request does not fit in the model",
            problems=(
                Problem(
                    "model.prompt",
                    f"{made.prompt} + {made.new_tokens} new tokens = {made.prompt + made.new_tokens}",
                    f"prompt + new_tokens at most {bundle.tokens}, the sequence length",
                ),
            ),
            next_step="--model sequence=N, or a smaller --model prompt=N or new_tokens=N",
        )
    return made


def prompts_of(bundle: ModelBundle, prompt: int) -> MakeBatch:
    """Return a batch maker for prompts: the beginning of each sample of the model's own batch maker."""

    def batch(samples: int, generator: torch.Generator) -> tuple[Any, Any]:
        inputs, _ = bundle.batch(samples, generator)
        if isinstance(inputs, dict):
            inputs = inputs["input_ids"]
        elif isinstance(inputs, (tuple, list)):
            inputs = inputs[0]
        return inputs[:, :prompt].contiguous(), ()

    return batch


class Generating(Inference):
    """Prefill and decode; greedy, because the model's own functions are."""

    def __init__(
        self, spec: RunSpec, feed: Feed, module: Any, precision: Precision, generation: Generation, device: Device
    ) -> None:
        if spec.compile not in ("off", "default"):
            # CUDA graphs reuse their output memory, and the keys and values of one token are read by the next.
            raise InputError(
                f"generation does not support compile mode {spec.compile}",
                problems=(Problem("compile", f"is {spec.compile}", "off, default"),),
            )
        if spec.kv_cache == "static" and generation.static is None:
            raise InputError(
                f"the workload {spec.workload} has no static cache",
                problems=(Problem("kv_cache", "is static", "dynamic"),),
            )
        super().__init__(spec, feed, module, precision)
        self._graphs = graphs_of(feed.device) if spec.graphs else None
        # By the number of requests: the last batch of an epoch may be smaller.
        self._caches: dict[int, Any] = {}
        self._replays: dict[int, Replay] = {}
        self._generation = generation
        # One for each token, and one before the first.
        self.events_per_step = 3 + generation.new_tokens
        # A decode has as many kernels as a step of inference.
        self.profiled_steps = 1 if generation.new_tokens <= PROFILED_TOKENS else 0
        self._device = device
        self._events: list[Any] = []
        self._samples: list[int] = []
        self._keeps = True
        self._writer: StepWriter | None = None

    def compile(self) -> None:
        """Trigger compilation, and the recording of a graph, with one request that is not counted."""
        if self._spec.compile != "off" or self._graphs is not None:
            self._request(self._feed.example()[0], lambda: None)

    def run(self, batch: Batch) -> None:
        """Enqueue one batch of requests."""
        record, event = self._device.record, self._events.append
        prompts, _ = self._pieces[0]
        if not self._keeps:
            self._request(prompts, lambda: None)
            return
        event(record())
        self._request(prompts, lambda: event(record()))
        self._samples.append(batch.samples)

    def _request(self, prompts: torch.Tensor, token_ready: Callable[[], None]) -> torch.Tensor:
        made, module = self._generation, self._module
        with torch.inference_mode(), self._precision.context():
            replay = self._replay(prompts)
            tokens, state = self._prefill(prompts)
            token_ready()
            for _ in range(made.new_tokens - 1):
                if replay is not None:
                    tokens = replay(tokens)
                else:
                    tokens, state = made.decode(module, tokens, state)
                token_ready()
        return tokens

    def _prefill(self, prompts: torch.Tensor) -> tuple[torch.Tensor, Any]:
        made, samples = self._generation, len(prompts)
        if self._spec.kv_cache == "dynamic" or made.static is None:
            return made.prefill(self._module, prompts)
        if samples not in self._caches:
            self._caches[samples] = made.static()
        self._caches[samples].reset()
        return made.decode(self._module, prompts, self._caches[samples])

    def _replay(self, prompts: torch.Tensor) -> Replay | None:
        """Return the recorded decode for this number of requests; None without graphs, or if nothing is decoded."""
        made, module, samples = self._generation, self._module, len(prompts)
        if self._graphs is None or made.new_tokens == 1:
            return None
        if samples not in self._replays:
            tokens, cache = self._prefill(prompts)
            self._replays[samples] = Replay(self._graphs, lambda given: made.decode(module, given, cache)[0], tokens)
        return self._replays[samples]

    def watch_communication(self) -> None:
        """Stop recording tokens: the steps from here on belong to the cross-check. Replicas do not communicate."""
        self._keeps = False

    def after_block(self, table: NDArray[np.float64], raw: Path) -> None:
        """Write the token times of the block whose steps are in `table`."""
        if self._writer is None:
            self._writer = StepWriter(raw, self._device.rank, observe.TOKENS_PATTERN)
        # The first request starts when its block has begun and its data has arrived.
        start_s = table[_START_S, 0] + table[_INPUT_WAIT_S, 0]
        self._writer.write(self._device.rank, self.tokens(start_s))
        self._writer.flush()

    def tokens(self, start_s: float) -> NDArray[np.float64]:
        """Return one column per token, with the rows of `observe.COLUMNS`, and clear the recorded tokens."""
        events, samples = self._events, self._samples
        self._events, self._samples = [], []
        times = self._device.seconds(events)
        times = (times - times[0] + start_s).reshape(len(samples), self._generation.new_tokens + 1)
        starts, lengths = times[:, :-1].ravel(), np.diff(times, axis=1).ravel()
        nothing = np.zeros_like(lengths)
        requests = np.repeat(np.asarray(samples, np.float64), self._generation.new_tokens)
        return np.stack([starts, lengths, nothing, lengths, nothing, requests])

    def close(self) -> None:
        """Stop the loader and close the token file."""
        super().close()
        if self._writer is not None:
            self._writer.close()

    def effective(self) -> dict[str, str]:
        """Return the settings of model and loader, and what kind of generation this is."""
        made, values = self._generation, super().effective()
        decode = "graph replay" if self._replays else "compiled" if values["compiled"] == "true" else "eager"
        return {
            **values,
            "prompt_tokens": str(made.prompt),
            "new_tokens": str(made.new_tokens),
            "requests": f"offline, fixed batch of {self._spec.batch}",
            "sampling": "greedy",
            "decode": decode,
            "kv_cache": "static" if self._caches else "dynamic",
        }


def count_generation(make: Callable[[], ModelBundle]) -> observe.ModelFacts:
    """Count the operations of one request in the same way as `flops.count`.

    Prefill and the first two decodes are counted. Each decode attends to one more token than the one before, so its
    operations grow by a constant; the other decodes are extrapolated. Products with the unused places of a static cache
    are not counted: the model does not need them.

    On any failure the count is None, with the reason in `method`; nothing is raised.
    """
    parameters = 0
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                bundle = make()
                made = bundle.generation
                assert made is not None
                parameters = sum(parameter.numel() for parameter in bundle.module.parameters())
                prefill, decode, next_decode = _passes(bundle, made)
        except Exception as error:  # noqa: BLE001 -- user code; an unknown count must not end the run
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:REASON_CHARACTERS]
            return observe.ModelFacts(parameters=parameters, flops_per_sample=None, method=f"unknown: {reason}")
    decodes = made.new_tokens - 1
    flops = prefill + decodes * decode + decodes * (decodes - 1) / 2 * (next_decode - decode)
    method = (
        f"torch.utils.flop_counter of torch {torch.__version__} on the meta device: prefill of {made.prompt} tokens "
        f"and {decodes} decodes, extrapolated linearly from the first two"
    )
    if flops <= 0:
        method = "unknown: torch's counter supports none of this model's operators"
    return observe.ModelFacts(
        parameters=parameters, flops_per_sample=flops / SAMPLES if flops > 0 else None, method=method
    )


def _passes(bundle: ModelBundle, made: Generation) -> list[float]:
    """Return the operations of prefill and of the first two decodes; 0 for those that a request does not have."""
    mode = importlib.import_module("torch.utils.flop_counter").FlopCounterMode
    module = bundle.module.eval()
    tokens = torch.zeros(SAMPLES, made.prompt, dtype=torch.int64)
    state: Any = None
    passes = [0.0, 0.0, 0.0]
    with torch.no_grad():
        for number in range(min(3, made.new_tokens)):
            with mode(display=False) as counter:
                if number == 0:
                    tokens, state = made.prefill(module, tokens)
                else:
                    tokens, state = made.decode(module, tokens, state)
            passes[number] = float(counter.get_total_flops())
    return passes
