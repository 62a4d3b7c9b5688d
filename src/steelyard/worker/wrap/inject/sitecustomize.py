"""Runs at the start of every Python process of a wrapped program: starts the observer, then what was to run here.

Whatever goes wrong here must not reach the program. A Python that is too old for the observer reads this file, too.
"""

import os
import sys

if sys.version_info >= (3, 10):  # noqa: UP036 -- see above
    import steelyard_observer  # type: ignore[import-not-found]

    steelyard_observer.start()

# The program searches for its modules as it would without us.
_folder = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [place for place in sys.path if place != _folder]
_ours = sys.modules.pop("sitecustomize")
# The one that ours has hidden. If there is none, this import fails, and with it ours, as Python expects.
import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401
