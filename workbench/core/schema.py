"""What a file of JSON holds, said as annotated types: pydantic looks, and one line says what does not fit."""

from __future__ import annotations

import functools
import json
import re
from typing import Any, TypeVar

from annotated_types import Predicate

Held = TypeVar("Held")


def matching(pattern: str) -> Predicate:
    """A mark of texts that are all of a pattern, beside ``str`` in ``Annotated``."""
    whole = re.compile(pattern)
    return Predicate(lambda text: whole.fullmatch(text) is not None)


def parsed(text: str | bytes) -> Any:
    """What a text of JSON says. Raises `ValueError` for any text that is none, however deep it is nested."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def conforming(kind: type[Held], value: Any) -> Held:
    """A value as JSON has it, where it is of an annotated type: a TypedDict, a dataclass, a list of them.

    A number in words is no number, and 1.5 or true no whole one. Raises `ValueError` naming the first place that does
    not fit: "models.0.n: Input should be a valid integer".
    """
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@functools.cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
