"""The logit lens: what the model would predict if it stopped after a layer (nostalgebraist 2020).

The last norm and linear layer are applied to the residual stream after every block. After the last block this is the
model's own prediction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import pandas as pd
import torch

from workbench.analyses.layer import Layer, NotApplicable
from workbench.analyses.registry import Analysis, OfInputs, runs_again
from workbench.core.null_distributions import generator
from workbench.core.options import NullSamples
from workbench.frames.estimate import first_to_last, over_inputs
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric


@dataclass(frozen=True)
class Options(OfInputs):
    """Options of `logit-lens`."""

    null_samples: Annotated[
        NullSamples,
        "samples of the null, streams of random other tokens of the input, at least 2; 0 leaves it out",
    ] = 4


_NULL = "null: the stream of another token of the input in the place of each"
_LOGIT_LENS_DIVERGENCE = Metric(
    "logit_lens_divergence",
    "Divergence of the prediction from the layer's",
    "Kullback–Leibler divergence of the prediction read off the stream after the block from the model's own, mean over "
    f"tokens that predict; 0 after the last block; {_NULL}",
    "nostalgebraist 2020",
    unit="nats",
    low=0,
)
_LOGIT_LENS_AGREEMENT = Metric(
    "logit_lens_agreement",
    "Share of predictions made by this layer",
    "share of tokens whose most likely outcome, read off the stream after the block, is the model's own; 1 after the "
    f"last block; {_NULL}",
    "nostalgebraist 2020",
    low=0,
    high=1,
)


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """Measure how far the prediction read off the stream after the block is from the model's own."""
    passes = layer.need_passes()
    readout, stream = passes.readout, layer.site("resid_post")
    if stream.shape != readout.stream.shape:
        raise NotApplicable("has a stream of another shape than the last norm reads")
    real = layer.real_tokens(stream.shape[1])
    real = torch.ones(stream.shape[:2], dtype=torch.bool) if real is None else real.cpu()
    results = []
    for number, name in enumerate(layer.ids):
        tokens = real[number].nonzero()[:, 0]
        read = tokens if readout.token is None else torch.tensor([readout.token])
        model_logits = passes.logits[number].double().reshape(-1, passes.logits.shape[-1])
        model_logits = (
            model_logits if readout.token is not None else model_logits[tokens.to(model_logits.device)]
        ).log_softmax(-1)
        positions, drawn = [read], generator(layer.seed, name, layer.index)
        for _ in range(options.null_samples if len(tokens) > 1 else 0):
            steps = torch.randint(1, len(tokens), (len(read),), generator=drawn)
            index = torch.searchsorted(tokens, read)
            positions.append(tokens[(index + steps) % len(tokens)])
        of_input = []
        for position in positions:
            seen = readout.logits(stream[number : number + 1, position.to(stream.device)])[0].log_softmax(-1)
            divergence = (
                (model_logits.exp() * (model_logits - seen)).sum(-1).clamp_min(0)
            )  # below by rounding alone
            agreement = (model_logits.argmax(-1) == seen.argmax(-1)).double()
            of_input.append(torch.stack([divergence.mean(), agreement.mean()]))
        of_input += [torch.full_like(of_input[0], torch.nan)] * (1 + options.null_samples - len(of_input))
        results.append(torch.stack(of_input, -1))
    for values, metric in zip(
        torch.stack(results, 1), (_LOGIT_LENS_DIVERGENCE, _LOGIT_LENS_AGREEMENT), strict=True
    ):
        samples = {"permutation": values[:, 1:]} if options.null_samples else {}
        yield Measurement(metric, values[:, 0], ("input",), null_samples=samples)


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """Report the share of predictions made by the first and by the last layer."""
    rows = frame[frame["metric"] == _LOGIT_LENS_AGREEMENT.name]
    if rows.empty:
        return []
    by_layer = {int(layer): over_inputs(part) for layer, part in rows.groupby("layer")}
    sentence = f"share of predictions that are the model's own: {first_to_last(by_layer)}"
    if rows["null_mean"].notna().any():
        sentence += f" ({rows['null_mean'].mean():.2f} for streams of other tokens)"
    return [sentence]


ANALYSIS = Analysis(
    "logit-lens",
    "What the model would predict after each layer",
    ("resid_post",),
    measure,
    (_LOGIT_LENS_DIVERGENCE, _LOGIT_LENS_AGREEMENT),
    Options,
    of_heads=False,
    together=runs_again,
    findings=findings,
)
