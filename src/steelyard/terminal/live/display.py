"""What draws the lines at the foot of a terminal. It imports rich, so it is imported only for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType, Segment, Segments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import ConsoleRenderable
    from rich.text import Text

CLEAR = Segments([Segment("\r\x1b[J", None, [(ControlType.CARRIAGE_RETURN,)])])


class Display(Live):
    """A live display whose cursor waits at its first character instead of its last.

    A narrower window breaks the lines of the display anew, below the cursor: clearing from there removes all of them.
    """

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Return what rich prints for `renderables`, with the display below them."""
        lines = self.console.render_lines(self.get_renderable(), pad=False) if self.is_started else []
        shown: list[Segment] = []
        for line in lines[: max(1, self.console.height - 1)]:
            shown += [Segment.line(), *line] if shown else line
        up = sum(segment.text == "\n" for segment in shown)
        home = Control(ControlType.CARRIAGE_RETURN, *([(ControlType.CURSOR_UP, up)] if up else []))
        return [CLEAR, *renderables, Segments(shown), home]

    def draw(self, lines: Sequence[str | Text]) -> None:
        """Replace what is displayed."""
        self.update(Group(*lines), refresh=True)
