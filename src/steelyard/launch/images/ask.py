"""Query tools about images, and torch inside an image, with limits on time and size.

The probe of the measured side is started in the container.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import steelyard
from steelyard.doctor.torch_build import MAKER_OF, PROBE_LIMIT_S, WHEELS
from steelyard.errors import InputError, Problem, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.inputs.site import Place

ASK_LIMIT_S: Final = 60.0
MAX_ANSWER_BYTES: Final = 8 << 20
MAX_WORDS: Final = 300

# Options to drop on a login node: they need devices that it may not have, or the probe sets them itself.
_NODE_OPTIONS = re.compile(r"--(nv|nvccli|rocm|gpus|device|network|net|cgroups|read-only|timeout|pull)(=|$)")
_PROBE_PLACE = "/opt/steelyard-probe"


@dataclass(frozen=True)
class Torch:
    """The torch of an image."""

    text: str | None
    """Version and build; None: unknown."""
    why: str = ""
    """Why it is unknown."""
    broken: bool = False
    """Whether it was queried and cannot be used."""


@dataclass(frozen=True)
class CommandOutput:
    """The output of a command."""

    text: bytes | None
    """None: the command failed."""
    why: str = ""


def ask(command: Sequence[str], *, limit_s: float = ASK_LIMIT_S) -> CommandOutput:
    """Run a command within limits of time and size."""
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said)
        except OSError as error:
            return CommandOutput(None, f"{command[0]}: {error.strerror}")
        timer = threading.Timer(limit_s, process.kill)
        timer.start()
        with process:
            assert process.stdout is not None
            text = process.stdout.read(MAX_ANSWER_BYTES + 1)
            if len(text) > MAX_ANSWER_BYTES:
                process.kill()
        timer.cancel()
        if process.returncode == 0 and len(text) <= MAX_ANSWER_BYTES:
            return CommandOutput(text)
        said.seek(max(0, said.tell() - 4000))
        lines = said.read(4000).decode("utf-8", "replace").strip().splitlines()
    why = lines[-1] if lines else f"ended with code {process.returncode}"
    return CommandOutput(None, printable(why)[:MAX_WORDS])


def torch_in(place: Place, reference: str, architecture: str | None, *, here: bool) -> Torch:
    """Query torch in the image with the probe; InputError if it is built for other devices."""
    runtime = place.site.container.runtime
    if runtime in ("shifter", "pyxis"):
        return Torch(None, "torch not checked")
    if architecture != platform.machine():
        return Torch(None, "torch not checked: the image is for another architecture than this machine")
    if not here:
        return Torch(None, "torch not checked: the image is not unpacked on this machine")
    if shutil.which(runtime) is None:
        return Torch(None, f"torch not checked: {runtime} is not installed on this machine")
    answer = _ask_once(tuple(_probe_command(place, reference)))
    try:
        probed = json.loads(answer.text or b"")
        facts, error = dict(probed["facts"]), probed["error"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return Torch(None, f"torch not checked: {answer.why or 'the image gave no answer'}")
    if error:
        return Torch(None, f"torch in the image: {printable(str(error)[:MAX_WORDS])}", broken=True)
    built = [f"{WHEELS[maker]} {facts[name]}" for name, maker in MAKER_OF.items() if name in facts]
    described = f"{facts.get('torch.version')}, {' and '.join(built) or 'CPU only'}"
    devices = place.site.container.devices
    if devices not in ("none", *(maker.lower() for name, maker in MAKER_OF.items() if name in facts)):
        problem = Problem("container.images", f"its torch is {described}", f"one built for {devices} devices")
        raise InputError("torch in the image cannot use the devices of the container", problems=(problem,))
    return Torch(printable(described)[:MAX_WORDS])


@cache
def _ask_once(command: tuple[str, ...]) -> CommandOutput:
    """Run the probe once per process: both the checks of a site and the plan need its answer."""
    return ask(command, limit_s=PROBE_LIMIT_S)


def _probe_command(place: Place, reference: str) -> list[str]:
    container = place.site.container
    options = [option for option in container.options if not _NODE_OPTIONS.match(option)]
    package = Path(steelyard.__file__).parent
    target = f"{_PROBE_PLACE}/steelyard"
    command = [place.site.python or "python3", "-m", "steelyard.worker.probe"]
    variables = [f"--env=PYTHONPATH={_PROBE_PLACE}", "--env=PYTHONSAFEPATH=1", "--env=PYTHONNOUSERSITE=1"]
    # Mounts may hold torch itself or a library it needs; those that exist only on the nodes are left out.
    mounts = [(mount.source, mount.target or mount.source) for mount in container.mounts if Path(mount.source).exists()]
    mounts.append((str(package), target))
    if container.family == "apptainer":
        start = [container.runtime, "exec", "--cleanenv", "--no-eval", "--no-home"]
        start += [f"--bind={source}:{inside}:ro" for source, inside in mounts]
        return [*start, *variables, *options, reference, *command]
    start = [container.runtime, "run", "--rm", "--pull=never", "--network=none", "--read-only"]
    start += ["--tmpfs=/tmp:rw,mode=1777", "--security-opt=label=disable"]
    start += [f"--mount=type=bind,source={source},target={inside},readonly" for source, inside in mounts]
    if container.family == "podman":
        start.append(f"--timeout={round(PROBE_LIMIT_S) + 10}")
    rooted = ["--rootfs", f"{reference}:O"] if reference.startswith("/") else [reference]
    return [*start, *variables, *options, *rooted, *command]
