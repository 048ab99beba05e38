"""Where models keep their attention: everything known about modules without running them.

Which modules are attention, how many heads they have, which block they belong to, and where the residual
stream is read after attention and after the block.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from workbench.captures.adapters import find_adapter
from workbench.core.errors import InputError

# Names that a forward pass mentions when a route will see its attention.
_ENTRY_POINTS = {"scaled_dot_product_attention", "ALL_ATTENTION_FUNCTIONS", "multi_head_attention_forward"}
# Library base classes mention the entry points without being attention.
_NOT_ATTENTION = ("transformers.modeling_utils", "torch.nn.modules.module")
_NAMED_ATTENTION = re.compile(r"attention|attn", re.IGNORECASE)
_PROJECTIONS = re.compile(
    r"^(to_)?(qkv|q|k|v|query|key|value|queries|keys|values|wq|wk|wv|wqkv|c_attn|query_key_value|in_proj|kv)"
    r"(_proj|_lin|_linear|_net|_proj_weight)?$",
    re.IGNORECASE,
)
_LIBRARIES = ("timm.", "transformers.")


def class_path(module: nn.Module | type) -> str:
    """The full name of a module's class, e.g. "timm.models.cait.TalkingHeadAttn"; takes the class too."""
    cls = module if isinstance(module, type) else type(module)
    return f"{cls.__module__}.{cls.__qualname__}"


def attention_modules(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """(path, module) of every attention a capture can see, in definition order, from the code alone.

    These are ``nn.MultiheadAttention``, modules whose own code calls ``F.scaled_dot_product_attention`` or
    transformers' attention interface, and modules of a registered adapter. A module used twice is listed
    once.
    """
    return [(path, child) for path, child in module.named_modules() if is_attention(child)]


def is_attention(module: nn.Module) -> bool:
    """Whether a route or an adapter sees this module's attention."""
    if isinstance(module, nn.MultiheadAttention) or find_adapter(module) is not None:
        return True
    return _mentions_attention(type(module))


@functools.cache
def _mentions_attention(cls: type) -> bool:
    for base in cls.__mro__:
        if base.__module__ in _NOT_ATTENTION or base.__module__.startswith("torch.nn.modules."):
            continue
        for member in vars(base).values():
            function = inspect.unwrap(member) if callable(member) else getattr(member, "__func__", None)
            code = getattr(function, "__code__", None)
            if isinstance(code, CodeType) and _mentions(code):
                return True
    return False


def _mentions(code: CodeType) -> bool:
    return not _ENTRY_POINTS.isdisjoint(code.co_names) or any(
        _mentions(constant) for constant in code.co_consts if isinstance(constant, CodeType)
    )


def looks_like_attention(module: nn.Module) -> bool:
    """Whether an unseen module is probably attention: its class says so, or it projects q, k and v."""
    names = {name for name, _ in module.named_children()} | {
        name for name, _ in module.named_parameters(recurse=False)
    }
    projects = any(_PROJECTIONS.match(name) for name in names)
    if class_path(module).startswith(
        _LIBRARIES
    ):  # channel attention of convolutional networks is named so too
        return projects and bool(_NAMED_ATTENTION.search(type(module).__name__))
    has_weights = next(module.parameters(), None) is not None
    return has_weights and (projects or bool(_NAMED_ATTENTION.search(type(module).__name__)))


def is_library_model(module: nn.Module) -> bool:
    """Whether the model is one of timm's or transformers' own, where a layer without a route is an error."""
    return class_path(module).startswith(_LIBRARIES)


# Heads ----------------------------------------------------------------------------------------------------

_HEADS = ("num_heads", "num_attention_heads", "n_heads", "heads", "n_head", "nhead")
_HEAD_DIMS = ("head_dim", "attention_head_size", "dim_head", "attention_head_dim")
_WIDTHS = ("embed_dim", "all_head_size", "attn_dim", "hidden_size", "dim", "d_model", "embed_size")


def attention_geometry(module: nn.Module) -> tuple[int, int | tuple[int, ...], int | tuple[int, ...]]:
    """(number of attention layers, heads, width of a head), from the modules without running them.

    Heads and head widths are one number where all layers agree, else one per layer. Heads are query heads.
    Raises InputError where there is no attention, or where a module does not say how many heads it has.
    """
    found = attention_modules(module)
    if not found:
        raise InputError(
            f"{type(module).__name__} has no attention that capture can see; see docs/capture.md"
        )
    geometry = [heads_of(path, child) for path, child in found]
    # ALBERT runs the same layer many times; the configuration knows how often.
    depth = getattr(getattr(module, "config", None), "num_hidden_layers", None)
    if isinstance(depth, int) and depth > len(geometry) and depth % len(geometry) == 0:
        geometry *= depth // len(geometry)
    heads, widths = zip(*geometry, strict=True)
    return (
        len(geometry),
        heads[0] if len(set(heads)) == 1 else tuple(heads),
        widths[0] if len(set(widths)) == 1 else tuple(widths),
    )


def heads_of(path: str, module: nn.Module) -> tuple[int, int]:
    """(query heads, width of a head) of one attention module. Raises InputError where it does not say."""
    sources = [source for source in (module, getattr(module, "config", None)) if source is not None]

    def look_up(names: tuple[str, ...]) -> int | None:
        values = (getattr(source, name, None) for source in sources for name in names)
        return next((value for value in values if isinstance(value, int)), None)

    heads = look_up(_HEADS)
    if heads is None:
        raise InputError(
            f"{path or 'the model'} ({type(module).__name__}) does not say how many heads it has"
        )
    width = look_up(_HEAD_DIMS)
    if width is None:
        total = look_up(_WIDTHS)
        if total is None:
            linear = next((child for child in module.modules() if isinstance(child, nn.Linear)), None)
            if linear is None:
                raise InputError(f"{path} ({type(module).__name__}) does not say how wide a head is")
            total = linear.in_features
        width = total // heads
    return heads, width


# Blocks and the residual stream ---------------------------------------------------------------------------


def block_path(module: nn.Module, path: str) -> str | None:
    """Path of the block an attention module belongs to: the nearest enclosing item of a list of modules.

    Without a list it is the parent; None where the attention module is itself the model or an item of a list
    whose owner mixes attention with other layers.
    """
    parts = path.split(".") if path else []
    for length in range(len(parts) - 1, 0, -1):
        container = module.get_submodule(".".join(parts[: length - 1]))
        if isinstance(container, (nn.ModuleList, nn.Sequential)):
            return ".".join(parts[:length])
    if not parts or isinstance(module.get_submodule(".".join(parts[:-1])), (nn.ModuleList, nn.Sequential)):
        return None
    return ".".join(parts[:-1])


_FIRST_NORMS = ("norm1", "layernorm_before", "input_layernorm", "ln_1")


def first_norm(module: nn.Module, path: str) -> nn.Module | None:
    """The norm between the residual stream and the attention at ``path``.

    None in a block that normalises after its attention, and where the block's norm has none of the usual names.
    """
    block = module.get_submodule(place) if (place := block_path(module, path)) is not None else None
    if block is None or "Post" in type(block).__name__ or getattr(block, "norm_first", True) is False:
        return None
    return next((child for name in _FIRST_NORMS if (child := getattr(block, name, None)) is not None), None)


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


def _flat_tokens(x: Tensor) -> Tensor:
    """(batch, row, column, width) as (batch, token, width)."""
    return x.flatten(1, -2)


_BEFORE = Reading((("", "input"),), _flat_tokens)
_RESID_POST = Reading((("", "output"),))
_AFTER: dict[str, Callable[[nn.Module, str], Reading | None]] = {}
_ATTN_OUT_OF: dict[str, Reading] = {}
_RESID_POST_OF: dict[str, Reading] = {}
_OURS: dict[str, int] = {}
_TOLD: dict[str, int] = {}
"""How often `register_block` was told of a class: by ourselves, and in all."""
# They are given the patches and the class token apart; attention changes the second alone.
_CLASS_TOKEN_APART = {"timm.models.cait.LayerScaleBlockClassAttn": True}


def register_block(
    class_name: str,
    resid_mid: str | Callable[[nn.Module, str], Reading | None],
    resid_post: Reading | None = None,
    attn_out: Reading | None = None,
) -> None:
    """Say where blocks of a class (``"package.module.Class"``) hold the residual stream after attention.

    ``resid_mid`` is "norm2.input" or "attention.output" (what goes into or comes out of that submodule), or
    a function of (block, path of the attention inside it) that returns a ``Reading``. ``resid_post`` is the
    block's first output unless given, ``attn_out`` what is held after attention less what the block received.
    """
    if isinstance(resid_mid, str):
        submodule, _, side = resid_mid.rpartition(".")
        if side not in ("input", "output"):
            raise InputError(f"resid_mid is 'SUBMODULE.input' or 'SUBMODULE.output', not {resid_mid!r}")
        reading = Reading(((submodule, side),))
        _AFTER[class_name] = lambda block, attention: reading
    else:
        _AFTER[class_name] = resid_mid
    if resid_post is not None:
        _RESID_POST_OF[class_name] = resid_post
    if attn_out is not None:
        _ATTN_OUT_OF[class_name] = attn_out


def foreign_block(block: nn.Module) -> bool:
    """Whether somebody else than ourselves told `register_block` of this class, or of one it derives from."""
    return any(_TOLD.get(path, 0) > _OURS.get(path, 0) for path in map(class_path, type(block).__mro__))


def resid_post_reading(block: nn.Module) -> Reading:
    """How to read the hidden state a block hands on."""
    return _of_class(block, _RESID_POST_OF) or _RESID_POST


def before_attention(block: nn.Module) -> Reading | None:
    """How to read the residual stream before attention.

    None in a block with several attentions, and in CaiT's class attention, which is given no single stream.
    """
    several = sum(is_attention(child) for child in block.modules()) > 1
    return None if several or _of_class(block, _CLASS_TOKEN_APART) else _BEFORE


def attn_out_reading(block: nn.Module, attention: str) -> Reading | None:
    """How to read what attention adds to the residual stream, None where nothing is added as it is.

    In blocks that normalise what comes after attention the sum itself is not there to be read.
    """
    own = _of_class(block, _ATTN_OUT_OF)
    after = after_attention(block, attention)
    if own is not None or after is None or before_attention(block) is None:
        return own
    if len(after.sources) > 1 or after.sources[0][1] != "input":
        return None
    return Reading(
        (*_BEFORE.sources, *after.sources), lambda before, later: later - before.reshape(later.shape)
    )


def after_attention(block: nn.Module, attention: str) -> Reading | None:
    """How to read the residual stream after attention, None where it is not known (see ``register_block``).

    ``attention`` is the path of the attention module inside the block.
    """
    rule = _of_class(block, _AFTER)
    if rule is not None:
        return rule(block, attention)
    children = dict(block.named_children())
    if class_path(block).startswith("transformers."):
        return _transformers_reading(block, children, attention)
    if class_path(block).startswith("timm."):
        return _timm_reading(block, children)
    return None


def _of_class(block: nn.Module, table: dict[str, Any]) -> Any:
    return next((table[path] for cls in type(block).__mro__ if (path := class_path(cls)) in table), None)


def _transformers_reading(block: nn.Module, children: dict[str, nn.Module], attention: str) -> Reading | None:
    if "crossattention" in children and attention.startswith("crossattention"):
        return Reading((("crossattention", "output"),))
    # Before the second half of a block that normalises first …
    if "post_feedforward_layernorm" not in children and "post_attention_layernorm" in children:
        return Reading((("post_attention_layernorm", "input"),))
    for name in ("pre_feedforward_layernorm", "layernorm_after", "ln_2", "layer_norm2", "norm2"):
        if name in children:
            return Reading(((name, "input"),))
    # … and after the first normalisation of one that normalises last (BERT and its descendants, DistilBERT).
    if "sa_layer_norm" in children:
        return Reading((("sa_layer_norm", "output"),))
    if "full_layer_layer_norm" in children and "attention" in children:  # ALBERT
        return Reading((("attention", "output"),))
    if "attention" in children and hasattr(getattr(children["attention"], "output", None), "LayerNorm"):
        return Reading((("attention", "output"),))
    return None


def _timm_reading(block: nn.Module, children: dict[str, nn.Module]) -> Reading | None:
    name = type(block).__name__
    if "Parallel" in name or "DiffBlock" in name or "norm2" not in children:
        return None
    # Blocks that normalise what a branch returns: norm2 sits behind the MLP, so the stream enters at the MLP.
    if "Post" in name or class_path(block) == "timm.models.swin_transformer_v2.SwinTransformerV2Block":
        return Reading((("mlp", "input"),))
    return Reading((("norm2", "input"),))


def _torch_reading(block: nn.Module, attention: str) -> Reading:
    first, second = ("norm1", "norm2") if attention == "self_attn" else ("norm2", "norm3")
    return Reading(((second, "input") if getattr(block, "norm_first", False) else (first, "output"),))


def _words_and_entities(outputs: Any) -> Tensor:
    words, entities = outputs[:2]
    return torch.cat([words, entities], dim=1) if isinstance(entities, Tensor) else words


for _name in ("TransformerEncoderLayer", "TransformerDecoderLayer"):
    register_block(f"torch.nn.modules.transformer.{_name}", _torch_reading)
# Only the class token goes on to norm2, so the whole stream is put together as the block does.
register_block(
    "timm.models.xcit.ClassAttentionBlock",
    lambda block, attention: Reading((("", "input"), ("drop_path1", "output")), torch.add),
)
register_block("timm.models.xcit.XCABlock", "norm3.input")
register_block("workbench.models.architectures.ista.IstaBlock", "norm2.input")
# Its residual is not the sum of the stream and what attention puts out.
register_block(
    "workbench.models.architectures.parts.BoostedBlock",
    "norm2.input",
    attn_out=Reading((("boost", "input"),)),
)
register_block(
    "timm.models.swin_transformer.SwinTransformerBlock",
    "norm2.input",
    resid_post=Reading((("", "output"),), _flat_tokens),
)
register_block(
    "transformers.models.luke.modeling_luke.LukeLayer",
    lambda block, attention: Reading((("attention", "outputs"),), _words_and_entities),
    resid_post=Reading((("", "outputs"),), _words_and_entities),
)
_OURS.update(_TOLD)
