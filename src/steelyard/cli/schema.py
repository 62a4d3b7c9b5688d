"""Print a contract as JSON Schema, for tools that write specs or read records."""

import argparse
import json

from steelyard.contracts.record import RunRecord
from steelyard.contracts.spec import RunSpec
from steelyard.inputs.recipe import Recipe
from steelyard.inputs.site import Site
from steelyard.inputs.study import Study
from steelyard.inputs.validate import json_schema

CONTRACTS = {"run-spec": RunSpec, "run-record": RunRecord, "study": Study, "recipe": Recipe, "site": Site}


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument("contract", choices=sorted(CONTRACTS))


def run(arguments: argparse.Namespace) -> int:
    """The schema on standard output; --json leaves out the line breaks."""
    print(json.dumps(json_schema(CONTRACTS[arguments.contract]), indent=None if arguments.json else 2))
    return 0
