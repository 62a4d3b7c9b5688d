"""Variables that expand on the node: only names are replaced, by a real bash."""

from __future__ import annotations

import subprocess

import pytest

from steelyard.errors import InputError
from steelyard.inputs.site import Site
from steelyard.inputs.validate import parse_object
from steelyard.launch.scripts.bash import expanding

VARIABLES = {"USER": "me", "SLURM_LOCALID": "3", "LD_LIBRARY_PATH": "/usr/lib", "EMPTY": ""}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("/tmp/$USER-${SLURM_LOCALID}", "/tmp/me-3"),
        ("$SLURM_LOCALID", "3"),
        ("/opt/lib:$LD_LIBRARY_PATH", "/opt/lib:/usr/lib"),
        ("/opt/lib:$NOT_SET", "/opt/lib"),
        ("$EMPTY:/opt/lib", "/opt/lib"),
        ("$LD_LIBRARY_PATH:/opt/lib", "/usr/lib:/opt/lib"),
        ("/a:$NOT_SET:/b", "/a:/b"),
        ("/a:$LD_LIBRARY_PATH:/b", "/a:/usr/lib:/b"),
        ('quote " back \\\\ star * ; | & < > ( )', 'quote " back \\\\ star * ; | & < > ( )'),
        ("", ""),
    ],
)
def test_only_names_are_replaced(text: str, value: str) -> None:
    command = ["bash", "-c", f"printf %s {expanding(text)}"]
    done = subprocess.run(command, env=VARIABLES, capture_output=True, text=True, check=True)
    assert done.stdout == value


@pytest.mark.parametrize("text", ["$(touch pwned)", "`touch pwned`", "${X:-$(id)}", "$1", "${X@P}", "a$", "two\nlines"])
def test_nothing_else_is_accepted(text: str) -> None:
    pool = {"architecture": "x86_64", "devices_per_node": 1}
    site = {"name": "s", "scheduler": "slurm", "pools": {"p": pool}, "expanded": {"NAME": text}}
    with pytest.raises(InputError, match="expanded"):
        parse_object(Site, site, "a site")
