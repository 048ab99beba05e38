"""The table of protocols: the change of the inputs, and the measured quantities."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from workbench.core.errors import InputError
from workbench.core.intervals import share_interval
from workbench.core.null_distributions import derived_seed
from workbench.core.options import Option
from workbench.data.corruptions import SEVERITIES, corrupt, corruptions_of
from workbench.data.pools import photo_files, read_image
from workbench.studies.evaluation import attacks, perplexity, scores
from workbench.studies.evaluation.pixel_models import other_images
from workbench.studies.evaluation.scenes import climb, mean_over_corruptions, scene_scores
from workbench.studies.evaluation.sparse import sparse_l1_descent

if TYPE_CHECKING:
    from workbench.models.loading import LoadedModel
    from workbench.studies.evaluation.perplexity import Texts
    from workbench.studies.evaluation.pixel_models import Images, PixelModel

Row = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """The settings of an evaluation besides model and inputs."""

    budgets: tuple[float, ...]
    seed: int
    settings: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)
    """Remarks for a reader of the numbers, added while measuring."""
    model: LoadedModel | None = None
    """The model of the images, for a protocol that reads more images."""


ImageMeasure = Callable[["PixelModel", "Images", Request], Iterator[Row]]
TextMeasure = Callable[["LoadedModel", "Texts", Request], Iterator[Row]]


@dataclass(frozen=True)
class Protocol:
    """One kind of evaluation."""

    name: str
    title: str
    budget: str = ""
    """Quantity that its budget (``epsilon``) bounds; empty without a budget."""
    budgets: tuple[float, ...] = ()
    """Default budgets, scaled to the bundled models, whose accuracy then falls from clean to zero."""
    published: str = ""
    """The papers' own budget and settings."""
    settings: Mapping[str, Option] = field(default_factory=dict)
    images: ImageMeasure | None = None
    texts: TextMeasure | None = None
    scenes: ImageMeasure | None = None
    """For a segmentation, whose targets are the classes of pixels."""
    largest: float = 1.0
    """The largest possible budget."""

    @property
    def defaults(self) -> dict[str, Any]:
        """Return its default settings."""
        return {name: option.default for name, option in self.settings.items()}

    def summary(self) -> str:
        """Return title, budget and settings in one line."""
        parts = [self.title]
        if self.budget:
            parts.append(f"epsilon: {self.budget} [{', '.join(f'{budget:g}' for budget in self.budgets)}]")
        if self.settings:
            parts.append(", ".join(f"{name} {value}" for name, value in self.defaults.items() if value != ""))
        return "; ".join(parts)


# Images -----------------------------------------------------------------------------------------------------


def accuracies(model: PixelModel, pixels: Tensor, targets: Tensor, **named: Any) -> Iterator[Row]:
    """Yield rows of top-1 and top-5 accuracy, with Wilson intervals and the outcome of each image."""
    logits = model.logits(pixels)
    for top in scores.TOP:
        if top < logits.shape[1]:
            hits = scores.hits(logits, targets, top)
            value, low, high = share_interval(int(hits.sum()) / len(targets), len(targets))[:3]
            each = "".join("01"[hit] for hit in hits.tolist())
            yield {"metric": f"accuracy_top{top}", "value": value, "low": low, "high": high, **named,
                   "outcomes": each}  # fmt: skip


def _clean(model: PixelModel, images: Images, request: Request) -> Iterator[Row]:
    yield from accuracies(model, images.pixels, images.targets)


def _clean_scenes(model: PixelModel, images: Images, request: Request) -> Iterator[Row]:
    yield from scene_scores(model, images.pixels, images.targets)


def _tell_unmoved(request: Request, before: Tensor, after: Tensor, where: str) -> None:
    """Add a note if an attack returned every image unchanged: its accuracy is then that of clean images."""
    if torch.equal(before, after):
        request.notes.append(f"the attack moved none of the {len(before)} images {where}")


def _attacked(
    attack: Callable[..., Tensor], scored: Callable[..., Iterator[Row]] = accuracies, norm: str = "Linf"
) -> ImageMeasure:
    """Return a measure of accuracy (or of ``scored``) by budget; a budget of 0 leaves the images unchanged."""

    def measure(model: PixelModel, images: Images, request: Request) -> Iterator[Row]:
        for epsilon in request.budgets:
            changed = images.pixels
            if epsilon > 0:
                changed = attack(
                    model, changed, images.targets, epsilon, seed=request.seed, **request.settings
                )
                _tell_unmoved(request, images.pixels, changed, f"at epsilon {epsilon:g}")
            yield from scored(model, changed, images.targets, kind=norm, epsilon=epsilon)

    return measure


def _transferred(model: PixelModel, images: Images, request: Request) -> Iterator[Row]:
    """Yield accuracies on PGD images of another model, without this model's gradient."""
    from workbench.models.loading import load
    from workbench.studies.evaluation.pixel_models import open_images

    settings = dict(request.settings)
    source = load(settings.pop("source"), device=next(model.parameters()).device.type)
    attacked, same = open_images(source, images.identity["spec"], len(images), request.seed)
    if same.ids != images.ids or same.pixels.shape != images.pixels.shape:
        raise InputError(
            f"{source.spec} takes images of shape {tuple(same.pixels.shape[1:])}, and the attacked model of shape "
            f"{tuple(images.pixels.shape[1:])}: name a source of the same inputs"
        )
    for epsilon in request.budgets:
        changed = images.pixels
        if epsilon > 0:
            changed = attacks.pgd(attacked, changed, images.targets, epsilon, seed=request.seed, **settings)
        yield from accuracies(model, changed, images.targets, kind="Linf", epsilon=epsilon)


def _nearest(model: PixelModel, images: Images, request: Request) -> Iterator[Row]:
    """Yield accuracies by L2 budget from one search: an image falls once its change fits the budget."""
    adversarial = images.pixels
    if any(request.budgets):
        adversarial = attacks.carlini_wagner(
            model, adversarial, images.targets, seed=request.seed, **request.settings
        )
        _tell_unmoved(request, images.pixels, adversarial, "at any epsilon: it found no misclassified one")
    distance = (adversarial - images.pixels).flatten(1).norm(dim=1)
    for epsilon in request.budgets:
        within = (distance <= epsilon)[:, None, None, None]
        changed = torch.where(within, adversarial, images.pixels)
        yield from accuracies(model, changed, images.targets, kind="L2", epsilon=epsilon)


def corrupted(images: Images, name: str, severity: int, seed: int) -> Tensor:
    """Corrupt all images; randomness depends on the image's id, not on the other images."""
    changed = [
        corrupt(
            pixels.permute(1, 2, 0).numpy(),
            name,
            severity,
            np.random.default_rng(derived_seed(seed, name, label)),
        )
        for pixels, label in zip(images.pixels, images.ids, strict=True)
    ]
    return torch.from_numpy(np.stack(changed)).permute(0, 3, 1, 2).to(images.pixels.dtype)


def _corruptions(model: PixelModel, images: Images, request: Request) -> Iterator[Row]:
    """Yield accuracies by type and severity, and the errors by type and over all types."""
    errors = []
    for name in corruptions_of(*images.pixels.shape[2:]):
        wrong = []
        for severity in SEVERITIES:
            changed = corrupted(images, name, severity, request.seed)
            rows = list(accuracies(model, changed, images.targets, kind=name, severity=severity))
            wrong.append(1 - rows[0]["value"])
            yield from rows
        errors.append(math.fsum(wrong) / len(wrong))
        yield {"metric": "corruption_error", "value": errors[-1], "kind": name}
    yield {"metric": "corruption_error", "value": math.fsum(errors) / len(errors)}


def _corrupted_scenes(model: PixelModel, images: Images, request: Request) -> Iterator[Row]:
    """Yield scores by type and severity, and their means."""
    rows: list[Row] = []
    for name in corruptions_of(*images.pixels.shape[2:]):
        for severity in SEVERITIES:
            changed = corrupted(images, name, severity, request.seed)
            rows += scene_scores(model, changed, images.targets, kind=name, severity=severity)
    yield from rows
    yield from mean_over_corruptions(rows)


def mean_corruption_error(
    errors: Mapping[str, float], reference: Mapping[str, float]
) -> tuple[float, list[str]]:
    """Return the mean over types of a model's error divided by the reference's, and the excluded types.

    Types with both errors count; those on which the reference makes no error are excluded. NaN if none remain.
    """
    both = [name for name in errors if name in reference]
    ratios = [errors[name] / reference[name] for name in both if reference[name] > 0]
    left_out = [name for name in both if not reference[name] > 0]
    return (math.fsum(ratios) / len(ratios) if ratios else math.nan), left_out


def _out_of_distribution(model: PixelModel, images: Images, request: Request) -> Iterator[Row]:
    """Yield the AUPR of inverted images, cuts of photographs, and noise, with equal numbers of images.

    With ``outside``, the images of a folder are used instead, or all of them if there are fewer.
    """
    inside = model.logits(images.pixels)
    folder = request.settings["outside"]
    if folder:
        assert request.model is not None
        others = other_images(request.model, folder, len(images), request.seed)
        request.notes.append(
            f"{len(others)} images of {folder} beside {len(images)}: the AUPR of guessing is "
            f"{len(others) / (len(others) + len(images)):.3g}"
        )
        yield {"metric": "aupr", "value": scores.ood_aupr(inside, model.logits(others)), "kind": folder}
        return
    shape = images.pixels.shape
    generator = torch.Generator().manual_seed(derived_seed(request.seed, "noise"))
    outside = {
        "inverted": 1 - images.pixels,
        "photographs": photograph_cuts(shape[0], shape[1], (shape[2], shape[3]), request.seed),
        "noise": torch.rand(shape, generator=generator),
    }
    for kind, pixels in outside.items():
        value = scores.ood_aupr(inside, model.logits(pixels.to(images.pixels)))
        yield {"metric": "aupr", "value": value, "kind": kind}


def photograph_cuts(n: int, channels: int, size: tuple[int, int], seed: int) -> Tensor:
    """Cut `n` squares at random from the bundled photographs, resized to `size`: (n, channel, …)."""
    from torchvision.transforms import functional as transforms

    files = list(photo_files().values())
    if not files:
        raise InputError("no photographs in the installed scikit-image and scikit-learn; install them again")
    rng = np.random.default_rng(derived_seed(seed, "photographs"))
    photos = [torch.from_numpy(read_image(file).copy()) for file in files]
    cuts = []
    for number in range(n):
        photo = photos[number % len(photos)]
        photo = (photo[None] if photo.ndim == 2 else photo.permute(2, 0, 1)).float() / 255
        height, width = photo.shape[1:]
        side = int(rng.integers(min(height, width) // 8, min(height, width) // 2))
        top, left = (int(rng.integers(0, extent - side + 1)) for extent in (height, width))
        cut = photo[:, top : top + side, left : left + side]
        if cut.shape[0] != channels:
            cut = cut.mean(0, keepdim=True).expand(channels, -1, -1)
        cuts.append(transforms.resize(cut, list(size), antialias=True).clamp(0, 1))
    return torch.stack(cuts)


# Texts ------------------------------------------------------------------------------------------------------


def _perplexities(model: LoadedModel, chosen: Texts, request: Request) -> Iterator[Row]:
    """Yield the sliding-window perplexity by share of words swapped, of all tokens and of those kept."""
    window = int(request.settings["window"]) or model.max_length or perplexity.DEFAULT_WINDOW
    if model.max_length is not None and window > model.max_length:
        raise InputError(f"{model.spec} takes {model.max_length} tokens; a window of {window} is too long")
    stride = int(request.settings["stride"])
    for share in request.budgets or (0.0,):
        all_tokens, kept = [], []
        for text, label in zip(chosen.texts, chosen.ids, strict=True):
            rng = np.random.default_rng(derived_seed(request.seed, label))
            swapped = perplexity.swap_words(text, share, rng)
            ids, is_kept = perplexity.encode(model, swapped.text, swapped.kept)
            nll = perplexity.sliding_nll(model.module, ids, window, stride)
            all_tokens.append((float(nll.sum()), len(nll)))
            kept.append((float(nll[is_kept[1:]].sum()), int(is_kept[1:].sum())))
        named = {"epsilon": share, "kind": "words"} if request.budgets else {}
        for metric, parts in (("perplexity", all_tokens), ("perplexity_kept", kept)):
            if metric == "perplexity_kept" and not (request.budgets and any(count for _, count in parts)):
                continue
            totals, counts = (torch.tensor(column) for column in zip(*parts, strict=True))
            value, low, high = scores.perplexity(totals, counts)
            yield {"metric": metric, "value": value, "low": low, "high": high, **named}


_LINF = "largest change of a pixel (0 to 1)"
_CURVE = (0.0, 0.01, 0.02, 0.03, 0.04, 0.06)
_WINDOWS = {
    "window": Option(0, "tokens of a window; 0 takes the longest of the model", Annotated[int, Ge(0)]),
    "stride": Option(1, "step of the window, in tokens", Annotated[int, Ge(1)]),
}


def _count(default: int, what: str) -> Option:
    return Option(default, what, Annotated[int, Ge(1)])


_STEP = Option(0.15, "size of a step, as a share of epsilon", Annotated[float, Gt(0), Le(2)])
"""A step of twice the budget crosses it; a larger one ends at the same point."""
_STEPS, _QUERIES = "steps of the attack", "queries of the random search, per image"

_TABLE = (
    Protocol(
        "clean",
        "Inputs as they are",
        settings=_WINDOWS,
        images=_clean,
        texts=_perplexities,
        scenes=_clean_scenes,
    ),
    Protocol(
        "fgsm",
        "One signed gradient step",
        _LINF,
        _CURVE,
        "ε = 1/255 (teo2024 Table 2, Fig. 3; abdullaev2025 Table III)",
        images=_attacked(attacks.fgsm),
        scenes=_attacked(climb, scene_scores),
    ),
    Protocol(
        "pgd",
        "Projected gradient descent",
        _LINF,
        _CURVE,
        "ε = 1/255, 20 steps of 0.15 (teo2024 App. A.2)",
        {"steps": _count(20, _STEPS), "step_size": _STEP},
        images=_attacked(attacks.pgd),
        scenes=_attacked(climb, scene_scores),
    ),
    Protocol(
        "pgd-random",
        "Projected gradient descent from random starts, the worst of them",
        _LINF,
        (0.0, 0.02, 0.04),
        settings={
            "steps": _count(20, _STEPS),
            "step_size": _STEP,
            "restarts": _count(5, "random starts within the budget"),
        },
        images=_attacked(attacks.pgd),
    ),
    Protocol(
        "transfer",
        "Projected gradient descent against another model, its images given to this one",
        _LINF,
        _CURVE,
        settings={
            "source": Option("bundled:digits-vit", "model that the images are made against", str),
            "steps": _count(20, _STEPS),
            "step_size": _STEP,
        },
        images=_transferred,
    ),
    Protocol(
        "sld",
        "Sparse L1 descent: few pixels at a time",
        "sum of the changes of an image's values",
        (0.0, 0.25, 0.5, 0.75, 1.0, 2.0),
        "no budget stated (teo2024 App. A.2)",
        {
            "steps": _count(20, _STEPS),
            "step_size": Option(
                0.1, "length (L1) of a step, as a share of epsilon", Annotated[float, Gt(0), Le(2)]
            ),
            "changed": Option(
                0.01, "share of the values that a step changes", Annotated[float, Gt(0), Le(1)]
            ),
        },
        images=_attacked(sparse_l1_descent, norm="L1"),
        largest=math.inf,
    ),
    Protocol(
        "spsa",
        "Gradients estimated from logits",
        _LINF,
        (0.0, 0.04, 0.1),
        "ε = 0.1, 40 steps (teo2024 App. A.2)",
        {"steps": _count(40, _STEPS), "samples": _count(16, "random directions of an estimate")},
        images=_attacked(attacks.spsa),
    ),
    Protocol(
        "cw",
        "Nearest misclassified image (Carlini and Wagner)",
        "Euclidean norm of the change",
        (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6),
        "no budget stated (teo2024 App. A.2)",
        {
            "steps": _count(20, _STEPS),
            "searches": _count(3, "values of the trade-off constant tried for each image"),
        },
        images=_nearest,
        largest=math.inf,
    ),
    Protocol(
        "autoattack",
        "The worst of Auto-PGD with two losses and Square",
        _LINF,
        (0.0, 0.02, 0.04),
        "ε = 1/255, the standard ensemble (teo2024 App. A.2)",
        {
            "steps": _count(100, _STEPS),
            "restarts": _count(1, "random starts of Auto-PGD"),
            "queries": _count(250, _QUERIES),
        },
        images=_attacked(attacks.autoattack),
    ),
    Protocol(
        "square",
        "Random search over squares",
        _LINF,
        (0.0, 0.02, 0.04),
        "ε = 1/255 (teo2024 App. E.4)",
        {"queries": _count(250, _QUERIES)},
        images=_attacked(attacks.square),
    ),
    Protocol(
        "noise",
        "A random point within the budget",
        _LINF,
        (0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
        "strength not stated (teo2024 App. A.2)",
        images=_attacked(attacks.noise),
        scenes=_attacked(attacks.noise, scene_scores),
    ),
    Protocol(
        "corruptions", "Common corruptions, five severities", images=_corruptions, scenes=_corrupted_scenes
    ),
    Protocol(
        "ood",
        "Out-of-distribution (OOD) images by the largest probability",
        published="ImageNet-O beside images of its 200 classes (teo2024 App. A.1)",
        settings={
            "outside": Option(
                "", "inputs that are OOD, as imagenet:FOLDER; nothing for images made here", str
            )
        },
        images=_out_of_distribution,
    ),
    Protocol(
        "word-swap",
        f"Words replaced by {perplexity.SWAPPED}",
        "share of words replaced",
        (0.0, 0.025, 0.05, 0.1, 0.2),
        "share not stated (teo2024 App. A.4)",
        _WINDOWS,
        texts=_perplexities,
    ),
)
PROTOCOLS: dict[str, Protocol] = {protocol.name: protocol for protocol in _TABLE}
