"""Attention kernels that modules call by their name: ``flex_attention``, FlashAttention's functions, ``varlen_attn``.

They are Python functions that nothing reports, so they are replaced where the model's classes look them up, under
whatever name (in their modules, in attributes, in a function that a class was defined in), and in the packages that
they come from. The function itself is called with the same arguments.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import CellType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from workbench.captures.implicit_masks import (
    allowed,
    block_mask,
    in_a_row,
    in_packed_rows,
    linear_bias,
    modified_scores,
)
from workbench.captures.layer_records import Call
from workbench.captures.recomputation import additive, scores_of, softmax_of
from workbench.captures.thread_guard import in_this_thread
from workbench.core.errors import IncompleteCapture

PACKAGES = (
    "torch.nn.attention.flex_attention", "torch.nn.attention.varlen", "flash_attn", "flash_attn.flash_attn_interface",
    "flash_attn.cute", "flash_attn_interface",
)  # fmt: skip
"""Packages of the kernels; no model can call one before its package is imported."""
# What changes FlashAttention in a way that is not written out, and what it is where it does nothing.
_UNREADABLE = ("qv", "block_table", "page_table", "attention_chunk", "seqused_q", "score_mod", "mask_mod")


@contextmanager
def watch_kernels(
    modules: Sequence[nn.Module],
    seen: Callable[[Callable[[], Call]], None],
    unwatched: Callable[[], AbstractContextManager[None]],
) -> Generator[None]:
    """Report the calls of kernels that the code of ``modules`` makes; within ``unwatched`` nothing else is seen."""
    packages = [vars(sys.modules[name]) for name in PACKAGES if name in sys.modules]
    homes = {cls.__module__ for module in modules for cls in type(module).__mro__[:-1]}
    code = [vars(sys.modules[name]) for name in homes if name in sys.modules]
    attributes = [vars(module) for module in modules]
    with ExitStack() as stack:

        def watched(kernel: Any) -> Callable[..., Any] | None:
            name = kernel_name(kernel)
            return None if name is None else _watching(kernel, _READERS[name], seen, unwatched)

        for namespace in {id(names): names for names in (*packages, *code, *attributes)}.values():
            for name, value in functions_of(namespace):
                if (ours := watched(value)) is not None:
                    stack.enter_context(_replaced(namespace, name, ours))
        for cell in _cells({type(module) for module in modules}):
            if (ours := watched(cell.cell_contents)) is not None:
                stack.enter_context(_filled(cell, ours))
        yield


def functions_of(namespace: Mapping[str, Any]) -> list[tuple[str, FunctionType]]:
    """Return the Python functions of a namespace with their names."""
    return [(name, value) for name, value in namespace.items() if isinstance(value, FunctionType)]


def _cells(classes: Iterable[type]) -> Iterator[CellType]:
    """Yield the closure cells of methods whose classes were defined inside a function."""
    bases = {base for cls in classes for base in cls.__mro__}
    methods = (vars(base).get("forward") for base in bases if "<locals>" in base.__qualname__)
    for method in methods:
        for cell in getattr(method, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # still empty
                if callable(cell.cell_contents):
                    yield cell


def kernel_name(value: Any) -> str | None:
    """Return the name of the package's attention function that this is, also compiled or renamed; else None."""
    if not isinstance(value, FunctionType):
        return None
    function = getattr(value, "_torchdynamo_orig_callable", value)
    name, module = getattr(function, "__name__", ""), getattr(function, "__module__", None) or ""
    if name not in _READERS:
        return None
    return name if module in PACKAGES or module.startswith(("flash_attn", "torch.nn.attention")) else None


def _watching(
    kernel: Callable[..., Any],
    read: Callable[[Mapping[str, Any], Tensor], Call],
    seen: Callable[[Callable[[], Call]], None],
    unwatched: Callable[[], AbstractContextManager[None]],
) -> Callable[..., Any]:
    names = inspect.signature(getattr(kernel, "_torchdynamo_orig_callable", kernel))

    def attention(*args: Any, **kwargs: Any) -> Any:
        with unwatched():
            result = kernel(*args, **kwargs)
            arguments = names.bind(*args, **kwargs).arguments
            seen(lambda: read(arguments, result[0] if isinstance(result, tuple) else result))
        return result

    return attention


@contextmanager
def _replaced(namespace: dict[str, Any], name: str, ours: Callable[..., Any]) -> Generator[None]:
    """Replace a name of a module for this thread; other threads keep the original."""
    before = namespace[name]
    namespace[name] = in_this_thread(ours, before)
    try:
        yield
    finally:
        namespace[name] = before


@contextmanager
def _filled(cell: CellType, ours: Callable[..., Any]) -> Generator[None]:
    """Replace what a function knows of the one that it was defined in, for this thread."""
    before = cell.cell_contents
    cell.cell_contents = in_this_thread(ours, before)
    try:
        yield
    finally:
        cell.cell_contents = before


# Reading their arguments ----------------------------------------------------------------------------------


def _flex(arguments: Mapping[str, Any], output: Tensor) -> Call:
    q, k, v = arguments["query"], arguments["key"], arguments["value"]
    k, v = (x.expand(len(q), *x.shape[1:]) for x in (k, v))
    scale = arguments.get("scale")
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    blocks, score_mod = arguments.get("block_mask"), arguments.get("score_mod")
    mask = None if blocks is None else block_mask(blocks, q.shape[2], k.shape[2], q.device)
    call = Call(q, k, v, scale, mask, output)
    if score_mod is None:
        return call
    scores = scores_of(q, k, scale)
    modified, bias = modified_scores(score_mod, scores), modified_scores(score_mod, torch.zeros_like(scores))
    if torch.allclose(modified, scores + bias, rtol=1e-5, atol=1e-5):
        if bool((bias != 0).any()):
            call.mask = bias if mask is None else bias + additive(mask, bias.dtype)
    else:
        call.attn, call.mask = softmax_of(modified, mask), None
    return call


def _flash(arguments: Mapping[str, Any], output: Tensor) -> Call:
    """FlashAttention on (batch, token, head, head_dim), and on (token, head, head_dim) of packed sequences."""
    odd = [name for name in _UNREADABLE if (value := arguments.get(name)) is not None and not _is_zero(value)]
    if odd:
        raise IncompleteCapture(
            f"FlashAttention with {', '.join(odd)} cannot be read; call it without to capture"
        )
    q, k, v = _operands(arguments)
    starts = arguments.get("cu_seqlens_q", arguments.get("cu_seq_q", arguments.get("cu_seqlens")))
    starts_k = arguments.get("cu_seqlens_k", arguments.get("cu_seq_k", starts))
    if starts is not None:
        q, k, v, output = (x[None] for x in (q, k, v, output))
    queries, keys = q.shape[1], k.shape[1]
    if starts is None:
        at = in_a_row(queries, keys, q.device)
    else:
        at = in_packed_rows(
            starts, starts if starts_k is None else starts_k, queries, keys, arguments.get("seqused_k")
        )
    scale = arguments.get("softmax_scale", arguments.get("scale"))
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    mask = allowed(*at, arguments.get("causal", False), arguments.get("window_size") or (-1, -1))
    slopes = arguments.get("alibi_slopes")
    if slopes is not None:
        bias = linear_bias(*at, slopes)
        mask = bias if mask is None else bias + additive(mask, bias.dtype)
    q, k, v, output = (x.transpose(1, 2) for x in (q, k, v, output))
    dropout = float(arguments.get("dropout_p", 0.0))
    call = Call(q, k, v, scale, mask, output, dropout=dropout)
    softcap, sinks = arguments.get("softcap") or None, arguments.get("learnable_sink", arguments.get("s_aux"))
    if softcap is not None or sinks is not None:
        scores = scores_of(q, k, scale)
        call.attn = softmax_of(
            scores if softcap is None else softcap * (scores / softcap).tanh(), mask, sinks
        )
        call.rows_sum_to_one = sinks is None
    return call


def _is_zero(value: Any) -> bool:
    return isinstance(value, int) and value == 0


def _operands(arguments: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    if "qkv" in arguments:
        return arguments["qkv"].unbind(-3)
    if "kv" in arguments:
        return (arguments["q"], *arguments["kv"].unbind(-3))
    if "query" in arguments:
        return arguments["query"], arguments["key"], arguments["value"]
    return arguments["q"], arguments["k"], arguments["v"]


_READERS: dict[str, Callable[[Mapping[str, Any], Tensor], Call]] = {
    "flex_attention": _flex,
    **dict.fromkeys(
        (
            "varlen_attn", "flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_kvpacked_func",
            "flash_attn_varlen_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_varlen_kvpacked_func",
        ),
        _flash,
    ),
}  # fmt: skip
KERNELS = frozenset(_READERS)
"""Names of the functions."""
