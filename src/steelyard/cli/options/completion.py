"""Print a completion script for a shell.

$ steelyard completion bash > ~/.local/share/bash-completion/completions/steelyard
$ steelyard completion zsh > ~/.zfunc/_steelyard
$ steelyard completion fish > ~/.config/fish/completions/steelyard.fish

For zsh, ~/.zfunc must be in fpath before compinit is called.
"""

from steelyard.cli.arguments import add_common
from steelyard.cli.parser import Parser

SHELLS = ("bash", "zsh", "fish")


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")
    add_common(parser, results=False)
