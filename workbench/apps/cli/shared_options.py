"""Options that commands share, each defined once (docs/cli.md has the table).

Lists of names (analyses, protocols, notebooks …) are looked up when an option is read or completed, so that ``--help``
imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args, get_origin

import click
from annotated_types import Ge, Le
from click.shell_completion import CompletionItem

from workbench.core.errors import InputError, UnknownName
from workbench.runs.settings import SETTINGS, Typed

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
Settings = Sequence[tuple[str, str]]
"""Keys and texts, as --set takes them."""
RUN_SETTINGS = tuple(name for name in SETTINGS if name != "name")
"""Settings of a run that a command takes; `run_settings` hands them over as one mapping."""


# Kinds of value ---------------------------------------------------------------------------------------------


class Known(click.ParamType):
    """A name from a list that is looked up late: a table as "module:NAME", or a function.

    ``more`` accepts other words too; ``several`` reads A,B as a list.
    """

    def __init__(
        self,
        kind: str,
        names: str | Callable[[], Iterable[str]],
        *,
        more: bool = False,
        several: bool = False,
    ) -> None:
        self.name, self.source, self.more, self.several = kind, names, more, several

    def names(self) -> list[str]:
        """Return the current names."""
        if not isinstance(self.source, str):
            return [*self.source()]
        module, _, table = self.source.partition(":")
        return [*getattr(importlib.import_module(f"workbench.{module}"), table)]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name, or the list of names; raises `UnknownName`."""
        words = [word.strip() for word in value.split(",") if word.strip()] if self.several else [value]
        if not words:
            self.fail(f"it is empty; give one or more of {', '.join(self.names())}", param, ctx)
        names = [] if self.more else self.names()
        for word in words:
            if not self.more and word not in names:
                raise UnknownName(self.name, word, names)
        return words if self.several else value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names that start with the typed text."""
        before, comma, last = incomplete.rpartition(",") if self.several else ("", "", incomplete)
        return [CompletionItem(before + comma + name) for name in self.names() if name.startswith(last)]


class Width(Known):
    """Inches, or the name of a printed width."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return inches as a number, or the name; raises `UnknownName`."""
        with contextlib.suppress(ValueError):
            return float(value)
        return super().convert(value, param, ctx)


def _models() -> Iterable[str]:
    from workbench.models.catalog import CATALOG, bundled_models

    entries = [*bundled_models(), *CATALOG]
    return [*(entry.spec for entry in entries), *(entry.alias for entry in entries)]


def _inputs() -> Iterable[str]:
    from workbench.data.pools import BUNDLED

    return [*(f"bundled:{name}" for name in BUNDLED), "images:", "imagenet:", "text:", "wikitext-103"]


def _notebooks() -> Iterable[str]:
    from workbench.core.paths import bundled_notebooks

    return bundled_notebooks()


ANALYSIS = Known("analysis", "analyses.registry:ANALYSES")
METRIC = Known("metric", "frames.metric:METRICS")
MODEL = Known("SPEC", _models, more=True)
INPUTS = Known("SPEC", _inputs, more=True)
NOTEBOOK = Known("NOTEBOOK", _notebooks, more=True)
BUNDLED_NOTEBOOK = Known("notebook", _notebooks)
PAPER = Known("paper", "papers.published:PAPERS")
SITES = Known("site", "captures:SITES", several=True, more=True)
FORMATS = Known("format", "figures.export:FORMATS", several=True)
WIDTH = Width("width", "figures.theme:WIDTHS")


class _Count(click.ParamType):
    """A number of inputs, or the word all."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Return the number, or "all"."""
        if value == "all":
            return value
        if not str(value).isdecimal() or int(value) < 1:
            self.fail(f"{value!r} is neither a whole number from 1 up nor the word all.", param, ctx)
        return int(value)


class Finite(click.FloatRange):
    """A number that is neither NaN nor infinite."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number, such as 0.5.", param, ctx)
        return number


class _Setting(click.ParamType):
    """KEY=VALUE, with completion of the keys."""

    name = "KEY=VALUE"

    def __init__(self, owner: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        self.owner = owner

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Return the key, and the text that its option reads."""
        key, equals, text = value.partition("=")
        if not equals or not key.strip():
            self.fail(f"{value!r} is not written KEY=VALUE, as in max_rank=8.", param, ctx)
        return key.strip().replace("-", "_"), text.strip()

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the keys of the analysis, variant or protocol that precedes the option."""
        parameters = dict(ctx.params)
        arguments = [item.name for item in ctx.command.params if isinstance(item, click.Argument)]
        # a line that ends in -s is an incomplete command: click leaves its arguments unread
        parameters |= {
            name: word for name, word in zip(arguments, ctx.args, strict=False) if not parameters.get(name)
        }
        keys = (f"{key}=" for key in self.owner(parameters))
        return [CompletionItem(key) for key in keys if key.startswith(incomplete)]


def read_settings(
    owner: str, typed: Settings, options: Mapping[str, Any], *, repeated: bool = False
) -> dict[str, Any]:
    """Parse texts typed as KEY=VALUE by the options of ``owner``.

    With ``repeated`` a key may be set several times, and its values come as a list. Raises `InputError` for an unknown
    key, with a list of the known ones, and for a key that is set twice.
    """
    from workbench.core.options import literal, read_options

    read: dict[str, Any] = {}
    for key, text in typed:
        if key not in options:
            near = difflib.get_close_matches(key, options, n=1, cutoff=0.5)
            guess = f"did you mean {near[0]!r}? " if near else ""
            there = ", ".join(f"{name}={written(option.default)}" for name, option in options.items())
            known_options = f"its options and their defaults: {there}" if there else "it has no options"
            raise InputError(f"{owner} has no option {key!r}; {guess}{known_options}")
        if hasattr(options[key], "takes"):
            value = read_options({key: text}, options)[key]
        else:  # an option without declared values: a text stays one if the default is a text
            value = text if isinstance(options[key].default, str) else literal(text)
        if repeated:
            read.setdefault(key, []).append(value)
        elif key in read:
            raise InputError(f"{key} is set twice; --set takes each key once")
        else:
            read[key] = value
    return read


def written(value: Any) -> str:
    """Format a value as --set takes it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


# Options ----------------------------------------------------------------------------------------------------


def _single(ctx: click.Context, param: click.Parameter, values: tuple[Any, ...]) -> Any:
    if len(values) > 1:
        raise click.UsageError(f"{ctx.command_path} takes {param.opts[-1]} once; got {len(values)}.", ctx)
    return values[0] if values else None


def _repeatable(text: str, several: bool) -> dict[str, Any]:
    return {"multiple": True} | (
        {"help": f"{text} May be repeated."} if several else {"help": text, "callback": _single}
    )


_TYPES = {"model": MODEL, "inputs": INPUTS, "n": _Count()}
"""Settings whose values complete or have special words; the annotation suffices for the others."""
_SHORT = {"model": ("-m",), "inputs": ("-i",)}


def _setting_option(
    name: str, text: str | None = None, *, several: bool = False, required: bool = False
) -> _Decorator:
    """Build the option of one field of `RunSettings`, with its default, values and help (or another ``text``).

    A model and inputs may be repeated where a command takes ``several``.
    """
    setting = SETTINGS[name]
    kind, *marks = get_args(setting.kind)
    attributes: dict[str, Any] = {
        "help": text or setting.help,
        "type": _TYPES.get(name),
        "required": required,
    }
    attributes["metavar"] = next((mark.metavar for mark in marks if isinstance(mark, Typed)), None)
    if name in _SHORT:
        attributes |= _repeatable(attributes["help"], several)
    elif setting.default is not None:
        attributes |= {"default": setting.default, "show_default": True}
    if get_origin(kind) is Literal:
        attributes["type"] = click.Choice(get_args(kind))
    elif kind is int:
        attributes["type"] = click.IntRange(
            next(mark.ge for mark in marks if isinstance(mark, Ge)),
            next((mark.le for mark in marks if isinstance(mark, Le)), None),
        )
    flag = f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"
    return click.option(*_SHORT.get(name, ()), flag, **attributes)


model_option, inputs_option = partial(_setting_option, "model"), partial(_setting_option, "inputs")


def set_option(owner: Callable[[Mapping[str, Any]], Mapping[str, Any]], text: str) -> _Decorator:
    """Build ``--set KEY=VALUE``; ``owner`` returns the available options from the parameters typed before."""
    kind, text = _Setting(owner), f"{text} May be repeated."
    return click.option("-s", "--set", "typed", type=kind, metavar="KEY=VALUE", multiple=True, help=text)


def analysis_option(text: str, **more: Any) -> _Decorator:
    """Build ``--analysis`` for commands that take several."""
    kind: dict[str, Any] = {"type": ANALYSIS, "metavar": "NAME", "multiple": True, "help": text}
    return click.option("-a", "--analysis", "analyses", **kind, **more)


def out_file(text: str, **more: Any) -> _Decorator:
    """Build ``--out`` for a command that writes one file."""
    return click.option("-o", "--out", type=click.Path(dir_okay=False), metavar="FILE", help=text, **more)


def out_folder(text: str, **more: Any) -> _Decorator:
    """Build ``--out`` for a command that writes a folder."""
    return click.option("-o", "--out", type=click.Path(file_okay=False), metavar="FOLDER", help=text, **more)


def number_option(name: str, text: str, *short: str, **more: Any) -> _Decorator:
    """Build an option that is a whole number."""
    attributes: dict[str, Any] = {
        "show_default": "default" in more,
        "type": click.IntRange(min=1),
        "metavar": "NUMBER",
    }
    return click.option(*short, name, help=text, **attributes, **more)


count_option, seed_option, layers_option = map(_setting_option, ("n", "seed", "layers"))
batch_size_option = _setting_option("batch_size")
device_option, dtype_option = map(_setting_option, ("device", "dtype"))
workers_option = number_option("--workers", "How many processes work at a time.", "-j", default=1)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON records instead of a table.")
restart_option = click.option(
    "--restart",
    is_flag=True,
    help="Start over; the old folder is moved aside, to FOLDER.before-1. [default: continue]",
)
max_time_option = click.option(
    "--max-time", metavar="TIME", help="Begin nothing more after 90s, 30m or 8h, and end cleanly."
)
theme_option = click.option(
    "--theme",
    type=click.Choice(["paper", "talk"]),
    help="Letters for reading or for a lecture hall. [default: WORKBENCH_THEME, or paper]",
)


text_option = click.option(
    "--text", "texts", metavar="TEXT", multiple=True, help="A text, in place of --inputs. May be repeated."
)


trust_option = click.option(
    "--trust", is_flag=True, help="Run the code that a model py:MODULE:FUNCTION on this command line names."
)


def inputs_or_texts(inputs: Any, texts: Sequence[str]) -> Any:
    """Return the inputs, or the spec of the texts; raises `UsageError` for both."""
    if not texts:
        return inputs
    if inputs:
        raise click.UsageError("--inputs names inputs, and --text gives them: give one of the two.")
    from workbench.data.pools import listed_inputs

    return listed_inputs(texts, "text")[0]


def trust_models(*values: Any) -> None:
    """Trust the functions of one's own that specs of a command line name."""
    from workbench.models.from_python import trust_specs

    trust_specs([spec for value in values for spec in ([value] if isinstance(value, str) else value or ())])


def run_settings(*, several: bool = False, required: bool = False, without: Sequence[str] = ()) -> _Decorator:
    """Add the options of `RUN_SETTINGS` and ``--text``, passed to the command as one mapping ``settings``."""
    names = [name for name in RUN_SETTINGS if name not in without]
    repeated: dict[str, Any] = {"several": several, "required": required}

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @text_option
        @trust_option
        @functools.wraps(command)
        def call(texts: Sequence[str], trust: bool, **parameters: Any) -> Any:
            settings = {name: parameters.pop(name) for name in names}
            if trust:
                trust_models(settings["model"])
            chosen_inputs = inputs_or_texts(settings["inputs"], texts)
            settings["inputs"] = (chosen_inputs,) if several and texts else chosen_inputs
            if required and not chosen_inputs:
                raise click.UsageError("Missing option '-i' / '--inputs', or '--text'.")
            return command(settings=settings, **parameters)

        def _required(name: str) -> dict[str, Any]:
            return repeated | {"required": required and name == "model"} if name in _SHORT else {}

        options = (_setting_option(name, **_required(name)) for name in reversed(names))
        return functools.reduce(lambda wrapped, option: option(wrapped), options, call)

    return decorate
