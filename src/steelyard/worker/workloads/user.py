"""Load the build function from a user's file. Runs the file only if its digest is that of the spec."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.spec import Source

MODULE = "steelyard_user_workload"
DIGEST = "__steelyard_sha256__"


def load_source(source: Source) -> Callable[..., Any]:
    """Return the function, from the file as it was when the run was requested."""
    path = Path(source.path)
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if hashlib.sha256(text).hexdigest() != source.sha256:
        raise InputError(f"{path} has changed since this run was requested", next_step="run the command again")
    module = sys.modules.get(MODULE)
    if module is None or (module.__file__, getattr(module, DIGEST, None)) != (str(path), source.sha256):
        module = _run(path, text)
        setattr(module, DIGEST, source.sha256)
    build = getattr(module, source.function, None)
    if not callable(build):
        raise InputError(f"{path} has no function {source.function}", next_step=f"define {source.function}()")
    return build  # type: ignore[no-any-return]


def _run(path: Path, text: bytes) -> Any:
    # Its own folder last: files next to it can be imported, but cannot replace a library.
    sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(MODULE, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # By name, so that DataLoader workers can find what the file defines.
    sys.modules[MODULE] = module
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)  # noqa: S102 -- the user's own file, by the user's own command
    except BaseException:
        del sys.modules[MODULE]
        raise
    return module
