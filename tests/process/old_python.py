"""A run on the oldest Python, numpy and, where it is installed, torch that the measured side supports.

Started by .ci/run without torch and by .ci/full with it, not by pytest.
"""

import importlib.util
import json
import sys
import tempfile
from pathlib import Path

from steelyard.contracts.base import to_json_object
from steelyard.contracts.sim import Noise, SimTruth
from steelyard.contracts.spec import Budget, Loader, RunSpec
from steelyard.worker.engine.run import run_directory

IDENTITY = {"run_id": "old", "configuration": "old"}
TINY = {**IDENTITY, "workload": "tiny", "device": "cpu", "budget": Budget(min_steps=20, max_steps=20, min_seconds=0)}
HOST = Loader(place="host", workers=1)


def failed(name: str, spec: RunSpec, expected: str = "completed") -> bool:
    """Whether a run ends differently than it should."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "spec.json").write_text(json.dumps(to_json_object(spec)))
        status = run_directory(Path(folder))
    print(f"{name}: {status.code} {status.reason}")
    return status.code != expected


print(f"python {sys.version.split()[0]}")
failures = failed("simulated", RunSpec(**IDENTITY, devices=4, sim=SimTruth(noise=Noise(kind="ar1"))))
if importlib.util.find_spec("torch") is not None:
    import torch

    print(f"torch {torch.__version__}")
    failures += failed("training", RunSpec(**TINY))
    failures += failed("training in bf16, data from the host", RunSpec(**TINY, precision="bf16", loader=HOST))
    failures += failed("inference", RunSpec(**TINY, mode="infer"))
    sharded = "completed" if torch.__version__ >= "2.6" else "refused"
    failures += failed("sharded training", RunSpec(**TINY, parallel="fsdp2"), sharded)
sys.exit(1 if failures else 0)
