import pytest
import torch

from workbench.studies.training.augmentation import augment
from workbench.studies.training.recipes import Augmentation


@pytest.fixture
def images():
    torch.manual_seed(0)
    return torch.rand(3, 2, 16, 12)


def test_without_changes_nothing_is_touched_or_drawn(images):
    before = torch.get_rng_state()
    assert augment(images, Augmentation()) is images
    assert torch.equal(before, torch.get_rng_state())


def test_vanishing_changes_leave_the_images(images):
    changed = augment(images, Augmentation(rotation=1e-6, shift=1e-7, zoom=1e-7))
    torch.testing.assert_close(changed, images, rtol=0, atol=1e-5)


def test_a_constant_image_stays_constant():
    flat = torch.full((5, 1, 7, 9), 0.3)
    torch.testing.assert_close(augment(flat, Augmentation(40.0, 0.3, 0.4)), flat)


def test_values_stay_between_those_of_the_image(images):
    changed = augment(images, Augmentation(30.0, 0.2, 0.3))
    assert not torch.allclose(changed, images)
    assert (changed.amin((2, 3)) >= images.amin((2, 3)) - 1e-6).all()
    assert (changed.amax((2, 3)) <= images.amax((2, 3)) + 1e-6).all()


def test_same_generator_same_changes_and_images_differ_among_themselves():
    same = torch.rand(1, 1, 8, 8).expand(4, 1, 8, 8)
    torch.manual_seed(5)
    first = augment(same, Augmentation(20.0, 0.1, 0.1))
    torch.manual_seed(5)
    assert torch.equal(first, augment(same, Augmentation(20.0, 0.1, 0.1)))
    assert not torch.allclose(first[0], first[1])


def test_a_turn_keeps_distances_from_the_centre_in_an_oblong_image():
    # A disc around the centre is its own image under any turn, whatever the shape of the image.
    rows = torch.arange(40.0)[:, None] - 19.5
    columns = torch.arange(24.0)[None] - 11.5
    disc = torch.exp(-(rows**2 + columns**2) / 18)[None, None]
    turned = augment(disc, Augmentation(rotation=80.0))
    torch.testing.assert_close(turned, disc, rtol=0, atol=0.02)


def test_a_shift_moves_by_its_share_of_the_width(monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda *shape: torch.tensor([[0.5, 0.5, 1.0, 0.5]]))
    image = torch.zeros(1, 1, 6, 10)
    image[0, 0, 2, 7] = 1
    moved = augment(image, Augmentation(shift=0.2))  # to the left by two of ten pixels
    assert moved[0, 0, 2, 5] == pytest.approx(1, abs=1e-5)
