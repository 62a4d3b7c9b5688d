"""Remember the campaigns that this user has submitted: only those are acted on.

A results folder may come from anybody, and so may the campaigns in it. What they say is not enough to submit, collect
or delete anything. A campaign is ours if it is registered here, in the user's state directory, and is still the same
folder with the same plan. The ids that a scheduler is asked about are kept here, too.

    $XDG_STATE_HOME/steelyard/campaigns/KEY/entry.json    the RegistryEntry
                                           /NNN.id        the scheduler's id of a job, once it is submitted
"""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import shlex
import shutil
import stat
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from steelyard import nofollow
from steelyard.contracts.base import Bound, Contract, Count, Length, Name
from steelyard.errors import SteelyardError, printable
from steelyard.inputs.validate import parse_json, read_bounded
from steelyard.results.store import create_once, record_text, replace_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ENTRY_FILE: Final = "entry.json"
MAX_ENTRY_BYTES: Final = 1 << 26
MAX_ID_CHARACTERS: Final = 300
WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
ABOVE: Final = 3
"""Folders above a campaign, up to the results folder: that of the study, of all campaigns, and the results folder."""
SHA256: Final = Length(64, r"^[0-9a-f]{64}$")


@dataclass(frozen=True, kw_only=True)
class RegistryEntry(Contract):
    """One campaign of ours."""

    schema_version: Literal[1] = 1
    path: Annotated[str, Length(10_000)]
    """For people; the name of the entry depends on it."""
    inode: Annotated[int, Bound(ge=0, le=2**64)]
    owner: Count
    """The user id that our files have there, which a file server may map."""
    plan_sha256: Annotated[str, SHA256]
    jobs: dict[Name, dict[Name, Annotated[str, SHA256]]]
    """SHA-256 of each file of each job, by job number and name."""
    adopted: bool = False
    """Made by somebody else and taken over: what it has not submitted is never submitted."""


@contextmanager
def mask(bits: int) -> Iterator[None]:
    """Take these permissions from all files that are created inside, in addition to the user's umask."""
    before = os.umask(0o077)
    os.umask(before | bits)
    try:
        yield
    finally:
        os.umask(before)


def prepare() -> None:
    """Create the list; SteelyardError if this user cannot keep one."""
    home = _home()
    try:
        # The mode is that of the last folder only: who can write to one above it can replace it.
        home.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        home.mkdir(exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=home):
            exposed = home.stat().st_mode & WRITABLE_BY_OTHERS
    except OSError as error:
        raise SteelyardError(
            f"cannot write down in {home} what is submitted: {error.strerror}; nothing was submitted",
            next_step="set XDG_STATE_HOME to a folder of yours",
        ) from None
    if exposed:
        raise SteelyardError(f"others can write to {home}", next_step=f"chmod 700 {home}")


class Registration:
    """The entry of a campaign, if it has one."""

    def __init__(self, path: Path, campaign: str) -> None:
        # A digest: no name in a results folder becomes the name of a file here.
        digest = hashlib.sha256(os.fsencode(path) + b"\0" + campaign.encode()).hexdigest()
        self._home = _home() / digest[:32]
        self._campaign = path

    def ours(self, plan_sha256: str, *, shared: bool) -> RegistryEntry | None:
        """Return the entry if the folder is still the one that was registered; None: the campaign is not ours.

        SteelyardError if others can write to the folder, unless `shared`.
        """
        entry, state = self._read(), nofollow.stat(self._campaign)
        if entry is None or (entry.inode, entry.plan_sha256) != (state.st_ino, plan_sha256):
            return None
        if shared:
            return entry
        if state.st_uid != entry.owner or state.st_mode & WRITABLE_BY_OTHERS:
            raise _exposed(self._campaign, state, entry.owner)
        refuse_exposed(self._campaign.parent, entry.owner)
        return entry

    def write(
        self,
        plan_sha256: str,
        jobs: dict[str, dict[str, str]],
        owner: int,
        *,
        ids: Mapping[int, str] | None = None,
        adopted: bool = False,
    ) -> None:
        """Register the campaign. `ids`: of the jobs that are already submitted."""
        entry = RegistryEntry(
            path=os.fsencode(self._campaign).decode("utf-8", "replace"),
            inode=nofollow.stat(self._campaign).st_ino,
            owner=owner,
            plan_sha256=plan_sha256,
            jobs=jobs,
            adopted=adopted,
        )
        self.forget()
        with mask(0o077):
            self._home.mkdir()
            # The entry last: a job without an id would count as not submitted.
            for number, text in (ids or {}).items():
                self.keep_id(number, text)
            replace_text(self._home / ENTRY_FILE, record_text(entry), self._home)

    def job_id(self, number: int) -> str | None:
        """Return the scheduler's id of a job; None: not submitted, or the answer is not known yet."""
        try:
            with self.id_file(number).open(encoding="utf-8") as file:
                return file.read(MAX_ID_CHARACTERS).strip() or None
        except FileNotFoundError:
            return None

    def keep_id(self, number: int, text: str) -> None:
        """Write down the scheduler's id of a job, once."""
        with mask(0o077):
            create_once(self.id_file(number), text + "\n", self._home)

    def forget(self) -> None:
        """Remove the entry."""
        shutil.rmtree(self._home, ignore_errors=True)

    def id_file(self, number: int) -> Path:
        """The file with the scheduler's id of a job."""
        return self._home / f"{number:03d}.id"

    def _read(self) -> RegistryEntry | None:
        path = self._home / ENTRY_FILE
        return parse_json(RegistryEntry, read_bounded(path, MAX_ENTRY_BYTES), str(path)) if path.is_file() else None


def refuse_exposed(home: Path, owner: int) -> None:
    """Raise SteelyardError if others can rename what is in the folder of a study's campaigns, or in one above it.

    They could put another campaign in the place of one, until its last job has read its files. `owner`: the user id
    that our files have there.
    """
    for folder in (home, *home.parents[: ABOVE - 1]):
        state = nofollow.stat(folder)
        if state.st_uid not in (owner, os.getuid(), 0) or _lets_others_rename(state):
            raise _exposed(folder, state, owner)


def _exposed(folder: Path, state: os.stat_result, owner: int) -> SteelyardError:
    who = "is writable by others" if state.st_uid == owner else f"belongs to {user_name(state.st_uid)}"
    return SteelyardError(
        f"{folder} {who}: they could change what is collected",
        next_step=f"chmod -R go-w {shlex.quote(str(folder))}, or accept it with --shared",
    )


def _lets_others_rename(folder: os.stat_result) -> bool:
    """Return whether others can rename what a user has in a folder."""
    if not folder.st_mode & WRITABLE_BY_OTHERS or folder.st_mode & stat.S_ISVTX:
        return False
    return bool(folder.st_mode & stat.S_IWOTH) or not _is_group_of_one(folder.st_uid, folder.st_gid)


def _is_group_of_one(user: int, group: int) -> bool:
    """Return whether this is the group that many systems make for each user, with nobody else in it."""
    try:
        of, made = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    return of.pw_gid == group and made.gr_name == of.pw_name and not set(made.gr_mem) - {of.pw_name}


def user_name(user: int) -> str:
    """Return the name of a user."""
    try:
        return printable(pwd.getpwuid(user).pw_name)
    except KeyError:
        return f"user {user}"


def _home() -> Path:
    given = os.environ.get("XDG_STATE_HOME", "")
    try:
        # As its specification says: a path that is not absolute is ignored.
        state = Path(given) if Path(given).is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError:
        raise SteelyardError("this user has no home folder", next_step="set XDG_STATE_HOME to a folder") from None
    return state.resolve() / "steelyard" / "campaigns"
