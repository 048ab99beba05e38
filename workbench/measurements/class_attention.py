"""What the class token attends to: each head's row, their mean and its rollout, and where on the input they lie."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.analyses.class_attention import (
    PREFIX,
    attention_rollout,
    concentration,
    head_diversity,
    is_causal,
    mask_share,
    query_attention,
)
from workbench.analyses.membership import patch_places
from workbench.captures import LayerRecord
from workbench.core import null_distributions as chance
from workbench.core.errors import InputError
from workbench.core.selection import ranges
from workbench.frames.measurement import Measurement
from workbench.measurements.layers import Layer, NotApplicable, need_token_attention, token_attention
from workbench.measurements.segments import patch_foreground

QUERIES = ("auto", "mean", "first", "last")
HEAD, MEAN, ROLLOUT = "head", "mean", "rollout"
_CHOOSE = "choose one with query: mean (over all queries), first or last"


def class_queries(layer: Layer, attn: Tensor, query: str) -> tuple[str, Float[Tensor, "batch query"]]:
    """Which query of each input is read, in a word, and as weights over the queries.

    "auto" is the class token, or the only query of a class-attention layer; in a causal text model, in which the first
    token sees nothing but itself, the last token. Raises `NotApplicable` where there is neither.
    """
    batch, _, queries, keys = attn.shape
    if queries == 1 < keys:
        return "class", torch.ones(batch, 1)
    if queries != keys:
        raise NotApplicable(f"attends from {queries} tokens to {keys} others, with no class token among them")
    real = layer.real_tokens(queries)
    real = torch.ones(batch, queries, dtype=torch.bool) if real is None else real.cpu()
    if query == MEAN:
        return MEAN, real.double() / real.sum(-1, keepdim=True)
    places = torch.arange(queries).expand(batch, -1)
    if query == "auto" and layer.grid is None and is_causal(attn, real):
        query = "last"
    if query == "auto":
        kinds = [layer.token_kinds(queries, number) for number in range(batch)]
        if not all("class" in held for held in kinds):
            raise NotApplicable(f"has no class token, and is not causal; {_CHOOSE}")
        chosen = torch.tensor([held.index("class") for held in kinds])
        return "class", (places == chosen[:, None]).double()
    ends = {
        "first": places.masked_fill(~real, queries).amin(-1),
        "last": places.masked_fill(~real, -1).amax(-1),
    }
    return query, (places == ends[query][:, None]).double()


def class_rows(
    layer: Layer, query: str, rollout: bool
) -> tuple[str, dict[str, Float[Tensor, "batch head key"]]]:
    """How the query was chosen (see `class_queries`), and its attention: head (each), mean (over them), rollout.

    The latter two have one "head"; rollout is there if asked for. Raises `NotApplicable` for a layer that has no such
    row, and `InputError` for a rollout through layers that have no attention from token to token.
    """
    need_token_attention(layer)
    if layer.record.origin is not None:
        raise NotApplicable("cuts the image into windows, and has no token that attends to all of it")
    attn = token_attention(layer.record)
    tokens = attn.shape[-1]
    if any(len(layer.token_kinds(tokens, number)) != tokens for number in range(len(layer.ids))):
        raise NotApplicable(f"attends to {tokens} tokens that are not those of the input")
    how, weights = class_queries(layer, attn, query)
    rows = layer.choose_heads(query_attention(attn, weights))
    found = {HEAD: rows, MEAN: rows.mean(1, keepdim=True)}
    if rollout:
        records = [*layer.before, layer.record]
        _need_rollout(records)
        maps = [token_attention(record) for record in records]
        found[ROLLOUT] = attention_rollout(maps, weights.to(attn.device))[:, None]
    return how, found


def _need_rollout(records: list[LayerRecord]) -> None:
    """Raise `InputError` unless these are all layers up to the last, each square and a softmax over the same tokens."""
    last, tokens = records[-1].index, token_attention(records[-1]).shape[-1]
    if [record.index for record in records] != list(range(last + 1)):
        raise InputError(
            f"rollout to layer {last} needs all layers from the first; capture those before it as well"
        )
    reasons: dict[str, list[int]] = {}
    for record in records:
        if record.kind == "channel":
            reason = "from channel to channel"
        elif record.kind != "token":
            reason = "without a map from token to token"
        elif not record.rows_sum_to_one:
            reason = "with rows that are no distributions over tokens"
        elif len(set(token_attention(record).shape[-2:])) > 1:
            reason = "from the class token alone"
        elif token_attention(record).shape[-1] != tokens:
            reason = "between other tokens"
        else:
            continue
        reasons.setdefault(reason, []).append(record.index)
    if reasons:
        told = "; ".join(f"{ranges(indices)} {reason}" for reason, indices in reasons.items())
        raise InputError(
            f"rollout to layer {last} multiplies maps from token to token of all layers; here layers attend {told}; "
            "leave rollout out"
        )


def class_attention(layer: Layer, options: Mapping[str, Any]) -> Iterator[Measurement]:
    """Where the class token's attention lies, for each head, for their mean, and rolled out."""
    how, found = class_rows(layer, options["query"], options["rollout"])
    count = found[HEAD].shape[-1]
    kinds = [layer.token_kinds(count, number) for number in range(len(layer.ids))]
    layer.counts.add(
        f"rows (one per input and layer) are not a class token's but: {how}",
        torch.full((len(kinds),), how != "class"),
    )

    def marked(*wanted: str) -> Tensor:
        places = [[kind in wanted for kind in held] for held in kinds]
        return torch.tensor(places, device=found[HEAD].device)[:, None]

    prefix, padding = marked(*PREFIX), marked("padding")
    content = ~(prefix | padding)
    for candidate, rows in found.items():
        columns = {"convention": how, "candidate": candidate}
        measured = concentration(rows, content, layer.positions(count))._asdict()
        if prefix.any():
            measured["prefix"] = torch.where(prefix, rows, 0.0).sum(-1)
        measurements = [
            Measurement(f"class_attention_{name}", values, columns=columns)
            for name, values in measured.items()
        ]
        if options["tokens"]:
            values = rows.masked_fill(padding, math.nan)
            measurements.append(
                Measurement("class_attention", values, ("input", "head", "rank"), columns=columns)
            )
        if options["masks"] is not None:
            values, null_samples = _on_masks(layer, rows[..., patch_places(kinds[0], layer.grid)], options)
            chance_level = {"permutation": null_samples} if options["null_samples"] else {}
            measurements.append(
                Measurement("class_attention_mask", values, columns=columns, null_samples=chance_level)
            )
        yield from measurements if candidate == HEAD else map(_without_heads, measurements)
    diversity = head_diversity(found[HEAD], content[:, 0])
    yield Measurement("class_attention_diversity", diversity, ("input",), columns={"convention": how})


def _without_heads(measurement: Measurement) -> Measurement:
    """The same of the whole layer, where the axis of heads has one entry."""
    return replace(
        measurement,
        values=measurement.values[:, 0],
        axes=tuple(axis for axis in measurement.axes if axis != "head"),
        null_samples={name: null_samples[:, 0] for name, null_samples in measurement.null_samples.items()},
    )


def _on_masks(
    layer: Layer, rows: Float[Tensor, "batch head patch"], options: Mapping[str, Any]
) -> tuple[Float[Tensor, "batch head"], Float[Tensor, "batch head draw"]]:
    """The share of attention on the masks, and on the masks with their patches permuted."""
    assert layer.grid is not None  # there are patches
    observed, drawn = [], []
    for number, name in enumerate(layer.ids):
        picture = None if layer.pictures is None else layer.pictures[number]
        foreground = patch_foreground(options["masks"], name, layer.grid, picture)
        source = chance.generator(layer.seed, name, layer.index)
        orders = torch.rand(options["null_samples"], len(foreground), generator=source).argsort(-1)
        observed.append(mask_share(rows[number], foreground))
        drawn.append(mask_share(rows[number][:, None], foreground[orders]))
    return torch.stack(observed), torch.stack(drawn)
