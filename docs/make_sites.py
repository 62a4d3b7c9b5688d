"""Makes the tables of fields in sites.md from the contract of a site; `--check` fails when they are not current."""

from __future__ import annotations

import sys
from pathlib import Path

from schema_tables import table

from steelyard.inputs.site import Site
from steelyard.inputs.validate import json_schema

PAGE = Path(__file__).resolve().parent / "sites.md"
BEGIN, END = "<!-- fields: made by docs/make_sites.py -->", "<!-- end of fields -->"
TABLES = {
    "Site": "At the top of the file",
    "Pool": "`[pools.NAME]`: one kind of node",
    "Toleration": "`tolerations` of a pool, each a table in a list",
    "Container": "`[container]`",
    "Mount": "`[[container.mounts]]`",
    "Modules": "`[modules]`",
    "Charge": "`[charge]`",
    "Limits": "`[limits]`",
    "Cluster": "`[cluster]`, for Kubernetes",
}


def fields() -> str:
    """All tables."""
    schema = json_schema(Site)
    parts = []
    for name, title in TABLES.items():
        parts.append(f"### {title}\n\n{table(schema if name == 'Site' else schema['$defs'][name])}")
    return "\n\n".join(parts)


def page() -> str:
    """The page with current tables."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{fields()}\n\n{END}{after}"


def main() -> int:
    """Write the page, or say that it is old."""
    made = page()
    if "--check" in sys.argv[1:]:
        current = PAGE.read_text(encoding="utf-8") == made
        if not current:
            print("docs/sites.md is not current; next: python docs/make_sites.py")
        return 0 if current else 1
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
