"""From one captured layer to the rows of a result: what each analysis measures there.

The functions in ``workbench.analyses`` know tensors; these know which tokens are padding, where the patches
lie, which windows belong to one input, and which layers a measure does not apply to.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from workbench.analyses import attention_maps, chance, kernel_pca, similarity
from workbench.analyses.chance import Null
from workbench.errors import InputError
from workbench.metrics import METRICS
from workbench.recording import LayerRecord, TokenInfo, attention_output, attention_weights
from workbench.results import conform
from workbench.selection import parse_numbers

# timm's Swin keeps tokens of a shifted window apart with an additive −100, beside a position bias of a few
# units.
WINDOW_MASK = -50.0


class NotMeasured(Exception):
    """A layer that an analysis does not apply to; the message says why."""


@dataclass
class Measurement:
    """One metric of one layer: ``values`` with an axis per name in ``axes`` (input, head, rank)."""

    metric: str
    values: Tensor
    axes: tuple[str, ...] = ("input", "head")
    null: Null | None = None
    columns: dict[str, Any] = field(default_factory=dict)


@dataclass
class Layer:
    """One layer of one batch of inputs, with what is needed to read its tensors."""

    record: LayerRecord
    ids: Sequence[str]
    tokens: TokenInfo | None
    seed: int
    chosen_heads: str | int | Sequence[int] | None = None
    heads: list[int] = field(default_factory=list)
    """The heads that were measured, set by `choose_heads`."""
    total_heads: int = 0

    @property
    def index(self) -> int:
        return self.record.index

    def site(self, name: str) -> Tensor:
        value = getattr(self.record, name)
        if value is None:
            raise InputError(
                f"layer {self.index} holds no {name!r}, which this analysis needs; capture it as well"
            )
        return value

    def choose_heads(self, tensor: Tensor) -> Tensor:
        """The chosen heads of a tensor (batch, head, …); remembers their numbers."""
        total = self.total_heads = tensor.shape[1]
        asked = parse_numbers("head", self.chosen_heads)
        known = range(total)
        # Layers may differ in heads: one that a layer has not got is left out there.
        self.heads = (
            [*known] if asked is None else sorted({known[head] for head in asked if -total <= head < total})
        )
        if not self.heads:
            raise NotMeasured(f"has only {total} heads")
        return tensor if len(self.heads) == total else tensor[:, self.heads]

    def real_tokens(self, count: int) -> Tensor | None:
        """Mask (batch, token), true at real tokens; None where all ``count`` tokens are real."""
        if self.record.origin is not None or self.tokens is None:
            return None
        mask = self.tokens.mask
        if mask.shape[1] != count:
            if mask.all():  # patches before the class token joins them
                return None
            raise InputError(
                f"layer {self.index} has {count} tokens (axis token), but the mask of the inputs has "
                f"{mask.shape[1]}"
            )
        return None if mask.all() else mask

    def positions(self, count: int) -> Tensor | None:
        """Coordinates of ``count`` tokens of this layer, or None where they are not known."""
        if self.record.origin is not None:
            return attention_maps.grid_positions(self.record.origin.size)
        if self.tokens is None:
            return attention_maps.positions_of(["token"] * count, None)
        kinds = self.tokens.kinds[0]
        if len(kinds) != count:
            kinds = [kind for kind in kinds if kind == "patch"]
        return attention_maps.positions_of(kinds, self.tokens.grid) if len(kinds) == count else None

    def per_input(self, values: Tensor) -> Tensor:
        """Mean over the windows of each input, leaving out windows without a value."""
        origin = self.record.origin
        return values if origin is None else over_windows(values, origin.image).nanmean(1)

    def joined(self, tensor: Tensor) -> Tensor:
        """(batch, head, token, …) with the windows of one input joined along the token axis."""
        if self.record.origin is None:
            return tensor
        grouped = over_windows(tensor, self.record.origin.image)  # input, window, head, token, …
        return grouped.transpose(1, 2).flatten(2, 3)


class Rows:
    """Measurements of all layers and batches, as columns, until they become one frame."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, str], list[dict[str, Any]]] = {}

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, measurement: Measurement, layer: Layer) -> None:
        """Take one measurement; ranks that an input does not have (NaN) make no row."""
        labels = {"input": list(layer.ids), "head": layer.heads}
        shape = measurement.values.shape
        if "rank" in measurement.axes:
            labels["rank"] = list(range(1, shape[-1] + 1))
        names = measurement.axes
        if tuple(len(labels[name]) for name in names) != tuple(shape):
            raise InputError(f"{measurement.metric} of shape {tuple(shape)} does not fit its axes {names}")
        value = measurement.values.double().cpu().numpy().ravel()
        kept = ~np.isnan(value) if "rank" in names else np.ones(value.shape, dtype=bool)
        places = np.indices(tuple(shape)).reshape(len(shape), -1)[:, kept]
        columns: dict[str, Any] = {
            name: np.asarray(labels[name], dtype=object if name == "input" else np.int64)[place]
            for name, place in zip(names, places, strict=True)
        }
        if measurement.null is not None:
            for name, part in zip(("null_mean", "null_low", "null_high", "z"), measurement.null, strict=True):
                columns[name] = part.double().cpu().numpy().ravel()[kept]
        metric = measurement.metric
        constants = {"unit": METRICS[metric].unit or None} | measurement.columns
        columns |= constants | {"layer": layer.index, "metric": metric, "value": value[kept]}
        # a dict keeps the order of arrival: with the key, rows come by layer and metric whatever the batches
        self._parts.setdefault((layer.index, metric), []).append(columns)

    def frame(self, **constant: Any) -> pd.DataFrame:
        """All rows, by layer, metric, input, head and rank, in the columns every result shares."""
        parts = [pd.DataFrame(part) for parts in self._parts.values() for part in parts]
        return conform(pd.concat(parts, ignore_index=True).assign(**constant))


def over_windows(values: Tensor, image: Tensor) -> Tensor:
    """(window, …) as (input, window of that input, …)."""
    image = image.to(values.device)
    inputs = int(image.max()) + 1
    return values[image.argsort(stable=True)].unflatten(0, (inputs, -1))


def need_token_attention(layer: Layer) -> None:
    """Raise `NotMeasured` for attention between channels."""
    if layer.record.kind != "token":
        raise NotMeasured("attends from channel to channel and has no attention between tokens")


def gram_spectrum(layer: Layer, options: Mapping[str, Any]) -> Iterator[Measurement]:
    """Spectrum of the centred Gram matrix of the keys, one per input and (kv) head."""
    need_token_attention(layer)
    k = layer.choose_heads(layer.site("k"))
    scale = layer.site("scale") if layer.record.scale is not None else k.shape[-1] ** -0.5
    if isinstance(scale, Tensor) and scale.numel() > 1:
        scale = _scale_of_heads(scale, layer, k)
    real = layer.real_tokens(k.shape[-2])
    try:
        spectrum = kernel_pca.gram_spectrum(k, scale, None if real is None else real[:, None].to(k.device))
    except InputError as error:
        raise InputError(f"layer {layer.index}: {error}") from None
    windows: dict[str, Any] = {} if layer.record.origin is None else {"statistic": "mean"}
    total = spectrum.values.nansum(-1)
    shares = options["normalize"] == "trace"
    values = kernel_pca.spectrum_share(spectrum.values) if shares else spectrum.product()
    limit = {"head_dim": k.shape[-1], "all": values.shape[-1]}.get(options["max_rank"], options["max_rank"])
    yield Measurement(
        "eigenvalue_share" if shares else "eigenvalue",
        layer.per_input(values[..., :limit]),
        ("input", "head", "rank"),
        columns=windows,
    )
    per_head = {
        "effective_rank": kernel_pca.effective_rank(spectrum.values),
        "rank_90": kernel_pca.rank_holding(spectrum.values, 0.9),
        "gram_log_trace": total.log() + spectrum.log_factor,
    }
    for metric, value in per_head.items():
        yield Measurement(metric, layer.per_input(value), columns=windows)


def _scale_of_heads(scale: Tensor, layer: Layer, k: Tensor) -> Tensor:
    """A learned scale per head, (head,) or (…, head, 1, 1), for the chosen heads of k."""
    per_head = scale.reshape(-1)
    heads = layer.site("k").shape[1]
    if len(per_head) != heads:
        raise InputError(
            f"layer {layer.index}: a scale of shape {tuple(scale.shape)} does not fit {heads} heads of keys"
        )
    return per_head[layer.heads]


def attention_map(layer: Layer, options: Mapping[str, Any]) -> Iterator[Measurement]:
    """Entropy, reach, sink and non-finite entries of every attention map, and each head's output norm."""
    need_token_attention(layer)
    record = layer.record
    attn = record.attn
    if attn is None:
        scale = record.scale if record.scale is not None else layer.site("q").shape[-1] ** -0.5
        attn = attention_weights(layer.site("q").double(), layer.site("k").double(), scale, record.mask)
    output = record.output
    if output is None and record.v is not None:
        output = attention_output(attn, record.v)
    kept = layer.choose_heads(attn)
    n_queries, n_keys = kept.shape[-2:]
    real = layer.real_tokens(n_keys)
    real = None if real is None else real.to(attn.device)
    square = n_queries == n_keys
    mask = record.mask
    if mask is not None and mask.ndim == 4 and mask.shape[1] == attn.shape[1] > 1:
        mask = mask[:, layer.heads]
    visible = None
    if mask is not None:
        hidden_at = WINDOW_MASK if record.origin is not None else attention_maps.NEVER
        visible = attention_maps.visible_keys(mask, kept, hidden_at)
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
    yield Measurement("attention_sink", layer.per_input(maps.sink), null=null, columns=windows)
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


def token_similarity(layer: Layer, options: Mapping[str, Any]) -> Iterator[Measurement]:
    """Mean cosine over the pairs of tokens of the block's output, beside what chance gives."""
    hidden = layer.site("hidden")
    if hidden.ndim == 4:  # (batch, row, column, width): Swin keeps the grid
        hidden = hidden.flatten(1, 2)
    if hidden.shape[1] < 2:
        raise NotMeasured("puts out a single token, which has no pairs")
    real = layer.real_tokens(hidden.shape[1])
    real = None if real is None else real.to(hidden.device)
    try:
        observed = similarity.token_cosine_similarity(hidden, real)
    except InputError as error:
        raise InputError(f"layer {layer.index}: {error}") from None
    null = None
    if options["draws"] and options["null"] == "gaussian":
        counts = hidden.shape[1] if real is None else real.sum(-1)
        null = similarity.isotropic_null(observed, counts, hidden.shape[-1])
    elif options["draws"]:
        draws = [
            similarity.permuted_null(
                states,
                None if real is None else real[number],
                options["draws"],
                chance.generator(layer.seed, name, layer.index),
            )
            for number, (name, states) in enumerate(zip(layer.ids, hidden, strict=True))
        ]
        null = Null(*(torch.stack(parts) for parts in zip(*draws, strict=True)))
    yield Measurement("token_cosine", observed, ("input",), null)
