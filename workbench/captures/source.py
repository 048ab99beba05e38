"""Whether keys and values come of the tokens that the queries are of (self), or of others (cross)."""

from __future__ import annotations

import functools
import inspect
import re

import torch
from torch import Tensor, nn

from workbench.captures.records import Call
from workbench.captures.registry import SOURCES, Visit

# What attention modules call the tokens that they attend to, where these are not those of the queries.
_OTHERS = {
    "key_value_states", "encoder_hidden_states", "cross_attention_states", "key", "keys", "kv", "context", "memory",
    "inputs", "encoder_output", "encoder_outputs", "encoder_states",
}  # fmt: skip
# Of a module of unknown names: no tokens, but something that is added to them or to the scores.
_NO_TOKENS = re.compile(r"pos|mask|rotary|freq|bias|cos|sin|temb|time|scale|resid|skip|first", re.IGNORECASE)


def source_of(visit: Visit, call: Call) -> str:
    """Whether a call is "self" or "cross" attention: by what its module was given beside the tokens of the queries.

    Tokens that are joined with those of the queries on one axis, of queries and keys alike (MM-DiT), are self
    attention.
    """
    for said in SOURCES.of(type(visit.module)):
        return said
    if call.kind != "token":
        return "self"
    given = dict(_tokens(visit))
    queries, keys = call.q.shape[2], call.k.shape[2]
    first = next(iter(given.values()), None)
    for name, other in given.items():
        if other is first or _same(first, other):
            continue
        if name in _OTHERS:
            joined = queries == keys == sum(_count(value) for value in (first, other))
            return "self" if joined else "cross"
        if queries != keys == _count(other):
            return "cross"
    return "self"


def _tokens(visit: Visit) -> list[tuple[str, Tensor]]:
    """The tensors of tokens that a module was given, by the names of its arguments, the queries' first."""
    names = _names(type(visit.module))
    named = [*zip(names, visit.args, strict=False), *visit.kwargs.items()]
    tensors = [(name, value) for name, value in named if _are_tokens(value)]
    if not tensors:
        return []
    width = tensors[0][1].ndim
    return tensors[:1] + [
        (name, value)
        for name, value in tensors[1:]
        if name in _OTHERS or (value.ndim == width and not _NO_TOKENS.search(name))
    ]


@functools.cache
def _names(cls: type[nn.Module]) -> tuple[str, ...]:
    return tuple(inspect.signature(cls.forward).parameters)[1:]


def _are_tokens(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim >= 2


def _count(tokens: Tensor | None) -> int:
    """How many tokens there are in (…, token, width), or in a map (batch, channel, row, column)."""
    if tokens is None:
        return 0
    return tokens.shape[-2] if tokens.ndim < 4 else tokens.shape[-2] * tokens.shape[-1]


def _same(first: Tensor | None, other: Tensor) -> bool:
    if first is None or first.shape != other.shape or first.device != other.device or first.is_meta:
        return False
    return torch.equal(first, other)
