"""Signal and noise in the residual stream, before attention, after it and after the block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from workbench.analyses.signal_noise import residual_noise, signal_to_noise
from workbench.attention.residual import BoostedResidual
from workbench.captures import block_path
from workbench.core import null_distributions as chance
from workbench.data.corruptions import corrupt
from workbench.frames.measurement import Measurement
from workbench.measurements.layers import Layer, NotApplicable

if TYPE_CHECKING:
    from workbench.data.batches import Inputs

STREAMS = ("resid_pre", "resid_mid", "resid_post")


def noisy_inputs(inputs: Inputs, options: Mapping[str, Any], seed: int) -> Inputs:
    """The same pictures under a corruption, drawn for each by its name."""
    noise, severity = options["noise"], options["severity"]

    def change(name: str, picture: np.ndarray) -> np.ndarray:
        rng = np.random.default_rng(chance.derived_seed(seed, noise, name))
        return corrupt(picture, noise, severity, rng)

    return inputs.perturbed(change)


def signal_and_noise(layer: Layer, options: Mapping[str, Any]) -> Iterator[Measurement]:
    """σ of every stream, α, β, γ and the bound of Prop. III.1, and whether its assumption and conclusion hold."""
    clean, noisy = layer.record, layer.noisy
    before, later = clean.resid_pre, noisy.resid_pre
    if clean.attn_out is None or noisy.attn_out is None or before is None or later is None:
        raise NotApplicable("does not add what attention puts out to the residual stream as it is")
    real = layer.real_tokens(clean.attn_out.shape[1])
    centre = options["centre"]
    ratios = {site: signal_to_noise(layer.site(site), getattr(noisy, site), real, centre) for site in STREAMS}
    found = residual_noise(before, later, clean.attn_out, noisy.attn_out, real, centre)
    gains = {"attention": found.gain, "block": ratios["resid_post"] / ratios["resid_pre"]}
    if _is_boosted(layer):
        gains["boosted"] = ratios["resid_mid"] / ratios["resid_pre"]
    silent = torch.isinf(ratios["resid_pre"])
    layer.counts.add("inputs and layers carry no noise: their ratios are undefined", silent)

    def known(values: Tensor) -> Tensor:
        return values.double().masked_fill(silent, torch.nan)

    def measured(metric: str, values: Tensor, **columns: str) -> Measurement:
        return Measurement(metric, known(values), ("input",), columns=columns)

    for site, ratio in ratios.items():
        yield measured("snr", ratio, candidate=site)
    for name in ("alpha", "beta", "gamma", "noise_cosine", "bound"):
        yield measured(f"snr_{name}", getattr(found, name))
    yield measured("snr_assumed", found.assumed)
    yield measured("snr_sufficient", found.sufficient)
    for name, gain in gains.items():
        yield measured("snr_gain", gain, candidate=name)
        yield measured("snr_raised", gain > 1, candidate=name)


def _is_boosted(layer: Layer) -> bool:
    """Whether the block adds a share of the first tokens beside what attention puts out."""
    assert layer.model is not None  # it was run on two inputs
    path = block_path(layer.model, layer.record.path)
    block: nn.Module | None = None if path is None else layer.model.get_submodule(path)
    return block is not None and any(isinstance(child, BoostedResidual) for child in block.children())
