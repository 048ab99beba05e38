"""The attention modules and blocks of a model: everything known about modules without running them.

Which modules are attention, how many heads they have, which block they belong to, and where the residual
stream is read after attention and after the block.
"""

from __future__ import annotations

import dis
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from types import CellType, CodeType, FunctionType
from typing import Any

import torch
from torch import nn

from workbench.captures.attention_kernels import KERNELS, functions_of, kernel_name
from workbench.captures.family import (
    Block,
    Reading,
    adapter_of,
    class_path,
    declared,
    families,
    flat_tokens,
    mixer_of,
)
from workbench.core.errors import InputError

# Names that a forward pass mentions when a route will see its attention.
_ENTRY_POINTS = {
    "scaled_dot_product_attention",
    "ALL_ATTENTION_FUNCTIONS",
    "multi_head_attention_forward",
    *KERNELS,
}
# Library base classes mention the entry points without being attention.
_NOT_ATTENTION = ("transformers.modeling_utils", "transformers.generation.", "torch.nn.modules.")
_PRODUCTS = {"matmul", "bmm", "baddbmm", "einsum"}
_SOFTMAX = {"softmax", "Softmax"}
_NAMED_ATTENTION = re.compile(r"attention|attn", re.IGNORECASE)
_PROJECTIONS = re.compile(
    r"^(to_)?(qkv|q|k|v|query|key|value|queries|keys|values|wq|wk|wv|wqkv|c_attn|query_key_value|in_proj|kv|sampling_offsets)"
    r"(_proj|_lin|_linear|_net|_proj_weight)?$",
    re.IGNORECASE,
)
_LIBRARIES = ("timm.", "transformers.")


def module_of(model: Any) -> nn.Module:
    """Return the module of a loaded model, or the module itself, without torch.compile's wrapper."""
    module = model.module if not isinstance(model, nn.Module) and hasattr(model, "module") else model
    if not isinstance(module, nn.Module):
        raise InputError(
            f"model must be what load() returned or a torch.nn.Module, not {type(model).__name__}"
        )
    if isinstance(module, nn.parallel.DistributedDataParallel):
        module = module.module  # one process may capture while the others do not, and wait for nobody
    return getattr(module, "_orig_mod", module)  # the wrapper's compiled code hides the attention


def attention_modules(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """(path, module) of every attention a capture can see, in definition order, without running the model.

    These are ``nn.MultiheadAttention``, modules whose own code calls ``F.scaled_dot_product_attention`` or
    transformers' attention interface, or has a softmax between products of matrices, and modules of a registered
    adapter. A module used twice is listed once. Attention written out in several functions shows only while it runs.
    """
    mixers = token_mixers(module)
    return [
        (path, child)
        for path, child in module.named_modules()
        if is_attention(child) and not (mixers and _is_within(path, mixers))
    ]


def token_mixers(module: nn.Module) -> dict[str, str]:
    """Return the mixers of tokens without attention, by path: "Mamba2Mixer (state-space mixer)"; only the outermost.

    A module that is known by the ending of its name alone is none where attention is seen in it.
    """
    mixers: dict[str, str] = {}
    for path, child in module.named_modules():
        mixer = mixer_of(type(child))
        if mixer is None or adapter_of(type(child)) is not None:
            continue
        noun, surely = mixer
        if not _is_within(path, mixers) and (
            surely or not any(is_attention(part) for part in child.modules())
        ):
            mixers[path] = f"{type(child).__name__} ({noun})"
    return mixers


def _is_within(path: str, others: Iterable[str]) -> bool:
    return any(not other or path == other or path.startswith(f"{other}.") for other in others)


def is_attention(module: nn.Module) -> bool:
    """Whether a route or an adapter sees this module's attention."""
    return must_attend(module) or _has_code(type(module), _writes_out)


def must_attend(module: nn.Module) -> bool:
    """Whether a route or an adapter sees this module's attention whenever the module runs."""
    if isinstance(module, nn.MultiheadAttention) or adapter_of(type(module)) is not None:
        return True
    return _has_code(type(module), _mentions)


@functools.cache
def _has_code(cls: type, is_such: Callable[[CodeType], bool]) -> bool:
    for base in cls.__mro__:
        if base.__module__.startswith(_NOT_ATTENTION):
            continue
        for member in vars(base).values():
            function = inspect.unwrap(member) if callable(member) else getattr(member, "__func__", None)
            code = getattr(function, "__code__", None)
            if isinstance(code, CodeType) and is_such(code):
                return True
    return False


def _mentions(code: CodeType) -> bool:
    return not _ENTRY_POINTS.isdisjoint(code.co_names) or any(
        _mentions(constant) for constant in code.co_consts if isinstance(constant, CodeType)
    )


def _writes_out(code: CodeType) -> bool:
    """Whether a function has a softmax and, before and after it, products of matrices."""
    if _SOFTMAX.isdisjoint(code.co_names):
        return False
    steps = list(dis.get_instructions(code))
    products = [i for i, step in enumerate(steps) if step.argval in _PRODUCTS or step.argrepr in ("@", "@=")]
    softmax = [i for i, step in enumerate(steps) if step.argval in _SOFTMAX]
    return bool(products) and any(products[0] < i < products[-1] for i in softmax)


def attends_compiled(module: torch.jit.ScriptModule) -> bool:
    """Whether a softmax, or the fused kernel, is in the code of a module that TorchScript runs."""
    code = str(getattr(module, "inlined_graph", ""))
    return "aten::softmax" in code or "aten::scaled_dot_product_attention" in code


def compiled_parts(modules: Mapping[str, nn.Module]) -> list[str]:
    """Return the paths of modules that are compiled, or whose code calls a compiled function that is no kernel."""
    if "torch._dynamo" not in sys.modules:
        return []
    calling = {cls for cls in {type(module) for module in modules.values()} if _calls_compiled(cls)}
    return [
        path or "the model"
        for path, module in modules.items()
        if type(module) in calling or _is_compiled(module)
    ]


def _is_compiled(module: nn.Module) -> bool:
    if "_orig_mod" in module._modules or vars(module).get("_compiled_call_impl") is not None:
        return True
    return any(_is_compiled_function(function) for _, function in functions_of(vars(module)))


def _is_compiled_function(value: Any) -> bool:
    compiled = isinstance(value, FunctionType) and hasattr(value, "_torchdynamo_orig_callable")
    return compiled and kernel_name(value) is None


def _calls_compiled(cls: type[nn.Module]) -> bool:
    """Whether a method of a class is compiled, or names a compiled function of its file or of the function around."""
    for base in cls.__mro__:
        if base.__module__.startswith(("torch.", *_NOT_ATTENTION)):
            continue
        for method in (value for value in vars(base).values() if isinstance(value, FunctionType)):
            names = [name for name in method.__code__.co_names if name in method.__globals__]
            around = [cell.cell_contents for cell in method.__closure__ or () if _is_filled(cell)]
            if any(map(_is_compiled_function, [method, *around, *map(method.__globals__.get, names)])):
                return True
    return False


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def looks_like_attention(module: nn.Module) -> bool:
    """Whether an unseen module is probably attention, by the name of its class or by projections to q, k and v."""
    names = {name for name, _ in module.named_children()} | {
        name for name, _ in module.named_parameters(recurse=False)
    }
    projects = any(_PROJECTIONS.match(name) for name in names)
    if is_library_model(module):  # channel attention of convolutional networks is named so too
        return projects and bool(_NAMED_ATTENTION.search(type(module).__name__))
    has_weights = next(module.parameters(), None) is not None
    return has_weights and (projects or bool(_NAMED_ATTENTION.search(type(module).__name__)))


def is_library_model(module: nn.Module) -> bool:
    """Return whether timm or transformers define the model: there a layer without a route is an error."""
    return type(module).__module__.startswith(_LIBRARIES)


# Heads ----------------------------------------------------------------------------------------------------

_HEADS = ("num_heads", "num_attention_heads", "n_heads", "heads", "n_head", "nhead")
_HEAD_DIMS = ("head_dim", "attention_head_size", "dim_head", "attention_head_dim")
_WIDTHS = ("embed_dim", "all_head_size", "attn_dim", "hidden_size", "dim", "d_model", "embed_size")


def attention_geometry(module: nn.Module) -> tuple[int, int | tuple[int, ...], int | tuple[int, ...]]:
    """(number of attention layers, heads, width of a head), from the modules without running them.

    Heads and head widths are one number where all layers agree, else one per layer. Heads are query heads.
    Raises InputError where there is no attention, or where a module does not say how many heads it has.
    """
    modules = attention_modules(module)
    if not modules:
        raise InputError(
            f"{type(module).__name__} has no attention that capture can see; see docs/capture.md"
        )
    geometry = [heads_of(path, child) for path, child in modules]
    # A model may run the same layer many times; the configuration knows how often.
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
    for declaration in declared("heads", type(module)):
        return declaration(module)
    heads = declared_heads(module)
    if heads is None:
        raise InputError(
            f"{path or 'the model'} ({type(module).__name__}) does not say how many heads it has"
        )
    width = _look_up(module, _HEAD_DIMS)
    if width is None:
        total = _look_up(module, _WIDTHS)
        if total is None:
            linear = next((child for child in module.modules() if isinstance(child, nn.Linear)), None)
            if linear is None:
                raise InputError(f"{path} ({type(module).__name__}) does not say how wide a head is")
            total = linear.in_features
        width = total // heads
    return heads, width


def declared_heads(module: nn.Module) -> int | None:
    """How many heads a module, or its configuration, says it has under one of the usual names."""
    return _look_up(module, _HEADS)


def _look_up(module: nn.Module, names: tuple[str, ...]) -> int | None:
    sources = [source for source in (module, getattr(module, "config", None)) if source is not None]
    values = (getattr(source, name, None) for source in sources for name in names)
    return next((value for value in values if isinstance(value, int)), None)


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
    block = (
        module.get_submodule(path_of_block)
        if (path_of_block := block_path(module, path)) is not None
        else None
    )
    norm_first = True if block is None else _of_block(block, "norm_first", True)
    if block is None or not (norm_first(block) if callable(norm_first) else norm_first):
        return None
    return next((child for name in _FIRST_NORMS if (child := getattr(block, name, None)) is not None), None)


_RESID_PRE = Reading((("", "input"),), flat_tokens)
_RESID_POST = Reading((("", "output"),))


def _of_block(block: nn.Module, name: str, default: Any = None) -> Any:
    """Return one field of the nearest declaration of a block that has it."""
    values = (getattr(declaration, name) for declaration in declared("blocks", type(block)))
    return next((value for value in values if value is not None), default)


def skip_path(block: nn.Module) -> tuple[str, ...] | None:
    """Return the norms on the skip path through a block of exactly this class; None if unknown."""
    entries = (family.blocks.get(class_path(block), Block()) for family in reversed(families()))
    return next((entry.skip_path for entry in entries if entry.skip_path is not None), None)


def reads_block(block: nn.Module, attention: nn.Module) -> bool:
    """Return whether the declarations about a package's blocks apply to this block.

    It holds for blocks whose attention runs a kernel; one with attention written out is older, or unusual, and is known
    where ``resid_mid`` is declared for its class.
    """
    declared_or_fused = must_attend(attention) or mixer_of(type(attention)) is not None
    paths = [class_path(cls) for cls in type(block).__mro__]
    entries = (family.blocks.get(path, Block()) for family in families() for path in paths)
    return declared_or_fused or any(entry.resid_mid is not None for entry in entries)


def resid_post_reading(block: nn.Module) -> Reading:
    """How to read the hidden state a block hands on."""
    return _of_block(block, "resid_post", _RESID_POST)


def before_attention(block: nn.Module) -> Reading | None:
    """How to read the residual stream before attention.

    None in a block with several attentions, and in one that is not given a single stream.
    """
    several = sum(map(is_attention, block.modules())) + len(token_mixers(block)) > 1
    return None if several or not _of_block(block, "one_stream", True) else _RESID_PRE


def attn_out_reading(block: nn.Module, attention: str) -> Reading | None:
    """How to read what attention adds to the residual stream, None where nothing is added as it is.

    In blocks that normalise what comes after attention the sum itself is not there to be read.
    """
    reading = _of_block(block, "attn_out")
    after = after_attention(block, attention)
    if reading is not None or after is None or before_attention(block) is None:
        return reading
    if len(after.sources) > 1 or after.sources[0][1] != "input":
        return None
    return Reading(
        (*_RESID_PRE.sources, *after.sources), lambda before, later: later - before.reshape(later.shape)
    )


def after_attention(block: nn.Module, attention: str) -> Reading | None:
    """How to read the residual stream after attention, None where it is not known (see `Block`).

    ``attention`` is the path of the attention module inside the block.
    """
    rule = _of_block(block, "resid_mid")
    if isinstance(rule, str):
        submodule, _, side = rule.rpartition(".")
        return Reading(((submodule, side),))
    return rule if rule is None or isinstance(rule, Reading) else rule(block, attention)
