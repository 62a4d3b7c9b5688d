"""A simulated run on the oldest Python and numpy that the measured side supports; started by .ci/run, not by pytest."""

import json
import sys
import tempfile
from pathlib import Path

from steelyard.contracts.base import to_json_object
from steelyard.contracts.sim import Noise, SimTruth
from steelyard.contracts.spec import RunSpec
from steelyard.worker.engine.run import run_directory

with tempfile.TemporaryDirectory() as folder:
    spec = RunSpec(run_id="old", cell="old", ranks=4, sim=SimTruth(noise=Noise(kind="ar1")))
    (Path(folder) / "spec.json").write_text(json.dumps(to_json_object(spec)))
    status = run_directory(Path(folder))
print(f"python {sys.version.split()[0]}: {status.code} {status.reason}")
sys.exit(0 if status.code == "completed" else 1)
