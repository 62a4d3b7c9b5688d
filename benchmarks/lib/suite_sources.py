"""Which settings of a suite's runs have a source, and which entries on sources are out of date."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from steelyard.contracts.base import to_json_object
from steelyard.inputs.study import IDENTITY
from steelyard.inputs.suite import SIZES, Choice, expand_part, plan_part

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from steelyard.inputs.suite import Planned, SettingSource, Size, SuiteFolder

NOT_EXPLAINED = {*IDENTITY, "sim", "source", "data.path", "weights"}


@dataclass(frozen=True)
class Setting:
    """A setting of the configurations of a part at a size."""

    part: str
    size: Size
    name: str
    value: Any

    def __str__(self) -> str:
        return f"{self.part}, {self.size}: {self.name} = {self.value!r}"


Explained: TypeAlias = "tuple[Setting, SettingSource | None]"
"""A setting and the entry that explains it; None: no entry does."""


def sources_of(found: SuiteFolder) -> list[Explained]:
    """Return each setting of a suite, at every size and with all its data, and the entry that explains it.

    An entry explains a setting with its name, part, size and value. The first one counts.
    """
    entries = found.setting_sources()
    settings = dict.fromkeys(_settings(found))
    return [(setting, next((e for e in entries if explains(e, setting)), None)) for setting in settings]


def explains(entry: SettingSource, setting: Setting) -> bool:
    """Return whether an entry is about this setting and its value."""
    return (
        fnmatchcase(setting.name, entry.name)
        and setting.part in (entry.parts or (setting.part,))
        and setting.size in (entry.sizes or (setting.size,))
        and any(known is None or _same(known, setting.value) for known in _values(entry))
    )


def out_of_date(entries: Iterable[SettingSource], explained: Collection[Explained]) -> list[str]:
    """Return the settings and values of these entries that no configuration has, or that an earlier entry explains."""
    found = []
    for entry in entries:
        of_entry = [setting.value for setting, source in explained if source == entry]
        for value in _values(entry):
            if not (of_entry if value is None else any(_same(value, other) for other in of_entry)):
                scope = f" ({', '.join((*entry.parts, *entry.sizes))})" if entry.parts or entry.sizes else ""
                found.append(f"{entry.name} = {'any value' if value is None else repr(value)}{scope}")
    return found


def _settings(found: SuiteFolder) -> Iterator[Setting]:
    data = {needed.format: Path("/data") for needed in found.suite.data}
    for part in found.suite.part:
        for size in SIZES:
            choice = Choice(size=size, data=data)
            cells = expand_part(found, part, choice).cells
            for planned, cell in zip(plan_part(found.suite, part, choice), cells, strict=True):
                listed = {**dict(_leaves(to_json_object(cell.spec))), **_own_names(found, planned, size)}
                yield from (Setting(part.name, size, name, value) for name, value in listed.items())


def _leaves(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of a run with dotted names. The options of a model are settings too."""
    for key, value in settings.items():
        name = prefix + key
        if isinstance(value, dict) and name not in NOT_EXPLAINED:
            yield from _leaves(value, f"{name}.")
        elif name not in NOT_EXPLAINED:
            # A part names its data by the format.
            yield ("data" if name == "data.format" else name), value


def _own_names(found: SuiteFolder, planned: Planned, size: Size) -> dict[str, Any]:
    """Return the settings that only parts have: the length of a whole training, and the batch of the whole job."""
    changes = [getattr(where, size).run for where in (found.suite, planned.part)] if size != "full" else []
    listed = (found.suite.run, planned.part.run, *changes, planned.settings)
    own = {key: value for run in listed for key, value in run.items()}
    return {name: own[name] for name in ("epochs", "global_batch") if name in own}


def _values(entry: SettingSource) -> tuple[Any, ...]:
    return entry.value if isinstance(entry.value, tuple) else (entry.value,)


def _same(known: Any, value: Any) -> bool:
    return bool(known == value) and isinstance(known, bool) == isinstance(value, bool)
