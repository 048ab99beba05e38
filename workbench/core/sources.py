"""Functions that fill the tables of a room from a room above it, called when a table misses a name or is listed.

The package's `__init__`, which is above all rooms, adds them; so no room imports one above it.
"""

from collections.abc import Callable

METRICS: list[Callable[[], None]] = []
