"""Many small matrices over all cores: one LAPACK call each, one thread in each call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from workbench.analyses import validation
from workbench.core.errors import InputError

Result = TypeVar("Result")


def map_heads(function: Callable[..., Result], *stacks: Tensor | Sequence[Any] | None) -> list[Result]:
    """``function(a[i], b[i], …)`` for every i of stacks of one length, in order.

    A stack is a tensor or any sequence; None hands None to every head. Threads inside the decomposition of a
    few hundred tokens cost more than they bring, and a batched call works through its matrices one by one. So
    the heads are spread over as many threads as torch would use (``torch.get_num_threads()``), each computing
    alone on a matrix that stays in its cache. On an accelerator all run in one thread.
    """
    heads = next(len(stack) for stack in stacks if stack is not None)
    columns: list[Iterable[Any]] = [[None] * heads if stack is None else stack for stack in stacks]
    on_cpu = all(stack.device.type == "cpu" for stack in stacks if isinstance(stack, Tensor))
    threads = torch.get_num_threads()
    workers = min(threads, heads) if on_cpu else 1
    if workers < 2:
        return [function(*parts) for parts in zip(*columns, strict=True)]
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(function, *columns))
    finally:
        torch.set_num_threads(
            threads
        )  # the workers' call also set a limit that MKL keeps for the whole process


def map_tokens(
    function: Callable[..., Result],
    tensors: Mapping[str, Tensor],
    scale: float | Tensor,
    mask: Tensor | None = None,
    seeds: Sequence[int] | None = None,
) -> list[Result]:
    """``function(*tensors of one head, scale, seed)`` for each head of a flattened batch, on its real tokens.

    ``tensors`` are named for the errors: all (*batch, token, …) with one batch and one number of tokens.
    ``mask`` (true at real tokens) broadcasts to (*batch, token); what padding holds is never looked at.
    ``scale`` is one number or one per head, ``seeds`` one per flattened head or none (None reaches the
    function). The function gets float64. Raises `InputError` for missing or unequal axes, NaN or infinite
    values, a scale that is not finite and positive, fewer than two (real) tokens, or a wrong number of seeds.
    """
    first_name, first = next(iter(tensors.items()))
    for name, tensor in tensors.items():
        validation.check_axes(name, tensor, validation.TOKENS)
    shape = tuple(first.shape[:-1])
    for name, tensor in tensors.items():
        if tuple(tensor.shape[:-1]) != shape:
            raise InputError(
                f"{name} of shape {tuple(tensor.shape)} does not fit {first_name} of shape "
                f"{tuple(first.shape)}: all axes but the last must agree; give grouped-query k and v one "
                "copy per query head"
            )
        seen = tensor if mask is None else torch.where(_full(mask, tensor)[..., None], tensor, 0)
        validation.check_finite(name, seen, validation.TOKENS)
        validation.check_token_count(name, shape[-1])
    batch, heads = shape[:-1], first[..., 0, 0].numel()
    scales = validation.check_scale(scale, batch, first).expand(*batch, 1, 1).reshape(-1)
    if seeds is not None and len(seeds) != heads:
        raise InputError(f"got {len(seeds)} seeds for {heads} heads; give one seed per head")
    masks = None if mask is None else _full(mask, first).reshape(-1, shape[-1])
    flat = [tensor.detach().reshape(-1, *tensor.shape[-2:]) for tensor in tensors.values()]

    def on_real_tokens(kept: Tensor | None, scale: Tensor, seed: int | None, *parts: Tensor) -> Result:
        whole = kept is None or bool(kept.all())
        return function(*[(part if whole else part[kept]).double() for part in parts], scale, seed)

    return map_heads(on_real_tokens, masks, scales, seeds, *flat)


def _full(mask: Tensor, like: Tensor) -> Tensor:
    return validation.check_mask(mask, like.shape[:-1]).to(like.device)
