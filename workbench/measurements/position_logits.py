"""Logits of a layer split by content and position: the four matrices, their shares, and the cross terms' chance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.analyses.position_logits import (
    TERMS,
    cross_correlation,
    logit_shares,
    logit_terms,
    shuffled_orders,
    split_projection,
)
from workbench.core.errors import InputError
from workbench.frames.measurement import Measurement
from workbench.measurements.layers import Layer, NotApplicable, need_token_attention
from workbench.measurements.maps import visible_of

CORRELATED = ("token-position", "position-token", "cross")


def terms_of_layer(
    layer: Layer,
) -> tuple[Float[Tensor, "batch head 4 query key"], Bool[Tensor, "batch head query key"]]:
    """The four terms of the chosen heads' logits, and which keys each query may attend to.

    Raises `NotApplicable` where queries and keys are not projections of what the attention receives.
    """
    need_token_attention(layer)
    x, p = layer.site("input"), layer.site("position")
    if x.shape != p.shape:
        raise NotApplicable(
            f"receives {x.shape[1]} tokens, of which {p.shape[1]} have positions that can be followed"
        )
    try:
        q, k = (
            split_projection(x, p, projection.weight, projection.bias)
            for projection in (layer.projection("q"), layer.projection("k"))
        )
    except InputError as error:
        raise InputError(f"layer {layer.index}: {error}") from None
    heads = q[0].shape[1]
    content, position = (layer.choose_heads(part) for part in q)
    kept = [layer.choose_heads(part.repeat_interleave(heads // part.shape[1], 1)) for part in k]
    terms = logit_terms((content, position), (kept[0], kept[1]), layer.scale(content.shape[-1], heads))
    return terms, _allowed(layer, terms[:, :, 0])


def position_logits(layer: Layer, options: Mapping[str, Any]) -> Iterator[Measurement]:
    """Share of logit variance of each term, and the correlation of the cross terms with the others beside chance."""
    terms, allowed = terms_of_layer(layer)
    shares = logit_shares(terms, allowed)
    for number, candidate in enumerate(TERMS):
        yield Measurement("logit_share", shares.terms[..., number], columns={"candidate": candidate})
    yield Measurement("logit_share", shares.covariances, columns={"candidate": "covariances"})
    yield Measurement("logit_share", shares.cross, columns={"candidate": "cross"})
    found = cross_correlation(terms, _orders(layer, terms, options["null_samples"]), allowed)
    for number, candidate in enumerate(CORRELATED):
        observed, shuffled = found.observed[..., number], found.shuffled[..., number, :]
        for statistic, value, null_samples in (
            (None, observed, shuffled),
            ("abs", observed.abs(), shuffled.abs()),
        ):
            columns = {"candidate": candidate} | ({} if statistic is None else {"statistic": statistic})
            drawn = {"permutation": null_samples} if options["null_samples"] else {}
            yield Measurement("logit_correlation", value, columns=columns, null_samples=drawn)


def _allowed(
    layer: Layer, logits: Float[Tensor, "batch head query key"]
) -> Bool[Tensor, "batch head query key"]:
    """True where a real query may attend to a real key."""
    seen = visible_of(layer, logits)
    seen = torch.ones_like(logits, dtype=torch.bool) if seen is None else seen
    real = layer.real_tokens(logits.shape[-1])
    if real is None:
        return seen
    real = real.to(logits.device)
    return seen & real[:, None, None, :] & real[:, None, :, None]


def _orders(layer: Layer, terms: Tensor, null_samples: int) -> Tensor:
    batch, heads, _, _, tokens = terms.shape
    real = layer.real_tokens(tokens)
    places = layer.seeds(batch)
    orders = [
        shuffled_orders(
            tokens,
            null_samples,
            torch.Generator().manual_seed(seed),
            None if real is None else real[place // heads],
        )
        for place, seed in enumerate(places)
    ]
    return torch.stack(orders).unflatten(0, (batch, heads)).to(terms.device)
