"""Calls something before and after a function, without a line of ours in the tracebacks of the program.

A function that calls the original would be in every traceback that leads through it. Here Python asks an object what to
call, and then calls the original itself. The object that it was given dies when the call ends, however it ends.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Observed:
    """Takes the place of a function, or of a method of a class."""

    __slots__ = ("__dict__", "begins", "call", "original")

    def __init__(self, original: Any, begins: Callable[[Any], None], ends: Callable[[Any], None]) -> None:
        """`begins` and `ends` get the object whose method is called; None for a function."""
        functools.update_wrapper(self, original)
        self.original, self.begins, self.call = original, begins, _call_that(ends)

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else _Method(self, owner)

    def __reduce__(self) -> str:
        """Return its name, by which functions are pickled."""
        return str(getattr(self, "__qualname__", ""))

    @property
    def __call__(self) -> Any:  # noqa: D102 -- the property is read when the object is called
        if _late:
            raise _late.pop()
        self.begins(None)
        return self.call(self.original)


class _Method:
    """A method of one object."""

    __slots__ = ("__self__", "_observed")

    def __init__(self, observed: Observed, owner: Any) -> None:
        self._observed = observed
        self.__self__ = owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._observed, name)

    @property
    def __call__(self) -> Any:
        if _late:
            raise _late.pop()
        observed = self._observed
        observed.begins(self.__self__)
        return observed.call(observed.original, self.__self__)


def _call_that(ends: Callable[[Any], None]) -> Any:
    """Return the class of a call of an original, after which `ends` is called."""

    class Call(functools.partial):  # type: ignore[type-arg]
        __slots__ = ()

        def __del__(self) -> None:
            try:
                ends(self.args[0] if self.args else None)
            except BaseException as error:  # noqa: BLE001 -- of a signal that came just now, or the end of the program
                # No error can leave this method: it has to wait for the next call.
                _late.append(error)

    return Call


_late: list[BaseException] = []


class CountedClosure:
    """Takes the place of the closure of an optimizer, in one update."""

    __slots__ = ("_closure", "_training")

    def __init__(self, training: Any, closure: Any) -> None:
        self._training, self._closure = training, closure

    def __getattr__(self, name: str) -> Any:
        return getattr(self._closure, name)

    @property
    def __call__(self) -> Any:  # noqa: D102 -- see Observed
        self._training.closure_calls += 1
        return self._closure


class Fetched:
    """Takes the place of the method `__next__` of a class."""

    __slots__ = ("_begins", "_original", "_took")

    def __init__(self, original: Any, begins: Callable[[Any], Any], took: Callable[[Any, Any, Any], Any]) -> None:
        """`took` gets the iterator, what `begins` returned for it, and what is fetched, which it returns."""
        self._original, self._begins, self._took = original, begins, took

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        if owner is None:
            return self._original
        # None of these is a function in Python, so none is in a traceback.
        took = functools.partial(self._took, owner, self._begins(owner))
        return map(took, map(self._original, itertools.repeat(owner))).__next__
