"""Files of a results folder are never reached through a link."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from steelyard import nofollow
from steelyard.nofollow import LinkError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

USES: list[Callable[[Path], Any]] = [
    nofollow.open_file,
    lambda path: nofollow.open_file(path, "a"),
    lambda path: nofollow.open_file(path, "x"),
    nofollow.stat,
    nofollow.is_file,
    nofollow.is_folder,
    nofollow.names,
    nofollow.remove_tree,
    lambda path: nofollow.move(path, path.with_name("moved")),
]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that must stay as it is."""
    made = tmp_path / "outside"
    (made / "inner").mkdir(parents=True)
    (made / "inner" / "file").write_text("kept")
    return made


@pytest.fixture
def inside(tmp_path: Path, outside: Path) -> Path:
    """A results folder with links to a folder, to a file and to nothing."""
    made = tmp_path / "results"
    made.mkdir()
    (made / "folder").symlink_to(outside)
    (made / "file").symlink_to(outside / "inner" / "file")
    (made / "dangling").symlink_to(outside / "new")
    return made


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("place", ["folder", "file", "dangling", "folder/inner", "folder/inner/file", "folder/new"])
def test_links_are_refused_by_name(inside: Path, outside: Path, use: Callable[[Path], Any], place: str) -> None:
    link = inside / place.partition("/")[0]
    # To create a file where there is a link fails as where there is a file.
    with pytest.raises((LinkError, FileExistsError), match=str(link)):
        use(inside / place)
    assert [entry.name for entry in outside.iterdir()] == ["inner"]
    assert (outside / "inner" / "file").read_text() == "kept"


def test_removing_removes_links_and_not_what_they_point_to(inside: Path, outside: Path) -> None:
    nofollow.remove(inside / "file")
    with pytest.raises(LinkError, match="folder is a link"):
        nofollow.remove(inside / "folder" / "inner" / "file")
    nofollow.remove_tree(inside)
    assert not inside.exists()
    assert (outside / "inner" / "file").read_text() == "kept"


def test_hard_links_are_not_appended_to_and_pipes_do_not_block(inside: Path, outside: Path) -> None:
    os.link(outside / "inner" / "file", inside / "second")
    with pytest.raises(LinkError, match="second is a hard link"):
        nofollow.open_file(inside / "second", "a")
    os.mkfifo(inside / "pipe")
    with pytest.raises(LinkError, match="pipe is not a regular file"):
        nofollow.open_file(inside / "pipe")


def test_plain_files(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    assert not nofollow.is_file(path)
    assert nofollow.names(path.parent) == []
    nofollow.make_folder(path.parent)
    nofollow.make_folder(path.parent, exist_ok=True)
    for mode, text in (("x", b"one"), ("a", b" two")):
        with nofollow.open_file(path, mode) as file:  # type: ignore[arg-type]
            file.write(text)
    nofollow.give_name(path, path.with_name("c"))
    nofollow.move(path.with_name("c"), path.with_name("d"))
    with nofollow.open_file(path.with_name("d")) as file:
        assert file.read() == b"one two"
    assert (nofollow.names(path.parent), nofollow.is_file(path), nofollow.is_folder(path)) == (["b", "d"], True, False)
    with pytest.raises(FileNotFoundError, match="none"):
        nofollow.open_file(path.with_name("none"))


def test_a_folder_that_is_held_is_the_same_whatever_takes_its_place(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    for name in ("ours", "theirs"):
        (root / name).mkdir()
        (root / name / "file").write_text(name)
    path = root / "ours" / "file"
    with nofollow.held(root / "ours"):
        (root / "ours").rename(root / "moved")
        (root / "ours").symlink_to(root / "theirs")
        with nofollow.open_file(path) as file:
            assert file.read() == b"ours"
        assert nofollow.names(root / "moved") == ["file"]
        (root / "moved" / "file").unlink()
        (root / "moved" / "file").symlink_to(root / "theirs" / "file")
        with pytest.raises(nofollow.LinkError):
            nofollow.open_file(path)
    with pytest.raises(nofollow.LinkError):
        nofollow.open_file(path)
    with pytest.raises(nofollow.LinkError), nofollow.held(root / "ours"):
        pass


@pytest.mark.parametrize(("around", "made"), [(0o755, 0o755), (0o775, 0o775), (0o777, 0o777), (0o700, 0o755)])
def test_others_can_write_to_a_new_folder_only_where_they_can_anyway(tmp_path: Path, around: int, made: int) -> None:
    tmp_path.chmod(around)
    before = os.umask(0)
    try:
        nofollow.make_folder(tmp_path / "new")
        with nofollow.held(tmp_path):
            nofollow.make_folder(tmp_path / "other")
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("new", "other")] == [made, made]


def test_a_file_of_ours_is_not_written_through_a_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"theirs")
    (tmp_path / "link").symlink_to(target)
    for mode in ("wb", "ab"):
        with pytest.raises(OSError, match="symbolic links"):
            nofollow.open_own(tmp_path / "link", mode)  # type: ignore[arg-type]
    assert target.read_bytes() == b"theirs"
