"""`python -P -m steelyard.worker.sensors.survey`: print what can be measured here, as JSON.

Started by `steelyard doctor`, which must not import vendors' libraries itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from steelyard import plugins
from steelyard.contracts.base import to_json_object
from steelyard.worker.sensors.backend import ReadError
from steelyard.worker.sensors.find import find

# The caller gives up earlier; this is for the case that it has died.
LIMIT_S = 90
# Files of sensors that no backend reads.
PERF_EVENTS = "sys/bus/event_source/devices/power/events/energy-*"
CRAY_COUNTERS = "sys/cray/pm_counters/*energy"
POWERCAP_COUNTERS = "sys/class/powercap/*/energy_uj"


def survey(root: Path) -> dict[str, Any]:
    """Return everything that the backends find below the root, with one reading of each channel."""
    sensors = find(root, ())
    channels = []
    for number, channel in enumerate(sensors.channels):
        value, fault = None, None
        try:
            assert sensors.read is not None
            value = sensors.read(number)
        except ReadError as error:
            fault = error.reason
        except Exception as error:  # noqa: BLE001 -- any error of an untrusted backend is a result
            fault = f"{type(error).__name__}: {error}"[:500]
        channels.append(to_json_object(channel) | {"reading": value, "fault": fault})
    return {
        "backends": plugins.names("sensor"),
        "domains": to_json_object(sensors.domains),
        "channels": channels,
        "states": to_json_object([state.contract for state in sensors.states()] if sensors.states is not None else []),
        "missing": to_json_object(sensors.missing),
        "powercap": any(root.glob(POWERCAP_COUNTERS)),
        "perf_events": sorted(path.name for path in root.glob(PERF_EVENTS) if not path.suffix),
        "cray_counters": sorted(f"/{path.relative_to(root)}" for path in root.glob(CRAY_COUNTERS)),
    }


def main() -> int:
    """Print what was found. Output of libraries goes to standard error."""
    signal.alarm(LIMIT_S)
    own = os.dup(1)
    os.dup2(2, 1)
    text = json.dumps(survey(Path(sys.argv[1] if len(sys.argv) > 1 else "/")))
    with os.fdopen(own, "w", encoding="utf-8") as output:
        print(text, file=output, flush=True)
    # A call into a driver that never returns must not delay the output.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
