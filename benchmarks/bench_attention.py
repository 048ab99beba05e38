"""Every attention operator against softmax attention on the same shapes, forward and forward + backward."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from workbench.attention.bilateral import (
    alibi_attention,
    bilateral_attention,
    nonlocal_attention,
    twicing_attention,
)
from workbench.attention.mssa import subspace_attention
from workbench.attention.primal import primal_scores
from workbench.attention.rpc import rpc_attention
from workbench.attention.scaled import exact_scaling, scaled_attention
from workbench.attention.softmax import softmax_attention
from workbench.attention.tssa import token_statistics_attention
from workbench.attention.xca import cross_covariance_attention
from workbench.studies.training.cost_measures import Allocations, free_memory, in_turns

HEAD_DIM = 64
# Batch and heads by number of tokens; fewer where a token × token matrix grows large.
SIZES = {
    "cpu": {197: (1, 12), 1024: (1, 4), 4096: (1, 2)},
    "cuda": {197: (32, 12), 1024: (8, 12), 4096: (2, 12)},
}
SECONDS_A_CELL = 0.4  # of interleaved rounds; one at least is measured
SECONDS_A_ROUND = 10.0  # expected from the size before, beyond which nothing is run
MOST_ROUNDS = 15
MEMORY_SHARE = 0.5  # of what is free
LOW_RANK = 32


class Inputs(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    position_q: Tensor  # (head, token, head_dim)
    position_k: Tensor
    s: Tensor  # (head, token, token)
    we: Tensor  # (head, min(token, 10 directions), direction)
    wr: Tensor
    we_own: Tensor  # (head, head_dim, direction)
    wr_own: Tensor


@dataclass(frozen=True)
class Operator:
    """``attentions``: half the number of its token × token products, of which softmax attention has two: what it
    should cost; 0: linear in tokens. ``reads`` are the inputs that it takes and gives gradients to."""

    compute: Callable[..., Tensor]
    reads: tuple[str, ...] = ("q", "k", "v")
    attentions: float = 1
    causal: bool = False


def _scaled_alpha(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """S = α A_sym is never formed: S v is symmetric attention (as in the module)."""
    return softmax_attention(q, k, v - 0.5 * softmax_attention(k, k, v))


def _primal(q: Tensor, k: Tensor, we: Tensor, wr: Tensor, x: Tensor | None = None, **options: Any) -> Tensor:
    return torch.cat(primal_scores(q, k, we, wr, x=x, **options), dim=-1)


def _tssa(w: Tensor, **options: Any) -> Tensor:
    return token_statistics_attention(w, **options)[0]


OPERATORS = {
    "softmax": Operator(softmax_attention),
    "softmax-sym": Operator(lambda k, v: softmax_attention(k, k, v), ("k", "v")),
    "rpc-sym, 4 iterations": Operator(rpc_attention, ("k", "v"), 4),
    "rpc-asym, 4 iterations": Operator(lambda q, k, v: rpc_attention(k, v, q=q), attentions=4),
    "scaled-free": Operator(scaled_attention, ("q", "k", "v", "s"), 1.5),
    "scaled-alpha": Operator(_scaled_alpha, attentions=2),
    "scaled-exact": Operator(lambda q, k, v: scaled_attention(q, k, v, exact_scaling(k)), attentions=3),
    "tssa": Operator(_tssa, ("k",), 0),
    "tssa, as trained": Operator(partial(_tssa, convention="as_implemented"), ("k",), 0),
    "tssa-causal": Operator(partial(_tssa, causal=True), ("k",), 0, causal=True),
    "mssa": Operator(subspace_attention, ("k",)),
    "xca": Operator(cross_covariance_attention, attentions=0),
    f"primal, s = {LOW_RANK}": Operator(_primal, ("q", "k", "we", "wr", "v"), 0),
    f"primal-independent, s = {LOW_RANK}": Operator(_primal, ("q", "k", "we_own", "wr_own"), 0),
    f"primal-causal, s = {LOW_RANK}": Operator(
        partial(_primal, causal=True), ("q", "k", "we_own", "wr_own"), 0, causal=True
    ),
    "bilateral": Operator(bilateral_attention, ("q", "k", "v", "position_q", "position_k"), 1.5),
    "nonlocal": Operator(nonlocal_attention),
    "alibi": Operator(alibi_attention),
    "twicing": Operator(twicing_attention, attentions=2),
}


def run() -> list[dict[str, Any]]:
    """One row per operator, direction and device: the ratios to softmax attention at every number of tokens."""
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    threads = torch.get_num_threads()
    # One thread: where cores are shared, threads wait for each other at every operation, and nothing else shows.
    torch.set_num_threads(1)
    try:
        return [
            _row(name, operator, backward, device)
            for device in devices
            for name, operator in OPERATORS.items()
            for backward in (False, True)
        ]
    finally:
        torch.set_num_threads(threads)


def _row(name: str, operator: Operator, backward: bool, device: str) -> dict[str, Any]:
    ratios, seconds = [], []
    before: tuple[int, float] | None = None
    for tokens, (batch, heads) in SIZES[device].items():
        ratio, taken, ours = _cell(operator, backward, device, (batch, heads, tokens), before)
        ratios.append(ratio)
        seconds.append(taken)
        before = (batch * heads * tokens**2, ours) if ours else before
    sizes = SIZES[device]
    return {
        "benchmark": f"{name}: forward{' + backward' * backward}, {device}",
        "ratio": "; ".join(ratios),
        "aim": f"≤ {1.1 * operator.attentions:.2g}×" if operator.attentions else f"< 1× at {max(sizes)}",
        "detail": f"N = {', '.join(map(str, sizes))}, {', '.join(f'{b} × {h}' for b, h in sizes.values())} heads of "
        f"{HEAD_DIM}: {'; '.join(seconds)}",
    }


def _cell(
    operator: Operator,
    backward: bool,
    device: str,
    size: tuple[int, int, int],
    before: tuple[int, float] | None,
) -> tuple[str, str, float | None]:
    """The ratio, the times in words, and our seconds; or why there are none."""
    batch, heads, tokens = size
    if before and (expected := before[1] * batch * heads * tokens**2 / before[0]) > SECONDS_A_ROUND:
        return "too long", f"about {expected:.0f} s expected, {SECONDS_A_ROUND:.0f} s allowed", None
    needed, free = _memory_needed(operator, backward, device, size), MEMORY_SHARE * free_memory(device)
    if needed > free:
        return "does not fit", f"up to {needed / 2**30:.1f} GiB of {free / 2**30:.1f}", None
    try:
        inputs = _inputs(*size, device=device, gradients=backward)
        ours = _step(operator.compute, [getattr(inputs, name) for name in operator.reads], backward)
        softmax = partial(F.scaled_dot_product_attention, is_causal=operator.causal)
        reference = _step(softmax, [inputs.q, inputs.k, inputs.v], backward)
        taken = in_turns([ours, reference], MOST_ROUNDS, budget=SECONDS_A_CELL, device=device)
        mine, theirs = map(statistics.median, taken)
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if "memory" not in str(error).lower():
            raise
        return "does not fit", "out of memory", None
    return f"{mine / theirs:.2f}×", f"{1e3 * mine:.3g} ms against {1e3 * theirs:.3g}", mine


def _inputs(batch: int, heads: int, tokens: int, *, device: str, gradients: bool) -> Inputs:
    torch.manual_seed(0)
    samples = min(tokens, 10 * LOW_RANK)
    whole, positions = (batch, heads, tokens, HEAD_DIM), (heads, tokens, HEAD_DIM)
    shapes = [whole, whole, whole, positions, positions, (heads, tokens, tokens)]
    shapes += [(heads, rows, LOW_RANK) for rows in (samples, samples, HEAD_DIM, HEAD_DIM)]
    return Inputs(*(torch.randn(shape, device=device, requires_grad=gradients) for shape in shapes))


def _step(compute: Callable[..., Tensor], reads: list[Tensor], backward: bool) -> Callable[[], object]:
    """What is measured: the output, or also the gradients of all inputs from a gradient of ones."""
    if not backward:
        return lambda: compute(*reads)

    def both() -> object:
        output = compute(*reads)
        return torch.autograd.grad(output, reads, torch.ones_like(output))

    return both


def _memory_needed(operator: Operator, backward: bool, device: str, size: tuple[int, int, int]) -> int:
    """Bytes if nothing that is made were freed, from shapes alone: at most what a run takes."""
    with FakeTensorMode(), Allocations() as seen:
        inputs = _inputs(*size, device=device, gradients=backward)
        _step(operator.compute, [getattr(inputs, name) for name in operator.reads], backward)()
    return seen.total


if __name__ == "__main__":
    for row in run():
        print(f"{row['benchmark']}: {row['ratio']} (aim {row['aim']}); {row['detail']}", flush=True)
