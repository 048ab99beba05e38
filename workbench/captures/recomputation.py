"""Attention recomputed from captured operands, and the comparison that says whether a capture is exact."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Generator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.captures.layer_records import Call
from workbench.core import memory
from workbench.core.errors import IncompleteCapture, InputError

# Largest |recomputed - captured| / largest |captured| that counts as the same numbers. Half precision kernels
# round the attention weights themselves to 8 or 11 bits before multiplying them with v.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
_TF32_TOLERANCE = 1e-2
_MOST_ROUNDED = 1e-2
ROWS_CHECKED = 4
_CACHED_SCORES = 2**18
_LARGE_PAGE = 2**21
_INSTEAD = (
    "sums over queries or keys need no map: method='tiled' of an analysis, or capture q and k and leave "
    "the site attn out; else take fewer tokens"
)


@contextlib.contextmanager
def _own_precision() -> Generator[None]:
    """Multiply in the type of the operands, also inside ``torch.autocast``, which makes products of 16 bits."""
    with contextlib.ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@_own_precision()
def attention_weights(
    q: Float[Tensor, "batch head query head_dim"],
    k: Float[Tensor, "batch kv_head key head_dim"],
    scale: float | Tensor,
    mask: Tensor | None = None,
    kind: str = "token",
) -> Float[Tensor, "batch head query key"]:
    """softmax(scale q kᵀ + mask), at least in float32; with kind "channel" softmax(scale qᵀ k) over channels.

    k may have fewer heads than q (grouped queries). Rows whose mask allows no key are zero, which is what
    ``F.scaled_dot_product_attention`` computes for them.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    q, k = q.to(dtype), k.to(dtype)
    if kind == "channel":
        return torch.softmax((q.mT @ k) * scale, dim=-1)
    return _attend(q, k, None, scale, mask)[0]


def weights_and_output(
    q: Float[Tensor, "batch head query head_dim"],
    k: Float[Tensor, "batch kv_head key head_dim"],
    v: Float[Tensor, "batch kv_head key value_dim"],
    scale: float | Tensor,
    mask: Tensor | None = None,
) -> tuple[Float[Tensor, "batch head query key"], Float[Tensor, "batch head query value_dim"]]:
    """Return attn = softmax(scale q kᵀ + mask) as `attention_weights`, and attn v in the type of q."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    attn, output = _attend(q.to(dtype), k.to(dtype), v.to(dtype), scale, mask)
    assert output is not None
    return attn, output.to(q.dtype)


def _attend(
    q: Tensor, k: Tensor, v: Tensor | None, scale: float | Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return attn, and with ``v`` attn v; all of one type."""
    dtype = q.dtype
    check_room_for_maps((*q.shape[:-1], k.shape[-2]), dtype, q.device)
    # On a CPU a few inputs at a time, whose scores stay in its cache: the maps are a capture's largest tensors.
    batch, heads, queries, _ = q.shape
    scores = heads * queries * k.shape[2]
    parts = _parts(q, scores)
    # a single large map is overwritten too: otherwise two more would be needed
    small = len(parts) == 1 and (q.device.type != "cpu" or batch * scores <= _CACHED_SCORES)
    if small or any(x is not None and x.requires_grad for x in (q, k, v)):
        attn = _softmax_scores(q, k, scale, mask)
        return attn, None if v is None else attention_output(attn, v)
    output = None if v is None else q.new_empty(batch, queries, heads, v.shape[-1]).transpose(1, 2)
    attn = _in_large_pages((batch, heads, queries, k.shape[2]), dtype)
    for part in parts:
        part_mask = mask[part] if mask is not None and mask.ndim == 4 and mask.shape[0] == batch else mask
        _softmax_scores(q[part], k[part], scale, part_mask, out=attn[part])
        if output is not None and v is not None:  # while the map is in the cache
            output[part] = attention_output(attn[part], v[part])
    return attn, output


def check_room_for_maps(
    sizes: Sequence[int], dtype: torch.dtype, device: torch.device, copies: int = 1, instead: str = _INSTEAD
) -> None:
    """Raise `InputError` where ``copies`` maps (batch, head, query, key) do not fit into free memory.

    Checked on a CPU; accelerators raise their own errors.
    """
    needed = copies * math.prod(sizes) * dtype.itemsize
    if needed <= memory.SMALL or device.type != "cpu":
        return
    each = " × ".join(f"{size:,}" for size in sizes)
    kind = str(dtype).removeprefix("torch.")
    several = f", {copies} such at once" if copies > 1 else ""
    memory.check_room(
        needed, f"attention of {each} numbers (batch, head, query, key) in {kind}{several}", instead
    )


def _parts(x: Tensor, scores: int) -> list[slice]:
    """Return slices of the inputs whose scores (``scores`` for each input) stay in a CPU's cache."""
    at_once = max(1, _CACHED_SCORES // max(1, scores)) if x.device.type == "cpu" else len(x)
    return [slice(start, start + at_once) for start in range(0, len(x), at_once)]


def _in_large_pages(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An empty tensor on the CPU, in memory pages of 2 MB where the system has them.

    A map is kept, so that its memory is always fresh: of pages of 4 kB the first touch of each takes longer than the
    softmax that is written there.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < 2 * _LARGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype)
    pages = mmap.mmap(-1, -(-size // _LARGE_PAGE) * _LARGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system without them
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype, count=math.prod(shape)).view(shape)


def _softmax_scores(
    q: Tensor, k: Tensor, scale: float | Tensor, mask: Tensor | None, out: Tensor | None = None
) -> Tensor:
    heads, kv_heads = q.shape[1], k.shape[1]
    scaled = q * (scale.to(q.dtype) if isinstance(scale, Tensor) else scale)
    if heads == kv_heads:
        scores = torch.matmul(scaled, k.mT, out=out)
    else:
        grouped = None if out is None else out.unflatten(1, (kv_heads, -1))
        scores = torch.matmul(scaled.unflatten(1, (kv_heads, -1)), k.unsqueeze(2).mT, out=grouped).flatten(
            1, 2
        )
    if mask is None:
        return torch.softmax(scores, dim=-1, out=out)
    allowed = mask if mask.dtype == torch.bool else mask != -math.inf
    if out is None:
        scores = torch.where(allowed, scores, -math.inf) if mask is allowed else scores + mask.to(q.dtype)
    elif mask is allowed:
        scores.masked_fill_(allowed.logical_not(), -math.inf)
    else:
        scores.add_(mask.to(q.dtype))
    attn = torch.softmax(scores, dim=-1, out=out)
    empty = allowed.any(dim=-1, keepdim=True).logical_not()
    if out is not None and not empty.any():  # asking is cheaper than another pass over the map
        return attn
    return attn.masked_fill(empty, 0.0) if attn.requires_grad else attn.masked_fill_(empty, 0.0)


@_own_precision()
def scores_of(q: Tensor, k: Tensor, scale: float | Tensor) -> Float[Tensor, "batch head query key"]:
    """scale q kᵀ in float32 or wider, for every query head."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    keys = k.to(dtype).repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return q.to(dtype) @ keys.mT * scale


def softmax_of(
    scores: Tensor, mask: Tensor | None, sinks: Tensor | None = None
) -> Float[Tensor, "batch head query key"]:
    """softmax(scores + mask), zero in rows without a key.

    A sink, one more score for each head or query, takes a share that goes to no key.
    """
    dtype = scores.dtype
    if mask is not None:
        scores = scores + additive(mask, dtype)
    if sinks is None:
        return torch.softmax(scores, dim=-1).masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0)
    sinks = (sinks.reshape(1, -1, 1, 1) if sinks.ndim == 1 else sinks).to(dtype)
    joined = torch.cat([scores, sinks.expand(*scores.shape[:-1], 1)], dim=-1)
    return torch.softmax(joined, dim=-1)[..., :-1]


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask that is added to the scores, of one that may say what is allowed."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -math.inf)


@_own_precision()
def attention_output(
    attn: Float[Tensor, "batch head query key"],
    v: Float[Tensor, "batch kv_head key value_dim"],
    kind: str = "token",
) -> Float[Tensor, "batch head query value_dim"]:
    """attn v, each group of heads reading its own v; with kind "channel" (attn vᵀ)ᵀ."""
    v = v.to(attn.dtype)
    if kind == "channel":
        return (attn @ v.mT).mT
    heads, kv_heads = attn.shape[1], v.shape[1]
    if heads == kv_heads:
        return attn @ v
    return (attn.unflatten(1, (kv_heads, -1)) @ v.unsqueeze(2)).flatten(1, 2)


def call_weights(call: Call) -> Tensor | None:
    """Return the attention of a call: the family's, else recomputed; None for a call without attention."""
    if call.kind == "none":
        return None
    if call.used_attn is not None:
        return call.used_attn
    return (
        attention_weights(call.q, call.k, call.scale, call.mask, call.kind)
        if call.attn is None
        else call.attn
    )


class NonFiniteValues(InputError):
    """Operands or output of an attention are NaN or infinite."""


@_own_precision()
def check_call(call: Call, attn: Tensor | None, name: str) -> None:
    """Raise IncompleteCapture unless the captured operands reproduce the captured output.

    With ``attn`` every row of every head is compared; without it a few query rows of the first and the last
    input, which finds a wrong operand, scale or mask at a fraction of the cost. Of a map that the output was computed
    from, the first input is compared.
    """
    _check_finite(call, name)
    if call.dropout > 0:
        return  # weights were dropped at random after the softmax: nothing to compare with
    for rebuilt, output in call.reproduced:
        _compare(rebuilt, output, name, "the module's own output")
    if call.used_attn is not None:
        if not call.reproduced:  # else the output of one input was compared with the kernel's
            _check_used_attn(call, call.used_attn, name)
        return
    if attn is None:
        call = _few_rows(call)
        attn = call_weights(call)
        if attn is None:
            return  # no map of tokens or channels: the adapter's own comparison is all there is
    elif _agrees_in_sum(call, attn):
        return
    if call.rows_sum_to_one and call.attn is not None:  # rows of our own softmax sum to 1
        _check_rows(call, attn, name)
    rebuilt = call.recompute(call, attn) if call.recompute else attention_output(attn, call.v, call.kind)
    _compare(rebuilt, call.head_out, name, "the captured output", call)


def _check_used_attn(call: Call, attn: Tensor, name: str) -> None:
    first = slice(0, 1)
    mask = call.mask if call.mask is None or call.mask.ndim < 4 else call.mask[first]
    expected = attention_weights(call.q[first], call.k[first], call.scale, mask)
    _compare(expected, attn[first], name, "the weights that were used")
    _compare(attention_output(attn[first], call.v[first]), call.head_out[first], name, "the captured output")


def _few_rows(call: Call) -> Call:
    if call.kind != "token" or call.recompute is not None or call.attn is not None:
        return call
    # Slices, so that nothing is copied.
    inputs = slice(None, None, max(1, call.q.shape[0] - 1))
    rows = slice(None, None, max(1, (call.q.shape[2] - 1) // (ROWS_CHECKED - 1)))
    if call.causal:
        queries = torch.arange(call.q.shape[2], device=call.q.device)[rows, None]
        mask = (torch.arange(call.k.shape[2], device=call.q.device) <= queries)[None, None]
    elif (mask := call.mask) is not None:
        mask = mask[inputs if mask.shape[0] > 1 else slice(None)]
        mask = mask[:, :, rows if mask.shape[2] > 1 else slice(None)]
    return Call(
        q=call.q[inputs, :, rows],
        k=call.k[inputs],
        v=call.v[inputs],
        scale=call.scale,
        mask=mask,
        head_out=call.head_out[inputs, :, rows],
        rows_sum_to_one=call.rows_sum_to_one,
    )


def _agrees_in_sum(call: Call, attn: Tensor) -> bool:
    """Whether the sum of all query rows of attn v, each with a random sign, is that of the output.

    One pass over attn instead of a product as large as the attention itself. Rows that are wrong change the
    sum unless they cancel to the last digits; where the sums differ, the rows themselves are compared.
    """
    if call.kind != "token" or call.recompute or call.attn is not None or call.head_out.element_size() < 4:
        return False
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(2, (1, attn.shape[2]), generator=generator).mul_(2).sub_(1).to(attn)
    expected = _summed(signs, call.head_out)
    # of one input nothing is copied, and what was read of its attention is still in the cache
    parts = _parts(attn, math.prod(attn.shape[1:]))
    rebuilt = torch.cat([attention_output(signs @ attn[part], call.v[part]) for part in parts])
    return float((rebuilt - expected).abs_().amax()) <= _tolerance(call.head_out) * _largest(call.head_out)


def _summed(signs: Tensor, output: Tensor) -> Tensor:
    """The sum of an output's rows with these signs; kernels lay heads beside one another, which need not be copied."""
    tokens = output.transpose(1, 2)
    if not tokens.is_contiguous():
        return signs @ output
    return (signs @ tokens.flatten(2)).unflatten(2, tokens.shape[2:]).transpose(1, 2)


def _largest(x: Tensor) -> float:
    """Return the largest magnitude; NaN if any value is NaN."""
    by_stride = sorted(
        range(x.ndim), key=x.stride, reverse=True
    )  # read in the order in which it lies in memory
    low, high = x.permute(by_stride).aminmax()
    return max(-float(low), float(high))


def _check_finite(call: Call, name: str) -> None:
    # Non-finite keys and values make the output non-finite; for a query that is NaN the fused kernel of a CPU writes
    # zeros. A sum is the cheapest way to ask; one that overflows only costs the search.
    if all(bool(torch.isfinite(x.sum())) for x in (call.head_out, call.q) if x is not None):
        return
    for site in ("q", "k", "v", "head_out"):
        value: Tensor | None = getattr(call, site)
        if value is None:
            continue
        bad = torch.isfinite(value).logical_not()
        if bool(bad.any()):
            batch, head, token, _ = bad.nonzero()[0].tolist()
            raise NonFiniteValues(
                f"{name}: {site} has {int(bad.sum())} values that are NaN or infinite, the first at input "
                f"{batch}, head {head}, token {token}; look at the weights and the batch, or pass "
                "keep_nonfinite=True to keep them"
            )


def _check_rows(call: Call, attn: Tensor, name: str) -> None:
    sums = attn.sum(dim=-1)
    tolerance = max(1e-4, TOLERANCE.get(call.head_out.dtype, 1e-4))
    # Rows without any allowed key are zero by definition.
    off = ((sums - 1).abs() > tolerance) & (sums != 0)
    if bool(off.any()):
        batch, head, query = off.nonzero()[0].tolist()
        raise IncompleteCapture(
            f"{name}: rows of attn should sum to 1, but input {batch}, head {head}, query {query} "
            f"sums to {float(sums[batch, head, query]):.6g}"
        )


def _compare(rebuilt: Tensor, output: Tensor, name: str, what: str, call: Call | None = None) -> None:
    if rebuilt.shape != output.shape:
        raise IncompleteCapture(
            f"{name}: recomputed attention has shape {tuple(rebuilt.shape)}, {what} {tuple(output.shape)}"
        )
    if not output.numel():
        return
    wide = torch.promote_types(output.dtype, torch.float32)
    size = _largest(output)
    difference = float((rebuilt.to(wide) - output).abs().amax())
    if not difference <= _tolerance(output) * size and not (call and difference <= _rounding(call) * size):
        raise IncompleteCapture(
            f"{name}: softmax(scale q kᵀ + mask) v differs from {what} by {difference:.3g} "
            f"(largest value {size:.3g}, tolerance {_tolerance(output):g}): this attention computes something else and "
            "needs an adapter (docs/capture.md); check=False returns the operands as they were seen"
        )


def _rounding(call: Call) -> float:
    """How far weights may differ because scores are rounded: those of 20 000 are, in float32, by a thousandth."""
    if call.kind != "token" or call.attn is not None or call.recompute is not None:
        return 0.0
    largest = _largest(scores_of(call.q, call.k, call.scale))
    return min(_MOST_ROUNDED, torch.finfo(torch.promote_types(call.q.dtype, torch.float32)).eps * largest)


def _tolerance(output: Tensor) -> float:
    if output.is_cuda and output.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32:
        return _TF32_TOLERANCE
    return TOLERANCE.get(output.dtype, 1e-4)


def four_axes(x: Tensor, lead: tuple[int, ...]) -> Tensor:
    """(batch, head, token, head_dim) from any number of leading axes; a single one is the batch."""
    x = x.expand(*lead, *x.shape[-2:])
    if x.ndim == 2:
        return x[None, None]
    return x.unsqueeze(1) if x.ndim == 3 else x.flatten(0, -4)


def dense(x: Tensor) -> Tensor:
    """The tensor with size 1 along axes that repeat one slice because they are expanded."""
    return x[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in x.stride())] if x.ndim else x
