"""Values from people and files, checked by annotated types: arguments, options, numbers of layers and heads, JSON.

A field's type defines the accepted values of an option, and its last text is the help:

    @dataclass(frozen=True)
    class Options:
        rank: Annotated[Literal["all"] | Annotated[int, Ge(1)], "how many eigenvalues to keep"] = "all"

pydantic checks the values, and is imported when the first one is.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import operator
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from numbers import Integral, Real
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from annotated_types import Ge, Gt, Le, Predicate

from workbench.core.errors import InputError, UnknownName
from workbench.core.notebook_html import shortened

Content = TypeVar("Content")
Options = TypeVar("Options")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Numbers = None | int | str | Sequence[int]
"""Of layers or heads: "0,3-5", some of them, or None for all."""
_MOST = 100_000  # in a range of layers or heads; more would only fill the memory
WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    types.NoneType: "none",
    os.PathLike: "a path",
    Path: "a path",
    Callable: "a function",
}
"""Types and their values in words."""
_WORDS = {"true": True, "false": False, "none": None, "null": None}


class Unbounded:
    """Marks a number that may be infinite; NaN is none in any case."""


@dataclass(frozen=True)
class Accepted:
    """Which values a type takes, in words, where they do not follow from the type itself."""

    words: str


@dataclass(frozen=True)
class Option:
    """A setting: its default, its help, and the annotated type of its values."""

    default: Any
    help: str
    kind: Any

    def accept(self, value: Any) -> Any:
        """Return the value to use. Raises `ValueError` naming the accepted values."""
        return accept(self.kind, value)

    def takes(self, value: Any) -> bool:
        """Return whether a value is accepted."""
        try:
            self.accept(value)
        except ValueError:
            return False
        return True


@functools.cache
def options_of(kind: type) -> Mapping[str, Option]:
    """Return the options that a dataclass lists, the inherited ones last."""
    hints = get_type_hints(kind, include_extras=True)
    listed = {field.name: field for field in fields(kind)}  # ty: ignore[invalid-argument-type] - a dataclass
    own_names = [name for name in inspect.get_annotations(kind) if name in listed]
    options = {}
    for name in dict.fromkeys([*own_names, *listed]):
        words = [part for part in getattr(hints[name], "__metadata__", ()) if isinstance(part, str)]
        if listed[name].default is MISSING or not words:
            raise TypeError(
                f"{kind.__name__}.{name} needs a default, and words: Annotated[type, 'what it means']"
            )
        options[name] = Option(listed[name].default, words[-1], hints[name])
    return types.MappingProxyType(options)


def check_options(kind: type[Options], settings: Mapping[str, Any], what: str) -> Options:
    """Build options from these values, and defaults for the others.

    Raises `UnknownName` for an option that ``what`` does not have, `InputError` for a value that one does not take.
    """
    options = options_of(kind)
    for name in settings:
        if name not in options:
            raise UnknownName(f"option of {what}", name, options)
    values = {}
    for name, option in options.items():
        try:
            values[name] = option.accept(settings.get(name, option.default))
        except ValueError as error:
            raise InputError(f"{what}: {name} must be {error}; got {settings[name]!r}") from None
    return kind(**values)


def read_options(typed: Mapping[str, str], options: Mapping[str, Option]) -> dict[str, Any]:
    """Parse texts typed at a command line for these options; unknown names are left for the check to refuse."""
    return {
        name: read_typed(text, options[name].takes) if name in options else literal(text)
        for name, text in typed.items()
    }


def literal(text: str) -> Any:
    """Parse a text as a JSON or Python-like literal; return the text itself where it is none."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return parsed(text)
    except ValueError:
        return text


def read_typed(text: str, takes: Callable[[Any], bool]) -> Any:
    """Parse a typed text: the literal where ``takes`` accepts it, else the text.

    So the word none is None for one option and a choice called "none" for another, and 2024 may be a name. If neither
    is accepted the literal is returned, and the later check refuses it.
    """
    value = literal(text)
    return text if not takes(value) and (value is None or takes(text)) else value


def accept(kind: Any, value: Any) -> Any:
    """Convert a value to an annotated type. Raises `ValueError` naming the accepted values."""
    from pydantic import ValidationError

    if isinstance(value, Real) and not isinstance(value, int | float):  # of numpy
        value = int(value) if isinstance(value, Integral) else float(value)
    try:
        return _validator(kind)(value)
    except ValidationError:
        raise ValueError(accepted(kind)) from None


def accepted(kind: Any) -> str:
    """Describe the values that an annotated type takes: "'head_dim', 'all' or a whole number from 1 up"."""
    parts = list(dict.fromkeys(_alternatives(kind)))
    named = [part for part in parts if part != "none"]
    if len(named) < len(parts):
        return ", ".join([*named, "or none"])
    return " or ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


def _alternatives(kind: Any, limits: tuple[Any, ...] = ()) -> Iterator[str]:
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *more = get_args(kind)
        descriptions = [part.words for part in more if isinstance(part, Accepted)]
        yield from descriptions[-1:] or _alternatives(inner, (*limits, *more))
    elif origin in (Union, types.UnionType):
        for part in get_args(kind):
            yield from _alternatives(part)
    elif origin is Literal:
        yield from map(repr, get_args(kind))
    elif origin in WORDS or kind in WORDS:
        yield WORDS.get(origin) or WORDS[kind] + _range(limits)
    elif isinstance(origin, type) and issubclass(origin, (Mapping, Iterable)):
        yield "a table" if issubclass(origin, Mapping) else "a list"
    else:
        yield "text"


def _range(limits: tuple[Any, ...]) -> str:
    """Describe limits in words, e.g. " from 0 to 1"."""
    least = next((f" from {_number(part.ge)}" for part in limits if isinstance(part, Ge)), "")
    above = next((f" above {_number(part.gt)}" for part in limits if isinstance(part, Gt)), "")
    most = next(
        (f" to {_number(part.le)}" for part in limits if isinstance(part, Le) and part.le != math.inf), ""
    )
    return least + above + (most or (" up" if least else ""))


def _number(limit: Any) -> str:
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"


@functools.cache
def _validator(kind: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    config = ConfigDict(strict=True, allow_inf_nan=_may_be_infinite(kind))
    return TypeAdapter(kind, config=config).validate_python


def _may_be_infinite(kind: Any) -> bool:
    return Unbounded in getattr(kind, "__metadata__", ()) or any(map(_may_be_infinite, get_args(kind)))


NullSamples = Annotated[
    int, Ge(0), Predicate(functools.partial(operator.ne, 1)), Accepted("0, or a whole number from 2 up")
]
"""How many samples of a null distribution: none, or enough for a standard deviation."""


@overload
def parse_numbers(kind: str, request: Numbers, total: int) -> tuple[int, ...]: ...
@overload
def parse_numbers(kind: str, request: Numbers, total: int | None = None) -> tuple[int, ...] | None: ...
def parse_numbers(kind: str, request: Numbers, total: int | None = None) -> tuple[int, ...] | None:
    """Return sorted numbers from None (all), a number, an iterable of numbers, or a string such as "0,3-5" or "-2,-1".

    ``kind`` ("layer", "head") names them in errors. With ``total`` negative numbers count from the end, and numbers
    outside the range raise InputError; without it negative numbers stay as they are, and None stays None.
    """
    if request is None:
        return None if total is None else tuple(range(total))
    numbers: list[int] = []
    if isinstance(request, str):
        for part in request.split(","):
            match = re.fullmatch(r"\s*(-?\d{1,18})(?:\s*-\s*(-?\d{1,18}))?\s*", part)
            if match is None:
                raise InputError(
                    f"{kind}s {request!r}: {part.strip()!r} is neither a number nor a range such as 3-5"
                )
            first, last = int(match[1]), int(match[2] if match[2] is not None else match[1])
            if last < first or (first < 0 <= last):
                raise InputError(
                    f"{kind}s {request!r}: the range {part.strip()!r} is empty; write 3-5, or -3--1"
                )
            if total is not None:
                _inside(kind, (first, last), total)  # before a long range is built
            elif last - first >= _MOST:
                raise InputError(f"{kind}s {request!r}: no model has {last - first + 1:,} {kind}s")
            numbers += range(first, last + 1)
    else:
        items = request if isinstance(request, Iterable) else [request]
        for number in items:
            if isinstance(number, bool) or not hasattr(number, "__index__") or number != int(number):
                raise InputError(f'{kind}s must be whole numbers, or text such as "0,3-5"; got {number!r}')
            numbers.append(int(number))
    if not numbers:
        raise InputError(f"{kind}s is empty: give a number, or None for all")
    if total is not None:
        _inside(kind, numbers, total)
        numbers = [number % total for number in numbers]
    return tuple(sorted(set(numbers)))


def _inside(kind: str, numbers: Iterable[int], total: int) -> None:
    for number in numbers:
        if not -total <= number < total:
            raise InputError(f"there is no {kind} {number}: {kind}s are 0 to {total - 1} (or -{total} to -1)")


def ranges(numbers: Iterable[int]) -> str:
    """Format [0, 1, 2, 5] as "0-2, 5", and no number as "none"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) or "none"


# Content of files -------------------------------------------------------------------------------------------


def matching(pattern: str) -> Predicate:
    """Return a predicate for ``Annotated[str, …]``: the whole text matches a pattern."""
    regex = re.compile(pattern)
    return Predicate(lambda text: regex.fullmatch(text) is not None)


def parsed(text: str | bytes) -> Any:
    """Parse JSON. Raises `ValueError` for any other text, however deep it is nested."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def conforming(kind: type[Content], value: Any) -> Content:
    """Check a JSON value against an annotated type: a TypedDict, a dataclass, a list of them.

    Types are strict: "1" is no number, and 1.5 or true no integer. Raises `ValueError` naming the first entry that does
    not fit: "models.0.n: Input should be a valid integer".
    """
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        location = ".".join(map(str, first["loc"]))
        raise ValueError(f"{location}: {first['msg']}" if location else first["msg"]) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@functools.cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def check_argument(name: str, kind: Any, value: Any) -> Any:
    """Convert a value to an annotated type; raise `InputError` with the argument, the accepted values and the value."""
    try:
        return accept(kind, value)
    except ValueError as error:
        raise InputError(f"{name} must be {error}; got {shortened(repr(value))}") from None


def checked(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Check the arguments of a public function against its annotations.

        @checked
        def sweep(models: str | Sequence[str], *, workers: Annotated[int, Ge(1)] = 1): ...

    `InputError` reads "workers must be a whole number from 1 up; got 0". `Any`, `Numbers` (which `parse_numbers`
    checks) and annotations imported only for type checkers accept every value.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*arguments: Parameters.args, **settings: Parameters.kwargs) -> Result:
        try:
            values = signature.bind(*arguments, **settings).arguments
        except TypeError:
            return function(*arguments, **settings)  # Python's own error names the argument
        for name, kind in _kinds(function).items():
            if name in values and values[name] is not signature.parameters[name].default:
                check_argument(name, kind, values[name])
        return function(*arguments, **settings)

    return call


@functools.cache
def _kinds(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Types of the arguments that are checked."""
    kinds = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind = parameter.annotation
        if isinstance(kind, str):
            try:
                kind = eval(kind, vars(sys.modules[function.__module__]))
            except NameError:
                continue
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) and kind not in (
            Any,
            Numbers,
            parameter.empty,
        ):
            kinds[name] = _by_instance(kind)
    return kinds


def _by_instance(kind: Any) -> Any:
    """Accept any instance of a class of ours or of a library, whose fields pydantic would check."""
    if get_origin(kind) in (Union, types.UnionType):
        return functools.reduce(operator.or_, map(_by_instance, get_args(kind)))
    if get_origin(kind) in (Mapping, Sequence):
        return get_origin(kind)[tuple(map(_by_instance, get_args(kind)))]
    if kind is Any or not isinstance(kind, type) or get_origin(kind) is not None or kind in WORDS:
        return kind
    return Annotated[Any, Predicate(lambda value: isinstance(value, kind)), Accepted(f"a {kind.__name__}")]


def are_inputs(value: Any) -> bool:
    """Return whether inputs are named by a spec or listed: texts, paths, arrays, PIL images, and pairs."""
    if isinstance(value, str):
        return True
    return isinstance(value, list | tuple) and len(value) > 0 and all(map(_is_input, value))


def _is_input(item: Any) -> bool:
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], str):
        item = item[0]
    return isinstance(item, str | os.PathLike) or hasattr(item, "__array_interface__")
