"""The registry: what the files of `families`, and anyone else, say of classes of modules; the other modules ask it.

Every table is written through its ``register_*`` function; what is registered last takes the place of the earlier.
"""

from __future__ import annotations

import functools
from collections import UserDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from torch import Tensor, nn

from workbench.captures.records import Call
from workbench.core.errors import InputError
from workbench.core.plugins import OURS, Plugin, load_plugins

if TYPE_CHECKING:
    from workbench.captures.tokens import TokenInfo

Value = TypeVar("Value")


def class_path(module: nn.Module | type) -> str:
    """The full name of a module's class, e.g. "timm.models.cait.TalkingHeadAttn"; takes the class too."""
    cls = module if isinstance(module, type) else type(module)
    return f"{cls.__module__}.{cls.__qualname__}"


class ByClass(UserDict[str, Value]):
    """Values by "package.module.Class", or by "package." for all classes of a package."""

    def __init__(self) -> None:
        super().__init__()
        self.ours: dict[str, Value] = {}
        """What the files of `families` say."""
        self.of = functools.cache(self._of)
        """All that is known of a class of modules, the nearest first."""
        TABLES.append(self)

    def __setitem__(self, key: str, item: Value) -> None:
        super().__setitem__(key, item)
        self.of.cache_clear()

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self.of.cache_clear()

    def _of(self, cls: type) -> list[Value]:
        """What is known of the class, then of the classes it derives from, then of its packages, innermost first."""
        load_plugin_families()
        return [self[path] for path in _paths(cls) if path in self]

    def is_ours(self, cls: type) -> bool:
        """Whether nobody but ourselves said anything of the class."""
        return all(self.get(path) is self.ours.get(path) for path in _paths(cls))


def _paths(cls: type) -> list[str]:
    parts = cls.__module__.split(".")
    packages = [".".join(parts[:length]) + "." for length in range(len(parts), 0, -1)]
    return [*map(class_path, cls.__mro__), *packages]


TABLES: list[ByClass] = []


# Adapters: attention that the general routes do not see, or see in other axes -------------------------------


@dataclass
class Visit:
    """One pass through a module's forward: what went in, what came out, what the routes saw meanwhile.

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
        """An argument of the forward, whether it was passed by position or by name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)


class Adapter:
    """Reads the attention calls of one visit to a module of ``classes`` ("package.module.Class" paths).

    ``read`` gets the calls the routes saw inside (none, where the family writes its attention out) and
    returns those to record. It runs without gradients unless they were asked for, and must not change the
    module.
    """

    classes: ClassVar[tuple[str, ...]] = ()
    # Whether ``read`` makes one of all the calls that it looks at.
    joins: ClassVar[bool] = False
    # Whether ``read`` looks at the calls that the routes saw inside; it then returns as many.
    reads_calls: ClassVar[bool] = True

    @classmethod
    def takes(cls, module: type[nn.Module]) -> bool:
        """Whether it reads this class, where it has no ``classes``: those of one kind, by what their code says."""
        return False

    def read(self, visit: Visit) -> list[Call]:
        raise TypeError(f"{type(self).__name__} defines no read(visit)")


ADAPTERS: ByClass[Adapter] = ByClass()
GENERAL: list[Adapter] = []
"""Adapters without ``classes``."""


def register_adapter(adapter: type[Adapter]) -> type[Adapter]:
    """Class decorator: use this adapter for its ``classes`` from now on, in place of an earlier one."""
    if not adapter.classes and "takes" in vars(adapter):
        GENERAL.append(adapter())
        return adapter
    if isinstance(adapter.classes, str) or not adapter.classes:
        raise InputError(f"{adapter.__name__}.classes must be a tuple of 'package.module.Class' paths")
    for path in adapter.classes:
        ADAPTERS[path] = adapter()
    return adapter


@functools.cache
def load_plugin_families() -> None:
    """Let adapters of other packages join; those for a class that has one are refused."""
    owners = {path: _owner(adapter) for path, adapter in ADAPTERS.items()}

    def accept(plugin: Plugin, value: Any) -> None:
        if not isinstance(value, type) or not issubclass(value, Adapter):
            raise InputError("it is no class derived from workbench.captures.Adapter")
        clash = [path for path in value.classes if path in before and type(before[path]) is not value]
        if clash:
            raise InputError(f"{owners[clash[0]]} has an adapter for {clash[0]}")
        register_adapter(value)
        owners.update(dict.fromkeys(value.classes, plugin.origin))
        before.update({path: ADAPTERS[path] for path in value.classes})

    before = dict(ADAPTERS)
    load_plugins("workbench.families", {}, accept)
    # What a refused package registered of its own accord when it was imported goes again.
    ADAPTERS.clear()
    ADAPTERS.update(before)


def _owner(adapter: Adapter) -> str:
    package = type(adapter).__module__.partition(".")[0]
    return OURS if package == "workbench" else package


INNER_SITES: dict[str, str] = {}


def register_inner_site(submodule: str, site: str) -> None:
    """Say that what goes into a submodule of that name, in any attention, is a site: (batch, token, …) in ``extra``."""
    INNER_SITES[submodule] = site


# What mixes tokens without attention -----------------------------------------------------------------------

MIXERS: dict[str, str] = {}


def register_mixer(class_name: str, what: str) -> None:
    """Say that modules of a class mix tokens by something else than softmax attention, and by what: a short noun.

    ``class_name`` is "package.module.Class", or "*Ending" for all classes whose name ends so, as long as no attention
    is seen in them. Such a module is a layer of kind "none" (see ``LayerRecord``) that is named and not read.
    """
    MIXERS[class_name] = what
    mixer_of.cache_clear()


@functools.cache
def mixer_of(cls: type) -> tuple[str, bool] | None:
    """By what modules of a class mix tokens, and whether its full name says so; None where nothing is known of it."""
    load_plugin_families()
    named = next(((MIXERS[path], True) for base in cls.__mro__ if (path := class_path(base)) in MIXERS), None)
    endings = (
        (what, False)
        for base in cls.__mro__
        for ending, what in MIXERS.items()
        if ending.startswith("*") and base.__name__.endswith(ending[1:])
    )
    return named or next(endings, None)


# Heads and projections --------------------------------------------------------------------------------------

Rows = tuple[Tensor, Tensor | None]
"""Weight (feature, width) and bias (feature) of one projection, the features of all heads in order."""
HEADS: ByClass[Callable[[Any], tuple[int, int]]] = ByClass()
PROJECTION_READERS: ByClass[Callable[[Any, str, str], Rows | None]] = ByClass()


def register_heads(class_name: str, heads: Callable[[Any], tuple[int, int]]) -> None:
    """Say how many query heads an attention of a class has, and how wide they are, where no usual attribute does."""
    HEADS[class_name] = heads


def register_projection(class_name: str, read: Callable[[Any, str, str], Rows | None]) -> None:
    """Say where attention of a class keeps its projections to q, k and v.

    ``class_name`` is ``"package.module.Class"``, or ``"package."`` for all of a package. ``read`` gets the module, "q",
    "k" or "v" and the module's path for messages, and returns weight (feature, width) and bias (feature) or None,
    features of the heads one after the other; None where the projection is a linear layer of its own.
    """
    PROJECTION_READERS[class_name] = read


# Blocks and the residual stream -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """How to read the residual stream: what passes through some of a block's submodules.

    ``sources`` are (submodule path, "input" | "output" | "outputs"): the first tensor that goes in, that
    comes out, or everything that comes out; "" is the block. ``combine`` makes one tensor of several.
    """

    sources: tuple[tuple[str, str], ...]
    combine: Callable[..., Tensor] | None = None

    def __call__(self, *values: Any) -> Tensor:
        return self.combine(*values) if self.combine else values[0]


def flat_tokens(x: Tensor) -> Tensor:
    """(batch, row, column, width) as (batch, token, width)."""
    return x.flatten(1, -2)


@dataclass(frozen=True)
class Block:
    """What is known of a class of blocks; None where it is not said."""

    resid_mid: Callable[[nn.Module, str], Reading | None] | None = None
    resid_post: Reading | None = None
    attn_out: Reading | None = None
    one_stream: bool | None = None
    norm_first: Callable[[nn.Module], bool] | None = None


BLOCKS: ByClass[Block] = ByClass()


def register_block(
    class_name: str,
    resid_mid: str | Callable[[nn.Module, str], Reading | None],
    resid_post: Reading | None = None,
    attn_out: Reading | None = None,
    *,
    one_stream: bool | None = None,
    norm_first: bool | Callable[[nn.Module], bool] | None = None,
) -> None:
    """Say where to read the residual stream after attention in blocks of a class.

    ``class_name`` is ``"package.module.Class"``, or ``"package."`` for all classes of a package of which nothing else
    is said. ``resid_mid`` is "norm2.input" or "attention.output" (what goes into or comes out of that submodule), or
    a function of (block, path of the attention inside it) that returns a ``Reading``, or None where it is not known.
    ``resid_post`` is the block's first output unless given, ``attn_out`` the stream after attention less what the
    block received. ``one_stream`` is False for blocks that are given their tokens in several parts; ``norm_first``,
    or what it returns for a block, is False for those that normalise after attention.
    """
    if isinstance(resid_mid, str):
        submodule, _, side = resid_mid.rpartition(".")
        if side not in ("input", "output"):
            raise InputError(f"resid_mid is 'SUBMODULE.input' or 'SUBMODULE.output', not {resid_mid!r}")
        reading = Reading(((submodule, side),))
    BLOCKS[class_name] = Block(
        resid_mid=(lambda block, attention: reading) if isinstance(resid_mid, str) else resid_mid,
        resid_post=resid_post,
        attn_out=attn_out,
        one_stream=one_stream,
        norm_first=(lambda block: norm_first) if isinstance(norm_first, bool) else norm_first,
    )


# Positions --------------------------------------------------------------------------------------------------

SKIP_PATHS: ByClass[tuple[str, ...]] = ByClass()
POSITIONS: dict[str, tuple[str, ...]] = {}
OTHER_POSITIONS: dict[str, str] = {}


def register_skip_path(class_name: str, *norms: str) -> None:
    """Say which submodules lie on the skip path through blocks of exactly this class, in order; none is an identity."""
    SKIP_PATHS[class_name] = norms


def register_positions(name: str, *after: str) -> None:
    """Say by which name a model has the embedding that it adds to its tokens, and what may follow it there."""
    POSITIONS[name] = (*POSITIONS.get(name, ()), *after)


def register_other_positions(what: str, *names: str) -> None:
    """Say which submodules or parameters give a model positions of another kind: "rotary positions", say."""
    OTHER_POSITIONS.update(dict.fromkeys(names, what))


# Self and cross attention -----------------------------------------------------------------------------------

SOURCES: ByClass[str] = ByClass()


def register_source(class_name: str, source: str) -> None:
    """Say that attention of a class is "self" or "cross", where what it is given does not tell."""
    if source not in ("self", "cross"):
        raise InputError(f"the source of attention is 'self' or 'cross', not {source!r}")
    SOURCES[class_name] = source


# Tokens -----------------------------------------------------------------------------------------------------

JOINED: ByClass[tuple[str, ...]] = ByClass()


def register_joined(class_name: str, *streams: str) -> None:
    """Say in which order a model joins the streams of its tokens on one axis; "" are those that it reads first."""
    JOINED[class_name] = streams


IMAGE_TOKENS: ByClass[Callable[[Any, Mapping[str, Any]], TokenInfo | None]] = ByClass()


def register_image_tokens(
    class_name: str, make: Callable[[Any, Mapping[str, Any]], TokenInfo | None]
) -> None:
    """Say what the tokens of a vision model are that packs images in an order of its own: ``make(model, batch)``."""
    IMAGE_TOKENS[class_name] = make


SPECIAL_TOKENS: dict[str, str] = {}
MORE_TOKENS: dict[str, Callable[[TokenInfo, Mapping[str, Any]], TokenInfo]] = {}


def register_special_tokens(**kinds: str) -> None:
    """Say by which names models keep the tokens before their patches: ``cls_token="class"``, say.

    Kinds are class, distillation and register; of the last there may be several under one name.
    """
    SPECIAL_TOKENS.update(kinds)


def register_more_tokens(key: str, extend: Callable[[TokenInfo, Mapping[str, Any]], TokenInfo]) -> None:
    """Say what a batch with ``key`` beside its words makes of their tokens: ``extend(words, batch)``."""
    MORE_TOKENS[key] = extend
