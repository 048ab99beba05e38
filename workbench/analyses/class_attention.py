"""Attention of one query: the class token's row, as it is and rolled out through the layers.

The maps of wu2025 Figs 5, 10 and abdullaev2025 Figs 4, 6, in numbers.

A row is (*batch, key) and sums to 1 over keys. Tokens that are no part of the input (class, distillation, register,
special) share it with those that are, the patches or words, its content; measures of where attention lies look at the
content only, with its share scaled to 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.analyses.layer import (
    Layer,
    NotApplicable,
    need_token_attention,
    patch_places,
    rows_of_tokens,
    token_attention,
)
from workbench.analyses.membership import placed_share
from workbench.analyses.patch_segments import Masks, patch_foreground
from workbench.analyses.reductions import Received
from workbench.analyses.registry import Analysis, OfHeads, OfMatrices, RowNull, Single, null_kinds
from workbench.analyses.tiles import Attention, Maps, Operands, layer_attention, report_broken
from workbench.captures import LayerRecord
from workbench.core.errors import InputError
from workbench.core.null_distributions import generator
from workbench.core.operands import checked_tensors
from workbench.core.options import NullSamples, ranges
from workbench.frames.estimate import compare_with_null, first_to_last, over_inputs, unit_of
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric

Query = Annotated[
    Literal["auto", "mean", "first", "last"],
    "whose attention: auto (the class token; in causal text models, which have none, the last token), mean (over all "
    "queries), first or last",
]
Rollout = Annotated[bool, "also roll attention out through the layers up to each (all are then needed)"]
SPECIAL = ("class", "distillation", "register", "special")
"""Kinds of tokens that are no part of the image or the text."""
HEAD, MEAN, _ROLLOUT = "head", "mean", "rollout"
_ROWS = 256  # queries whose mask is looked at together
_CHOOSE = "choose one with query: mean (over all queries), first or last"


@dataclass(frozen=True)
class Options(OfHeads):
    """Whose attention, and what of it."""

    query: Query = "auto"
    rollout: Rollout = False
    tokens: Annotated[bool, "also a row for each token (rank), with the attention it receives"] = False
    masks: Annotated[
        Masks,
        "foreground to compare with (what is not black): a folder with one mask image per input, of its name; ink "
        "(bright patches, for the bundled digits); or none",
    ] = None
    null: RowNull = "permutation"
    null_samples: Annotated[
        NullSamples, "samples of the null of permuted keys, at least 2; 0 leaves out both nulls"
    ] = 20
    single: Single = False


@dataclass(frozen=True)
class TokenOptions(OfMatrices):
    """Whose attention to show token by token."""

    query: Query = "auto"
    rollout: Rollout = False


_CLASS_ATTENTION = Metric(
    "class_attention",
    "Attention of the class token",
    "A_cj of the query c that is read (column convention), for key j = rank − 1 (rank 1 is the first "
    "token); column candidate: head (each by itself), mean (over heads) or rollout",
    "wu2025 Figs 5, 10; abdullaev2025 Figs 4, 6; Abnar & Zuidema 2020",
    low=0,
    high=1,
)
_CLASS_ATTENTION_SPECIAL = Metric(
    "class_attention_special",
    "Class attention on special tokens",
    "share of class_attention on class, distillation, register and special tokens; null: permuted keys, or uniform "
    "attention",
    low=0,
    high=1,
)
_CLASS_ATTENTION_ENTROPY_SHARE = Metric(
    "class_attention_entropy_share",
    "Normalised entropy of class attention",
    "entropy of class_attention over patches or words, their share scaled to 1, over the log of their number",
    low=0,
    high=1,
)
_CLASS_ATTENTION_SPREAD = Metric(
    "class_attention_spread",
    "Relative spread of class attention",
    "root mean square distance of patches (or words) from their centre, weighted by class_attention, over "
    "that of uniform attention",
    low=0,
)
_CLASS_ATTENTION_DIVERSITY = Metric(
    "class_attention_diversity",
    "Head diversity (Jensen–Shannon)",
    "Jensen–Shannon divergence of the heads' class_attention over patches or words, over log(heads); 0: "
    "all equal, 1: no two at the same token",
    "Lin 1991",
    low=0,
    high=1,
)
_CLASS_ATTENTION_MASK = Metric(
    "class_attention_mask",
    "Class attention on the mask",
    "share of class_attention over patches that lies on the foreground of a mask; uniform attention gives "
    "its share of the area",
    low=0,
    high=1,
)


def query_attention(
    attention: Attention, query: Float[Tensor, "batch query"], layer: Layer | None = None
) -> Float[Tensor, "batch head key"]:
    """The row of attention of one query, or the mean of several: ``query`` holds the weight of each, summing to 1.

    float64; rows of weight 0 do not matter, whatever they hold. NaN where a row with a weight is no attention,
    which is counted in the notes of ``layer``.
    """
    read = (query > 0).any(0).nonzero()[:, 0]
    # what a model gives to padding that no mask hides is part of its row
    reduced = attention._replace(keys=None).of_queries(read).reduced(Received(query[:, read]))
    report_broken(layer, reduced)
    broken = (reduced.broken & (query[:, None, read] > 0)).any(-1)
    return reduced["received"].attention.masked_fill(broken[..., None], math.nan)


def is_causal(
    attn: Float[Tensor, "*batch head token other_token"], real: Bool[Tensor, "*batch token"]
) -> bool:
    """Return whether no ``real`` token attends to a later token, in any head; False for a single token."""
    ahead = torch.triu(attn, 1).any(-1) & real.to(attn.device)[..., None, :]
    return attn.shape[-1] > 1 and not bool(ahead.any())


def attention_rollout(
    layers: Sequence[Attention], query: Float[Tensor, "batch token"]
) -> Float[Tensor, "batch token"]:
    """Return what a query draws from each input token through several layers: query · Ã_L ⋯ Ã_1 (Abnar & Zuidema 2020).

    Ã is the mean of A over heads plus the identity, for the residual connection, its rows scaled to 1. ``layers`` are
    the attention of each, in order; ``query`` as in `query_attention`. float64. Raises `InputError` without
    a layer, and for attention between another number of tokens.
    """
    if not layers:
        raise InputError("rollout needs the attention of at least one layer")
    row = query.double()
    for number, attention in reversed(list(enumerate(layers))):
        if attention.shape[-2:] != (row.shape[-1],) * 2:
            raise InputError(
                f"rollout multiplies maps of the same tokens; number {number} of shape {attention.shape} does not fit "
                f"{row.shape[-1]} tokens"
            )
        half_row = row / 2
        reduced = attention._replace(keys=None).reduced(Received(half_row))
        sums = reduced.total.mean(1) + 1
        if bool(((sums != 2) & (row > 0)).any()):  # queries that see nothing, in some heads
            half_row = row / sums
            reduced = attention._replace(keys=None).reduced(Received(half_row))
        row = half_row + reduced["received"].attention.mean(1)
    return row


class Concentration(NamedTuple):
    """Of a row over its content, each (*batch,), NaN where there are fewer than two tokens.

    entropy_share: entropy over the log of the number of tokens. spread: root mean square distance from the centre, over
    that of uniform attention (0: one place; 1: as far apart as all tokens).
    """

    entropy_share: Tensor
    spread: Tensor


@checked_tensors
def concentration(
    row: Float[Tensor, "*batch key"],
    content: Bool[Tensor, "*batch key"],
    positions: Float[Tensor, "key space"] | None = None,
) -> Concentration:
    """How evenly a row attends to patches or words (``content``), and how far apart they are.

    ``positions`` are coordinates of the tokens, finite where there is content; without them spread is NaN.
    """
    kept = _inside(row, content)
    count = content.sum(-1).to(row.device)
    entropy = torch.special.entr(kept).sum(-1) / count.double().log()
    spread = torch.full_like(entropy, math.nan)
    if positions is not None:
        even = content.to(kept) / count[..., None]
        spread = (_scatter(kept, positions) / _scatter(even, positions)).sqrt()
    return Concentration(*(torch.where(count > 1, x, torch.nan) for x in (entropy, spread)))


def _inside(row: Tensor, content: Tensor) -> Tensor:
    """Return the row on its content, scaled to 1; NaN where the content gets nothing."""
    if content.dtype != torch.bool or content.shape[-1] != row.shape[-1]:
        raise InputError(
            f"content must be boolean over {row.shape[-1]} keys; got {content.dtype} of shape {tuple(content.shape)}"
        )
    kept = torch.where(content.to(row.device), row.double(), 0.0)
    return kept / kept.sum(-1, keepdim=True)


def _scatter(weights: Tensor, positions: Tensor) -> Tensor:
    """Σ_j w_j |p_j − p̄|² with p̄ = Σ_j w_j p_j; tokens without weight may lie nowhere (NaN)."""
    placed = torch.nan_to_num(positions.to(weights))
    centre = weights @ placed
    return (weights * (placed - centre[..., None, :]).square().sum(-1)).sum(-1)


@checked_tensors
def head_diversity(
    rows: Float[Tensor, "*batch head key"], content: Bool[Tensor, "*batch key"]
) -> Float[Tensor, "*batch"]:
    """How far the heads look at different content: their Jensen–Shannon divergence over log(heads) (Lin 1991).

    H(mean over heads) − mean over heads of H, of each head's attention to content tokens, scaled to 1. 0 where all
    heads attend equally, 1 where no two attend to the same token; NaN for a single head.
    """
    kept = _inside(rows, content[..., None, :])
    entropy = torch.special.entr(kept).sum(-1)
    joint = torch.special.entr(kept.mean(-2)).sum(-1)
    heads = rows.shape[-2]
    if heads == 1:
        return torch.full_like(joint, math.nan)
    return (joint - entropy.mean(-1)).clamp_min(0.0) / math.log(heads)


@checked_tensors
def mask_share(
    row: Float[Tensor, "*batch patch"], foreground: Bool[Tensor, "*batch patch"]
) -> Float[Tensor, "*batch"]:
    """Attention on the foreground as a share of that on all patches; uniform attention gives the foreground's area.

    NaN where the foreground holds no patch, or all: the share is 0 or 1 whatever the attention.
    """
    kept = _inside(row, torch.ones_like(row, dtype=torch.bool))
    share = torch.where(foreground.to(row.device), kept, 0.0).sum(-1)
    defined = (foreground.any(-1) & ~foreground.all(-1)).to(row.device)
    return torch.where(defined, share, torch.nan)


def class_queries(
    layer: Layer,
    shape: tuple[int, int, int],
    query: str,
    causal: Callable[[Bool[Tensor, "batch token"]], bool],
) -> tuple[str, Float[Tensor, "batch query"]]:
    """Which query of each input is read, in a word, and as weights over the queries.

    "auto" is the class token, or the only query of a class-attention layer; in a text model that is ``causal`` for its
    real tokens it is the last token, since the first sees only itself. ``shape`` is (batch, query, key).

    Raises `NotApplicable` where there is neither.
    """
    batch, queries, keys = shape
    if queries == 1 < keys:
        return "class", torch.ones(batch, 1)
    if queries != keys:
        raise NotApplicable(f"attends from {queries} tokens to {keys} others, with no class token among them")
    real = layer.real_tokens(queries)
    real = torch.ones(batch, queries, dtype=torch.bool) if real is None else real.cpu()
    if query == MEAN:
        return MEAN, real.double() / real.sum(-1, keepdim=True)
    places = torch.arange(queries).expand(batch, -1)
    if query == "auto" and layer.grid is None and causal(real):
        query = "last"
    if query == "auto":
        kinds = [layer.token_kinds(queries, number) for number in range(batch)]
        if not all("class" in input_kinds for input_kinds in kinds):
            raise NotApplicable(f"has no class token, and is not causal; {_CHOOSE}")
        chosen = torch.tensor([input_kinds.index("class") for input_kinds in kinds])
        return "class", (places == chosen[:, None]).double()
    ends = {
        "first": places.masked_fill(~real, queries).amin(-1),
        "last": places.masked_fill(~real, -1).amax(-1),
    }
    return query, (places == ends[query][:, None]).double()


def class_rows(
    layer: Layer, options: Options | TokenOptions
) -> tuple[str, dict[str, Float[Tensor, "batch head key"]]]:
    """How the query was chosen (see `class_queries`), and its attention: head (each), mean (over them), rollout.

    The latter two have one "head"; rollout is there if asked for. Raises `NotApplicable` for a layer that has no such
    row, and `InputError` for a rollout through layers that have no attention from token to token.
    """
    need_token_attention(layer)
    if layer.record.origin is not None:
        raise NotApplicable("cuts the image into windows, and has no token that attends to all of it")
    attention = layer_attention(layer, options.method)
    layer.count_tiled(isinstance(attention, Operands))
    batch, _, queries, tokens = attention.shape
    if any(len(layer.token_kinds(tokens, number)) != tokens for number in range(len(layer.ids))):
        raise NotApplicable(f"attends to {tokens} tokens that are not those of the input")
    how, weights = class_queries(
        layer, (batch, queries, tokens), options.query, lambda real: _hides_later(attention, real)
    )
    weights = weights.to(attention[0].device, torch.float64)
    rows = query_attention(attention, weights, layer)
    rows_by_candidate = {HEAD: rows, MEAN: rows.mean(1, keepdim=True)}
    if options.rollout:
        records = [*layer.before, layer.record]
        _need_rollout(records)
        every = [replace(layer, record=record, chosen_heads=None) for record in records]
        layers = [layer_attention(layer, options.method) for layer in every]
        rows_by_candidate[_ROLLOUT] = attention_rollout(layers, weights)[:, None]
    return how, rows_by_candidate


def _map_size(record: LayerRecord) -> tuple[int, int]:
    """How many queries and keys a layer's maps have, which need not be formed for that."""
    if record.attn is None and record.q is not None and record.k is not None:
        return record.q.shape[2], record.k.shape[2]
    queries, keys = token_attention(record).shape[-2:]
    return queries, keys


def _hides_later(attention: Attention, real: Bool[Tensor, "batch token"]) -> bool:
    """Whether every later token is hidden from the real ones; of a mask that is a tensor a few rows at a time."""
    if isinstance(attention, Maps):
        return is_causal(attention.attn, real)
    mask = attention.mask
    tokens = real.shape[-1]
    if tokens < 2 or (mask.causal and mask.offset <= 0):
        return tokens > 1
    if mask.tensor is None or mask.tensor.ndim < 2 or mask.tensor.shape[-2] < tokens:
        return False
    for rows in torch.arange(tokens, device=mask.tensor.device).split(_ROWS):
        part = mask.tensor[..., rows, :]
        seen = (
            part if part.dtype == torch.bool else part > max(mask.hidden_at, torch.finfo(part.dtype).min / 10)
        )
        ahead = torch.arange(tokens, device=part.device) > rows[:, None]
        if bool(((seen & ahead).any(-1) & real.to(part.device)[:, None, rows]).any()):
            return False
    return True


def _need_rollout(records: list[LayerRecord]) -> None:
    """Raise `InputError` unless these are all layers up to the last, each square and a softmax over the same tokens."""
    last, tokens = records[-1].index, _map_size(records[-1])[1]
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
        elif len(set(_map_size(record))) > 1:
            reason = "only from the class token"
        elif _map_size(record)[1] != tokens:
            reason = "between other tokens"
        else:
            continue
        reasons.setdefault(reason, []).append(record.index)
    if reasons:
        listed = "; ".join(f"{ranges(indices)} {reason}" for reason, indices in reasons.items())
        raise InputError(
            f"rollout to layer {last} multiplies maps from token to token of all layers; here layers attend {listed}; "
            "leave rollout out"
        )


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """Measure the class token's attention, for each head, for their mean, and rolled out."""
    how, rows_by_candidate = class_rows(layer, options)
    count = rows_by_candidate[HEAD].shape[-1]
    kinds = [layer.token_kinds(count, number) for number in range(len(layer.ids))]
    layer.counts.add(
        f"rows (one per input and layer) are not a class token's but: {how}",
        torch.full((len(kinds),), how != "class"),
    )

    def marked(*wanted: str) -> Tensor:
        places = [[kind in wanted for kind in input_kinds] for input_kinds in kinds]
        return torch.tensor(places, device=rows_by_candidate[HEAD].device)[:, None]

    special, padding = marked(*SPECIAL), marked("padding")
    content = ~(special | padding)
    positions, kinds_of_null = (
        layer.positions(count),
        null_kinds(options.null) if options.null_samples else (),
    )

    def entropy_share(rows: Tensor, content: Tensor) -> Tensor:
        return concentration(rows, content, positions).entropy_share

    def spread(rows: Tensor, content: Tensor) -> Tensor:
        return concentration(rows, content, positions).spread

    def special_share(rows: Tensor, real: Tensor) -> Tensor:
        return torch.where(special.reshape(real.shape), rows, 0.0).sum(-1)

    for candidate, rows in rows_by_candidate.items():
        columns = {"convention": how, "candidate": candidate}
        # permuted weights have the same entropy
        measured = [
            (_CLASS_ATTENTION_ENTROPY_SHARE, entropy_share, content, kinds_of_null and ("uniform",)),
            (_CLASS_ATTENTION_SPREAD, spread, content, kinds_of_null),
        ]
        if special.any():
            measured.append((_CLASS_ATTENTION_SPECIAL, special_share, ~padding, kinds_of_null))
        measurements = [
            Measurement(
                metric,
                share(rows, places),
                columns=columns,
                null_samples={
                    name: share(null, places[:, :, None])
                    for name, null in _null_rows(layer, rows, places, candidate, names, options).items()
                },
            )
            for metric, share, places, names in measured
        ]
        if options.tokens:
            values = rows.masked_fill(padding, math.nan)
            axes = ("input", "head", "rank")
            measurements.append(Measurement(_CLASS_ATTENTION, values, axes, columns=columns))
        if options.masks is not None:
            patches = rows[..., patch_places(kinds[0], layer.grid)]
            values, nulls = _on_masks(layer, patches, options.masks, options.null_samples)
            null_samples = {name: nulls[name] for name in kinds_of_null}
            measurements.append(
                Measurement(_CLASS_ATTENTION_MASK, values, columns=columns, null_samples=null_samples)
            )
        yield from measurements if candidate == HEAD else map(_without_heads, measurements)
    rows = rows_by_candidate[HEAD]
    nulls = _null_rows(layer, rows, content, HEAD, kinds_of_null, options)
    yield Measurement(
        _CLASS_ATTENTION_DIVERSITY,
        head_diversity(rows, content[:, 0]),
        ("input",),
        columns={"convention": how},
        null_samples={name: head_diversity(null.transpose(1, 2), content) for name, null in nulls.items()},
    )


def _null_rows(
    layer: Layer,
    rows: Float[Tensor, "batch head key"],
    places: Bool[Tensor, "batch 1 key"],
    candidate: str,
    names: Sequence[str],
    options: Options,
) -> dict[str, Float[Tensor, "batch head sample key"]]:
    """Return rows of each null on ``places``: uniform attention (twice, without a spread), and permuted weights."""
    null_rows = {}
    if "uniform" in names:
        uniform = places.to(rows) / places.sum(-1, keepdim=True)
        null_rows["uniform"] = uniform[:, :, None].expand(*rows.shape[:2], 2, -1)
    if "permutation" in names:
        permuted = torch.where(places, rows, 0.0)[:, :, None].repeat(1, 1, options.null_samples, 1)
        for number, name in enumerate(layer.ids):
            keys = places[number, 0].nonzero()[:, 0]
            for row, head in enumerate(layer.heads if candidate == HEAD else [candidate]):
                source = generator(layer.seed, name, layer.index, head)
                orders = torch.rand(options.null_samples, len(keys), generator=source).argsort(-1)
                permuted[number, row][:, keys] = rows[number, row, keys][orders.to(rows.device)]
        null_rows["permutation"] = permuted
    return null_rows


def token_rows(layer: Layer, options: TokenOptions) -> Iterator[pd.DataFrame]:
    """Yield the class token's attention, token by token (wu2025 Figs 5 and 10; abdullaev2025 Figs 4 and 6).

    A row per input, candidate (head, mean over heads, rollout), head (of single ones), and key, with its label, kind,
    and a patch's row and column; ``query`` says how the query was chosen. Padding is left out.
    """
    how, rows_by_candidate = class_rows(layer, options)
    for candidate, values in rows_by_candidate.items():
        heads = layer.heads if candidate == HEAD else [pd.NA]
        rows = rows_of_tokens(layer, values, heads, candidate=candidate)
        rows.insert(4, "query", how)  # after input, layer, candidate and head
        yield rows.rename(columns={"token": "key"})


def _without_heads(measurement: Measurement) -> Measurement:
    """The same of the whole layer, where the axis of heads has one entry."""
    return replace(
        measurement,
        values=measurement.values[:, 0],
        axes=tuple(axis for axis in measurement.axes if axis != "head"),
        null_samples={name: null_samples[:, 0] for name, null_samples in measurement.null_samples.items()},
    )


def _on_masks(
    layer: Layer, rows: Float[Tensor, "batch head patch"], masks: str, samples: int
) -> tuple[Float[Tensor, "batch head"], dict[str, Float[Tensor, "batch head sample"]]]:
    """The share of attention on the masks; of uniform attention (twice), and on masks with their patches permuted."""
    assert layer.grid is not None  # there are patches
    observed, drawn, uniform = [], [], []
    for number, name in enumerate(layer.ids):
        foreground = patch_foreground(masks, name, layer.grid, layer.image(number))
        orders = layer.orders(name, len(foreground), samples)
        observed.append(mask_share(rows[number], foreground))
        drawn.append(mask_share(rows[number][:, None], foreground[orders]))
        uniform.append(mask_share(torch.ones_like(rows[number]), foreground)[:, None].expand(-1, 2))
    return torch.stack(observed), {"uniform": torch.stack(uniform), "permutation": torch.stack(drawn)}


def token_findings(frame: pd.DataFrame, options: TokenOptions) -> list[str]:
    """Of the mean over heads, layer by layer: what gets most, and how much of a map is the same for every image."""
    means = frame[frame["candidate"] == MEAN]
    sentences = []
    for layer, rows in means.groupby("layer"):
        whose = f"of the attention of the {rows['query'].iloc[0]} token in layer {layer} (mean over heads)"
        patches = rows[rows["kind"] == "patch"]
        if len(patches):
            largest = patches.groupby(["input", "layer"])["value"].max().reset_index()
            most = over_inputs(largest).within(0, 1)
            sentence = f"{whose} the patch that gets most has {most.words('.1%')}, {unit_of(most)}"
            if most.n > 1 and patches["row"].notna().all():
                sentence += (
                    f"; the place of a patch explains {placed_share(patches.assign(head=0)):.0%} of the variance over "
                    f"patches and inputs ({1 / most.n:.0%} if places did not matter)"
                )
            sentences.append(sentence)
        elif rows["input"].nunique() == 1:
            words = rows.nlargest(3, "value")
            named = ", ".join(
                f"“{label}” {value:.0%}" for label, value in zip(words["label"], words["value"], strict=True)
            )
            sentences.append(f"{whose}, over {len(rows)} tokens, most goes to {named}")
    return sentences


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """How even and wide a head's row is and how different heads are, at both ends of depth; what lies on masks."""
    layered = frame[frame["layer"].notna() & (frame["candidate"].isna() | (frame["candidate"] == HEAD))]
    of_null = [name for name in layered if name.startswith("null") or name == "z"]
    layered = layered[~layered.drop(columns=of_null).duplicated()]  # of two nulls there are two rows
    parts = {
        "share on special tokens": _CLASS_ATTENTION_SPECIAL,
        "normalised entropy": _CLASS_ATTENTION_ENTROPY_SHARE,
        "relative spread": _CLASS_ATTENTION_SPREAD,
        "head diversity": _CLASS_ATTENTION_DIVERSITY,
    }
    ends, over, whose = [], "", " or ".join(layered["convention"].dropna().unique())
    for words, metric in parts.items():
        rows = layered[(layered["metric"] == metric.name) & layered["value"].notna()]
        if len(rows):
            by_layer = {int(layer): over_inputs(layer_rows) for layer, layer_rows in rows.groupby("layer")}
            ends.append(f"{words} {first_to_last(by_layer, between=', ')}")
            over = unit_of(by_layer[min(by_layer)]).removeprefix("mean over ")
    sentences = (
        [f"attention of the {whose} token by head: {'; '.join(ends)}; mean over heads and {over}"]
        if ends
        else []
    )
    on_mask = layered[layered["metric"] == _CLASS_ATTENTION_MASK.name]
    if len(on_mask) and on_mask["value"].notna().any():
        share = over_inputs(on_mask)
        means = on_mask[on_mask["input"].isna() & (on_mask["null"] != "uniform")]
        sentences.append(
            f"{share.words('.0%')} of the attention to patches lies on the mask ({options.masks}), mean over layers, "
            f"heads and {unit_of(share).removeprefix('mean over ')}{compare_with_null(means, '.0%')}"
        )
    return sentences


ANALYSIS = Analysis(
    "class-attention",
    "Attention of the class token: on special tokens, entropy, head diversity, on a mask",
    ("attn",),
    measure,
    (
        _CLASS_ATTENTION,
        _CLASS_ATTENTION_SPECIAL,
        _CLASS_ATTENTION_ENTROPY_SHARE,
        _CLASS_ATTENTION_SPREAD,
        _CLASS_ATTENTION_DIVERSITY,
        _CLASS_ATTENTION_MASK,
    ),
    Options,
    together=lambda options: options.rollout,
    finer=(
        Analysis(
            "class-attention",
            "Attention of the class token, token by token",
            ("attn",),
            token_rows,
            (),
            TokenOptions,
            together=lambda options: options.rollout,
            per="token",
            findings=token_findings,
        ),
    ),
    findings=findings,
)
