"""How far attention is from its limits: the largest logit, and gates that are closed.

Logits that grow without bound precede a collapse of the entropy and a diverging loss (Dehghani et al. 2023); a closed
gate takes a head's output away (Qiu et al. 2025). Both are cheap enough to watch a training by.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import pandas as pd
import torch
from annotated_types import Gt, Lt

from workbench.analyses.layer import Layer, need_token_attention
from workbench.analyses.reductions import Scores
from workbench.analyses.registry import Analysis, OfInputs
from workbench.analyses.tiles import layer_operands, report_broken
from workbench.core.null_distributions import Null
from workbench.core.options import NullSamples
from workbench.frames.estimate import over_inputs
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric


@dataclass(frozen=True)
class Options(OfInputs):
    """What counts as closed."""

    closed: Annotated[float, Gt(0), Lt(1), "value of a gate below which it is closed"] = 0.1
    null_samples: Annotated[
        NullSamples, "samples of the largest of Gaussian logits, at least 2; 0 leaves them out"
    ] = 20

    @property
    def map_limit(self) -> int | None:
        """No map is formed: logits are worked through in tiles."""
        return 0


_MAX_LOGIT = Metric(
    "max_logit",
    "Largest attention logit",
    "max of scale q·k + mask over the pairs of tokens that see each other; null: as many independent Gaussian logits "
    "of the same mean and deviation",
    "Dehghani et al. 2023",
    unit="nats",
)
_GATE_SPARSITY = Metric(
    "gate_sparsity",
    "Share of closed gates",
    "share of a head's gates, over tokens and features, that are below the threshold after the sigmoid; null: gates "
    "spread evenly from 0 to 1",
    "Qiu et al. 2025",
    low=0,
    high=1,
)


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """Measure the largest logit of every head, and the share of its gates that are closed."""
    need_token_attention(layer)
    operands = layer_operands(layer)
    reduced = operands.reduced(Scores())
    report_broken(layer, reduced)
    rows = reduced["scores"]
    real = layer.real_queries(operands.q, operands.k.shape[2])
    real = torch.ones_like(rows.largest[:, 0], dtype=torch.bool) if real is None else real
    asking = real.to(rows.largest.device)[:, None]
    broken = (reduced.broken & asking).any(-1)
    largest = rows.largest.masked_fill(~asking, -math.inf).amax(-1)
    largest = largest.masked_fill(broken | (largest == -math.inf), math.nan)
    count, total, squares = (
        (part * asking).sum(-1) for part in (reduced.count.expand_as(rows.total), rows.total, rows.squares)
    )
    mean = total / count
    deviation = (squares / count - mean.square()).clamp_min(0).sqrt()
    null = {}
    if options.null_samples:
        seeds = layer.seeds(len(mean))
        sources = [torch.Generator().manual_seed(seed) for seed in seeds]
        draws = [
            torch.rand(options.null_samples, dtype=torch.float64, generator=source) for source in sources
        ]
        # the largest of n has the n-th power of the distribution of one
        logs = torch.stack(draws).unflatten(0, mean.shape).to(mean).log() / count[..., None]
        normal = -torch.special.ndtri(-torch.expm1(logs))
        null["gaussian"] = layer.per_input(mean[..., None] + deviation[..., None] * normal)
    yield Measurement(_MAX_LOGIT, layer.per_input(largest), columns=layer.window_column, null_samples=null)

    gate = layer.record.extra.get("gate")
    if gate is None:
        return
    open_ = layer.choose_heads(gate)
    weight = real.to(gate.device)[:, None, :, None].expand_as(open_)
    share = ((open_ < options.closed) & weight).sum((-2, -1)) / weight.sum((-2, -1)).double()
    yield Measurement(
        _GATE_SPARSITY,
        share,
        null=Null.at(torch.full_like(share, options.closed)),
        columns={"null": "uniform"},
    )


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """Report the head with the largest logit, and the share of closed gates."""
    sentences = []
    logits = frame[(frame["metric"] == _MAX_LOGIT.name) & frame["head"].notna()]
    if logits["value"].notna().any():
        by_head = logits.groupby(["layer", "head"])["value"].mean()
        layer, head = by_head.idxmax()
        chosen = logits[(logits["layer"] == layer) & (logits["head"] == head)]
        sentence = f"largest logit: {over_inputs(chosen).words('.1f')} nats in head {head} of layer {layer}"
        null = chosen["null_mean"].mean()
        sentences.append(sentence + ("" if math.isnan(null) else f" (Gaussian logits: {null:.1f})"))
    gates = frame[frame["metric"] == _GATE_SPARSITY.name]
    if len(gates):
        sentences.append(
            f"{over_inputs(gates).words('.0%')} of the gates are below {options.closed:g} "
            f"({options.closed:.0%} if they were spread evenly)"
        )
    return sentences


ANALYSIS = Analysis(
    "saturation",
    "How far attention is from its limits: the largest logit, and closed gates",
    ("q", "k", "scale", "mask"),
    measure,
    (_MAX_LOGIT, _GATE_SPARSITY),
    Options,
    findings=findings,
)
