"""Contaminate images, and test whether RPC-Attention's sparse part marks the contamination (teo2024 §3).

A block of patches at a known random position is changed, the rest of the image is not. If principal attention pursuit
is robust because S absorbs corruption, ‖S_j‖ must be larger on these patches than on others, and larger than on the
same patches of the clean image.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.analyses.layer import Layer, NotApplicable
from workbench.analyses.robust_components import found_contamination, patches_of, split_of_layer, token_size
from workbench.captures import capture
from workbench.core import null_distributions
from workbench.core.errors import InputError, UnknownName
from workbench.core.intervals import mean_interval
from workbench.frames.estimate import null_range
from workbench.frames.measurement import Accumulator, Counts
from workbench.frames.provenance import versions
from workbench.frames.results import shared
from workbench.papers.verdicts import decide
from workbench.studies.evaluation.attacks import fgsm
from workbench.studies.evaluation.pixel_models import Images, PixelModel, open_images
from workbench.studies.evaluation.scores import hits

if TYPE_CHECKING:
    from workbench.captures import Capture
    from workbench.core.options import Numbers
    from workbench.models.loading import LoadedModel

BATCH = 32
EPSILON = 0.3
"""Budget of the attack: the difference between a digit's stroke and its neighbours."""


def _noise(pixels: Tensor, source: torch.Generator) -> Tensor:
    return torch.rand(pixels.shape, generator=source)


def _salt_and_pepper(pixels: Tensor, source: torch.Generator) -> Tensor:
    return (torch.rand(pixels.shape, generator=source) < 0.5).to(pixels.dtype)


_DRAWN: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "noise": _noise,
    "salt-and-pepper": _salt_and_pepper,
}
_ATTACK = "fgsm"
CONTAMINATIONS = (*_DRAWN, _ATTACK)
"""noise: every pixel of the block uniform in [0, 1]; salt-and-pepper: black or white; fgsm: one signed gradient step
of the model's own loss, of size `EPSILON`."""


@dataclass
class Contaminated:
    """Images before and after the contamination of a block of patches; a slice holds some of them."""

    kind: str
    clean: Images = field(repr=False)
    """The clean images."""
    pixels: Float[Tensor, "n channel height width"] = field(repr=False)
    """The contaminated ones, from 0 to 1."""
    marked: Bool[Tensor, "n row column"] = field(repr=False)
    """Which patches are contaminated."""
    classifier: PixelModel = field(repr=False)

    def __len__(self) -> int:
        return len(self.clean)

    def __getitem__(self, chosen: slice) -> Contaminated:
        images = self.clean
        clean = replace(
            images, pixels=images.pixels[chosen], targets=images.targets[chosen], ids=images.ids[chosen]
        )
        return replace(self, clean=clean, pixels=self.pixels[chosen], marked=self.marked[chosen])

    def images(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return clean and contaminated images for display, (height, width, channel) from 0 to 1."""
        clean, after = (list(part.permute(0, 2, 3, 1).numpy()) for part in (self.clean.pixels, self.pixels))
        return clean, after

    def accuracies(self) -> tuple[float, float]:
        """Return the model's accuracy on the clean and on the contaminated images."""
        clean, after = (
            float(hits(self.classifier.logits(part), self.clean.targets, 1).double().mean())
            for part in (self.clean.pixels, self.pixels)
        )
        return clean, after


def contaminate(
    model: LoadedModel, inputs: str, kind: str, *, n: int = 25, seed: int = 0, side: int = 3
) -> Contaminated:
    """Contaminate a block of side × side patches at a random position in `n` images of `inputs`.

    The position depends on the image's name and the seed, not on the kind; the block covers complete patches. Raises
    UnknownName for a kind that is not in `CONTAMINATIONS`, InputError for a model without a grid of patches or a block
    that covers it completely, MissingResource for ``fgsm`` without the attack library, and the errors of
    `workbench.inputs`.
    """
    from workbench.captures.token_labels import token_info

    if kind not in CONTAMINATIONS:
        raise UnknownName("contamination", kind, CONTAMINATIONS)
    classifier, clean = open_images(model, inputs, n, seed)
    grid = token_info(model, classifier.prepared(clean.pixels[:1])).grid
    if grid is None:
        raise InputError(f"{model.spec} has no grid of patches, and so no block to contaminate")
    if isinstance(side, bool) or not isinstance(side, int) or not 1 <= side < min(grid):
        raise InputError(
            f"side is that of a block of patches, from 1 to {min(grid) - 1} on a grid of {grid[0]} × {grid[1]}; got "
            f"{side!r}"
        )
    marked = torch.zeros(len(clean), *grid, dtype=torch.bool)
    drawn = clean.pixels.clone()
    for number, name in enumerate(clean.ids):
        generator = null_distributions.generator(seed, name, "place")
        row, column = (int(torch.randint(size - side + 1, (1,), generator=generator)) for size in grid)
        marked[number, row : row + side, column : column + side] = True
        if kind in _DRAWN:
            drawn[number] = _DRAWN[kind](clean.pixels[number], null_distributions.generator(seed, name, kind))
    if kind == _ATTACK:
        drawn = fgsm(classifier, clean.pixels, clean.targets, EPSILON, seed=seed)
    height, width = clean.pixels.shape[-2:]
    # A patch is a whole number of pixels; a remainder at the edge, as after a resize, belongs to no patch.
    over = marked.repeat_interleave(height // grid[0], 1).repeat_interleave(width // grid[1], 2)
    inside = torch.zeros(len(clean), 1, height, width, dtype=torch.bool)
    inside[:, 0, : over.shape[1], : over.shape[2]] = over
    return Contaminated(kind, clean, torch.where(inside, drawn, clean.pixels), marked, classifier)


def contamination_frame(
    model: LoadedModel,
    images: Contaminated,
    *,
    layers: Numbers = None,
    null_samples: int = 100,
    seed: int = 0,
    pursuit: bool = True,
) -> pd.DataFrame:
    """Measure layer by layer how well S marks the contaminated patches, in means as from `workbench.analyze`.

    ``contamination_auc`` and ``contamination_share`` for the candidates of
    `workbench.analyses.robust_components.contamination_scores`, with their null of marks permuted over the patches
    (``null_samples``, 0 for none); and the metrics of robust-components for ``clean`` and ``contaminated`` images, in
    the column ``candidate``. The column ``contamination`` names the kind.

    ``frame.attrs["notes"]`` has the model's accuracy before and after. Raises InputError for a model without a pursuit.
    """
    if null_samples < 0 or null_samples == 1:
        raise InputError(f"null_samples is 0 or a whole number from 2 up, got {null_samples}")
    rows = Accumulator(aggregate=True)
    measured = False
    for start in range(0, len(images), BATCH):
        part = images[start : start + BATCH]
        marked = part.marked.flatten(1)
        for clean, after in zip(*_layers(model, part, layers, seed, rows.counts), strict=True):
            try:
                for name, layer in (("clean", clean), ("contaminated", after)):
                    for measurement in split_of_layer(layer, {"candidate": name}):
                        rows.add(measurement, layer)
                for measurement in found_contamination(clean, after, marked, null_samples, pursuit):
                    rows.add(measurement, after)
                measured = True
            except NotApplicable:
                continue
    if not measured:
        raise InputError(_no_split(model))
    frame = rows.frame(model=model.spec, checkpoint=model.checkpoint).assign(contamination=images.kind)
    before, later = images.accuracies()
    notes = [
        f"{images.kind}: {before:.1%} of the clean images are correctly classified, {later:.1%} of the contaminated"
    ]
    frame.attrs["notes"] = [*notes, *rows.notes()]
    frame.attrs["provenance"] = shared(
        {
            "analysis": "contamination",
            "options": {
                "contamination": images.kind,
                "null_samples": null_samples,
                "pursuit": pursuit,
                "layers": layers,
            },
            "model": model.identity,
            "inputs": images.clean.identity,
            "seed": seed,
            "notes": frame.attrs["notes"],
            "versions": versions(),
        }
    )
    return frame


def contamination_findings(frame: pd.DataFrame) -> list[str]:
    """State whether S detects the contaminated patches, by kind and overall: AUC with intervals, means over inputs.

    Args:
        frame: results of `contamination_frame`, of one model; several kinds joined.
    """
    means = frame[frame["layer"].isna() & frame["head"].isna() & frame["input"].notna()]
    sentences, gains = [], []
    for kind, rows in means.groupby("contamination", sort=False):
        each = rows.pivot_table(index="input", columns=["metric", "candidate"], values="value")
        auc, share = each["contamination_auc"], each["contamination_share", "sparse"]
        gains.append(auc["sparse"] - auc["clean"])
        sparse_auc, clean_auc, more, over_keys, changed = (
            mean_interval(values).words(".3f")
            for values in (auc["sparse"], auc["clean"], gains[-1], auc["sparse"] - auc["keys"], auc["change"])
        )
        sentences.append(
            f"{kind}: ‖S_j‖ tells the contaminated patches with an AUC of {sparse_auc}, the same places of the clean "
            f"image with {clean_auc}, a gain of {more}; over the keys' distance from their mean a gain of {over_keys}; "
            f"the change of S has {changed}; mean over {len(each)} inputs with its 95 % CI"
            f"{_beside_permuted(frame, str(kind))}; {share.mean():.1%} of the energy of S lies there."
        )
    gain = mean_interval(sum(gains) / len(gains))
    verdict = decide(gain, (0, math.inf))
    return [
        *sentences,
        f"Over all kinds the gain is {gain.words('.3f')}. That S picks contamination out: {verdict}.",
    ]


def _beside_permuted(frame: pd.DataFrame, kind: str) -> str:
    """Return the range of the permutation null of the AUC of S, mean over inputs and layers."""
    level = frame[frame[["input", "layer", "head"]].isna().all(axis=1) & (frame["contamination"] == kind)]
    rows = level[(level["metric"] == "contamination_auc") & (level["candidate"] == "sparse")]
    if rows.empty or rows["null_low"].isna().all():
        return ""
    row = rows.iloc[0]
    return f"; {null_range(frame, 'permutation')} [{row['null_low']:.3f}, {row['null_high']:.3f}]"


def _layers(
    model: LoadedModel, images: Contaminated, layers: Numbers, seed: int, counts: Counts
) -> tuple[list[Layer], list[Layer]]:
    """Return the layers of both captures, clean and contaminated, in order."""

    def of(pixels: Tensor) -> list[Layer]:
        captured: Capture = capture(model, images.classifier.prepared(pixels), layers=layers, sites=("k",))
        return [Layer(record, images.clean.ids, captured.tokens, seed, counts=counts) for record in captured]

    return of(images.clean.pixels), of(images.pixels)


def _no_split(model: LoadedModel) -> str:
    return (
        f"no layer of {model.spec} performs a pursuit; give a model with RPC-Attention, such as "
        "bundled:digits-rpc-sym, or put it into one with workbench.replace_attention"
    )


IMAGES = ("clean", "contaminated", "change")


@dataclass
class SparseMaps:
    """‖S_j‖ of every patch on its grid: of the clean image, the contaminated one, and of the change of S."""

    values: Float[Tensor, "image input row column"]
    """In the order of `IMAGES`; the change is ‖S_j − S_j before‖."""
    marked: Bool[Tensor, "input row column"]
    images: tuple[list[np.ndarray], list[np.ndarray]]
    ids: list[str]
    kind: str
    layer: int
    model: str
    provenance: dict[str, Any]

    def frame(self) -> pd.DataFrame:
        """Return one row per number: model, layer, contamination, image, input, row, column, marked, value."""
        axes = [IMAGES, self.ids, *map(range, self.values.shape[2:])]
        names = ["image", "input", "row", "column"]
        rows = pd.MultiIndex.from_product(axes, names=names).to_frame(index=False)
        rows["marked"] = self.marked.expand(self.values.shape).numpy().ravel()
        rows["value"] = self.values.numpy().ravel()
        for name, value in (("contamination", self.kind), ("layer", self.layer), ("model", self.model)):
            rows.insert(0, name, value)
        rows.attrs["provenance"] = shared([self.provenance])
        return rows


def sparse_maps(model: LoadedModel, images: Contaminated, layer: int | None = None) -> SparseMaps:
    """Return ‖S_j‖ over all heads by patch, in one layer; by default the first with a pursuit.

    Raises InputError if the layer performs none.
    """
    pairs = zip(*_layers(model, images, layer, 0, Counts()), strict=True)
    split = [(before, after) for before, after in pairs if "sparse" in after.record.extra]
    if not split:
        raise InputError(
            _no_split(model) if layer is None else f"layer {layer} of {model.spec} performs no pursuit"
        )
    before, after = split[0]
    clean, later = before.record.sparse, after.record.sparse
    sizes = [patches_of(after, token_size(part)) for part in (clean, later, later - clean)]
    return SparseMaps(
        values=torch.stack(sizes).unflatten(-1, images.marked.shape[1:]).cpu(),
        marked=images.marked,
        images=images.images(),
        ids=images.clean.ids,
        kind=images.kind,
        layer=after.index,
        model=model.spec,
        provenance={
            "analysis": "sparse-maps",
            "options": {"contamination": images.kind, "layer": after.index},
            "model": model.identity,
            "inputs": images.clean.identity,
            "seed": images.clean.identity.get("seed"),
        },
    )
