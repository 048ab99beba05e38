"""Recipes: small typed configurations in TOML files, one per task, with a table for each variant."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.attention import SHARED_OPTIONS, VARIANTS, find_variant
from workbench.core.errors import InputError, UnknownName
from workbench.core.options import Numbers, parse_numbers
from workbench.models.architectures import ATTENTION_KEYS, attention_of

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
class Images:
    """Reading of the images of a folder (by timm): cropped and augmented in training, not in tests."""

    smallest_crop: float = 1.0
    """Smallest share of a image's area in a random cut; 1: no random cuts."""
    flip: float = 0.0
    """Share of images mirrored left to right."""
    color_jitter: float = 0.0
    """Largest relative change of brightness, contrast and saturation; not beside auto_augment."""
    auto_augment: str = ""
    """A policy in timm's words, such as "rand-m9-mstd0.5-inc1"."""
    random_erasing: float = 0.0
    """Share of images with a rectangle of noise."""
    test_crop: float = 1.0
    """Side of the central cut of a test image, as a share of its shorter side."""
    workers: int = 0
    """Processes that read images; 0: the one that trains."""

    def __post_init__(self) -> None:
        for name in ("flip", "random_erasing"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(
                    f"recipe: [images] {name} is a share from 0 to 1, got {getattr(self, name)!r}"
                )
        for name in ("smallest_crop", "test_crop"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError(
                    f"recipe: [images] {name} is a share above 0, at most 1, got {getattr(self, name)!r}"
                )
        for name in ("color_jitter", "workers"):
            if getattr(self, name) < 0:
                raise InputError(f"recipe: [images] {name} must not be negative, got {getattr(self, name)!r}")


@dataclass(frozen=True)
class Recipe:
    """All settings of a training run except the seed and the data."""

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
    images: Images = Images()
    label_smoothing: float = 0.0
    mixup: float = 0.0
    """Parameter α of mixup: pairs of images are added up; 0: never."""
    cutmix: float = 0.0
    """Parameter α of CutMix: a rectangle of another image; 0: never. With mixup, one of the two per batch."""
    drop_path: float = 0.0
    """Probability of skipping the last block's update (stochastic depth), growing linearly from the first."""
    ksvd_weight: float = 0.0
    """η of chen2023 eq. 10: weight of the KSVD penalty of primal layers in the loss."""
    qk_clip: float = 0.0
    """Threshold (nats) of QK-Clip: heads with a larger logit are scaled down after the step; 0: never."""

    def __post_init__(self) -> None:
        if not isinstance(self.architecture.get("name"), str):
            raise InputError(f'recipe: [architecture] needs a name, such as "vit", got {self.architecture!r}')
        for name in ("epochs", "batch_size", "learning_rate", "clip_norm"):
            if getattr(self, name) <= 0:
                raise InputError(f"recipe: {name} must be positive, got {getattr(self, name)!r}")
        for name in ("weight_decay", "mixup", "cutmix", "ksvd_weight", "qk_clip"):
            if getattr(self, name) < 0:
                raise InputError(f"recipe: {name} must not be negative, got {getattr(self, name)!r}")
        for name in ("label_smoothing", "drop_path"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"recipe: {name} is a share from 0 to below 1, got {getattr(self, name)!r}")
        if not 0 < self.warmup < 1:
            raise InputError(f"recipe: warmup is a share of all steps, between 0 and 1, got {self.warmup!r}")
        if any(epoch < 0 for epoch in self.checkpoints):
            raise InputError(f"recipe: checkpoints are epochs from 0 on, got {list(self.checkpoints)}")

    @property
    def attention(self) -> str:
        """Return the variant in the architecture."""
        return attention_of(self.architecture)

    @property
    def boost(self) -> bool:
        """Return whether the residual connections are boosted."""
        return bool(self.architecture.get("boost", False))

    def with_epochs(self, epochs: int | None) -> Recipe:
        """Return the recipe with this number of epochs (None: unchanged), which rescales the schedule."""
        return self if epochs is None else dataclasses.replace(self, epochs=epochs)

    def with_attention(
        self,
        name: str,
        layers: Numbers = None,
        options: Mapping[str, Any] | None = None,
        boost: bool = False,
    ) -> Recipe:
        """Return the recipe with the attention variant ``name`` in ``layers`` (all by default).

        The architecture then lists the layers as numbers and every option of the variant, so that later defaults do not
        change a checkpoint's meaning. The architecture's own variant without options (softmax in a vision transformer)
        is not listed. Raises UnknownName for an unknown name or option, InputError for unknown layers.
        """
        variant = find_variant(name)
        accepted = {*variant.options, *SHARED_OPTIONS} - {*variant.fixed}
        for option in options or {}:
            if option not in accepted:
                raise UnknownName(f"option of attention {name!r}", option, accepted)
        complete = {key: option.default for key, option in variant.options.items()} | dict(options or {})
        plain = {key: value for key, value in self.architecture.items() if key not in ATTENTION_KEYS}
        depth = plain.get("depth")
        chosen = parse_numbers("layer", layers, depth)
        if name == "softmax" and chosen is not None and len(chosen) != depth:
            raise InputError(
                "layers chooses the layers whose attention is not softmax; name a variant as attention"
            )
        if name != attention_of({"name": plain["name"]}) or complete:
            plain["attention"] = name
            if chosen is not None and chosen != tuple(range(depth or 0)):
                plain["attention_layers"] = list(chosen)
            if complete:
                plain["attention_options"] = complete
        if boost:
            plain["boost"] = True
        return dataclasses.replace(self, architecture=plain)

    def completed(self, from_data: Mapping[str, Any]) -> Recipe:
        """Return the recipe with architecture settings from the data where the recipe has none."""
        return dataclasses.replace(self, architecture={**from_data, **self.architecture})

    def checkpoint_epochs(self) -> tuple[int, ...]:
        """Return the epochs to keep in this run: those of the recipe within it, the first and the last."""
        return tuple(sorted({0, self.epochs, *(epoch for epoch in self.checkpoints if epoch < self.epochs)}))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values that fit in JSON.

        The keys in the first bundled checkpoints are always present, others only if they differ from the default:
        bundled checkpoints stay unchanged.
        """
        values = {**dataclasses.asdict(self), "checkpoints": list(self.checkpoints)}
        plain = {key: default for key, default in _defaults().items() if key not in _ALWAYS}
        return {key: value for key, value in values.items() if key not in plain or value != plain[key]}


_ALWAYS = ("weight_decay", "warmup", "clip_norm", "checkpoints", "augmentation")


def _defaults() -> dict[str, Any]:
    defaults = {item.name: item.default for item in dataclasses.fields(Recipe)}
    defaults["images"] = dataclasses.asdict(Images())
    return {key: value for key, value in defaults.items() if value is not dataclasses.MISSING}


@dataclass(frozen=True)
class AttentionTable:
    """``[attention.NAME]`` of a recipe file: the changes for training that variant."""

    layers: Numbers = None
    options: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    """Keys of the recipe with other values."""


def recipe_names() -> list[str]:
    """List the recipes of the package; those of the tasks have the task's name."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load_recipe(name: str | Path, attention: str | None = None) -> Recipe:
    """Load a recipe by name (``"digits"``) or from a user's TOML file, for one attention variant.

    ``attention`` is a variant of `workbench.attention.VARIANTS`; by default the one in the file's architecture, or
    softmax for a vision transformer or language model. ``[attention.NAME]`` of the file sets its layers, its options
    and other changes of the recipe.

    Raises UnknownName for an unknown name or key, InputError for a file that cannot be read or a value of the wrong
    type.
    """
    path = Path(name).expanduser()
    if path.suffix != ".toml":
        path = _FOLDER / f"{name}.toml"
        if str(name) not in recipe_names():
            raise UnknownName("recipe", str(name), recipe_names(), "or the name of your .toml file")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"no recipe at {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"recipe {path} is not valid TOML: {error}") from error
    return parse_recipe(table, origin=path.name, attention=attention)


def parse_recipe(table: Mapping[str, Any], origin: str = "recipe", attention: str | None = None) -> Recipe:
    """Return a recipe from the table of its TOML file; `origin` names it in errors."""
    values = _checked(table, _TYPES, origin)
    tables = {
        name: _attention_table(entry, name, origin) for name, entry in values.pop("attention", {}).items()
    }
    required = [item.name for item in dataclasses.fields(Recipe) if item.default is dataclasses.MISSING]
    missing = [name for name in required if name not in values]
    if missing:
        raise InputError(f"{origin}: missing {', '.join(missing)}")
    for name, kind in _TABLES.items():
        if name in values:
            types = {item.name: _WANTED[str(item.type)] for item in dataclasses.fields(kind)}
            values[name] = kind(**_checked(values[name], types, f"{origin} [{name}]"))
    if attention is None and attention_of(values["architecture"]) in tables:
        attention = attention_of(values["architecture"])
    if attention is None:
        return Recipe(**values)
    variant_table = tables.get(attention, AttentionTable())
    return Recipe(**(values | variant_table.changes)).with_attention(
        attention, variant_table.layers, variant_table.options
    )


def _attention_table(entry: Any, name: str, origin: str) -> AttentionTable:
    where = f"{origin} [attention.{name}]"
    if name not in VARIANTS:
        raise UnknownName(f"attention variant in {origin}", name, VARIANTS)
    if not isinstance(entry, dict):
        raise InputError(f"{where} must be a table, got {entry!r}")
    types = {key: kind for key, kind in _TYPES.items() if kind in (int, float)}
    values = _checked(entry, {"layers": str, "options": dict, **types}, where)
    return AttentionTable(values.pop("layers", None), values.pop("options", {}), values)


# What TOML must hold for each key, and what it becomes: whole numbers are welcome where fractions are.
_TYPES: dict[str, type] = {
    "task": str,
    "architecture": dict,
    "attention": dict,
    "epochs": int,
    "batch_size": int,
    "learning_rate": float,
    "weight_decay": float,
    "warmup": float,
    "clip_norm": float,
    "checkpoints": tuple,
    "augmentation": dict,
    "images": dict,
    "label_smoothing": float,
    "mixup": float,
    "cutmix": float,
    "drop_path": float,
    "ksvd_weight": float,
    "qk_clip": float,
}
_TABLES: dict[str, type[Augmentation] | type[Images]] = {"augmentation": Augmentation, "images": Images}
_WANTED: dict[str, type] = {"float": float, "int": int, "str": str}
_WORDS: dict[type, str] = {
    str: "text",
    dict: "a table",
    int: "a whole number",
    float: "a number",
    tuple: "a list of whole numbers",
}


def _checked(table: Mapping[str, Any], types: Mapping[str, type], origin: str) -> dict[str, Any]:
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
