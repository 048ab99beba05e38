"""Import from several threads of modules that replace themselves in ``sys.modules``."""

from __future__ import annotations

import importlib
from typing import Any


def complete_module(name: str) -> Any:
    """Return a module once its import is complete.

    transformers replaces itself in ``sys.modules`` at the end of its import. ``from transformers import …`` in a second
    thread waits for that end, and then reads the earlier module, which has none of the names;
    `importlib.import_module` waits, and looks again.
    """
    return importlib.import_module(name)
