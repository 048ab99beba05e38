"""What every attack must keep to, and what each finds on a planted linear classifier."""

import sys

import numpy as np
import pytest
import torch

from workbench.core.errors import MissingResource
from workbench.studies.evaluation import attacks
from workbench.studies.evaluation.spsa import estimate_gradient, margin, spsa

BOUNDED = {
    "noise": {},
    "fgsm": {},
    "pgd": {"steps": 5},
    "spsa": {"steps": 5, "samples": 4},
    "square": {"queries": 10},
    "autoattack": {"steps": 4, "queries": 5},
}


def right(model, pixels, targets):
    return (model(pixels).argmax(1) == targets).float().mean().item()


@pytest.mark.parametrize("name", BOUNDED)
def test_an_attack_stays_within_its_budget_and_within_the_pixels(planted, name):
    pixels, targets = planted.sample(12)
    found = getattr(attacks, name)(planted, pixels, targets, 0.07, seed=3, **BOUNDED[name])
    assert found.shape == pixels.shape
    assert (found - pixels).abs().max() <= 0.07 + 1e-6
    assert 0 <= found.min() <= found.max() <= 1
    assert not torch.equal(found, pixels)


@pytest.mark.parametrize("name", BOUNDED)
def test_an_attack_is_repeated_exactly_and_leaves_the_callers_chance_alone(planted, name):
    pixels, targets = planted.sample(7)
    np.random.seed(5)  # noqa: NPY002 - the generator that the toolbox draws from
    torch.manual_seed(5)
    expected = np.random.rand(), torch.rand(1)  # noqa: NPY002 - the generator that the toolbox draws from
    np.random.seed(5)  # noqa: NPY002 - the generator that the toolbox draws from
    torch.manual_seed(5)
    attack = getattr(attacks, name)
    first = attack(planted, pixels, targets, 0.05, seed=2, **BOUNDED[name])
    assert (np.random.rand(), torch.rand(1)) == expected  # noqa: NPY002 - the generator that the toolbox draws from
    assert torch.equal(first, attack(planted, pixels, targets, 0.05, seed=2, **BOUNDED[name]))


def test_fgsm_on_a_two_class_linear_model_is_the_sign_of_the_weights(planted):
    two = type(planted)(classes=2, size=(1, 3, 4))
    pixels, targets = two.sample(6)
    pixels = pixels.clamp(0.2, 0.8)
    found = attacks.fgsm(two, pixels, targets, 0.1)
    away = torch.where(targets.bool(), -1.0, 1.0).view(-1, 1, 1, 1) * (two.means[1] - two.means[0]).sign()
    torch.testing.assert_close(found - pixels, 0.1 * away, atol=1e-6, rtol=0)


def test_on_a_linear_model_gradient_attacks_do_what_the_worst_perturbation_does(planted):
    """The worst perturbation of a two-class linear model is known, and FGSM, PGD and Auto-PGD reach it."""
    two = type(planted)(classes=2, size=(1, 4, 4), seed=4)
    pixels, targets = two.sample(40, noise=0.25)
    pixels = pixels.clamp(0.1, 0.9)
    away = torch.where(targets.bool(), -1.0, 1.0).view(-1, 1, 1, 1) * (two.means[1] - two.means[0]).sign()
    worst = right(two, pixels + 0.06 * away, targets)
    assert worst < right(two, pixels, targets) - 0.05
    few = {"steps": 8, "queries": 2}
    for name, settings in (("fgsm", {}), ("pgd", {}), ("autoattack", few)):
        found = getattr(attacks, name)(two, pixels, targets, 0.06, **settings)
        assert right(two, found, targets) == worst


@pytest.mark.parametrize(
    ("name", "settings"),
    [("fgsm", {}), ("pgd", {"steps": 5, "step_size": 0.5}), ("spsa", {"steps": 20, "samples": 8})],
)
def test_accuracy_falls_with_the_budget(planted, name, settings):
    pixels, targets = planted.sample(60)
    curve = [right(planted, pixels, targets)]
    for epsilon in (0.04, 0.08, 0.16):
        found = getattr(attacks, name)(planted, pixels, targets, epsilon, **settings)
        curve.append(right(planted, found, targets))
    assert curve == sorted(curve, reverse=True)
    assert curve[-1] < curve[0] - 0.2


def test_pgd_is_no_weaker_than_clean_and_no_weaker_than_noise(planted):
    pixels, targets = planted.sample(45)
    clean, noisy, attacked = (
        right(planted, changed, targets)
        for changed in (
            pixels,
            attacks.noise(planted, pixels, targets, 0.1),
            attacks.pgd(planted, pixels, targets, 0.1),
        )
    )
    assert attacked < noisy <= clean + 0.05
    assert attacked < clean


def test_random_starts_escape_a_plateau_that_the_image_lies_on(planted):
    """Where the gradient at the image is zero, PGD from the image stands still; from random starts it does not."""

    class Masked(type(planted)):
        def forward(self, pixels):
            away = (pixels - self.middle).abs().flatten(1).amax(1, keepdim=True)
            return super().forward(pixels) * torch.where(away > 1e-6, 1.0, 0.0) + self.clean * (away <= 1e-6)

    masked = Masked(classes=2, size=(1, 3, 3), seed=2)
    pixels, targets = masked.sample(1, noise=0.0)
    masked.middle, masked.clean = pixels, torch.nn.functional.one_hot(targets, 2).float()
    still = attacks.pgd(masked, pixels, targets, 0.3, step_size=0.5)
    moved = attacks.pgd(masked, pixels, targets, 0.3, step_size=0.5, restarts=3)
    assert right(masked, still, targets) == 1
    assert right(masked, moved, targets) == 0


def test_carlini_wagner_finds_nearly_the_distance_to_the_boundary(planted):
    """For a linear two-class model the nearest misclassified point lies |margin| / ‖weight difference‖ away."""
    two = type(planted)(classes=2, size=(1, 3, 3), seed=2)
    pixels, targets = two.sample(4, noise=0.05)
    found = attacks.carlini_wagner(two, pixels, targets, steps=20, searches=6)
    logits = two(pixels)
    slope = 4 * (two.means[1] - two.means[0]).norm()
    distance = (found - pixels).flatten(1).norm(dim=1)
    was_right = logits.argmax(1) == targets
    moved = was_right & (distance > 0)
    assert moved.sum() >= 2
    exact = (logits[:, 1] - logits[:, 0]).abs() / slope
    assert (distance[moved] >= exact[moved] - 1e-4).all()
    assert (distance[moved] <= 1.25 * exact[moved] + 0.02).all()
    assert (two(found).argmax(1) != targets)[moved].all()


def test_images_on_which_an_attack_gives_up_stay_as_they_are(planted):
    pixels, targets = planted.sample(5)
    sure = type(planted)(classes=2, size=(1, 4, 5))
    sure.means[1] = 50.0  # class 0 is right, far from any boundary within [0, 1]
    assert torch.equal(attacks.carlini_wagner(sure, pixels, 0 * targets, steps=3, searches=2), pixels)


def test_a_missing_library_is_said_with_what_to_install(planted, monkeypatch):
    monkeypatch.setitem(sys.modules, "art", None)
    pixels, targets = planted.sample(3)
    with pytest.raises(MissingResource, match=r"needs art.*\[studies\]"):
        attacks.fgsm(planted, pixels, targets, 0.1)


# SPSA -------------------------------------------------------------------------------------------------------


def test_spsa_estimates_the_gradient_of_a_linear_function():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    x = torch.randn(5, 3, 2, generator=generator, dtype=torch.float64)
    samples = 4000
    found = estimate_gradient(
        lambda at: (at * weight).sum((1, 2)), x, samples=samples, delta=0.1, generator=generator
    )
    spread = (weight.square().sum() - weight.square()).sqrt() / samples**0.5
    assert ((found - weight).abs() < 5 * spread).all()


def test_one_direction_of_spsa_is_the_slope_along_it():
    inputs, width = 40, 5  # an odd number of signs has no sum of 0
    generator = torch.Generator().manual_seed(1)
    found = estimate_gradient(
        lambda at: at.sum(1), torch.zeros(inputs, width), samples=1, delta=0.5, generator=generator
    )
    slope = found.abs()[:, 0]  # of a sum along signs: their sum; and the estimate is that times the signs
    torch.testing.assert_close(found.abs(), slope[:, None].expand(-1, width))
    torch.testing.assert_close(found.sum(1), slope.square())
    assert set(slope.round().tolist()) == {1.0, 3.0, 5.0}
    assert len({tuple(row) for row in found.sign().tolist()}) > inputs / 4  # each input has its own direction


def test_the_margin_is_positive_exactly_where_the_model_is_wrong():
    logits = torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.5, 4.0]])
    targets = torch.tensor([0, 1, 2])
    assert margin(logits, targets).tolist() == [-1.0, 1.0, -3.5]


def test_spsa_leaves_alone_what_is_already_wrong(planted):
    pixels, targets = planted.sample(9, noise=0.02)
    wrong = (targets + 1) % 3
    assert torch.equal(attacks.spsa(planted, pixels, wrong, 0.1, steps=3, samples=2), pixels)


def test_noise_goes_both_ways_and_another_seed_is_other_noise(planted):
    pixels, targets = torch.full((4, 1, 9, 9), 0.5), torch.zeros(4, dtype=torch.long)
    found = attacks.noise(planted, pixels, targets, 0.2, seed=1) - pixels
    assert found.min() < -0.19
    assert found.max() > 0.19
    assert found.mean().abs() < 0.03
    assert not torch.equal(found, attacks.noise(planted, pixels, targets, 0.2, seed=2) - pixels)


def test_one_step_of_pgd_is_its_share_of_the_budget(planted):
    pixels, targets = planted.sample(6)
    pixels = pixels.clamp(0.3, 0.7)
    moved = attacks.pgd(planted, pixels, targets, 0.1, steps=1, step_size=0.15) - pixels
    torch.testing.assert_close(moved.abs(), torch.full_like(moved, 0.015))
    thrice = attacks.pgd(planted, pixels, targets, 0.1, steps=3, step_size=0.15) - pixels
    assert thrice.abs().max() == pytest.approx(0.045, abs=1e-6)


def test_carlini_wagner_keeps_what_it_found_only_where_the_model_is_wrong_then(planted, monkeypatch):
    pixels, targets = planted.sample(9, noise=0.01)
    moved = pixels.roll(1, 0)  # images of the class before
    moved[::2] = pixels[::2] + 1e-5  # moved by rounding alone
    monkeypatch.setattr(attacks, "_perturb", lambda *given, **options: moved)
    found = attacks.carlini_wagner(planted, pixels, targets)
    assert torch.equal(found[::2], pixels[::2])
    assert torch.equal(found[1::2], moved[1::2])


def test_spsa_climbs_as_adam_does_on_its_estimates(planted, monkeypatch):
    """Adam of torch, with both corrections of its bias, on the same gradients; asked 2 · samples + 1 times a step."""
    pixels, targets = planted.sample(3, noise=0.01)
    pixels = pixels.clamp(0.3, 0.7)
    estimates = [
        torch.randn(pixels.shape, generator=torch.Generator().manual_seed(step)) for step in range(3)
    ]
    rest = iter(estimates)
    monkeypatch.setattr(
        "workbench.studies.evaluation.spsa.estimate_gradient", lambda *given, **more: next(rest)
    )
    sure = lambda at: torch.stack([at.new_ones(len(at)) * 9 * (targets[: len(at)] == c) for c in range(3)], 1)  # noqa: E731 - never wrong
    found = spsa(sure, pixels, targets, 0.3, steps=3)
    x = pixels.clone().requires_grad_()
    adam = torch.optim.Adam([x], lr=0.01, maximize=True)
    for estimate in estimates:
        x.grad = estimate.clone()
        adam.step()
    torch.testing.assert_close(found, x.detach(), atol=1e-6, rtol=0)


def test_spsa_stays_within_its_budget_where_it_would_go_further(planted):
    pixels, targets = planted.sample(4, noise=0.01)
    pixels = pixels.clamp(0.3, 0.7)
    asked = []

    def model(at):
        asked.append(len(at))
        return 99 * torch.nn.functional.one_hot(targets[: len(at)], 3) + planted(at)

    found = spsa(model, pixels, targets, 0.015, steps=4, samples=3)
    assert (found - pixels).abs().max() == pytest.approx(0.015, abs=1e-6)
    assert len(asked) == 4 * (1 + 2 * 3)


@pytest.mark.parametrize(("size", "share"), [((32, 32), 0.8), ((8, 8), 49 / 64), ((6, 9), 25 / 54)])
def test_the_first_square_is_the_published_share_of_the_image_or_smaller_than_the_image(
    size, share, planted, monkeypatch
):
    asked = []
    monkeypatch.setattr(attacks, "_perturb", lambda *_, **options: asked.append(options))
    attacks.square(planted, torch.zeros(2, 1, *size), torch.zeros(2), 0.1)
    assert asked[0]["p_init"] == pytest.approx(share)
    assert (asked[0]["p_init"] * size[0] * size[1]) ** 0.5 < min(size)
