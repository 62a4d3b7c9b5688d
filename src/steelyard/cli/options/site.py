"""Manage the sites that studies can be submitted to: list, create, show and check site files.

$ steelyard site new slurm-nvidia -o mysite.toml
$ steelyard site check mysite.toml
"""

from steelyard.cli.arguments import add_action, add_common
from steelyard.cli.parser import Parser
from steelyard.inputs.templates import kinds


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", title="actions", prog=parser.prog)
    lists = add_action(actions, "list", "list your sites and the templates for new ones", "site list")
    new = add_action(
        actions,
        "new",
        "write a site file from a template, to be filled in",
        "site new slurm-nvidia -o mysite.toml",
    )
    new.add_argument("kind", metavar="KIND", help=f"template: {', '.join(kinds('sites'))}")
    new.add_argument("-o", "--output", metavar="FILE", help="file to write (default: KIND.toml; - prints it)")
    show = add_action(actions, "show", "show what a site file says", "site show mysite.toml")
    show.add_argument("site", metavar="SITE", help="name or file; steelyard site list shows the names")
    check = add_action(
        actions,
        "check",
        "check a site for problems before anything is submitted",
        "site check mysite.toml",
        "site check mysite.toml:gpu --offline",
    )
    check.add_argument("site", metavar="SITE[:POOL]", help="name or file; without POOL all pools are checked")
    check.add_argument("--offline", action="store_true", help="check only the file: this is not a machine of the site")
    for inner in (lists, new, show, check):
        add_common(inner, results=inner is check, inner=True)
    add_common(parser, results=False)
