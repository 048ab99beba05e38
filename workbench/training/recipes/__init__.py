"""Recipes: small typed configurations in TOML files, one per task."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import InputError, UnknownName

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Augmentation:
    """Largest random changes of each training image; all zero means none."""

    rotation: float = 0.0
    """Degrees, either way."""
    shift: float = 0.0
    """Share of the image's width and height, either way."""
    zoom: float = 0.0
    """Relative change of size, either way."""

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if value < 0:
                raise InputError(f"recipe: [augmentation] {name} must not be negative, got {value!r}")
        if self.zoom >= 1:
            raise InputError(f"recipe: [augmentation] zoom must be below 1, got {self.zoom!r}")


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a training run besides the seed."""

    task: str
    architecture: dict[str, Any]
    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float = 0.0
    warmup: float = 0.3
    clip_norm: float = 1.0
    checkpoints: tuple[int, ...] = ()
    """Epochs whose weights are kept; epoch 0 (before training) and the last one always are."""
    augmentation: Augmentation = Augmentation()

    def __post_init__(self) -> None:
        if not isinstance(self.architecture.get("name"), str):
            raise InputError(f'recipe: [architecture] needs a name, such as "vit", got {self.architecture!r}')
        for name in ("epochs", "batch_size", "learning_rate", "clip_norm"):
            if getattr(self, name) <= 0:
                raise InputError(f"recipe: {name} must be positive, got {getattr(self, name)!r}")
        if self.weight_decay < 0:
            raise InputError(f"recipe: weight_decay must not be negative, got {self.weight_decay!r}")
        if not 0 < self.warmup < 1:
            raise InputError(f"recipe: warmup is a share of all steps, between 0 and 1, got {self.warmup!r}")
        if any(epoch < 0 for epoch in self.checkpoints):
            raise InputError(f"recipe: checkpoints are epochs from 0 on, got {list(self.checkpoints)}")

    def with_epochs(self, epochs: int | None) -> Recipe:
        """The same recipe run for ``epochs`` (None: as it is); the schedule stretches or shrinks with it."""
        return self if epochs is None else dataclasses.replace(self, epochs=epochs)

    def checkpoint_epochs(self) -> tuple[int, ...]:
        """Epochs to keep in this run: those asked for that it reaches, and always the first and the last."""
        return tuple(sorted({0, self.epochs, *(epoch for epoch in self.checkpoints if epoch < self.epochs)}))

    def as_dict(self) -> dict[str, Any]:
        """Plain values that fit in JSON."""
        return {**dataclasses.asdict(self), "checkpoints": list(self.checkpoints)}


def recipe_names() -> list[str]:
    """Names of the recipes that come with the package; each is a task of ``workbench train``."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load_recipe(name: str | Path) -> Recipe:
    """A recipe by name (``"digits"``) or from a TOML file of one's own.

    Raises UnknownName for a name that does not exist or a key that no recipe has, InputError for a file that
    cannot be read or a value of the wrong type.
    """
    path = Path(name)
    if path.suffix != ".toml":
        path = _FOLDER / f"{name}.toml"
        if str(name) not in recipe_names():
            raise UnknownName("training task", str(name), recipe_names())
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"no recipe at {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"recipe {path} is not valid TOML: {error}") from error
    return parse_recipe(table, origin=path.name)


def parse_recipe(table: dict[str, Any], origin: str = "recipe") -> Recipe:
    """A recipe from the table of its TOML file; `origin` names it in errors."""
    values = _checked(table, _TYPES, origin)
    required = [item.name for item in dataclasses.fields(Recipe) if item.default is dataclasses.MISSING]
    missing = [name for name in required if name not in values]
    if missing:
        raise InputError(f"{origin}: missing {', '.join(missing)}")
    if "augmentation" in values:
        options = _checked(values["augmentation"], _AUGMENTATION_TYPES, f"{origin} [augmentation]")
        values["augmentation"] = Augmentation(**options)
    return Recipe(**values)


# What TOML must hold for each key, and what it becomes: whole numbers are welcome where fractions are.
_TYPES: dict[str, type] = {
    "task": str,
    "architecture": dict,
    "epochs": int,
    "batch_size": int,
    "learning_rate": float,
    "weight_decay": float,
    "warmup": float,
    "clip_norm": float,
    "checkpoints": tuple,
    "augmentation": dict,
}
_AUGMENTATION_TYPES: dict[str, type] = dict.fromkeys(("rotation", "shift", "zoom"), float)
_WORDS: dict[type, str] = {
    str: "text",
    dict: "a table",
    int: "a whole number",
    float: "a number",
    tuple: "a list of whole numbers",
}


def _checked(table: dict[str, Any], types: dict[str, type], origin: str) -> dict[str, Any]:
    values = {}
    for key, value in table.items():
        if key not in types:
            raise UnknownName(f"key in {origin}", key, types)
        wanted = types[key]
        if wanted is float and _is_whole(value):
            value = float(value)
        elif wanted is tuple and isinstance(value, list) and all(_is_whole(item) for item in value):
            value = tuple(value)
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise InputError(f"{origin}: {key} must be {_WORDS[wanted]}, got {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{origin}: {key} must be finite, got {value!r}")
        values[key] = value
    return values


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
