"""Arguments of public functions, checked against their annotations before anything runs."""

from __future__ import annotations

import functools
import inspect
import operator
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ParamSpec, TypeVar, Union, get_args, get_origin

from annotated_types import Predicate

from workbench.core.errors import InputError
from workbench.core.notebook_html import shortened
from workbench.core.options import WORDS, Accepted, Numbers, accept

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


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
