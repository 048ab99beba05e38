"""A card of each head over many inputs: its strongest links, its patterns' stability, its plane and its circuits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np
import pandas as pd
import torch
from pydantic import BaseModel, ConfigDict, Field

from workbench.apps.explorer.evidence import by_rank, joint_plane
from workbench.apps.explorer.measures import NULL_SAMPLES
from workbench.core.errors import InputError

if TYPE_CHECKING:
    from workbench.captures import Capture
    from workbench.data.batches import Inputs
    from workbench.models.loading import LoadedModel

LINKS = 10
POINTS = 240
"""Number of tokens of all inputs together in the plane."""
CLEAR = 0.05
"""A pattern holds on an input where its score exceeds the null's upper end, and its mean by this difference."""
CIRCUITS = ("QK", "OV")
_SITES = ("q", "k", "scale", "mask", "attn", "head_out")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class LinkCard(_Part):
    """A link of a head: labels, mean ratio to uniform attention, and the number of inputs where it is among the ten."""

    query: str
    key: str
    ratio: float
    inputs: int


class HeadCard(_Part):
    """Links of a head, strongest first, and by pattern the share of inputs on which it follows the pattern."""

    layer: int
    head: int
    links: Annotated[list[LinkCard], Field(max_length=LINKS)]
    stability: dict[str, float]


class PointCard(_Part):
    """A token of the plane."""

    label: str
    kind: str
    position: Annotated[float, Field(ge=0, le=1)]
    """Its place in its input, from 0 for the first token to 1 for the last."""


class CardIndex(_Part):
    """The cards of all heads."""

    inputs: Annotated[int, Field(ge=1)]
    spec: str
    """Their spec; empty for files and texts of your own, whose paths and words a page does not need."""
    heads: list[HeadCard]
    points: list[PointCard]


def make_cards(
    model: LoadedModel,
    samples: Sequence[Inputs],
    layers: Sequence[int] | None = None,
    seed: int = 0,
    progress: Callable[[float], object] | None = None,
) -> tuple[CardIndex, dict[str, np.ndarray]]:
    """Return the cards of a model's heads over inputs, each a batch of one, and the arrays of planes and circuits.

    A head without a pattern's null distribution has no stability for it; a model whose projections are not known has no
    circuits. Raises `InputError` without an attention matrix of tokens.
    """
    from workbench.analyses.links import strongest_links
    from workbench.captures import capture
    from workbench.runs.analyze import analyze

    chosen = None if layers is None else list(layers)
    links, patterns, points = [], [], []
    operands: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    each = max(1, POINTS // len(samples))
    for number, sample in enumerate(samples):
        (progress or (lambda share: None))(number / len(samples))
        seen = capture(model, sample, layers=chosen, sites=_SITES)
        links.append(strongest_links(seen, LINKS).assign(input=sample.ids[0]))
        patterns.append(analyze("attention-patterns", qkv=seen, seed=seed))
        maps = analyze("attention-map", qkv=seen, null_samples=0)
        patterns.append(maps[maps["metric"] == "attention_sink"])
        points += _points(seen, each, operands)
    if not any(len(frame) for frame in links):
        raise InputError(f"{model.spec} has no attention matrix of tokens, and so no head cards")
    index = CardIndex(
        inputs=len(samples),
        spec=samples[0].spec if samples[0].spec.startswith("bundled:") else "",
        heads=_head_cards(pd.concat(links), pd.concat(patterns)),
        points=points,
    )
    return index, _planes(operands) | _circuits(analyze, model, chosen, seed)


def _points(
    seen: Capture, count: int, operands: dict[int, list[tuple[torch.Tensor, torch.Tensor]]]
) -> list[PointCard]:
    """Return some real tokens of an input, evenly spaced, and add their queries and keys to each layer's."""
    tokens = seen.tokens
    assert tokens is not None  # inputs always come with their tokens
    real = tokens.mask[0].cpu().nonzero()[:, 0]
    spread = np.linspace(0, len(real) - 1, min(count, len(real))).round().astype(int)
    places = real[spread]
    for record in seen:
        q, k, size = record.q, record.k, len(tokens.labels[0])
        if q is None or k is None or record.source == "cross" or not (q.shape[-2] == k.shape[-2] == size):
            continue
        pair = q[0, :, places].double().cpu(), k[0, :, places].double().cpu()
        operands.setdefault(record.index, []).append(pair)
    labels, kinds, last = tokens.labels[0], tokens.kinds[0], max(1, len(real) - 1)
    return [
        PointCard(label=labels[token], kind=kinds[token], position=int(order) / last)
        for token, order in zip(places.tolist(), spread, strict=True)
    ]


def _head_cards(links: pd.DataFrame, patterns: pd.DataFrame) -> list[HeadCard]:
    """Return the cards: links that are among the ten on most inputs first, of as many the one with the larger ratio."""
    above = patterns["null_high"].fillna(patterns["null_mean"])
    follows = patterns["value"] > np.maximum(above, patterns["null_mean"] + CLEAR)
    known = patterns.assign(follows=follows)[patterns["null_mean"].notna() & patterns["head"].notna()]
    shares = known.groupby(["layer", "head", "metric"])["follows"].mean()
    cards = []
    for layer, head in links[["layer", "head"]].drop_duplicates().itertuples(index=False):
        rows = links[(links["layer"] == layer) & (links["head"] == head)]
        pairs = rows.groupby(["query_label", "key_label"]).agg(
            ratio=("ratio", "mean"), inputs=("input", "nunique")
        )
        first = pairs.sort_values(["inputs", "ratio"], ascending=False, kind="stable")[:LINKS]
        stability = shares[(layer, head)].to_dict() if (layer, head) in shares.index.droplevel(2) else {}
        cards.append(
            HeadCard(
                layer=int(layer),
                head=int(head),
                links=[
                    LinkCard(query=query, key=key, ratio=float(row.ratio), inputs=int(row.inputs))
                    for (query, key), row in first.iterrows()
                ],
                stability={str(metric): float(share) for metric, share in stability.items()},
            )
        )
    return cards


def _planes(operands: dict[int, list[tuple[torch.Tensor, torch.Tensor]]]) -> dict[str, np.ndarray]:
    """Return the joint plane of the points' queries and keys in every head."""
    arrays = {}
    for layer, pairs in operands.items():
        q, k = (torch.cat(part, 1) for part in zip(*pairs, strict=True))
        plane = joint_plane(q, k.repeat_interleave(len(q) // len(k), 0))
        for name, values in (("q", plane.queries), ("k", plane.keys), ("share", plane.share)):
            arrays[f"cards.layers.{layer}.plane.{name}"] = values.numpy().astype(np.float32)
    return arrays


def _circuits(
    analyze: Callable[..., pd.DataFrame], model: LoadedModel, layers: list[int] | None, seed: int
) -> dict[str, np.ndarray]:
    """Return the singular values of the heads' circuits with their null distribution, where the weights are known."""
    try:
        frame = analyze("qk-ov-circuits", model=model, seed=seed, layers=layers, null_samples=NULL_SAMPLES)
    except InputError:
        return {}
    rows = frame[(frame["metric"] == "circuit_singular_value") & frame["rank"].notna()]
    return {
        f"cards.layers.{layer}.circuits.{name}.{number}": values
        for name in CIRCUITS
        for layer, numbers in by_rank(rows[rows["candidate"] == name])
        for number, values in numbers.items()
    }
