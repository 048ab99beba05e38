"""The settings of a run: each declared once, with its default and meaning, for Python and the command line."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from annotated_types import Ge, Le, Predicate

from workbench.core.errors import InputError
from workbench.core.options import Accepted, Numbers, check_argument, options_of, parse_numbers
from workbench.models.loading import DEVICE

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from workbench.data.batches import Inputs
    from workbench.models.loading import LoadedModel

    AnyModel: TypeAlias = str | LoadedModel | nn.Module
    AnyInputs: TypeAlias = str | Inputs | Tensor | Mapping[str, Any] | Sequence[Any]
    Device: TypeAlias = str | torch.device
    DType: TypeAlias = str | torch.dtype
else:  # torch takes seconds to import
    AnyModel = AnyInputs = Any

    def _named_or(kind: str, words: str) -> Any:
        """Text, or an object of torch's class."""
        takes = Predicate(lambda value: isinstance(value, str) or type(value).__name__ == kind)
        return Annotated[Any, takes, Accepted(words)]

    Device = _named_or("device", "a device, as 'cpu' or 'cuda:1'")
    DType = _named_or("dtype", "a type of numbers, as 'float32'")

Count: TypeAlias = Annotated[int, Ge(1)] | Literal["all"]
Seed: TypeAlias = Annotated[int, Ge(0), Le(2**32 - 1)]
BatchSize: TypeAlias = Annotated[int, Ge(1)]
Order: TypeAlias = Literal["random", "file"]
Preprocessing: TypeAlias = Literal["model", "saritas2025"]


@dataclass(frozen=True)
class Typed:
    """The placeholder of a setting's value in the help of the command line."""

    metavar: str


@dataclass(frozen=True, eq=False)
class RunSettings:
    """Model, inputs and settings of a run: what `analyze` takes beside the options of the analysis.

    Settings are equal if all of them are; models and inputs that are not specs must be the same objects. Raises
    `InputError` for a value that does not fit.
    """

    model: Annotated[
        AnyModel | None,
        Typed("SPEC"),
        "The model: timm:NAME, hf:REPO-OR-FOLDER, tost:SIZE, crate:SIZE, bundled:NAME, file:CHECKPOINT, "
        "py:MODULE:FUNCTION or a name that `workbench models` lists; with options and weights: "
        "NAME?KEY=VALUE@CHECKPOINT.",
    ] = None
    inputs: Annotated[
        AnyInputs | None,
        Typed("SPEC"),
        "The inputs: bundled:NAME, images:FOLDER, imagenet:FOLDER, text:FILE or wikitext-103.",
    ] = None
    n: Annotated[
        Count | None,
        Typed("N|all"),
        "How many inputs, or all. [default: 25, or all where there are fewer]",
    ] = None
    seed: Annotated[Seed, Typed("NUMBER"), "Random seed; also chooses the inputs."] = 0
    layers: Annotated[Numbers, Typed("LIST"), "Layers, from 0: 0,3-5 or -1. [default: all]"] = None
    heads: Annotated[Numbers, Typed("LIST"), "Heads, from 0: 0,2. [default: all]"] = None
    order: Annotated[
        Order | None,
        Typed("random|file"),
        "Draw the inputs at random, or take the first in the file or folder. [default: random; file for a list]",
    ] = None
    preprocessing: Annotated[
        Preprocessing, "The model's own preprocessing of images, or that of saritas2025 for every model."
    ] = "model"
    batch_size: Annotated[
        BatchSize, Typed("NUMBER"), "Inputs per forward pass; does not change the numbers."
    ] = 8
    device: Annotated[
        Device | None,
        Typed("NAME"),
        "The device: cpu, cuda, cuda:1, mps … [default: WORKBENCH_DEVICE, or cpu]",
    ] = None
    dtype: Annotated[
        DType | None,
        Typed("NAME"),
        "The type of the weights: float32, bfloat16, float16. [default: as stored]",
    ] = None
    name: Annotated[
        str | None, Typed("NAME"), "Name of the model in the result. [default: its spec or class]"
    ] = None

    def __post_init__(self) -> None:
        for name, setting in SETTINGS.items():
            value = getattr(self, name)
            if name in ("layers", "heads"):
                numbers = parse_numbers(name.removesuffix("s"), value)
                if numbers is not None and not isinstance(value, str):
                    value = ",".join(map(str, numbers))
            elif name not in ("model", "inputs"):
                value = check_argument(name, setting.kind, value)
            object.__setattr__(self, name, value)
        if self.model is not None and not isinstance(self.model, str):
            for name in ("device", "dtype"):
                if getattr(self, name) is not None:
                    raise InputError(f"{name} loads a model given by name; this one is loaded already")
        for name in ("n", "order"):
            if getattr(self, name) is not None and not isinstance(self.inputs, str | None):
                raise InputError(
                    f"{name} chooses among inputs given by name; cut what you give instead, as inputs[:10]"
                )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunSettings) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def _values(self) -> tuple[Any, ...]:
        """The settings; a loaded model and a batch by their identity."""
        objects = (part if isinstance(part, str | None) else id(part) for part in (self.model, self.inputs))
        return (*objects, *(getattr(self, name) for name in [*SETTINGS][2:]))

    def recorded(self) -> dict[str, str | None]:
        """Return the settings that a result's provenance records."""
        names = ("layers", "heads", "batch_size", "device", "dtype")
        settings = {name: None if (value := getattr(self, name)) is None else str(value) for name in names}
        if isinstance(self.model, str):
            settings["device"] = settings["device"] or os.environ.get(DEVICE) or None
        return settings


SETTINGS = options_of(RunSettings)
"""Default, meaning and type of every setting, in the order of `RunSettings`."""


def model_pairs(
    models: str | Sequence[str] | None,
    inputs: str | Sequence[str] | None,
    text_models: str | Sequence[str] | None = None,
    text_inputs: str | Sequence[str] | None = None,
) -> list[tuple[str, str]]:
    """Return (model, inputs) pairs for `analyze_many`: the image models with their inputs, then the text models.

    Each argument is one spec, several, or None. One inputs spec serves all models of its kind; several are one
    per model. None for the models leaves that kind out, as do the words none and false of a command line.
    Raises `InputError` where the numbers do not fit.
    """
    pairs = []
    for kind, names, specs in (("", models, inputs), ("text_", text_models, text_inputs)):
        chosen, chosen_inputs = _several(names), _several(specs)
        if len(chosen_inputs) == 1:
            chosen_inputs *= len(chosen)
        if chosen and len(chosen_inputs) != len(chosen):
            raise InputError(
                f"{len(chosen)} {kind}models with {len(chosen_inputs)} {kind}inputs; give one inputs spec for all, or "
                "one for each model"
            )
        pairs += zip(chosen, chosen_inputs, strict=False)
    return pairs


def _several(value: Any) -> list[str]:
    items = [value] if value is None or isinstance(value, str | bool) else value
    return [item for item in items if str(item).lower() not in ("none", "null", "false")]
