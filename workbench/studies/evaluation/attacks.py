"""Attacks on a classifier of pixels: one signature for the Adversarial Robustness Toolbox and our SPSA.

Each takes (model, pixels, targets, budget) and returns images in [0, 1] within the budget. Budgets are the largest
change of a pixel (L∞), for ``carlini_wagner`` the Euclidean norm of the change (L2).
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from workbench.core.extras import require
from workbench.studies.evaluation.spsa import spsa as estimate_and_climb

BATCH = 128

Pixels = Float[Tensor, "n channel height width"]
Targets = Int[Tensor, " n"]


def noise(model: nn.Module, pixels: Pixels, targets: Targets, epsilon: float, *, seed: int = 0) -> Pixels:
    """Draw a point uniformly within the budget: the weakest attack."""
    del model, targets
    drawn = torch.rand(pixels.shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return (pixels + epsilon * drawn.to(pixels)).clamp(0, 1)


def fgsm(model: nn.Module, pixels: Pixels, targets: Targets, epsilon: float, *, seed: int = 0) -> Pixels:
    """Take one step of size `epsilon` along the sign of the gradient (Goodfellow et al. 2015)."""
    return _perturb("FastGradientMethod", model, pixels, targets, seed, eps=epsilon)


def pgd(
    model: nn.Module,
    pixels: Pixels,
    targets: Targets,
    epsilon: float,
    *,
    steps: int = 20,
    step_size: float = 0.15,
    restarts: int = 0,
    seed: int = 0,
) -> Pixels:
    """Take `steps` of size `step_size` · `epsilon`, each projected to the budget, from the image (Madry et al. 2018).

    With `restarts` it starts at that number of random points instead, and keeps the worst image. teo2024 prints a step
    of 0.15 with a budget of 1/255; its library (CleverHans) rejects a step above the budget, so the step is taken as a
    share of it.
    """
    options = {
        "eps": epsilon,
        "eps_step": step_size * epsilon,
        "max_iter": steps,
        "num_random_init": restarts,
    }
    return _perturb("ProjectedGradientDescent", model, pixels, targets, seed, **options, verbose=False)


def spsa(
    model: nn.Module,
    pixels: Pixels,
    targets: Targets,
    epsilon: float,
    *,
    steps: int = 40,
    samples: int = 16,
    seed: int = 0,
) -> Pixels:
    """Attack with gradients estimated from logits (black box); see :mod:`workbench.studies.evaluation.spsa`."""
    device = next(model.parameters()).device
    adversarial = estimate_and_climb(
        model, pixels.to(device), targets.to(device), epsilon, steps=steps, samples=samples, seed=seed
    )
    return adversarial.cpu()


def square(
    model: nn.Module,
    pixels: Pixels,
    targets: Targets,
    epsilon: float,
    *,
    queries: int = 250,
    seed: int = 0,
) -> Pixels:
    """Search squares at random (black box; Andriushchenko et al. 2020), with `queries` per image."""
    height, width = pixels.shape[2:]
    # The toolbox needs a first square smaller than the image; 0.8 is the published share of its area.
    share = min(0.8, (min(height, width) - 1) ** 2 / (height * width))
    options = {"eps": epsilon, "max_iter": queries, "p_init": share, "verbose": False}
    return _perturb("SquareAttack", model, pixels, targets, seed, **options)


def autoattack(
    model: nn.Module,
    pixels: Pixels,
    targets: Targets,
    epsilon: float,
    *,
    steps: int = 100,
    restarts: int = 1,
    queries: int = 250,
    seed: int = 0,
) -> Pixels:
    """Return the worst of Auto-PGD on the cross-entropy, Auto-PGD on the logit ratio, and Square (Croce & Hein 2020).

    Each attacks the images still classified correctly. The published ensemble also has FAB, and runs the logit ratio
    against nine targets and Square with 5000 queries.
    """
    options = {"eps": epsilon, "eps_step": 2 * epsilon, "max_iter": steps, "nb_random_init": restarts}
    classes = model(pixels[:1].to(next(model.parameters()).device)).shape[1]
    # The logit ratio divides by the gap to the third-largest logit.
    losses = ("cross_entropy", "difference_logits_ratio") if classes > 2 else ("cross_entropy",)
    adversarial = pixels.clone()
    for loss in (*losses, None):
        left = _right(model, adversarial, targets)
        if not left.any():
            break
        if loss is None:
            adversarial[left] = square(
                model, pixels[left], targets[left], epsilon, queries=queries, seed=seed
            )
        else:
            adversarial[left] = _perturb(
                "AutoProjectedGradientDescent",
                model,
                pixels[left],
                targets[left],
                seed,
                **options,
                loss_type=loss,
                verbose=False,
            )
    return adversarial


def carlini_wagner(
    model: nn.Module,
    pixels: Pixels,
    targets: Targets,
    *,
    steps: int = 20,
    searches: int = 3,
    seed: int = 0,
) -> Pixels:
    """Return the nearest misclassified image, in Euclidean norm (Carlini & Wagner 2017); the image itself if none.

    `searches` is the number of trade-off constants tried for each image, with `steps` of descent each.
    """
    options = {"max_iter": steps, "binary_search_steps": searches, "verbose": False}
    adversarial = _perturb("CarliniL2Method", model, pixels, targets, seed, **options)
    # The search goes through tanh, which moves also the images it gives up on by rounding.
    return torch.where(_right(model, adversarial, targets)[:, None, None, None], pixels, adversarial)


@torch.no_grad()
def _right(model: nn.Module, pixels: Pixels, targets: Targets) -> Tensor:
    device = next(model.parameters()).device
    parts = [model(part.to(device)).argmax(1).cpu() for part in pixels.split(BATCH)]
    return torch.cat(parts) == targets


def _perturb(
    name: str, model: nn.Module, pixels: Pixels, targets: Targets, seed: int, **options: Any
) -> Pixels:
    """Run an attack of the Adversarial Robustness Toolbox on `pixels`, by its class's name."""
    require(
        "this attack of the Adversarial Robustness Toolbox (clean, noise, spsa, sld, corruptions and ood do without)",
        "art",
    )
    from art.attacks import evasion
    from art.estimators.classification import PyTorchClassifier

    device = next(model.parameters()).device
    estimator = PyTorchClassifier(
        model=model,
        loss=nn.CrossEntropyLoss(),
        input_shape=tuple(pixels.shape[1:]),
        nb_classes=model(pixels[:1].to(device)).shape[1],
        clip_values=(0.0, 1.0),
        device_type="cpu" if device.type == "cpu" else "gpu",
    )
    with _seeded(seed):
        attack = getattr(evasion, name)(estimator, **options, batch_size=BATCH)
        adversarial = attack.generate(pixels.numpy().astype(np.float32), y=targets.numpy())
    return torch.from_numpy(adversarial).to(pixels.dtype)


@contextmanager
def _seeded(seed: int) -> Generator[None]:
    """Seed the global generators, which the toolbox uses, and restore them at the end."""
    before = np.random.get_state()  # noqa: NPY002 - the toolbox's generator, not ours
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 - the toolbox's generator, not ours
        try:
            yield
        finally:
            np.random.set_state(before)  # noqa: NPY002 - the toolbox's generator, not ours
