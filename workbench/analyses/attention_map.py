"""Measures of attention maps: entropy, reach, sinks, output size, and heads that do nothing.

Attention is (*batch, head, query, key), rows summing to 1 over keys. Padding is left out as query and as key.
Channel attention (XCA) has no token map; these measures do not apply to it.
Sources: entropy Vig & Belinkov 2019; distance Dosovitskiy et al. 2021; sinks Xiao et al. 2024; diversity Lin 1991.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from annotated_types import Ge
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.analyses.layer import (
    Layer,
    NotApplicable,
    need_token_attention,
    over_windows,
    token_attention,
    visible_keys,
)
from workbench.analyses.reductions import (
    Diversity,
    HeadOutput,
    Received,
    RowDistance,
    RowDistances,
    RowEntropy,
)
from workbench.analyses.registry import Analysis, OfInputs, OfMatrices, RowNull, null_kinds
from workbench.analyses.tiles import (
    MAPS_AT_ONCE,
    Maps,
    Operands,
    Reduced,
    Reduction,
    layer_attention,
    report_broken,
)
from workbench.core.errors import InputError
from workbench.core.null_distributions import Null, null_of_draws
from workbench.core.operands import checked_tensors
from workbench.core.options import NullSamples
from workbench.frames.estimate import compare_with_null, first_to_last, over_inputs, unit_of
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric

# When `attention_report` lists a head; each is compared with a mean over the inputs.
_DEAD_NORM = 0.01  # output norm as a share of the layer's: below it
_DEAD_ENTROPY = 0.999  # entropy as a share of its maximum: above it
SINK_SHARE = 0.3  # attention that one key receives: above it, and
SINK_OVER_UNIFORM = 2.0  # more than this many times its share under uniform attention


@dataclass(frozen=True)
class Options(OfInputs):
    """Options of `attention-map`."""

    null: RowNull = "uniform"
    null_samples: Annotated[
        NullSamples,
        "samples of the null of permuted keys, which attention_diversity has, and with null=permutation also distance "
        "and sink; at least 2; 0 leaves it out",
    ] = 4


@dataclass(frozen=True)
class PairOptions(OfMatrices):
    """Which queries to show pair by pair."""

    query: Annotated[Annotated[int, Ge(0)] | None, "only this token as the query; none: all of them"] = None


_ATTENTION_ENTROPY = Metric(
    "attention_entropy",
    "Attention entropy",
    "−Σ_j A_ij log A_ij, mean over queries; at most log N; null: uniform attention, since permuted keys have the same "
    "entropy",
    "Vig & Belinkov 2019",
    unit="nats",
    low=0,
    largest_null="uniform",
)
_ATTENTION_ENTROPY_SHARE = Metric(
    "attention_entropy_share",
    "Normalised attention entropy",
    "attention_entropy divided by the log of the number of keys a query may see, mean over queries that "
    "see at least two; null: uniform attention, 1",
    low=0,
    high=1,
)
_ATTENTION_DISTANCE = Metric(
    "attention_distance",
    "Mean attention distance",
    "Σ_j A_ij dist(i, j) / Σ_j A_ij, mean over queries; Euclidean on the patch grid over patches only (in "
    "patches), |i − j| in a text (in tokens); null: uniform attention, permuted keys, or both",
    "Dosovitskiy et al. 2021, Fig. 7",
    unit="patches or tokens",
    low=0,
)
_ATTENTION_SINK = Metric(
    "attention_sink",
    "Largest share of attention on one key",
    "max over keys of the attention that the key receives, mean over queries; null: uniform attention over the keys "
    "that each query may see, permuted keys, or both",
    "Xiao et al. 2024",
    low=0,
    high=1,
)
_ATTENTION_SINK_KEY = Metric(
    "attention_sink_key",
    "Key that receives most attention",
    "index (from 0) of the key whose share is attention_sink",
    "Xiao et al. 2024",
    unit="token",
    low=0,
    averaged=False,
)
_ATTENTION_DIVERSITY = Metric(
    "attention_diversity",
    "Head diversity of maps (Jensen–Shannon)",
    "Jensen–Shannon divergence of the heads' attention, over log(heads), mean over queries; 0: all equal,"
    " 1: no two at the same key",
    "Lin 1991",
    low=0,
    high=1,
)
_HEAD_OUTPUT_NORM = Metric(
    "head_output_norm",
    "Head output norm relative to the layer's mean",
    "root mean square of a head's output over that of all heads in its layer; near 0 is a dead head",
    "Michel et al. 2019",
    low=0,
)
_NONFINITE = Metric(
    "nonfinite", "Non-finite entries", "how many entries of the head's attention are NaN or infinite", low=0
)


class HeadMaps(NamedTuple):
    """Measures of attention maps, each (*batch, head), float64; NaN where one is not defined.

    entropy (nats) and its share of the maximum; distance in the unit of the positions; sink: the largest mean
    share of attention that one key receives, sink_key which one (−1 where undefined); nonfinite: NaN or infinite
    entries. entropy_uniform, distance_uniform and sink_uniform are those of uniform attention to the keys that each
    query may see.
    """

    entropy: Tensor
    entropy_uniform: Tensor
    entropy_share: Tensor
    distance: Tensor
    distance_uniform: Tensor
    sink: Tensor
    sink_key: Tensor
    sink_uniform: Tensor
    nonfinite: Tensor


@checked_tensors
def head_maps(
    attn: Float[Tensor, "*batch head query key"],
    *,
    visible: Bool[Tensor, "*batch head query key"] | None = None,
    queries: Bool[Tensor, "*batch query"] | None = None,
    keys: Bool[Tensor, "*batch key"] | None = None,
    query_positions: Float[Tensor, "query space"] | None = None,
    key_positions: Float[Tensor, "key space"] | None = None,
) -> HeadMaps:
    """Every measure of attention maps at once; see `HeadMaps` for what comes back.

    ``visible`` (true = may attend, broadcastable) is the model's mask; ``queries`` and ``keys`` mark real
    tokens. Positions are coordinates, NaN for tokens that have none (class, register, …); distance is null
    without positions. Rows that are not distributions (a non-finite or negative entry, or a sum off 1 by more
    than 1e-2) are no attention over tokens: entropy, distance and sink of such a head are NaN. Rows of zeros,
    of queries that may attend to nothing, are left out. Raises `InputError` for axes that do not fit.

    Sources: entropy Vig & Belinkov 2019; distance Dosovitskiy et al. 2021, Fig. 7; sink Xiao et al. 2024.
    """
    *batch, heads, n_queries, n_keys = attn.shape
    for name, positions, count in (("query", query_positions, n_queries), ("key", key_positions, n_keys)):
        if positions is not None and (positions.ndim != 2 or len(positions) != count):
            raise InputError(
                f"{name}_positions of shape {tuple(positions.shape)} do not fit the {count} tokens of axis {name}; "
                f"expected ({count}, coordinates)"
            )
    seen = None if visible is None else visible_keys(visible, attn).reshape(-1, *attn.shape[-3:])
    asking = _real("queries", queries, (*batch, n_queries), attn).reshape(-1, n_queries)
    real = _real("keys", keys, (*batch, n_keys), attn).reshape(-1, n_keys)
    sums = Maps(attn.reshape(-1, *attn.shape[-3:]), seen, real).reduced(
        *_map_sums(asking, query_positions, key_positions)
    )
    return HeadMaps(*(part.reshape(*batch, heads) for part in _measures(sums, asking)))


def _map_sums(
    queries: Tensor | None, query_positions: Tensor | None, key_positions: Tensor | None
) -> list[Reduction]:
    """The reductions that `HeadMaps` is made of."""
    sums: list[Reduction] = [RowEntropy(), Received(queries)]
    if query_positions is not None and key_positions is not None:
        sums.append(RowDistance(query_positions, key_positions))
    return sums


def _measures(reduced: Reduced, queries: Bool[Tensor, "batch query"] | None) -> HeadMaps:
    """The measures of `head_maps`, of the sums of `_map_sums`; ``queries`` marks real tokens."""
    real = (
        torch.ones_like(reduced.broken) if queries is None else queries[:, None].expand(reduced.broken.shape)
    )
    rows = real & ((reduced.count > 0) | (reduced.total > 0) | reduced.broken)
    undefined = (reduced.faulty & rows).any(-1) | ~rows.any(-1)
    count, entropy, received = rows.sum(-1), reduced["entropy"], reduced["received"]
    room = reduced.count.log()
    # a query that sees one key has no choice: its share is 0/0 and does not count
    choosing = rows & (room > 0)
    share = torch.where(choosing, entropy / room, 0).sum(-1) / choosing.sum(-1)
    sink, sink_key = (received.attention / count[..., None]).max(-1)
    distance = distance_uniform = torch.full_like(sink, math.nan)
    if "distance" in reduced.results:
        distance, distance_uniform = _mean_distances(reduced["distance"], rows)

    def defined(values: Tensor) -> Tensor:
        return values.masked_fill(undefined, math.nan)

    return HeadMaps(
        entropy=defined((entropy * rows).sum(-1) / count),
        entropy_uniform=defined(torch.where(choosing, room, 0).sum(-1) / count),
        entropy_share=defined(share).clamp(max=1.0),  # above 1 only by rounding
        distance=defined(distance),
        distance_uniform=defined(distance_uniform),
        sink=defined(sink),
        sink_key=sink_key.masked_fill(undefined, -1),
        sink_uniform=defined((received.uniform / count[..., None]).amax(-1)),
        nonfinite=(reduced.nonfinite * real).sum(-1),
    )


def _mean_distances(distances: RowDistances, rows: Tensor) -> list[Tensor]:
    """Return the mean over rows of the distance of attention, and that of uniform attention over the same rows."""
    counted = rows & ~torch.isnan(distances.attention)
    return [torch.where(counted, part, 0).sum(-1) / counted.sum(-1) for part in distances]


def _real(name: str, mask: Tensor | None, shape: tuple[int, ...], like: Tensor) -> Tensor:
    if mask is None:
        return torch.ones(shape, dtype=torch.bool, device=like.device)
    if mask.dtype != torch.bool or mask.shape[-1] != shape[-1]:
        raise InputError(
            f"{name} must be boolean of shape {shape}; got {mask.dtype} of shape {tuple(mask.shape)}"
        )
    return mask.to(like.device).expand(shape)


@checked_tensors
def attention_entropy(attn: Float[Tensor, "*batch head query key"]) -> Float[Tensor, "*batch head"]:
    """−Σ_j A_ij log A_ij in nats, mean over queries, with 0·log 0 = 0; from 0 to log N (Vig & Belinkov 2019)."""
    return head_maps(attn).entropy


@checked_tensors
def permuted_heads(
    attn: Float[Tensor, "head query key"],
    visible: Bool[Tensor, "head query key"],
    sources: Sequence[torch.Generator],
) -> Float[Tensor, "head query key"]:
    """Return the same weights with the visible keys of every head and query permuted; one generator per head."""
    drawn = torch.stack([torch.rand(attn.shape[1:], generator=source) for source in sources])
    order = _ascending(drawn.masked_fill(~visible.cpu(), 2.0)).to(attn.device)
    permuted = attn.gather(-1, order)
    if bool(visible.all()):
        return permuted
    keys = (~visible).to(torch.uint8).argsort(dim=-1, stable=True)  # visible ones first
    return torch.empty_like(permuted).scatter_(-1, keys, permuted)


def _ascending(numbers: Tensor) -> Tensor:
    """``argsort(-1)``: numpy's, which takes a third of the time, but for rows with equal numbers, which it may swap."""
    order = torch.from_numpy(numbers.numpy().argsort(-1))
    ranked = numbers.gather(-1, order)
    tied = (ranked[..., 1:] == ranked[..., :-1]).any(-1)
    order[tied] = numbers[tied].argsort(-1)
    return order


@checked_tensors
def head_output_norm(
    output: Float[Tensor, "*batch head token head_dim"], tokens: Bool[Tensor, "*batch token"] | None = None
) -> Float[Tensor, "*batch head"]:
    """Root mean square of each head's output over that of all heads of its layer; near 0 is a dead head.

    ``output`` is what a head hands to the output projection. 1 for every head where all are equal; NaN where
    the whole layer is 0 or an output is not finite. Padding (``tokens`` false) is left out.
    """
    output = output.double()
    real = _real("tokens", tokens, (*output.shape[:-3], output.shape[-2]), output)[..., None, :, None]
    square = torch.where(real, output, 0).square().sum((-2, -1))
    layer = square.mean(-1, keepdim=True)
    return torch.where(torch.isfinite(layer), square / layer, torch.nan).sqrt()


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """Entropy, reach, sink and non-finite entries of every attention map, and each head's output norm."""
    need_token_attention(layer)
    record = layer.record
    attention = layer_attention(layer, options.method)
    layer.count_tiled(isinstance(attention, Operands), "without the null of permuted keys")
    _, heads, *size = attention.shape
    asking = layer.real_queries(attention[0], size[1])
    here, positions = _positions(layer, size)
    sums = _map_sums(asking, here, positions)
    sums += [Diversity()] if heads > 1 else []
    all_heads = record.head_out is None and record.v is not None and len(layer.heads) == layer.total_heads
    sums += [HeadOutput(record.v)] if all_heads else []
    reduced = attention.reduced(*sums)
    report_broken(layer, reduced)
    layer.count_unnormalised(attention.shape[0] * heads)
    maps, windows = _measures(reduced, asking), layer.window_column
    permuted: dict[str, Tensor] = {}
    if options.null_samples and isinstance(attention, Maps) and (heads > 1 or options.null != "uniform"):
        permuted = _permuted_measures(layer, attention, reduced.broken, asking, (here, positions), options)
    if heads > 1:
        yield _diversity(layer, reduced, asking, permuted)
    if positions is None and record.source == "self":
        count = attention.shape[0] * heads
        layer.counts.count(
            "attention maps have no attention_distance: the places of their queries are unknown", count, count
        )
    unit = {"unit": "patches" if positions is not None and positions.shape[-1] == 2 else "tokens"}
    of_rows = [
        (_ATTENTION_ENTROPY, maps.entropy, maps.entropy_uniform, windows),
        (_ATTENTION_ENTROPY_SHARE, maps.entropy_share, maps.entropy_share * 0 + 1, windows),
        (_ATTENTION_DISTANCE, maps.distance, maps.distance_uniform, windows | unit),
        (_ATTENTION_SINK, maps.sink, maps.sink_uniform, windows),
    ]
    for metric, measured, uniform, columns in of_rows:
        if metric == _ATTENTION_DISTANCE and positions is None:
            continue
        values, draws = layer.per_input(measured), permuted.get(metric.name)
        nulls = {"uniform": Null.at(layer.per_input(uniform))}
        if draws is not None:
            nulls["permutation"] = null_of_draws(values, draws)
        kinds = null_kinds(options.null) if metric in (_ATTENTION_DISTANCE, _ATTENTION_SINK) else ("uniform",)
        for kind in [kind for kind in kinds if kind in nulls] or [None]:
            of_null = {} if kind is None else {"null": kind}
            yield Measurement(metric, values, null=nulls.get(kind or ""), columns=columns | of_null)
    counts = maps.nonfinite
    if record.origin is None:  # in windows the keys of one index are different tokens
        key = maps.sink_key.double()
        yield Measurement(_ATTENTION_SINK_KEY, key.masked_fill(key < 0, math.nan))
    else:
        counts = over_windows(counts, record.origin.image).sum(1)
    yield Measurement(_NONFINITE, counts.double())
    output = record.head_out
    if output is None and record.v is not None:
        if not all_heads:  # a head's output is compared with the mean over all heads
            reduced = layer_attention(replace(layer, chosen_heads=None), options.method).reduced(
                HeadOutput(record.v)
            )
        output = reduced["output"].masked_fill(reduced.broken[..., None], math.nan)
    if output is not None:
        yield Measurement(
            _HEAD_OUTPUT_NORM, layer.choose_heads(head_output_norm(layer.joined(output), asking))
        )


def _positions(layer: Layer, size: Sequence[int]) -> tuple[Tensor | None, Tensor | None]:
    """Return the positions of queries and keys, for maps between tokens of one kind."""
    square = size[0] == size[1] and layer.record.source == "self"
    stepwise = layer.step is not None and layer.record.source == "self"  # its query is the last token
    positions = layer.positions(size[1]) if square or stepwise else None
    return (positions if positions is None or square else positions[-1:]), positions


def _diversity(
    layer: Layer, reduced: Reduced, asking: Tensor | None, permuted: Mapping[str, Tensor]
) -> Measurement:
    """How far the heads' maps differ; NaN for maps that are no distributions."""
    broken = reduced.broken.any(-1).any(-1)
    values = reduced["diversity"].masked_fill(broken[:, None], math.nan)
    if asking is not None:
        values = values.masked_fill(~asking.to(values.device), math.nan)
    values = layer.per_input(values.nanmean(-1))
    columns, draws = layer.window_column, permuted.get(_ATTENTION_DIVERSITY.name)
    if draws is None:
        return Measurement(_ATTENTION_DIVERSITY, values, ("input",), columns=columns)
    null = null_of_draws(values, draws.masked_fill(values.isnan()[:, None], math.nan))
    return Measurement(_ATTENTION_DIVERSITY, values, ("input",), null, columns | {"null": "permutation"})


def _permuted_measures(
    layer: Layer,
    attention: Maps,
    broken: Tensor,
    asking: Tensor | None,
    positions: Sequence[Tensor | None],
    options: Options,
) -> dict[str, Tensor]:
    """Return measures of maps with the keys of every head and query permuted, by metric, (input, …, sample)."""
    heads, seeds = attention.shape[1], layer.seeds(len(broken))
    of_rows = "permutation" in null_kinds(options.null)
    samples: dict[str, list[Tensor]] = {}
    for number, input_maps in enumerate(attention.attn):
        maps = input_maps.double().masked_fill(broken[number, ..., None], math.nan)
        visible = (
            torch.ones_like(maps, dtype=torch.bool)
            if attention.visible is None
            else attention.visible[number]
        )
        # samples must not depend on how much padding there is
        queries, keys = (
            slice(None) if real is None else real[number].cpu() for real in (asking, attention.keys)
        )
        maps, visible = (part[:, queries][..., keys] for part in (maps, visible))
        here, there = (
            None if part is None else part[real]
            for part, real in zip(positions, (queries, keys), strict=True)
        )
        sums: list[Reduction] = [Diversity()] if heads > 1 else []
        sums += _map_sums(None, here, there) if of_rows else []
        sources = [
            torch.Generator().manual_seed(seed) for seed in seeds[number * heads : (number + 1) * heads]
        ]
        at_once = max(1, MAPS_AT_ONCE // max(1, maps.numel()))
        drawn: list[dict[str, Tensor]] = []
        for part in torch.arange(options.null_samples).split(at_once):
            reduced = Maps(torch.stack([permuted_heads(maps, visible, sources) for _ in part])).reduced(*sums)
            drawn.append({} if heads == 1 else {_ATTENTION_DIVERSITY.name: reduced["diversity"].nanmean(-1)})
            if of_rows:
                measured = _measures(reduced, None)
                drawn[-1] |= {
                    _ATTENTION_DISTANCE.name: measured.distance,
                    _ATTENTION_SINK.name: measured.sink,
                }
        for metric in drawn[0]:
            samples.setdefault(metric, []).append(torch.cat([part[metric] for part in drawn]).movedim(0, -1))
    return {metric: layer.per_input(torch.stack(of_inputs)) for metric, of_inputs in samples.items()}


def pair_rows(layer: Layer, options: PairOptions) -> Iterator[pd.DataFrame]:
    """The attention maps as rows: input, layer, head, query and key (numbers and labels) and value.

    Padding is left out, as query and as key. Class attention has one query, the class token.
    """
    need_token_attention(layer)
    yield from rows_of_maps(layer, layer.choose_heads(token_attention(layer.record)), options.query)


def rows_of_maps(
    layer: Layer, maps: Float[Tensor, "batch head query key"], query: int | None
) -> Iterator[pd.DataFrame]:
    """Yield values of pairs of tokens as rows, of one query or (None) of all; see `pair_rows`."""
    if layer.record.origin is not None:
        raise NotApplicable("cuts the image into windows, and each attends within itself")
    maps = maps.double().cpu()
    queries, keys = maps.shape[-2:]
    for number, name in enumerate(layer.ids):
        labels = np.array(layer.token_labels(keys, number, keys=True), dtype=object)
        if len(labels) != keys:
            raise NotApplicable(f"attends to {keys} tokens that are not those of the input")
        if layer.record.source == "self" and layer.step is None and queries not in (1, keys):
            raise NotApplicable(
                f"has {queries} queries that are none of the {keys} tokens (pooled ones, say)"
            )
        real = _real_places(layer, number, keys, keys=True)
        asking, query_labels = real, labels
        if layer.record.source == "cross":
            query_labels = np.array(layer.token_labels(queries, number), dtype=object)
            asking = _real_places(layer, number, queries, keys=False)
        if layer.step is not None:
            chosen = [layer.query] if query in (None, layer.query) else []
        else:
            chosen = asking if query is None else [query]
        if layer.step is None and not {*chosen} <= {*asking}:
            raise InputError(
                f"input {name!r} has no token {query}: its tokens are {asking[0]} to {asking[-1]}"
            )
        if queries == 1 and layer.step is None:
            chosen = [0]
        axes = {"head": layer.heads, "query": chosen, "key": real}
        rows = pd.MultiIndex.from_product([*axes.values()], names=[*axes]).to_frame(index=False)
        rows.insert(0, "layer", layer.index)
        rows.insert(0, "input", name)
        step_label = None if layer.step is None or layer.tokens is None else layer.tokens.labels[number][-1]
        yield rows.assign(
            value=maps[number][:, [0] * len(chosen) if queries == 1 else chosen][..., real].numpy().ravel(),
            query_label=query_labels[rows["query"]] if layer.step is None else step_label,
            key_label=labels[rows["key"]],
        )


def _real_places(layer: Layer, input: int, count: int, keys: bool) -> list[int]:
    """Return the positions of the real tokens of one axis."""
    mask = layer.real_tokens(count, keys)
    return [token for token in range(count) if mask is None or mask[input, token]]


_REPORT_COLUMNS = ("model", "checkpoint", "layer", "head", "finding", "value", "inputs", "key", "reason")


def attention_report(frame: pd.DataFrame) -> pd.DataFrame:
    """Dead heads, attention sinks and non-finite values in an ``attention-map`` result: one row per finding.

    Columns: model, checkpoint, layer, head; finding (``dead``, ``sink`` or ``non-finite``); value, the mean
    over the inputs that the rule looked at (for non-finite: the sum); inputs, how many were averaged; key,
    the index of the sink's key where all inputs agree, else its commonest; reason, the rule in words. No
    rows: nothing to report. Raises `InputError` where the frame holds no attention map.
    """
    if not {"attention_sink", "nonfinite"} <= set(frame["metric"].dropna()):
        raise InputError(
            "this result holds no attention maps; compute them with the analysis 'attention-map'"
        )
    places = ["model", "checkpoint", "layer", "head"]
    report_rows: list[dict[str, Any]] = []
    heads = frame[frame["head"].notna()]  # what is measured of whole layers has no rule
    sinks = heads["metric"] == "attention_sink"
    uniform = sinks & (heads["null"] == "uniform").fillna(False)
    heads = heads[~sinks | uniform] if uniform.any() else heads
    for _, rows in heads.groupby(places, dropna=False, sort=False):
        labels = rows[places].iloc[0].to_dict()
        report_rows += [labels | finding for finding in _findings(rows)]
    kinds = {"layer": "Int64", "head": "Int64", "inputs": "Int64", "key": "Int64", "value": "float64"}
    report = pd.DataFrame(report_rows, columns=list(_REPORT_COLUMNS))
    return report.astype({name: kinds.get(name, "string") for name in _REPORT_COLUMNS})


def _findings(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the findings of the rules on the rows of one head."""
    values = {str(metric): part["value"].dropna() for metric, part in rows.groupby("metric", sort=False)}
    mean = {metric: float(part.mean()) for metric, part in values.items() if len(part)}

    def finding(kind: str, metric: str, reason: str, **more: Any) -> dict[str, Any]:
        return {
            "finding": kind,
            "value": mean[metric],
            "inputs": len(values[metric]),
            "reason": reason,
        } | more

    if mean.get("head_output_norm", math.inf) < _DEAD_NORM:
        yield finding("dead", "head_output_norm", f"output norm below {_DEAD_NORM:g} of the layer's")
    if mean.get("attention_entropy_share", 0.0) > _DEAD_ENTROPY:
        reason = f"attention is uniform: entropy above {_DEAD_ENTROPY:g} of its maximum"
        yield finding("dead", "attention_entropy_share", reason)
    even = float(rows.loc[rows["metric"] == "attention_sink", "null_mean"].mean())
    sink = mean.get("attention_sink", 0.0)
    if sink > SINK_SHARE and not sink <= SINK_OVER_UNIFORM * even:
        reason = f"one key receives over {SINK_SHARE:g} of the attention (uniform attention: {even:.3g})"
        keys = values.get("attention_sink_key")
        key = int(keys.mode().iloc[0]) if keys is not None and len(keys) else None
        yield finding("sink", "attention_sink", reason, key=key)
    if broken := float(values["nonfinite"].sum()):
        yield finding("non-finite", "nonfinite", "attention holds NaN or infinite entries", value=broken)


def notes(frame: pd.DataFrame, options: Options) -> list[str]:
    """The first lines of the report."""
    report = attention_report(frame)
    lines = [
        f"layer {row['layer']} head {row['head']}: {row['finding']} ({row['reason']}; {row['value']:.3g}"
        + (f", key {row['key']})" if pd.notna(row["key"]) else ")")
        for row in report.head(10).to_dict("records")
    ]
    more = len(report) - len(lines)
    return lines + (
        [f"and {more} more findings: workbench.analyses.attention_map.attention_report(frame) lists all"]
        if more
        else []
    )


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """Report entropy in the first and last layer, head diversity beside its null, and the heads of the report."""
    sentences = []
    frame = frame[frame["value"].notna()]
    of_entropy = frame[frame["metric"] == _ATTENTION_ENTROPY_SHARE.name]
    if len(of_entropy):
        even = {int(layer): over_inputs(rows) for layer, rows in of_entropy.groupby("layer")}
        unit = unit_of(even[min(even)]).removeprefix("mean over ")
        sentences.append(f"normalised attention entropy {first_to_last(even)}, mean over heads and {unit}")
    of_heads = frame[frame["metric"] == _ATTENTION_DIVERSITY.name]
    if len(of_heads):
        diversity = over_inputs(of_heads)
        sentences.append(
            f"head diversity {diversity.words('.3f')} (Jensen–Shannon, of at most 1), mean over layers and "
            f"{unit_of(diversity).removeprefix('mean over ')}{compare_with_null(of_heads, '.3f')}"
        )
    means = frame[frame["statistic"].isna() | (frame["statistic"] == "mean")]
    if {"attention_sink", "nonfinite"} <= set(means["metric"]):
        named = attention_report(means)["finding"].value_counts()
        heads = len(means[means["head"].notna()].drop_duplicates(["layer", "head"]))
        kinds = {"dead": "dead", "sink": "with an attention sink", "non-finite": "with non-finite attention"}
        counts = ", ".join(f"{named.get(kind, 0)} {words}" for kind, words in kinds.items())
        sentences.append(f"of {heads} heads {counts}")
    return sentences


ANALYSIS = Analysis(
    "attention-map",
    "Entropy, reach and sinks of attention; head diversity, dead heads, non-finite values",
    ("mask", "attn", "head_out"),
    measure,
    (
        _ATTENTION_ENTROPY,
        _ATTENTION_ENTROPY_SHARE,
        _ATTENTION_DISTANCE,
        _ATTENTION_SINK,
        _ATTENTION_SINK_KEY,
        _ATTENTION_DIVERSITY,
        _HEAD_OUTPUT_NORM,
        _NONFINITE,
    ),
    Options,
    notes,
    counts_nonfinite=True,
    cross="both",
    of_steps=True,
    finer=(
        Analysis(
            "attention-map",
            "The attention of every query to every key",
            ("attn",),
            pair_rows,
            (),
            PairOptions,
            counts_nonfinite=True,
            cross="both",
            of_steps=True,
            per="pair",
        ),
    ),
    findings=findings,
)
