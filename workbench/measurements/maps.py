"""Attention maps: entropy, reach, sinks, and what every head puts out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from workbench.analyses import attention_maps
from workbench.analyses.class_attention import map_diversity, permuted_heads
from workbench.captures import attention_output
from workbench.core import null_distributions as chance
from workbench.core.null_distributions import Null
from workbench.frames.measurement import Measurement
from workbench.measurements.layers import (
    Layer,
    need_token_attention,
    over_windows,
    token_attention,
)

# timm's Swin keeps tokens of a shifted window apart with an additive −100, beside a position bias of a few
# units.
WINDOW_MASK = -50.0


def attention_map(layer: Layer, options: Mapping[str, Any]) -> Iterator[Measurement]:
    """Entropy, reach, sink and non-finite entries of every attention map, and each head's output norm."""
    need_token_attention(layer)
    record = layer.record
    attn = token_attention(record)
    output = record.head_out
    if output is None and record.v is not None:
        output = attention_output(attn, record.v)
    kept = layer.choose_heads(attn)
    n_queries, n_keys = kept.shape[-2:]
    real = layer.real_tokens(n_keys)
    real = None if real is None else real.to(attn.device)
    square = n_queries == n_keys
    visible = visible_of(layer, kept)
    positions = layer.positions(n_keys)
    maps = attention_maps.head_maps(
        kept,
        visible=visible,
        queries=real if square else None,
        keys=real,
        query_positions=positions if square else None,
        key_positions=positions if square else None,
    )
    windows: dict[str, Any] = {} if record.origin is None else {"statistic": "mean"}
    yield from _diversity(layer, kept, visible, real, options["null_samples"])
    yield Measurement("attention_entropy", layer.per_input(maps.entropy), columns=windows)
    yield Measurement("attention_entropy_share", layer.per_input(maps.entropy_share), columns=windows)
    if square and positions is not None:
        unit = "patches" if positions.shape[-1] == 2 else "tokens"
        yield Measurement(
            "attention_distance", layer.per_input(maps.distance), columns={**windows, "unit": unit}
        )
    even = layer.per_input(maps.sink_uniform)
    undefined = torch.full_like(even, math.nan)
    null = Null(even, undefined, undefined, undefined)
    yield Measurement(
        "attention_sink", layer.per_input(maps.sink), null=null, columns={**windows, "null": "uniform"}
    )
    if record.origin is None:  # in windows the keys of one index are different tokens
        key = maps.sink_key.double()
        yield Measurement("attention_sink_key", key.masked_fill(key < 0, math.nan))
    counts = maps.nonfinite
    if record.origin is not None:
        counts = over_windows(counts, record.origin.image).sum(1)
    yield Measurement("nonfinite", counts.double())
    if output is not None:
        norms = attention_maps.head_output_norm(layer.joined(output), real if square else None)
        yield Measurement("head_output_norm", layer.choose_heads(norms))


def _diversity(
    layer: Layer, kept: Tensor, visible: Tensor | None, real: Tensor | None, null_samples: int
) -> Iterator[Measurement]:
    """How far the heads' maps differ, beside the same maps with the keys of every head and query permuted.

    Nothing for a single head; NaN for maps that are no distributions.
    """
    if kept.shape[1] < 2:
        return
    square = kept.shape[-2] == kept.shape[-1]
    broken = ~(torch.isfinite(kept) & (kept >= 0)).all(-1).all(-1).all(-1)
    maps = torch.where(broken[:, None, None, None], torch.nan, kept.double())
    values = layer.per_input(map_diversity(maps, real if square else None, real))
    windows: dict[str, Any] = {} if layer.record.origin is None else {"statistic": "mean"}
    null = None
    if null_samples:
        seen = torch.ones_like(kept, dtype=torch.bool) if visible is None else visible
        drawn = []
        for place, seed in enumerate(layer.seeds(len(kept))[:: len(layer.heads)]):
            source = torch.Generator().manual_seed(seed)
            own, shown = maps[place], seen[place]
            if real is not None:  # draws must not depend on how much padding there is
                own, shown = (part[..., real[place]] for part in (own, shown))
                own, shown = (part[:, real[place]] if square else part for part in (own, shown))
            by_chance = [map_diversity(permuted_heads(own, shown, source)) for _ in range(null_samples)]
            drawn.append(torch.stack(by_chance))
        null = chance.null_of_draws(values, layer.per_input(torch.stack(drawn)))
        windows |= {"null": "permutation"}
    yield Measurement("attention_diversity", values, ("input",), null, columns=windows)


def visible_of(layer: Layer, kept: Tensor) -> Tensor | None:
    """Which keys the queries of the chosen heads, whose maps are ``kept``, may see; None for all of them."""
    mask = layer.record.mask
    if mask is None:
        return None
    if mask.ndim == 4 and mask.shape[1] == layer.total_heads > 1:
        mask = mask[:, layer.heads]
    hidden_at = WINDOW_MASK if layer.record.origin is not None else attention_maps.NEVER
    return attention_maps.visible_keys(mask, kept, hidden_at)
