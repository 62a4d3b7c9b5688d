"""Derive a record again from its raw observations, and say whether it is the one that was stored."""

import argparse
import json
from pathlib import Path

from steelyard.cli.verb import add_results
from steelyard.contracts.base import to_json_object
from steelyard.derive.record import derive
from steelyard.errors import InputError, printable
from steelyard.inputs.validate import MAX_RECORD_BYTES, read_bounded
from steelyard.results.store import RAW, RECORD_FILE, ResultFolder, record_text


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument("run", help="a run id, or the directory of a run")
    add_results(parser)


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when the record derived now is the stored one, byte for byte."""
    direct = Path(arguments.run)
    found = [direct] if (direct / RECORD_FILE).is_file() else ResultFolder(arguments.results).find(arguments.run)
    if not found:
        raise InputError(f"no run {arguments.run!r} in {arguments.results}", next_step="steelyard show")
    for path in found:
        record = derive(path / RAW)
        same = read_bounded(path / RECORD_FILE, MAX_RECORD_BYTES) == record_text(record).encode()
        if arguments.json:
            print(json.dumps({"path": str(path), "same": same, "record": to_json_object(record)}))
        else:
            print(printable(f"{path}: {'the same record' if same else 'ANOTHER record than the stored one'}"))
        if not same:
            return 1
    return 0
