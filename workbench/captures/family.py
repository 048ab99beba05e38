"""Families: one declaration of all that is known of the modules of a family of models.

The files of ``families`` declare ours, packages declare theirs through the entry point ``workbench.families``, and a
notebook passes one to `register_family`. Classes are named by their full paths, "package.module.Class", or by a package
with a point at its end, "timm.", for all classes inside it. A declaration holds for derived classes too; the nearest
class counts first, then packages from the innermost, and of two declarations of one class the later.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from torch import Tensor, nn

from workbench.captures.labelled_tokens import TokenInfo
from workbench.captures.layer_records import Call
from workbench.core.errors import InputError
from workbench.core.plugins import OURS, Plugin, load_plugins


def class_path(module: nn.Module | type) -> str:
    """Return the full name of a module's class, e.g. "timm.models.cait.TalkingHeadAttn"; takes the class too."""
    cls = module if isinstance(module, type) else type(module)
    return f"{cls.__module__}.{cls.__qualname__}"


# The parts of a declaration ---------------------------------------------------------------------------------


@dataclass
class Visit:
    """One pass through a module's forward: its inputs, its output, and the calls that the routes saw inside.

    ``parents`` are the visits around it, innermost first; their ``output`` is not there yet.
    """

    module: Any  # attributes of the family are read from it
    path: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    parents: list[Visit] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    output: Any = None
    # Of our own variants: what ``attend`` returned, (output, what lies inside).
    attended: tuple[Tensor, dict[str, Any]] | None = None

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument of the forward, whether it was passed by position or by name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)


class Adapter:
    """Read attention that the general routes do not see, or see in other axes.

    ``read`` gets a visit with the calls that the routes saw inside (none where the family writes its attention out) and
    returns the calls to record. It runs without gradients unless the capture keeps them, and must not change the
    module.
    """

    joins: ClassVar[bool] = False
    """Whether ``read`` makes one call of all that the routes saw."""
    reads_calls: ClassVar[bool] = True
    """Whether ``read`` looks at the calls that the routes saw; it then returns one for each."""

    def takes(self, cls: type[nn.Module]) -> bool:
        """Return whether it reads this class: an adapter declared for a package may choose among its classes."""
        return True

    def read(self, visit: Visit) -> list[Call]:
        raise TypeError(f"{type(self).__name__} defines no read(visit)")


Rows = tuple[Tensor, Tensor | None]
"""Weight (feature, width) and bias (feature) of one projection, the features of all heads in order."""


@dataclass(frozen=True)
class Fused:
    """Read q, k and v from one linear layer that projects to all three in that order.

    ``transposed`` is for a weight (width, feature).
    """

    layer: str
    transposed: bool = False

    def __call__(self, module: nn.Module, name: str, path: str) -> Rows | None:
        layer: Any = getattr(module, self.layer, None)
        if layer is None or layer.weight.ndim != 2:
            return None
        weight = layer.weight.mT if self.transposed else layer.weight
        return part_of(weight, name), None if layer.bias is None else part_of(layer.bias, name)


def part_of(fused: Tensor, name: str) -> Tensor:
    """Return the rows of "q", "k" or "v" in weights of all three in that order."""
    return fused.chunk(3)["qkv".index(name)]


@dataclass(frozen=True)
class Reading:
    """Read the residual stream from what passes through some of a block's submodules.

    ``sources`` are (submodule path, "input" | "output" | "outputs"): the first tensor that goes in, the first that
    is returned, or the whole output; "" is the block. ``combine`` makes one tensor of several.
    """

    sources: tuple[tuple[str, str], ...]
    combine: Callable[..., Tensor] | None = None

    def __call__(self, *values: Any) -> Tensor:
        return self.combine(*values) if self.combine else values[0]


def flat_tokens(x: Tensor) -> Tensor:
    """Return (batch, row, column, width) as (batch, token, width)."""
    return x.flatten(1, -2)


@dataclass(frozen=True)
class Block:
    """The residual stream in blocks of a class; a field that is None leaves the matter to the next declaration.

    resid_mid: the stream after attention: "norm2.input" or "attention.output" (the input or output of that
        submodule), a ``Reading``, or a function of (block, path of the attention inside it) that returns a ``Reading``,
        or None if unknown.
    resid_post: the stream after the block; without it the block's first output.
    attn_out: what attention adds to the stream; without it ``resid_mid`` less what the block received.
    one_stream: False for blocks that receive their tokens in several parts.
    norm_first: False, or a function of the block that returns it, for blocks that normalise after attention.
    skip_path: norms on the skip path through blocks of exactly this class, in order; () where it is an identity.
    """

    resid_mid: str | Reading | Callable[[nn.Module, str], Reading | None] | None = None
    resid_post: Reading | None = None
    attn_out: Reading | None = None
    one_stream: bool | None = None
    norm_first: bool | Callable[[nn.Module], bool] | None = None
    skip_path: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        resid_mid = self.resid_mid
        if isinstance(resid_mid, str) and resid_mid.rpartition(".")[2] not in ("input", "output"):
            raise InputError(f"resid_mid is 'SUBMODULE.input' or 'SUBMODULE.output', not {resid_mid!r}")


# The declaration --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Family:
    """Declare all that is known of a family of models. Every field is optional; most families need two or three.

        GPT2 = Family(
            projections={"transformers.models.gpt2.": Fused("c_attn", transposed=True)},
            blocks={"transformers.models.gpt2.modeling_gpt2.GPT2Block": Block(skip_path=())},
            position_embeddings={"wpe": ()},
        )

    adapters: attention class → an `Adapter`, where the routes do not see its attention, or see it in other axes.
    heads: attention class → function of the module that returns (query heads, width of a head), where no usual
        attribute says it. Needed for `attention_geometry` and ``load(…).num_heads``.
    projections: attention class → function of (module, "q" | "k" | "v", path for messages) that returns weight
        (feature, width) and bias (feature) or None; `Fused` is one. It returns None where the projection is a linear
        separate layer. Needed for `head_projection` and the analyses of weights.
    sources: attention class → "self" or "cross", where the inputs of the module do not tell.
    mixers: class → noun, for modules that mix tokens by something other than softmax attention ("state-space mixer").
        "*Ending" is every class whose name ends so, unless attention is seen in it. Such a module becomes a layer of
        kind "none" (see ``LayerRecord``) that is named and not read.
    inner_sites: submodule of any attention → site in ``extra`` with the submodule's input (batch, token, …).
    blocks: block class → `Block`. Needed for the sites resid_mid, attn_out and position.
    position_embeddings: attribute with the embedding that a model adds to its tokens → norms and projections that may
        follow it before the first block. Needed for the site position.
    other_positions: submodule or parameter → the kind of positions it gives a model instead ("rotary positions").
    special_tokens: attribute with tokens before the patches → "class", "distillation" or "register".
    batch_tokens: key of a batch, beside its words → function of (words, batch) that returns both as one
        ``TokenInfo``.
    image_tokens: model class → function of (model, batch) that returns the tokens of images in another order, or
        None where the batch has none.
    token_streams: model class → the streams whose tokens it joins on one axis, in order; "" are those it reads first.
    """

    adapters: Mapping[str, Adapter] = field(default_factory=dict)
    heads: Mapping[str, Callable[[Any], tuple[int, int]]] = field(default_factory=dict)
    projections: Mapping[str, Callable[[Any, str, str], Rows | None]] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    mixers: Mapping[str, str] = field(default_factory=dict)
    inner_sites: Mapping[str, str] = field(default_factory=dict)
    blocks: Mapping[str, Block] = field(default_factory=dict)
    position_embeddings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    other_positions: Mapping[str, str] = field(default_factory=dict)
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    batch_tokens: Mapping[str, Callable[[TokenInfo, Mapping[str, Any]], TokenInfo]] = field(
        default_factory=dict
    )
    image_tokens: Mapping[str, Callable[[Any, Mapping[str, Any]], TokenInfo | None]] = field(
        default_factory=dict
    )
    token_streams: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (entry.name for entry in fields(self)):
            if not isinstance(getattr(self, name), Mapping):
                raise InputError(f"{name} is a dictionary by name, not {getattr(self, name)!r}")
        for source in self.sources.values():
            if source not in ("self", "cross"):
                raise InputError(f"the source of attention is 'self' or 'cross', not {source!r}")


_BY_CLASS = (
    "adapters",
    "heads",
    "projections",
    "sources",
    "mixers",
    "blocks",
    "image_tokens",
    "token_streams",
)

FAMILIES: dict[Family, str] = {}
"""Every family, in order of registration, with its owner: the workbench, a package, or a notebook."""


def register_family(family: Family, owner: str = "this session") -> None:
    """Use a family from now on, before those registered earlier."""
    replace_families(FAMILIES | {family: owner})


def replace_families(owners: Mapping[Family, str]) -> None:
    """Use these families, in this order, and no others."""
    kept = dict(owners)
    FAMILIES.clear()
    FAMILIES.update(kept)
    for lookup in (declared, merged, adapter_of, mixer_of):
        lookup.cache_clear()


@functools.cache
def load_plugin_families() -> None:
    """Let families of other packages join; one that declares what another declares of the same class is refused."""

    def accept(plugin: Plugin, family: Any) -> None:
        if not isinstance(family, Family):
            raise InputError(f"it is a {type(family).__name__}; give a workbench.captures.Family")
        for other, owner in accepted.items():
            for name in _BY_CLASS if other is not family else ():
                for path in getattr(family, name).keys() & getattr(other, name).keys():
                    raise InputError(f"{owner} has {name} of {path}")
        accepted[family] = plugin.origin

    accepted = dict(FAMILIES)
    load_plugins("workbench.families", {}, accept)
    # Families that a refused package registered itself when it was imported go again.
    replace_families(accepted)


# Lookups ----------------------------------------------------------------------------------------------------


def families() -> list[Family]:
    """Return every family, those of other packages included."""
    load_plugin_families()
    return list(FAMILIES)


def _paths(cls: type) -> list[str]:
    parts = cls.__module__.split(".")
    packages = [".".join(parts[:length]) + "." for length in range(len(parts), 0, -1)]
    return [*map(class_path, cls.__mro__), *packages]


@functools.cache
def declared(name: str, cls: type) -> list[Any]:
    """Return what families declare of a class in one field, the nearest declaration first."""
    newest = [getattr(family, name) for family in reversed(families())]
    return [entries[path] for path in _paths(cls) for entries in newest if path in entries]


@functools.cache
def merged(name: str) -> dict[str, Any]:
    """Return one field of all families together."""
    return {key: value for family in families() for key, value in getattr(family, name).items()}


@functools.cache
def adapter_of(cls: type[nn.Module]) -> Adapter | None:
    """Return the adapter of a class of modules."""
    return next((adapter for adapter in declared("adapters", cls) if adapter.takes(cls)), None)


@functools.cache
def mixer_of(cls: type) -> tuple[str, bool] | None:
    """Return how modules of a class mix tokens, and whether its full name is declared; None if unknown."""
    mixers = merged("mixers")
    named = next(((mixers[path], True) for base in cls.__mro__ if (path := class_path(base)) in mixers), None)
    endings = (
        (noun, False)
        for base in cls.__mro__
        for ending, noun in mixers.items()
        if ending.startswith("*") and base.__name__.endswith(ending[1:])
    )
    return named or next(endings, None)


def declared_elsewhere(cls: type[nn.Module]) -> str | None:
    """Return who declares something of a class of modules, where that is somebody other than the workbench."""
    for family in (family for family in families() if FAMILIES[family] != OURS):
        if any(path in getattr(family, name) for name in _BY_CLASS for path in _paths(cls)):
            return FAMILIES[family]
    return None
