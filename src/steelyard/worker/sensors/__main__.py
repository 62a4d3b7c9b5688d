"""`python -m steelyard.worker.sensors RAW ...`: read this node's sensors until standard input ends."""

import argparse
import os
from pathlib import Path

from steelyard.worker.sensors.sampler import Order, sample


def main() -> None:
    """Run the sampler. The worker sets every option."""
    parser = argparse.ArgumentParser(prog="python -m steelyard.worker.sensors")
    parser.add_argument("raw", type=Path, help="directory for the readings")
    parser.add_argument("--node", required=True, help="name of this node")
    parser.add_argument("--process", type=int, required=True, help="number of the measured process")
    parser.add_argument("--period", type=float, default=0.1, help="seconds between readings")
    parser.add_argument("--zero", type=float, required=True, help="monotonic clock at the start of the run")
    parser.add_argument("--parent", type=int, required=True, help="id of the measured process")
    parser.add_argument("--random-phase", action="store_true", help="read at a random time in each period")
    parser.add_argument("--root", type=Path, default=Path("/"), help="root of the file system")
    parser.add_argument("--device", action="append", default=[], help="a device of the job: UUID or number")
    options = parser.parse_args()
    sample(
        Order(
            raw=options.raw,
            node=options.node,
            process=options.process,
            period_s=options.period,
            zero_s=options.zero,
            parent=options.parent,
            random_phase=options.random_phase,
            root=options.root,
            devices=tuple(options.device),
        )
    )


if __name__ == "__main__":
    main()
    # A blocking call into a driver must not keep the process alive.
    os._exit(0)
