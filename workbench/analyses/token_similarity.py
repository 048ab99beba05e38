"""Similarity of the tokens of one input at a layer's sites, and its rate of change through depth.

The mean cosine over all pairs of tokens (abdullaev2025 Fig. 5), in linear time; the effective rank of the tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.analyses.gram_spectrum import EFFECTIVE_RANK, effective_rank
from workbench.analyses.layer import Layer, NotApplicable, over_windows
from workbench.analyses.registry import Analysis, OfInputs
from workbench.core import null_distributions, operands
from workbench.core.errors import InputError
from workbench.core.null_distributions import Null, null_of_draws
from workbench.core.operands import check_axes, check_finite, checked_tensors
from workbench.core.options import NullSamples
from workbench.frames.estimate import first_to_last, null_range, over_inputs
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric

if TYPE_CHECKING:
    import pandas as pd

STREAMS = ("input", "resid_mid", "resid_post")
SPECIAL = ("class", "distillation", "register")
_WITHOUT_SPECIAL, _CENTRED = "without special tokens", "without mean"
Alternatives = Literal["keep", "remove", "both"]


@dataclass(frozen=True)
class Options(OfInputs):
    """Tokens, sites and null distribution."""

    null: Annotated[
        Literal["gaussian", "permutation"],
        "null distribution: gaussian (random directions, exact) or permutation (features shuffled over tokens)",
    ] = "gaussian"
    null_samples: Annotated[
        NullSamples, "samples of the permutation null, at least 2; 0 leaves out the null distribution"
    ] = 20
    sites: Annotated[
        Literal["resid_post", "input", "resid_mid", "all"],
        "where: resid_post (after the block), input (of the attention), resid_mid (between attention and MLP), or all "
        "three",
    ] = "resid_post"
    special_tokens: Annotated[
        Alternatives, "special tokens (class, distillation, register): keep, remove or both"
    ] = "keep"
    mean_token: Annotated[
        Alternatives, "the mean of an input's tokens: keep, remove (from every token) or both"
    ] = "keep"
    effective_rank: Annotated[bool, "also the effective rank of the tokens, from singular values"] = False
    rate: Annotated[
        Literal["none", "fit"],
        "fit: also the oversmoothing rate r per layer, 1 − cos = δ exp(−r layer), by least squares on logarithms; or "
        "none",
    ] = "none"


_TOKEN_COSINE = Metric(
    "token_cosine",
    "Mean token cosine",
    "mean over pairs i≠j of the cosine of two tokens' hidden states",
    "abdullaev2025 Fig. 5",
    low=-1,
    high=1,
)
_TOKEN_COSINE_RATE = Metric(
    "token_cosine_rate",
    "Oversmoothing rate",
    "r of the model 1 − token_cosine = δ exp(−r layer), by least squares on logarithms; below 0 where "
    "they grow apart",
    unit="per layer",
)


@checked_tensors
def token_cosine_similarity(
    hidden: Float[Tensor, "*batch token width"], mask: Bool[Tensor, "*batch token"] | None = None
) -> Float[Tensor, "*batch"]:
    """Mean cosine similarity over all pairs i ≠ j of an input's tokens (abdullaev2025 Fig. 5).

    (‖Σ_i x̂_i‖² − Σ_i ‖x̂_i‖²) / (N(N−1)) with x̂ the tokens at unit length: O(N d), never an N×N matrix.
    Dimensionless, between −1/(N−1) and 1. A zero token has no direction: its cosine with every token counts
    as 0. Padding (``mask`` false) is left out. Raises `InputError` for missing axes, NaN or infinite values,
    and fewer than two tokens.
    """
    tokens, length, count = _tokens_and_lengths(hidden, mask)
    weight = torch.where(length > 0, 1 / length, 0.0)
    together = (weight[..., None, :] @ tokens).square().sum((-2, -1))
    return (together - (length > 0).sum(-1)) / (count * (count - 1))


_SAFE = (1e-150, 1e150)  # lengths whose squares neither overflow nor vanish


def _tokens_and_lengths(hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens in float64 (zero where padding), in a unit that keeps their lengths exact; and how many are real."""
    check_axes("resid_post", hidden, operands.HIDDEN)
    if mask is None:
        operands.check_token_count("resid_post", hidden.shape[-2])
        count = torch.full(hidden.shape[:-2], hidden.shape[-2], device=hidden.device)
    else:
        mask = operands.check_mask(mask, hidden.shape[:-1])
        hidden = torch.where(mask[..., None], hidden, 0)
        count = mask.sum(-1)
    tokens = hidden.double()
    length = tokens.norm(dim=-1)
    safe = (length > _SAFE[0]) & (length < _SAFE[1])
    if not bool((safe if mask is None else safe | ~mask).all()):
        check_finite("resid_post", hidden, operands.HIDDEN)
        largest = tokens.abs().amax(-1, keepdim=True)  # a unit of each token's own
        tokens = tokens / torch.where(largest > 0, largest, 1.0)
        length = tokens.norm(dim=-1)
    return tokens, length, count.double()


@checked_tensors
def without_mean_token(
    hidden: Float[Tensor, "*batch token width"], mask: Bool[Tensor, "*batch token"] | None = None
) -> Float[Tensor, "*batch token width"]:
    """Tokens less their mean over the real ones (abdullaev2025 Fig. 5 keeps it), in float64; padding is 0.

    Of tokens of one length the mean cosine is then −1/(N−1) whatever they are, since they add up to 0: what it still
    tells is how unequal their lengths are. How many directions they take says `effective_token_rank`.
    """
    hidden = hidden.double()
    if mask is None:
        return hidden - hidden.mean(-2, keepdim=True)
    real = torch.where(mask[..., None], hidden, 0.0)
    mean = real.sum(-2, keepdim=True) / mask.sum(-1)[..., None, None]
    return torch.where(mask[..., None], real - mean, 0.0)


@checked_tensors
def effective_token_rank(
    hidden: Float[Tensor, "*batch token width"], mask: Bool[Tensor, "*batch token"] | None = None
) -> Float[Tensor, "*batch"]:
    """exp of the entropy of the singular values' shares: how many directions the tokens of an input take.

    Between 1 and min(token, width); 0 for tokens of zeros (Roy & Vetterli 2007). Padding (``mask`` false) is left out:
    rows of zeros change no singular value. Raises `InputError` as `token_cosine_similarity`.
    """
    _tokens_and_lengths(hidden, mask)  # the same checks
    tokens = hidden.double() if mask is None else torch.where(mask[..., None], hidden.double(), 0.0)
    return effective_rank(torch.linalg.svdvals(tokens))


@checked_tensors
def growth_rate(
    cosines: Float[Tensor, "*batch layer"], layers: Float[Tensor, " layer"] | Int[Tensor, " layer"]
) -> Float[Tensor, "*batch"]:
    """Rate r per layer of oversmoothing, by the model 1 − cos_ℓ = δ exp(−r ℓ): positive where they do.

    The cosines are those of abdullaev2025 Fig. 5; the rate is ours.

    The slope of log(1 − cos) against the layer by least squares, with the sign changed. NaN where a cosine is 1, which
    no finite rate reaches. Raises `InputError` for fewer than two layers.
    """
    if cosines.shape[-1] < 2 or layers.shape != cosines.shape[-1:]:
        raise InputError(
            f"a rate needs a cosine in each of at least two layers; got {tuple(cosines.shape)} cosines for "
            f"{tuple(layers.shape)} layers (axis layer)"
        )
    depth = layers.double() - layers.double().mean()
    distance = 1 - cosines.double()
    logs = torch.where(distance > 0, distance, torch.nan).log()
    return -(logs * depth).sum(-1) / depth.square().sum()


@checked_tensors
def isotropic_null(
    observed: Float[Tensor, "*batch"], tokens: Float[Tensor, "*batch"] | int, width: int
) -> Null:
    """What Gaussian hidden states of the same shape give, exactly (any mean square: a cosine does not see it).

    Directions of isotropic Gaussian tokens are independent and uniform on the sphere, so a pair's cosine has
    mean 0 and variance 1/width, and two different pairs are uncorrelated, also where they share a token. The
    mean over the N(N−1)/2 pairs has mean 0 and standard deviation √(2 / (N(N−1) width)): exact, no null samples
    needed. The band is that of its limit for many tokens, (χ²_width/width − 1)/(N−1), scaled to the exact
    deviation; the distribution is skewed, not normal.
    """
    from scipy.stats import chi2

    count = torch.as_tensor(tokens, dtype=torch.float64, device=observed.device).expand(observed.shape)
    deviation = (2 / (count * (count - 1) * width)).sqrt()
    low, high = ((chi2.ppf(level, width) - width) / math.sqrt(2 * width) for level in (0.025, 0.975))
    return Null(torch.zeros_like(deviation), low * deviation, high * deviation, observed / deviation)


@checked_tensors
def permuted_null(
    hidden: Float[Tensor, "token width"],
    mask: Bool[Tensor, " token"] | None,
    null_samples: int,
    generator: torch.Generator,
) -> Null:
    """Return an input's values when each feature is shuffled over the tokens, feature by feature.

    Keeps every feature's values, so also its mean over tokens and its outliers, and breaks what belongs
    together in a token. (Shuffling whole tokens, the permutation null of other measures, cannot change a mean
    over all pairs.) An observed value inside this range is explained by only the features' means. ``null_samples`` ≥
    2.
    """
    observed = token_cosine_similarity(hidden, mask)
    real = hidden.double() if mask is None else hidden[mask].double()
    values = []
    for _ in range(null_samples):
        order = torch.rand(real.shape, generator=generator).argsort(0).to(real.device)
        values.append(token_cosine_similarity(real.gather(0, order)))
    return null_of_draws(observed, torch.stack(values))


def sites_of(options: Options) -> tuple[str, ...]:
    """The capture sites that the option ``sites`` asks for."""
    return STREAMS if options.sites == "all" else (options.sites,)


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """Mean cosine of pairs of tokens beside its null distribution, and the tokens' effective rank, at each site."""
    for site in sites_of(options):
        states = _of_inputs(layer, layer.site(site))
        if states.shape[1] < 2:
            raise NotApplicable("puts out a single token, which has no pairs")
        real = layer.real_on(states)
        for special in _alternatives(options.special_tokens):
            kept = real if special else _without_special(layer, states, real)
            for mean in _alternatives(options.mean_token):
                tokens = states if mean else without_mean_token(states, kept)
                columns = {"candidate": site}
                columns |= {} if special else {"axis": _WITHOUT_SPECIAL}
                columns |= {} if mean else {"standardize": _CENTRED}
                try:
                    yield _cosine(layer, tokens, kept, options, columns)
                    if options.effective_rank:
                        rank = effective_token_rank(tokens, kept)
                        yield Measurement(EFFECTIVE_RANK, rank, ("input",), columns=columns)
                except InputError as error:
                    raise InputError(f"layer {layer.index}, {site}: {error}") from None


def across(taken: Sequence[tuple[Layer, Measurement]], options: Options) -> Iterator[Measurement]:
    """The rate of every input, fitted to its mean cosines in all measured layers, site by site.

    Of tokens less their mean there is none: their mean cosine is −1/(N−1) but for their lengths.
    """
    if options.rate == "none":
        return
    curves: dict[tuple[Any, ...], list[tuple[int, Measurement]]] = {}
    for layer, measurement in taken:
        if measurement.name == "token_cosine" and "standardize" not in measurement.columns:
            curve_labels = tuple(measurement.columns.get(name) for name in ("candidate", "axis"))
            curves.setdefault(curve_labels, []).append((layer.index, measurement))
    for curve in curves.values():
        if len(curve) < 2:
            raise InputError(
                "a rate of growth needs at least two layers; choose more with layers=, or rate='none'"
            )
        layers = torch.tensor([index for index, _ in curve])
        cosines = torch.stack([measurement.values.cpu() for _, measurement in curve], -1)
        columns = {name: word for name, word in curve[0][1].columns.items() if name != "null"}
        rate = growth_rate(cosines, layers)
        yield Measurement(_TOKEN_COSINE_RATE, rate, ("input",), columns=columns, form="across")


def _of_inputs(layer: Layer, states: Tensor) -> Float[Tensor, "batch token width"]:
    """All tokens of each input: Swin keeps their grid, and cuts what its attention receives into windows."""
    if states.ndim == 4:  # (batch, row, column, width)
        states = states.flatten(1, 2)
    origin = layer.record.origin
    if origin is not None and len(states) == len(origin.image) != len(layer.ids):
        states = over_windows(states, origin.image).flatten(1, 2)
    return states


def _alternatives(word: str) -> tuple[bool, ...]:
    """Whether to keep, in each of the asked variants."""
    return {"keep": (True,), "remove": (False,), "both": (True, False)}[word]


def _without_special(layer: Layer, states: Tensor, real: Bool[Tensor, "batch token"] | None) -> Tensor:
    """The mask of real tokens less class, distillation and register tokens."""
    count = states.shape[1]
    kinds = layer.token_kinds(count)  # of one input: the special tokens are those of all
    kept = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
    if len(kinds) == count:
        kept[:, [token for token, kind in enumerate(kinds) if kind in SPECIAL]] = False
    return kept if real is None else kept & real


def _cosine(
    layer: Layer,
    states: Float[Tensor, "batch token width"],
    real: Bool[Tensor, "batch token"] | None,
    options: Options,
    columns: dict[str, Any],
) -> Measurement:
    observed = token_cosine_similarity(states, real)
    null = None
    if options.null_samples and options.null == "gaussian" and "standardize" not in columns:
        counts = states.shape[1] if real is None else real.sum(-1)
        null = isotropic_null(observed, counts, states.shape[-1])
        columns = columns | {"null": "isotropic"}
    elif options.null_samples and options.null == "permutation":
        null_samples = [
            permuted_null(
                tokens,
                None if real is None else real[number],
                options.null_samples,
                null_distributions.generator(layer.seed, name, layer.index),
            )
            for number, (name, tokens) in enumerate(zip(layer.ids, states, strict=True))
        ]
        null = Null(*(torch.stack(parts) for parts in zip(*null_samples, strict=True)))
        columns = columns | {"null": "permutation"}
    return Measurement(_TOKEN_COSINE, observed, ("input",), null, columns=columns)


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """Report token similarity in the first and the last layer beside the null; whether the rate differs from 0."""
    site = sites_of(options)[-1]
    plain = frame[(frame["candidate"] == site) & frame["axis"].isna() & frame["standardize"].isna()]
    cosines = plain[plain["metric"] == "token_cosine"]
    if cosines.empty:
        return []
    by_layer = {int(layer): over_inputs(rows) for layer, rows in cosines.groupby("layer")}
    start = by_layer[min(by_layer)]
    sentences = [
        f"mean token cosine ({site}) {first_to_last(by_layer)}, {start.over('inputs')}{_beside_null(cosines)}"
    ]
    fitted = plain[plain["metric"] == "token_cosine_rate"]
    if len(fitted):
        rate = over_inputs(fitted)
        verdict = (
            "oversmoothing"
            if rate.low > 0
            else "tokens become less alike"
            if rate.high < 0
            else "not significantly different from 0"
        )
        sentences.append(
            f"oversmoothing rate r = {rate.words('.3f')} per layer over {rate.n} inputs: {verdict}"
        )
    return sentences


def _beside_null(cosines: pd.DataFrame) -> str:
    """In how many layers the cosines lie above the null distribution; the mean of a null without a range."""
    if cosines["null_mean"].isna().all():
        return ""
    kind = cosines["null"].dropna().iloc[0]
    levels = cosines.groupby("layer")[["value", "null_mean", "null_high"]].mean()
    if levels["null_high"].isna().all():
        return f"; {kind} null {levels['null_mean'].mean():.2f}"
    above = int((levels["value"] > levels["null_high"]).sum())
    return f"; above the {null_range(cosines, kind)} of one input in {above} of {len(levels)} layers"


ANALYSIS = Analysis(
    "token-similarity",
    "Mean cosine similarity of tokens through depth",
    ("resid_post",),
    measure,
    (_TOKEN_COSINE, _TOKEN_COSINE_RATE, EFFECTIVE_RANK),
    Options,
    sites_of=sites_of,
    across=across,
    of_heads=False,
    findings=findings,
)
