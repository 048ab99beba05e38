"""Signal and noise around a block (abdullaev2025 Prop. III.1): does the residual connection raise their ratio?

From a clean and a noisy input: the signal is what the clean input gives, the noise what the noisy one gives less that.
Tokens are (*batch, token, width); all tokens of an input together are the vector that the paper speaks of.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
import pandas as pd
import torch
from annotated_types import Ge, Le, Predicate
from jaxtyping import Bool, Float
from torch import Tensor, nn

from workbench.analyses.layer import Layer, NotApplicable
from workbench.analyses.registry import Analysis, OfInputs
from workbench.attention.residual import BoostedResidual
from workbench.captures import block_path
from workbench.core import operands
from workbench.core.errors import InputError
from workbench.core.intervals import Finding, paired_interval
from workbench.core.null_distributions import derived_seed
from workbench.core.operands import check_axes, check_finite, checked_tensors
from workbench.core.options import Accepted
from workbench.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from workbench.frames.estimate import over_everything, over_inputs, unit_of
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric

if TYPE_CHECKING:
    from workbench.data.batches import Inputs


STREAMS = ("resid_pre", "resid_mid", "resid_post")
Corruption = Annotated[
    str, Predicate(CORRUPTIONS.__contains__), Accepted(" or ".join(map(repr, CORRUPTIONS)))
]


@dataclass(frozen=True)
class Options(OfInputs):
    """Noise of the images, and the signal."""

    noise: Annotated[
        Corruption,
        "noise of the images: gaussian-noise, impulse-noise (salt and pepper), defocus-blur, or another of "
        "the corruptions",
    ] = "gaussian-noise"
    severity: Annotated[int, Ge(SEVERITIES[0]), Le(SEVERITIES[-1]), "how strongly, from 1 to 5"] = 3
    centre: Annotated[
        bool,
        "take the mean of the tokens off the signal: the paper subtracts what tokens collapse to, where that is not "
        "zero",
    ] = False
    per_head: Annotated[bool, "one row per input and layer, in place of means"] = False


SNR = Metric(
    "snr",
    "Signal-to-noise ratio σ",
    "‖u‖ / ‖η‖ over all tokens of an input: u of the clean input, η of the noisy one less that; candidate "
    "names the stream: resid_pre, resid_mid, hidden",
    "abdullaev2025 Def. III.1",
    low=0,
)
_SNR_ALPHA = Metric(
    "snr_alpha",
    "Signal gain α",
    "‖û‖ / ‖u‖ with û what attention adds to the stream for the clean input",
    "abdullaev2025 Prop. III.1",
    low=0,
)
_SNR_BETA = Metric(
    "snr_beta",
    "Signal alignment β",
    "cosine of u and û, all tokens of an input as one vector",
    "abdullaev2025 Prop. III.1",
    low=-1,
    high=1,
)
_SNR_GAMMA = Metric(
    "snr_gamma",
    "Noise gain γ",
    "‖η̂‖ / ‖η‖ with η̂ the noise's change of the attention's update of the stream",
    "abdullaev2025 Prop. III.1",
    low=0,
)
_SNR_NOISE_COSINE = Metric(
    "snr_noise_cosine",
    "Cosine of η and η̂",
    "cosine of the noise before attention and in what attention adds; the bound takes 1 for it",
    low=-1,
    high=1,
)
_SNR_BOUND = Metric(
    "snr_bound", "Lower bound of the gain", "√(1 + 2αβ + α²) / (1 + γ)", "abdullaev2025 Prop. III.1", low=0
)
_SNR_GAIN = Metric(
    "snr_gain",
    "SNR after over before",
    "attention: σ(y + ŷ) / σ(y) with y the stream and ŷ what attention adds; boosted: with the boosted "
    "residual in place of the sum; block: σ after the block / σ(y)",
    "abdullaev2025 Prop. III.1",
    low=0,
)
_SNR_ASSUMED = Metric(
    "snr_assumed",
    "Share of blocks: min(α, β) > γ",
    "1 where α, β, γ lie in [0, 1] and min(α, β) > γ, else 0",
    "abdullaev2025 Prop. III.1",
    low=0,
    high=1,
)
_SNR_SUFFICIENT = Metric(
    "snr_sufficient",
    "Share of blocks: bound > 1",
    "1 where 2αβ + α² > 2γ + γ², that is where the bound exceeds 1, else 0",
    low=0,
    high=1,
)
_SNR_RAISED = Metric(
    "snr_raised",
    "Share of blocks: SNR rises",
    "1 where snr_gain exceeds 1, else 0",
    "abdullaev2025 Prop. III.1",
    low=0,
    high=1,
)


class ResidualNoise(NamedTuple):
    """What Prop. III.1 is about, each (*batch), float64; NaN where the input has no signal or no noise.

    With y = u + η before a block and ŷ = û + η̂ what it puts out:
    alpha: ‖û‖ / ‖u‖. beta: cos(u, û). gamma: ‖η̂‖ / ‖η‖. noise_cosine: cos(η, η̂), which the paper bounds by 1.
    bound: √(1 + 2αβ + α²) / (1 + γ). gain: σ(y + ŷ) / σ(y), never below the bound.
    """

    alpha: Tensor
    beta: Tensor
    gamma: Tensor
    noise_cosine: Tensor
    bound: Tensor
    gain: Tensor

    @property
    def assumed(self) -> Tensor:
        """Whether the assumption holds as printed: α, β, γ from 0 to 1 and min(α, β) > γ."""
        parts = (self.alpha, self.beta, self.gamma)
        inside = torch.stack([(part >= 0) & (part <= 1) for part in parts]).all(0)
        return inside & (torch.minimum(self.alpha, self.beta) > self.gamma)

    @property
    def sufficient(self) -> Tensor:
        """Whether 2αβ + α² > 2γ + γ², which is what the bound needs to exceed 1."""
        return 2 * self.alpha * self.beta + self.alpha**2 > 2 * self.gamma + self.gamma**2


@checked_tensors
def signal_to_noise(
    clean: Float[Tensor, "*batch token width"],
    noisy: Float[Tensor, "*batch token width"],
    mask: Bool[Tensor, "*batch token"] | None = None,
    centre: bool = False,
) -> Float[Tensor, "*batch"]:
    """σ = ‖u‖ / ‖η‖ with u the clean tokens, η = noisy − clean (abdullaev2025 Def. III.1); ∞ without noise.

    Padding (``mask`` false) is left out. With ``centre`` u is the clean tokens less their mean: the paper lets tokens
    collapse to zero, and subtracts what they collapse to where that is something else. Raises InputError for tensors
    that do not fit, and NaN or infinite values.
    """
    signal, noise = _parts(clean, noisy, mask, centre)
    return _norm(signal) / _norm(noise)


@checked_tensors
def residual_noise(
    clean: Float[Tensor, "*batch token width"],
    noisy: Float[Tensor, "*batch token width"],
    clean_update: Float[Tensor, "*batch token width"],
    noisy_update: Float[Tensor, "*batch token width"],
    mask: Bool[Tensor, "*batch token"] | None = None,
    centre: bool = False,
) -> ResidualNoise:
    """α, β, γ, the bound of abdullaev2025 Prop. III.1, and the gain that it bounds, from a block's update.

    That the bound exceeds 1 does not follow from min(α, β) > γ, as the paper has it: α = β = 0.5 and γ = 0.4 give
    0.945. ``mask`` and ``centre`` (of û too) as in `signal_to_noise`, which says what is raised.
    """
    u, eta = _parts(clean, noisy, mask, centre)
    put_out, noise = _parts(clean_update, noisy_update, mask, centre)
    if put_out.shape != u.shape:
        raise InputError(
            f"the update of shape {tuple(put_out.shape)} cannot be added to tokens of shape {tuple(u.shape)}"
        )
    alpha, gamma = _norm(put_out) / _norm(u), _norm(noise) / _norm(eta)
    beta, noise_cosine = _cosine(u, put_out), _cosine(eta, noise)
    before, after = _norm(u) / _norm(eta), _norm(u + put_out) / _norm(eta + noise)
    # The root of a rounding-size negative number: α = 1 and β = −1 leave no signal at all.
    bound = (1 + 2 * alpha * beta + alpha**2).clamp_min(0).sqrt() / (1 + gamma)
    return ResidualNoise(alpha, beta, gamma, noise_cosine, bound, after / before)


def least_bound() -> float:
    """The least of √(1 + 2αβ + α²)/(1 + γ) where min(α, β) > γ, which abdullaev2025 (Prop. III.1) says exceeds 1.

    The bound grows with α and β and falls with γ, so it is least towards α = β = γ = t: √(1 + 3t²)/(1 + t), which is
    √3/2 at t = 1/3.
    """
    return math.sqrt(3) / 2


def _parts(clean: Tensor, noisy: Tensor, mask: Tensor | None, centre: bool) -> tuple[Tensor, Tensor]:
    """Signal and noise in float64, zero at padding."""
    for name, tensor in (("clean", clean), ("noisy", noisy)):
        check_axes(name, tensor, operands.HIDDEN)
        check_finite(name, tensor, operands.HIDDEN)
    if clean.shape != noisy.shape:
        raise InputError(
            f"clean tokens of shape {tuple(clean.shape)} and noisy ones of shape {tuple(noisy.shape)} are not of the "
            "same inputs"
        )
    signal, noise = clean.double(), noisy.double() - clean.double()
    real = torch.ones(clean.shape[:-1], dtype=torch.bool, device=clean.device)
    if mask is not None:
        real = operands.check_mask(mask, clean.shape[:-1]).to(clean.device)
    signal, noise = (torch.where(real[..., None], part, 0.0) for part in (signal, noise))
    if centre:
        mean = signal.sum(-2, keepdim=True) / real.sum(-1)[..., None, None]
        signal = torch.where(real[..., None], signal - mean, 0.0)
    return signal, noise


def _norm(part: Tensor) -> Tensor:
    return part.square().sum((-2, -1)).sqrt()


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    return ((a * b).sum((-2, -1)) / (_norm(a) * _norm(b))).clamp(-1, 1)


def perturb(inputs: Inputs, options: Options, seed: int) -> Inputs:
    """The same images under a corruption, its randomness seeded by the name of each."""
    noise, severity = options.noise, options.severity

    def change(name: str, image: np.ndarray) -> np.ndarray:
        rng = np.random.default_rng(derived_seed(seed, noise, name))
        return corrupt(image, noise, severity, rng)

    return inputs.perturbed(change)


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """σ of every stream, α, β, γ and the bound of Prop. III.1, and whether its assumption and conclusion hold."""
    clean, noisy = layer.record, layer.noisy
    before, later = clean.resid_pre, noisy.resid_pre
    if clean.attn_out is None or noisy.attn_out is None or before is None or later is None:
        raise NotApplicable("does not add what attention puts out to the residual stream as it is")
    real = layer.real_tokens(clean.attn_out.shape[1])
    centre = options.centre
    ratios = {site: signal_to_noise(layer.site(site), getattr(noisy, site), real, centre) for site in STREAMS}
    noise = residual_noise(before, later, clean.attn_out, noisy.attn_out, real, centre)
    gains = {"attention": noise.gain, "block": ratios["resid_post"] / ratios["resid_pre"]}
    if _is_boosted(layer):
        gains["boosted"] = ratios["resid_mid"] / ratios["resid_pre"]
    silent = torch.isinf(ratios["resid_pre"])
    layer.counts.add("inputs and layers carry no noise: their ratios are undefined", silent)

    def measured(metric: Metric, values: Tensor, **columns: str) -> Measurement:
        audible = values.double().masked_fill(silent, torch.nan)
        return Measurement(metric, audible, ("input",), columns=columns)

    for site, ratio in ratios.items():
        yield measured(SNR, ratio, candidate=site)
    yield measured(_SNR_ALPHA, noise.alpha)
    yield measured(_SNR_BETA, noise.beta)
    yield measured(_SNR_GAMMA, noise.gamma)
    yield measured(_SNR_NOISE_COSINE, noise.noise_cosine)
    yield measured(_SNR_BOUND, noise.bound)
    yield measured(_SNR_ASSUMED, noise.assumed)
    yield measured(_SNR_SUFFICIENT, noise.sufficient)
    for name, gain in gains.items():
        yield measured(_SNR_GAIN, gain, candidate=name)
        yield measured(_SNR_RAISED, gain > 1, candidate=name)


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """How often Prop. III.1 applies, and whether the residual connection, plain or boosted, raises the SNR.

    Of a grid over noises and severities the mean over all of them counts, input by input.
    """

    def mean(metric: Metric, candidate: str | None = None) -> Finding:
        rows = frame[frame["metric"] == metric.name]
        rows = rows[rows["candidate"].isna() if candidate is None else rows["candidate"] == candidate]
        # per_head has rows of single layers alone
        return over_inputs(rows) if rows["layer"].notna().all() else over_everything(rows)

    gain = mean(_SNR_GAIN, "attention")
    if math.isnan(gain.value):
        return []
    grid = {"noise": "noises", "severity": "severities"}
    counts = {words: frame[name].nunique() for name, words in grid.items() if name in frame}
    several = [f"{count} {words}" for words, count in counts.items() if count > 1]
    over = f", over {' and '.join(several)}" if several else ""
    ratios = {"α": _SNR_ALPHA, "β": _SNR_BETA, "γ": _SNR_GAMMA, "cos(η, η̂)": _SNR_NOISE_COSINE}
    assumed, sufficient, raised = (
        mean(*quantity).words(".0%")
        for quantity in ((_SNR_ASSUMED,), (_SNR_SUFFICIENT,), (_SNR_RAISED, "attention"))
    )
    sentences = [
        ", ".join(f"{name} = {mean(metric).words()}" for name, metric in ratios.items())
        + f", {unit_of(gain)}{over}",
        f"min(α, β) > γ in {assumed} of the blocks (one layer of one input), bound above 1 in {sufficient}, SNR raised "
        f"in {raised}",
        f"SNR after the residual connection over before {gain.words('.3f')}: {_beside_one(gain)}",
    ]
    gains = frame[(frame["metric"] == _SNR_GAIN.name) & frame["input"].notna()]
    by_input = gains.groupby(["candidate", "input"])["value"].mean()
    if "boosted" in by_input:
        more = paired_interval(by_input["boosted"], by_input["attention"], ratio=True)
        sentences.append(
            f"boosted residual connection {mean(_SNR_GAIN, 'boosted').words('.3f')}, {more.words('.3f')} times the "
            f"ratio of the plain one: {_beside_one(more)}"
        )
    return sentences


def _beside_one(ratio: Finding) -> str:
    """A verdict from the interval."""
    return (
        "raised" if ratio.low > 1 else "lowered" if ratio.high < 1 else "not significantly different from 1"
    )


def _is_boosted(layer: Layer) -> bool:
    """Whether the block adds a share of the first tokens beside what attention puts out."""
    assert layer.model is not None  # it was run on two inputs
    path = block_path(layer.model, layer.record.path)
    block: nn.Module | None = None if path is None else layer.model.get_submodule(path)
    return block is not None and any(isinstance(child, BoostedResidual) for child in block.children())


ANALYSIS = Analysis(
    "snr",
    "Signal and noise before and after attention: does the residual connection raise their ratio",
    ("resid_pre", "attn_out", "resid_mid", "resid_post"),
    measure,
    (
        SNR,
        _SNR_ALPHA,
        _SNR_BETA,
        _SNR_GAMMA,
        _SNR_NOISE_COSINE,
        _SNR_BOUND,
        _SNR_GAIN,
        _SNR_ASSUMED,
        _SNR_SUFFICIENT,
        _SNR_RAISED,
    ),
    Options,
    of_heads=False,
    perturb=perturb,
    together=lambda options: True,  # with the same layer of the perturbed inputs
    findings=findings,
    pooled=("noise", "severity"),
)
