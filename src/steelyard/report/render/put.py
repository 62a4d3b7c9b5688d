"""Write files into a folder that the user named, which may hold what somebody else put there."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from steelyard import nofollow
from steelyard.errors import SteelyardError

if TYPE_CHECKING:
    from pathlib import Path


def put(folder: Path, name: str, content: bytes) -> None:
    """Create or replace the file with this path below a folder, which is made if it does not exist.

    Only the folder was named by the user: a link below it is refused, and what a file of this name held stays what it
    is wherever else it has a name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    root = folder.resolve()
    place = root / name
    for above in reversed(place.parents):
        if above != root and above.is_relative_to(root):
            nofollow.make_folder(above, exist_ok=True)
    beside = place.with_name(f".{secrets.token_hex(8)}")
    try:
        with nofollow.open_file(beside, "x") as file:
            file.write(content)
        nofollow.move(beside, place)
    except nofollow.LinkError:
        raise SteelyardError(
            f"{place} is a link: nothing was written through it", next_step="give another name"
        ) from None
    finally:
        nofollow.remove(beside)
