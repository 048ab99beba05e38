"""Principal components of patches: what the largest directions of a layer's tokens show, and whether it is the object.

The basis is joint over the inputs of a batch, so that a component, drawn as a colour, means the same in all of them
(Oquab et al. 2024). The first component gives a mask of each image, to compare with given ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import pandas as pd
import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.analyses.layer import Layer, NotApplicable, patch_places, rows_of_tokens
from workbench.analyses.patch_segments import Masks, patch_foreground
from workbench.analyses.registry import Analysis, OfInputs, OfMatrices
from workbench.core.null_distributions import generator
from workbench.core.operands import checked_tensors
from workbench.core.options import NullSamples
from workbench.frames.estimate import over_inputs
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric

Site = Annotated[
    Literal["resid_pre", "resid_mid", "resid_post", "q", "k", "v"],
    "tokens: of the residual stream, or queries, keys or values of all heads side by side",
]
Components = Annotated[int, Ge(1), Le(64), "number of components"]


@dataclass(frozen=True)
class Options(OfInputs):
    """Which tokens, how many components, and the masks to compare the first with."""

    site: Site = "resid_post"
    components: Components = 3
    masks: Annotated[
        Masks,
        "foreground to compare with (what is not black): a folder with one mask image per input, of its name; ink "
        "(bright patches, for the bundled digits); or none",
    ] = None
    mass: Annotated[
        float, Gt(0), Le(1), "share of the first component's positive part that the patches of its mask hold"
    ] = 0.6
    null_samples: Annotated[
        NullSamples, "null samples, at least 2, each of the tokens another decomposition; 0 leaves them out"
    ] = 5


@dataclass(frozen=True)
class TokenOptions(OfMatrices):
    """Which tokens, and how many components, for rows per token."""

    site: Site = "resid_post"
    components: Components = 3


_PATCH_PCA_SHARE = Metric(
    "patch_pca_share",
    "Variance of a principal component of patches",
    "share of an image's squared distances from the mean over all patches of the batch that lies along the component "
    "(rank); null: every feature permuted over the patches",
    "Oquab et al. 2024",
    low=0,
    high=1,
)
_PATCH_PCA_IOU = Metric(
    "patch_pca_iou",
    "IoU of the first component with the mask",
    "intersection over union of the given mask and of the fewest patches that hold the share mass of the first "
    "component's positive part; null: random masks of as many patches",
    "Caron et al. 2021",
    low=0,
    high=1,
    better="higher",
)
METRICS = (_PATCH_PCA_SHARE, _PATCH_PCA_IOU)
_BASIS = (
    "images, counted per layer, have components of a basis that is joint over the images of their batch; a batch_size "
    "of all images gives one basis"
)


class PatchComponents(NamedTuple):
    """Principal components of patches, the largest first.

    scores: each patch along each component; shares: of each input's squared distances from the joint mean.
    """

    scores: Float[Tensor, "input patch component"]
    shares: Float[Tensor, "input component"]


@checked_tensors
def patch_components(patches: Float[Tensor, "input patch feature"], count: int) -> PatchComponents:
    """Return the first components of the patches of all inputs, in one basis (Oquab et al. 2024).

    Signs are fixed: the longer tail of every component is positive (Σ scores³ ≥ 0). float64. Components that the
    patches do not have are 0.
    """
    centred = patches.double() - patches.double().mean((0, 1))
    flat = centred.flatten(0, 1)
    basis = torch.linalg.eigh(flat.mT @ flat).eigenvectors[:, -count:].flip(-1)
    scores = centred @ basis
    scores = scores * torch.where(scores.pow(3).sum((0, 1)) < 0, -1.0, 1.0)
    shares = scores.square().sum(1) / centred.square().sum((1, 2))[:, None]
    lacking = (0, count - scores.shape[-1])
    return PatchComponents(*(torch.nn.functional.pad(part, lacking) for part in (scores, shares)))


@checked_tensors
def mass_mask(weights: Float[Tensor, "*batch patch"], mass: float) -> Bool[Tensor, "*batch patch"]:
    """Return the fewest patches whose positive weights sum to the share ``mass`` of all (Caron et al. 2021).

    No patch where no weight is positive.
    """
    positive, order = weights.double().clamp_min(0).sort(dim=-1, descending=True)
    before = positive.cumsum(-1) - positive
    chosen = (before < mass * positive.sum(-1, keepdim=True)) & (positive > 0)
    return torch.zeros_like(chosen).scatter(-1, order, chosen)


@checked_tensors
def mask_iou(
    mask: Bool[Tensor, "*batch patch"], foreground: Bool[Tensor, "*batch patch"]
) -> Float[Tensor, "*batch"]:
    """Return intersection over union; NaN where the foreground holds no patch, or all."""
    iou = (mask & foreground).sum(-1) / (mask | foreground).sum(-1).double()
    return torch.where(foreground.any(-1) & ~foreground.all(-1), iou, torch.nan)


def _patches(layer: Layer, site: str) -> tuple[int, list[int], Float[Tensor, "input patch feature"]]:
    """Return the number of tokens of a layer, the places of the patches among them, and their vectors.

    Raises `NotApplicable` for windows, and for tokens that are not the model's.
    """
    tokens = layer.site(site)
    if layer.record.origin is not None or len(tokens) != len(layer.ids):
        raise NotApplicable("cuts the image into windows, whose rows are no inputs")
    if site in ("q", "k", "v"):
        tokens = layer.choose_heads(tokens).transpose(1, 2).flatten(2)
    elif tokens.ndim == 4:
        tokens = tokens.flatten(1, 2)
    kinds = layer.token_kinds(tokens.shape[1])
    if len(kinds) != tokens.shape[1]:
        raise NotApplicable(f"has {tokens.shape[1]} tokens that are not those of the input")
    places = patch_places(kinds, layer.grid)
    return len(kinds), places, tokens[:, places]


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """Measure the variance of every component, and the overlap of the first with the masks."""
    _, _, patches = _patches(layer, options.site)
    layer.counts.count(_BASIS, len(patches), len(patches))
    components = patch_components(patches, options.components)
    flat, drawn = patches.flatten(0, 1), []
    for sample in range(options.null_samples):
        source = generator(layer.seed, *layer.ids, layer.index, sample)
        order = torch.rand(flat.shape, generator=source).argsort(dim=0).to(flat.device)
        permuted = flat.gather(0, order).reshape(patches.shape)
        drawn.append(patch_components(permuted, options.components).shares)
    yield Measurement(
        _PATCH_PCA_SHARE,
        components.shares,
        ("input", "rank"),
        null_samples={"permutation": torch.stack(drawn, -1)} if drawn else {},
    )
    if options.masks is None:
        return
    assert layer.grid is not None  # there are patches
    masks = mass_mask(components.scores[..., 0], options.mass).cpu()
    observed, by_chance = [], []
    for number, name in enumerate(layer.ids):
        foreground = patch_foreground(options.masks, name, layer.grid, layer.image(number))
        observed.append(mask_iou(masks[number], foreground))
        orders = layer.orders(name, len(foreground), max(options.null_samples, 1))
        by_chance.append(mask_iou(masks[number][orders], foreground.expand(len(orders), -1)))
    yield Measurement(
        _PATCH_PCA_IOU,
        torch.stack(observed),
        ("input",),
        null_samples={"permutation": torch.stack(by_chance)} if drawn else {},
    )


def token_rows(layer: Layer, options: TokenOptions) -> Iterator[pd.DataFrame]:
    """Yield the score of every patch, component by component."""
    count, places, patches = _patches(layer, options.site)
    layer.counts.count(_BASIS, len(patches), len(patches))
    scores = patch_components(patches, options.components).scores
    for component, values in enumerate(scores.unbind(-1), start=1):
        every = values.new_full((len(values), count), torch.nan)
        every[:, places] = values
        rows = rows_of_tokens(layer, every[:, None], [pd.NA], component=component).drop(columns="head")
        yield rows[rows["kind"] == "patch"]


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """Report the variance of the first component by layer, and the layer whose mask fits best."""
    sentences = []
    first = frame[(frame["metric"] == _PATCH_PCA_SHARE.name) & (frame["rank"] == 1)]
    if len(first):
        layer = first.groupby("layer")["value"].mean().idxmax()
        rows = first[first["layer"] == layer]
        sentence = (
            f"the first component of patches holds most in layer {layer}: {over_inputs(rows).words('.0%')} of the "
            "variance"
        )
        null = rows["null_mean"].mean()
        sentences.append(sentence + ("" if pd.isna(null) else f" ({null:.0%} with permuted features)"))
    overlap = frame[(frame["metric"] == _PATCH_PCA_IOU.name) & frame["value"].notna()]
    if len(overlap):
        layer = overlap.groupby("layer")["value"].mean().idxmax()
        rows = overlap[overlap["layer"] == layer]
        null = rows["null_mean"].mean()
        sentences.append(
            f"its mask fits the given one best in layer {layer}: IoU {over_inputs(rows).words('.2f')}"
            + ("" if pd.isna(null) else f" (random masks of the same size: {null:.2f})")
        )
    return sentences


ANALYSIS = Analysis(
    "patch-pca",
    "Principal components of patches in one basis, their variance, and the first one as a mask",
    ("resid_post",),
    measure,
    METRICS,
    Options,
    sites_of=lambda options: (options.site,),
    findings=findings,
    finer=(
        Analysis(
            "patch-pca",
            "Principal components of patches, patch by patch",
            ("resid_post",),
            token_rows,
            (),
            TokenOptions,
            sites_of=lambda options: (options.site,),
            per="token",
        ),
    ),
)
