"""Acts when the program imports a module that we want to observe; imports nothing itself."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .training import SeenTraining

FIRST = "torch"
"""What every observed module needs."""
_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"


def watch_imports(begin: Callable[[], SeenTraining | None]) -> None:
    """Call the hooks of a module as soon as the program has imported it; `begin` loads what they need."""
    sys.meta_path.insert(0, _Watcher(begin))


class _Watcher:
    """Finds nothing itself: it asks the other finders, and adds a call after the module has run."""

    def __init__(self, begin: Callable[[], SeenTraining | None]) -> None:
        self._begin = begin
        self._training: SeenTraining | None = None
        self._asking: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return what the other finders find."""
        if name == FIRST and self._training is None:
            self._training = self._begin()
        if self._training is None:
            return None
        from .hooks import AFTER

        act = AFTER.get(name)
        if act is None or name in self._asking:
            return None
        self._asking.add(name)
        try:
            spec = _find(name, path, target, self)
        finally:
            self._asking.discard(name)
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return spec
        run, training = spec.loader.exec_module, self._training

        def exec_module(module: Any) -> None:
            run(module)
            try:
                act(module, training)
            except Exception as error:  # noqa: BLE001 -- the program must not notice
                training.note(f"{name}: {error!r}")

        # Python leaves its own import system out of tracebacks.
        exec_module.__code__ = exec_module.__code__.replace(co_filename=_IMPORT_SYSTEM)
        try:
            # Of this loader alone, whose type stays as it was.
            spec.loader.exec_module = exec_module
        except AttributeError:
            training.note(f"{name}: its loader cannot be observed")
        return spec


def offer_marks(mark_step: Callable[[], None]) -> None:
    """Let the program import steelyard to mark its steps, also where it is not installed."""
    sys.meta_path.append(_Marks(mark_step))


class _Marks:
    """The last finder, of a module with one function."""

    def __init__(self, mark_step: Callable[[], None]) -> None:
        self._mark_step = mark_step

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        """Return a module that only marks steps; asked only if no other finder has it."""
        return sys.modules["_frozen_importlib"].ModuleSpec(name, self) if name == "steelyard" else None

    @staticmethod
    def create_module(_spec: Any) -> None:
        """Let Python make the usual one."""

    def exec_module(self, module: Any) -> None:
        """Fill it."""
        module.mark_step = self._mark_step


def _find(name: str, path: Any, target: Any, without: _Watcher) -> Any:
    for finder in sys.meta_path:
        if finder is not without and hasattr(finder, "find_spec"):
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
    return None
