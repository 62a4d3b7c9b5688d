"""Ask a question about all runs of a results folder."""

import argparse
import os
import shutil
import sys

from steelyard.errors import InputError, Problem, nearest, printable, refusal
from steelyard.report.render.csv_table import inert
from steelyard.results.ask import Form, ask, read_table
from steelyard.results.questions import QUESTIONS
from steelyard.terminal.document import print_json
from steelyard.terminal.query import answer_lines, question_lines, questions_object


def run(arguments: argparse.Namespace) -> int:
    """Print the answer, or write it to a file."""
    if arguments.list:
        if arguments.json:
            print_json(questions_object())
        else:
            print("\n".join(question_lines()))
        return 0
    if arguments.query is None:
        raise InputError("no query", next_step="steelyard query --list")
    form: Form = "json" if arguments.json else arguments.format
    if form == "parquet" and arguments.output is None:
        raise InputError("Parquet is not text", next_step="give a file with --output")
    known = QUESTIONS.get(arguments.query)
    if known is None and " " not in arguments.query.strip():
        problem = Problem(
            arguments.query[:200], "no such question", ", ".join(QUESTIONS), near=nearest(arguments.query, QUESTIONS)
        )
        raise refusal(problem, next_step="steelyard query --list")
    if not arguments.results.is_dir():
        raise InputError(f"no results in {arguments.results}", next_step="steelyard run sim")
    answer = ask(
        arguments.results,
        known.sql if known else arguments.query,
        form,
        seconds=arguments.timeout,
        memory_mb=arguments.memory,
        clean=inert,
    )
    if form == "table" and arguments.output is None:
        print("\n".join(answer_lines(read_table(answer))))
        return 0
    with os.fdopen(answer, "rb") as file:
        if arguments.output is not None:
            with arguments.output.open("wb") as target:
                shutil.copyfileobj(file, target)
            print(printable(f"{arguments.output}: {arguments.output.stat().st_size:,} bytes"), file=sys.stderr)
        else:
            sys.stdout.flush()
            shutil.copyfileobj(file, sys.stdout.buffer)
    return 0
