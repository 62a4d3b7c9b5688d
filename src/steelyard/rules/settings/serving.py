"""Pair rule: offline generation is not serving (SY117)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from steelyard.rules.rule import Example, PairRule
from steelyard.rules.table.settings import shown
from steelyard.rules.table.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.finding import Finding
    from steelyard.rules.table.row import Pair, Row

# Programs and benchmarks whose requests come and go while others are computed.
SERVERS = re.compile(
    r"\b(vllm|tgi|text[- ]generation[- ]inference|tensorrt[- ]llm|trt[- ]?llm|sglang|lmdeploy|deepspeed[- ]mii"
    r"|triton inference server|(continuous|in-?flight|dynamic) batching|serving|mlperf[- ]inference)\b",
    re.IGNORECASE,
)
TOLD_BY = ("framework", "system", "mode", "task", "options")
SHOWN = 60


class NotServing(PairRule):
    """Offline generation compared with a figure of a server."""

    code = "SY117"
    name = "generation-vs-serving"
    severity = "error"
    why = (
        "Offline generation starts a fixed batch of requests of one length together and waits for all of them. A "
        "server admits requests while others are computed, with other kernels and another memory for keys and values. "
        "The two count different things as a token per second and as the time to the first token; the ratio is not "
        "that of the devices."
    )
    detected = (
        "One side states a fixed batch in `serving`, as steelyard's own generation does. The other is a figure of a "
        "server: its `serving` states something else, its unit is requests per time, or its settings, source or note "
        "name a server (vLLM, TGI, TensorRT-LLM, SGLang, LMDeploy), continuous batching, serving or MLPerf Inference. "
        "A row of such a program with a fixed batch states that in `serving`."
    )
    bad = Example(
        "system,model,serving,framework,metric,value,unit\n"
        'A,Llama 8B,"offline, fixed batch of 8",PyTorch 2.9,token_throughput,900,tokens/s\n'
        "B,Llama 8B,,vLLM 0.6,token_throughput,9000,tokens/s\n",
        "B serves many requests at a time; its rate says nothing about A's device.",
    )
    good = Example(
        "system,model,serving,framework,metric,value,unit\n"
        'A,Llama 8B,"offline, fixed batch of 8",PyTorch 2.9,token_throughput,900,tokens/s\n'
        'B,Llama 8B,"offline, fixed batch of 8",PyTorch 2.9,token_throughput,1100,tokens/s\n',
        "Both generate offline with a fixed batch.",
    )
    fix = "compare with a figure of offline generation with a fixed batch, or measure both sides with the same server"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """Yield one finding that says what makes the other side a server."""
        for own, other in ((pair.a, pair.b), (pair.b, pair.a)):
            if _has_fixed_batch(own) and (told := _tell_server(other, pair.metric)):
                yield self.found(
                    f"one side is generation {own.get('serving')}, the other a figure of a server ({told})",
                    place=other.place,
                )


def _has_fixed_batch(row: Row) -> bool:
    return "fixed batch" in str(row.get("serving") or "").casefold()


def _tell_server(row: Row, metric: str) -> str:
    """Return what says that a figure is that of a server; empty if nothing does."""
    if (said := row.get("serving")) is not None:
        return "" if _has_fixed_batch(row) else f"serving {shown(said)[:SHOWN]}"
    for name, text in [*((key, row.get(key)) for key in TOLD_BY), ("source", row.source), ("note", row.note)]:
        if text is not None and (match := SERVERS.search(str(text))):
            return f"{name}: {match[0]}"
    amount = row.figures.get(metric)
    return f"in {amount.unit}" if amount is not None and counted(amount.unit) == "requests" else ""
