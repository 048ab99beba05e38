"""What an attention map says about its head: entropy, reach, sinks, output size, and heads that do nothing.

Attention is (*batch, head, query, key), rows summing to 1 over keys. Padding is left out as query and as key.
Channel attention (XCA) has no token map; these measures do not apply to it.
Sources: entropy Vig & Belinkov 2019; distance Dosovitskiy et al. 2021; sinks Xiao et al. 2024.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.analyses import validation
from workbench.core.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

NEVER = -1e4  # what older models add to the score of a key that may not be seen
ROW_TOLERANCE = 1e-2  # of a row's sum from 1: the rounding of bfloat16 weights, summed over a row


class HeadMaps(NamedTuple):
    """Measures of attention maps, each (*batch, head), float64; NaN where one is not defined.

    entropy (nats) and its share of the maximum; distance in the unit of the positions; sink: the largest mean
    share of attention that one key receives, sink_key which one (−1 where undefined), sink_uniform the same
    largest share if every query attended evenly to the keys it may see; nonfinite: NaN or infinite entries.
    """

    entropy: Tensor
    entropy_share: Tensor
    distance: Tensor
    sink: Tensor
    sink_key: Tensor
    sink_uniform: Tensor
    nonfinite: Tensor


def visible_keys(
    mask: Tensor | None, like: Float[Tensor, "*batch head query key"], hidden_at: float = NEVER
) -> Bool[Tensor, "*batch head query key"]:
    """Which keys a query may see, broadcast to the attention map: everything without a ``mask``.

    A boolean mask is true where a query may attend. An additive one hides a key where it is at or below
    ``hidden_at``, or near the lowest number of its type, as models write "never"; a bias above that stays
    visible. (timm's Swin writes −100.) Raises `InputError` where the mask does not fit.
    """
    if mask is None:
        return torch.ones(like.shape, dtype=torch.bool, device=like.device)
    if mask.dtype != torch.bool:
        mask = mask > max(hidden_at, torch.finfo(mask.dtype).min / 10)
    try:
        return mask.expand(like.shape)
    except RuntimeError as error:
        raise InputError(
            f"mask of shape {tuple(mask.shape)} does not fit attention of shape {tuple(like.shape)} "
            "(batch, head, query, key)"
        ) from error


def grid_positions(grid: tuple[int, int]) -> Float[Tensor, "patch 2"]:
    """(row, column) of every patch of a grid of (rows, columns), row by row, in patches."""
    rows, columns = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
    return torch.stack([rows.flatten(), columns.flatten()], -1).double()


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
    without them. Rows that are not distributions (a non-finite entry, a negative one, or a sum off 1 by more
    than 1e-2) are no attention over tokens: entropy, distance and sink of such a head are NaN. Rows of zeros,
    of queries that may attend to nothing, are left out. Raises `InputError` for axes that do not fit.

    Sources: entropy Vig & Belinkov 2019; distance Dosovitskiy et al. 2021, Fig. 7; sink Xiao et al. 2024.
    """
    validation.check_axes("attn", attn, validation.ATTENTION)
    attn = attn.double()
    *batch, heads, n_queries, n_keys = attn.shape
    real_query = _real("queries", queries, (*batch, n_queries), attn)[..., None, :]
    real_key = _real("keys", keys, (*batch, n_keys), attn)[..., None, None, :]
    seen = real_key.expand(attn.shape) if visible is None else visible_keys(visible, attn) & real_key

    inside = real_query[..., None] & real_key
    broken = ~torch.isfinite(attn) & inside
    weights = torch.where(inside & ~broken, attn, 0)
    rows = real_query.expand(*batch, heads, n_queries) & (seen.any(-1) | (weights != 0).any(-1))
    faulty = broken.any(-1) | (weights < 0).any(-1) | ((weights.sum(-1) - 1).abs() > ROW_TOLERANCE)
    undefined = (faulty & rows).any(-1) | ~rows.any(-1)

    count = rows.sum(-1)
    row_entropy = torch.special.entr(weights.clamp_min(0)).sum(-1)  # entr(0) = 0
    room = seen.sum(-1).double().log()
    # a query that sees one key has no choice: its share is 0/0 and does not count
    choosing = rows & (room > 0)
    share = torch.where(choosing, row_entropy / room, 0).sum(-1) / choosing.sum(-1)
    received = (weights * rows[..., None]).sum(-2) / count[..., None]
    even = (seen.double() / seen.sum(-1, keepdim=True).clamp_min(1) * rows[..., None]).sum(-2) / count[
        ..., None
    ]
    sink, sink_key = received.max(-1)

    def known(values: Tensor) -> Tensor:
        return values.masked_fill(undefined, math.nan)

    return HeadMaps(
        entropy=known((row_entropy * rows).sum(-1) / count),
        entropy_share=known(share).clamp(max=1.0),  # above 1 only by rounding
        distance=known(_mean_distance(weights, rows, query_positions, key_positions)),
        sink=known(sink),
        sink_key=sink_key.masked_fill(undefined, -1),
        sink_uniform=known(even.amax(-1)),
        nonfinite=broken.sum((-2, -1)),
    )


def _real(name: str, mask: Tensor | None, shape: tuple[int, ...], like: Tensor) -> Tensor:
    if mask is None:
        return torch.ones(shape, dtype=torch.bool, device=like.device)
    if mask.dtype != torch.bool or mask.shape[-1] != shape[-1]:
        raise InputError(
            f"{name} must be boolean of shape {shape}; got {mask.dtype} of shape {tuple(mask.shape)}"
        )
    return mask.to(like.device).expand(shape)


def _mean_distance(
    weights: Tensor, rows: Tensor, query_positions: Tensor | None, key_positions: Tensor | None
) -> Tensor:
    """Σ_j A_ij |p_i − p_j| / Σ_j A_ij over keys with a position, mean over queries with one."""
    if query_positions is None or key_positions is None:
        return torch.full(weights.shape[:-2], math.nan, dtype=weights.dtype, device=weights.device)
    for name, positions, axis in (("query", query_positions, -2), ("key", key_positions, -1)):
        if positions.ndim != 2 or positions.shape[0] != weights.shape[axis]:
            raise InputError(
                f"{name}_positions of shape {tuple(positions.shape)} do not fit the {weights.shape[axis]} "
                f"tokens of axis {name}; expected ({weights.shape[axis]}, coordinates)"
            )
    distance = torch.cdist(
        query_positions.to(weights), key_positions.to(weights), compute_mode="donot_use_mm_for_euclid_dist"
    )
    placed = torch.isfinite(distance)
    total = (weights * torch.where(placed, distance, 0)).sum(-1)
    mass = (weights * placed).sum(-1)
    counted = rows & placed.any(-1) & (mass > 0)
    return torch.where(counted, total / mass, 0).sum(-1) / counted.sum(-1)


def attention_entropy(attn: Float[Tensor, "*batch head query key"]) -> Float[Tensor, "*batch head"]:
    """−Σ_j A_ij log A_ij in nats, mean over queries, with 0·log 0 = 0; between 0 and log N (uniform
    attention).
    """
    return head_maps(attn).entropy


def head_output_norm(
    output: Float[Tensor, "*batch head token head_dim"], tokens: Bool[Tensor, "*batch token"] | None = None
) -> Float[Tensor, "*batch head"]:
    """Root mean square of each head's output over that of all heads of its layer; near 0 is a dead head.

    ``output`` is what a head hands to the output projection. 1 for every head where all are alike; NaN where
    the whole layer is 0 or an output is not finite. Padding (``tokens`` false) is left out.
    """
    axes = ("head", *validation.TOKENS)
    validation.check_axes("output", output, axes)
    output = output.double()
    real = _real("tokens", tokens, (*output.shape[:-3], output.shape[-2]), output)[..., None, :, None]
    square = torch.where(real, output, 0).square().sum((-2, -1))
    layer = square.mean(-1, keepdim=True)
    return torch.where(torch.isfinite(layer), square / layer, torch.nan).sqrt()


@dataclass(frozen=True)
class ReportRules:
    """When `attention_report` names a head; each value is compared with its mean over the inputs.

    dead_norm: output norm below this share of the layer's root mean square; dead_entropy: entropy above this
    share of its maximum, that is, attention so even that it does not depend on the tokens; sink_share: one
    key receives more than this share, and more than sink_over_uniform times what it would receive from even
    attention.
    """

    dead_norm: float = 0.01
    dead_entropy: float = 0.999
    sink_share: float = 0.3
    sink_over_uniform: float = 2.0


REPORT_COLUMNS = ("model", "checkpoint", "layer", "head", "finding", "value", "inputs", "key", "reason")


def attention_report(frame: pd.DataFrame, rules: ReportRules | None = None) -> pd.DataFrame:
    """Dead heads, attention sinks and non-finite values in an ``attention-map`` result: one row per finding.

    Columns: model, checkpoint, layer, head; finding (``dead``, ``sink`` or ``non-finite``); value, the mean
    over the inputs that the rule looked at (for non-finite: the sum); inputs, how many were averaged; key,
    the index of the sink's key where all inputs agree, else its commonest; reason, the rule in words. No
    rows: nothing found. Raises `InputError` where the frame holds no attention map.
    """
    import pandas as pd

    rules = rules or ReportRules()
    if not {"attention_sink", "nonfinite"} <= set(frame["metric"].dropna()):
        raise InputError(
            "this result holds no attention maps; compute them with the analysis 'attention-map'"
        )
    places = ["model", "checkpoint", "layer", "head"]
    found: list[dict[str, Any]] = []
    heads = frame[frame["head"].notna()]  # what is measured of whole layers has no rule
    for _, rows in heads.groupby(places, dropna=False, sort=False):
        place = rows[places].iloc[0].to_dict()
        found += [place | finding for finding in _findings(rows, rules)]
    kinds = {"layer": "Int64", "head": "Int64", "inputs": "Int64", "key": "Int64", "value": "float64"}
    report = pd.DataFrame(found, columns=list(REPORT_COLUMNS))
    return report.astype({name: kinds.get(name, "string") for name in REPORT_COLUMNS})


def _findings(rows: pd.DataFrame, rules: ReportRules) -> Iterator[dict[str, Any]]:
    """What the rules say about the rows of one head."""
    values = {str(metric): part["value"].dropna() for metric, part in rows.groupby("metric", sort=False)}
    mean = {metric: float(part.mean()) for metric, part in values.items() if len(part)}

    def finding(kind: str, metric: str, reason: str, **more: Any) -> dict[str, Any]:
        return {
            "finding": kind,
            "value": mean[metric],
            "inputs": len(values[metric]),
            "reason": reason,
        } | more

    if mean.get("head_output_norm", math.inf) < rules.dead_norm:
        yield finding("dead", "head_output_norm", f"output norm below {rules.dead_norm:g} of the layer's")
    if mean.get("attention_entropy_share", 0.0) > rules.dead_entropy:
        reason = f"attention is even: entropy above {rules.dead_entropy:g} of its maximum"
        yield finding("dead", "attention_entropy_share", reason)
    even = float(rows.loc[rows["metric"] == "attention_sink", "null_mean"].mean())
    sink = mean.get("attention_sink", 0.0)
    if sink > rules.sink_share and not sink <= rules.sink_over_uniform * even:
        reason = f"one key receives over {rules.sink_share:g} of the attention (if it were even: {even:.3g})"
        keys = values.get("attention_sink_key")
        key = int(keys.mode().iloc[0]) if keys is not None and len(keys) else None
        yield finding("sink", "attention_sink", reason, key=key)
    if broken := float(values["nonfinite"].sum()):
        yield finding("non-finite", "nonfinite", "attention holds NaN or infinite entries", value=broken)


def positions_of(kinds: Sequence[str], grid: tuple[int, int] | None) -> Float[Tensor, "token space"] | None:
    """Where each token is: patches on their grid (other tokens nowhere, NaN), words and unknown tokens in a
    line.

    None where there is a patch kind but no grid that fits it.
    """
    patches = torch.tensor([kind == "patch" for kind in kinds], dtype=torch.bool)
    if not patches.any():
        return torch.arange(len(kinds), dtype=torch.float64)[:, None]
    if grid is None or grid[0] * grid[1] != int(patches.sum()):
        return None
    positions = torch.full((len(kinds), 2), math.nan, dtype=torch.float64)
    positions[patches] = grid_positions(grid)
    return positions
