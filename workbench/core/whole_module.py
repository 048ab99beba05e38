"""Modules that put another in their place while they are imported, asked for from several threads."""

from __future__ import annotations

import importlib
from typing import Any


def whole_module(name: str) -> Any:
    """The module of that name, once it is imported whole.

    transformers replaces itself in ``sys.modules`` at the end of its import. ``from transformers import …`` in a second
    thread waits for that end, and then reads the module that was there before, which has none of the names;
    `importlib.import_module` waits, and looks again.
    """
    return importlib.import_module(name)
