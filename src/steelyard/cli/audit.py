"""Audit tables, claims and results, and print the findings."""

import argparse
import json
import sys

from steelyard.audit import documents
from steelyard.audit.subject import audit, audit_reference
from steelyard.audit.table import read_platforms
from steelyard.errors import InputError, printable
from steelyard.report.audit.page import audit_page
from steelyard.report.render.html import html
from steelyard.results.store import ResultFolder
from steelyard.terminal.claims import audit_lines, audit_object


def run(arguments: argparse.Namespace) -> int:
    """Audit everything; exit code 1 when there are errors or a claim does not hold."""
    if not arguments.what and not arguments.reference:
        raise InputError("nothing to audit", next_step="steelyard audit FILE, or steelyard audit --reference")
    platforms = read_platforms(arguments.platforms) if arguments.platforms else ()
    folder = ResultFolder(arguments.results)
    audits = [audit(word, folder, platforms) for word in arguments.what]
    if arguments.reference:
        audits += [audit_reference(name) for name in documents.names()]
    if arguments.html is not None:
        arguments.html.write_text(html(audit_page(audits)), encoding="utf-8")
        print(printable(f"page for reviewers: {arguments.html}"), file=sys.stderr)
    if arguments.json:
        print(json.dumps([audit_object(entry) for entry in audits]))
    else:
        print("\n".join(audit_lines(audits, brief=arguments.brief)))
    return 0 if all(entry.passes for entry in audits) else 1
