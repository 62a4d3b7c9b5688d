"""Judge tables, claims and results: what their figures contradict, hide or leave open.

FILE is a published table (CSV or TOML), a claims file (TOML), a result folder, a study, a run, or the name of a
built-in reference document. Exit code 0: nothing blocks and every claim holds; 1: something blocks or a claim does not
hold; 2: something cannot be read, and nothing is judged.
"""

import argparse
import json
import sys
from pathlib import Path

from steelyard.audit import documents
from steelyard.audit.subject import audit, audit_reference
from steelyard.audit.table import read_platforms
from steelyard.cli.verb import add_results
from steelyard.errors import InputError, printable
from steelyard.report.audit.page import audit_page
from steelyard.report.render.html import html
from steelyard.results.store import ResultFolder
from steelyard.terminal.claims import audit_lines, audit_object


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    names = ", ".join(documents.names())
    parser.add_argument("what", nargs="*", metavar="FILE", help=f"what to judge; built in: {names}")
    parser.add_argument("--reference", action="store_true", help="all built-in reference documents with their claims")
    parser.add_argument(
        "--platforms", type=Path, metavar="CSV", help="the machines of a table, with their power limits"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a reviewer's page as well")
    parser.add_argument("--brief", action="store_true", help="leave out fixes and the claims that hold")
    add_results(parser)


def run(arguments: argparse.Namespace) -> int:
    """Judge everything; exit code 1 when something blocks or a claim does not hold."""
    if not arguments.what and not arguments.reference:
        raise InputError("nothing to judge", next_step="steelyard audit FILE, or steelyard audit --reference")
    platforms = read_platforms(arguments.platforms) if arguments.platforms else ()
    folder = ResultFolder(arguments.results)
    audits = [audit(word, folder, platforms) for word in arguments.what]
    if arguments.reference:
        audits += [audit_reference(name) for name in documents.names()]
    if arguments.html is not None:
        arguments.html.write_text(html(audit_page(audits)), encoding="utf-8")
        print(printable(f"a page for reviewers: {arguments.html}"), file=sys.stderr)
    if arguments.json:
        print(json.dumps([audit_object(entry) for entry in audits]))
    else:
        print("\n".join(audit_lines(audits, brief=arguments.brief)))
    return 0 if all(entry.passes for entry in audits) else 1
