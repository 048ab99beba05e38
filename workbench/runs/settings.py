"""What a run is of, said once: model, inputs, which of them, and how the model runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from workbench.core.errors import InputError
from workbench.core.options import Numbers, parse_numbers
from workbench.models.loading import DEVICE


@dataclass(frozen=True, eq=False)
class RunSettings:
    """Model and inputs of a run, and all its settings beside the options of the analysis itself.

    ``model`` is a spec, what `load` returned, or any torch module; ``inputs`` a spec, what `inputs` returned, or the
    batch itself. ``n``, ``seed`` and ``preprocessing`` choose and prepare inputs given by spec; ``checkpoint``,
    ``device`` and ``dtype`` load a model given by spec. ``layers`` and ``heads`` are numbers or "0,3-5"; None for all.
    ``batch_size`` inputs run at a time, which no number depends on. ``name`` is what the frame calls the model, in
    place of its spec or class.

    Settings are equal where all of them are, models and inputs that are not specs being the same objects. Raises
    `InputError` for a value that does not fit.
    """

    model: Any = None
    inputs: Any = None
    n: int | str | None = None
    seed: int = 0
    layers: Numbers = None
    heads: Numbers = None
    checkpoint: str | int | None = None
    preprocessing: str = "model"
    batch_size: int = 8
    device: Any = None
    dtype: Any = None
    name: str | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "heads"):
            asked = getattr(self, name)
            numbers = parse_numbers(name.removesuffix("s"), asked)
            if numbers is not None and not isinstance(asked, str):
                object.__setattr__(self, name, ",".join(map(str, numbers)))
        if not isinstance(self.batch_size, int) or isinstance(self.batch_size, bool) or self.batch_size < 1:
            raise InputError(f"batch_size must be a whole number from 1 up; got {self.batch_size!r}")
        if self.model is not None and not isinstance(self.model, str):
            for name in ("checkpoint", "device", "dtype"):
                if getattr(self, name) is not None:
                    raise InputError(f"{name} loads a model given by name; this one is loaded already")
        if self.n is not None and self.inputs is not None and not isinstance(self.inputs, str):
            raise InputError(
                "n chooses among inputs given by name; cut what you give instead, as inputs[:10]"
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunSettings) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def _values(self) -> tuple[Any, ...]:
        """The settings, of a loaded model and a batch only which they are."""
        given = (part if isinstance(part, str | None) else id(part) for part in (self.model, self.inputs))
        return (*given, *(getattr(self, name) for name in SETTINGS[2:]))

    def recorded(self) -> dict[str, str | None]:
        """How the model ran, as a result's provenance says it."""
        names = ("layers", "heads", "batch_size", "device", "dtype")
        held = {name: None if (value := getattr(self, name)) is None else str(value) for name in names}
        if isinstance(self.model, str):
            held["device"] = held["device"] or os.environ.get(DEVICE) or None
        return held


SETTINGS = tuple(field.name for field in fields(RunSettings))
"""Names of all settings."""


def model_pairs(
    models: str | Sequence[str] | None,
    inputs: str | Sequence[str] | None,
    text_models: str | Sequence[str] | None = None,
    text_inputs: str | Sequence[str] | None = None,
) -> list[tuple[str, str]]:
    """(model, inputs) pairs for `analyze_many`: the image models with their inputs, then the text models with theirs.

    Each argument is one spec, several, or None. One inputs spec serves all models of its kind; several are one
    per model. None for the models leaves that kind out. Raises `InputError` where the numbers do not fit.
    """
    pairs = []
    for kind, names, specs in (("", models, inputs), ("text_", text_models, text_inputs)):
        chosen, given = _several(names), _several(specs)
        if len(given) == 1:
            given *= len(chosen)
        if chosen and len(given) != len(chosen):
            raise InputError(
                f"{len(chosen)} {kind}models with {len(given)} {kind}inputs; give one inputs spec for all, or one "
                "for each model"
            )
        pairs += zip(chosen, given, strict=False)
    return pairs


def _several(value: str | Sequence[str] | None) -> list[str]:
    if value is None:
        return []
    return [value] if isinstance(value, str) else [item for item in value if item is not None]
