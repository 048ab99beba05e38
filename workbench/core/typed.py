"""Values as they are typed at a command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

_WORDS = {"true": True, "false": False, "none": None, "null": None}


def literal(text: str) -> Any:
    """A JSON or Python-like literal where the text reads as one, else the text."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_typed(text: str, takes: Callable[[Any], bool]) -> Any:
    """What a text means for something that takes certain values: the literal where it takes that, else the text.

    So the word none is None for one option and a choice called "none" for another, and 2024 may be a name. A text that
    is neither comes back as it reads, for whoever refuses it.
    """
    value = literal(text)
    return text if not takes(value) and (value is None or takes(text)) else value
