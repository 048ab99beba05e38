"""Functions of a room above that a room below calls: to fill a table that misses a name, or to make a batch.

The package's `__init__`, which is above all rooms, adds them; so no room imports one above it.
"""

from collections.abc import Callable
from typing import Any

METRICS: list[Callable[[], None]] = []
INPUTS: list[Callable[[Any, Any], Any]] = []
"""Make the `workbench.inputs` of a spec or list for a model."""
