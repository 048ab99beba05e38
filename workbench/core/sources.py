"""Functions of a room above that a room below calls: to fill a table that misses a name, or to make a batch.

The package's `__init__`, which is above all rooms, adds them; so no room imports one above it.
"""

import os
from collections.abc import Callable
from typing import Any

METRICS: list[Callable[[], None]] = []
INPUTS: list[Callable[[Any, Any], Any]] = []
"""Make the `workbench.inputs` of a spec or list for a model."""


def are_inputs(value: Any) -> bool:
    """Return whether inputs are named by a spec or listed: texts, paths, arrays, PIL images, and pairs."""
    if isinstance(value, str):
        return True
    return isinstance(value, list | tuple) and len(value) > 0 and all(map(_is_input, value))


def _is_input(item: Any) -> bool:
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], str):
        item = item[0]
    return isinstance(item, str | os.PathLike) or hasattr(item, "__array_interface__")
