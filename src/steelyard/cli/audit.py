"""Audit tables, claims and results, and print the findings."""

import argparse
import sys
from pathlib import Path

from steelyard.audit import documents
from steelyard.audit.reading import long_form
from steelyard.audit.subject import audit, audit_reference, with_sentences
from steelyard.audit.table import read_platforms
from steelyard.cli.exit_codes import DONE, FAILED, UNDECIDED
from steelyard.errors import InputError, printable
from steelyard.report.audit.page import audit_page
from steelyard.report.render.files import require_place
from steelyard.report.render.html import html
from steelyard.results.store import ResultFolder
from steelyard.terminal.claims import audit_lines, audit_object
from steelyard.terminal.document import print_json
from steelyard.terminal.reading import reading_lines


def run(arguments: argparse.Namespace) -> int:
    """Audit everything; the exit code is that of the worst verdict."""
    if not arguments.what and not arguments.reference:
        raise InputError("nothing to audit", next_step="steelyard audit FILE, or steelyard audit --reference")
    if arguments.html is not None:
        require_place(arguments.html, "html")
    if arguments.save is not None and any(Path(word).resolve() == arguments.save.resolve() for word in arguments.what):
        raise InputError(f"--save {arguments.save}: is what is audited", next_step="--save another file")
    platforms = read_platforms(arguments.platforms) if arguments.platforms else ()
    folder = ResultFolder(arguments.results)
    audits = [audit(word, folder, platforms, tuple(arguments.map)) for word in arguments.what]
    if arguments.reference:
        audits += [audit_reference(name) for name in documents.names()]
    if arguments.claim:
        if len(audits) != 1:
            raise InputError("--claim needs one FILE", next_step='steelyard audit FILE --claim "4.12x on 4 GPUs"')
        audits = [with_sentences(audits[0], arguments.claim)]
    if arguments.html is not None:
        arguments.html.write_text(html(audit_page(audits)), encoding="utf-8")
        print(printable(f"page for reviewers: {arguments.html}"), file=sys.stderr)
    if arguments.save is not None:
        tables = [table for entry in audits for table in entry.tables]
        arguments.save.write_text(long_form(tables), encoding="utf-8")
        print(printable(f"the table as read: {arguments.save}"), file=sys.stderr)
    if arguments.json:
        print_json({"shape": "audit/1", "audits": [audit_object(entry) for entry in audits]})
    else:
        read = [line for entry in audits for line in reading_lines(entry)]
        print("\n".join([*read, *audit_lines(audits, brief=arguments.brief)]))
    verdicts = {entry.verdict for entry in audits}
    return FAILED if "contradictory" in verdicts else UNDECIDED if "warnings" in verdicts else DONE
