import pytest
import torch
from timm.layers import DropPath

from workbench.core.errors import InputError
from workbench.models.architectures import build
from workbench.studies.training.augmentation import Mixing, drop_paths
from workbench.studies.training.recipes import Recipe


def recipe(**changes):
    return Recipe("images", {"name": "vit"}, epochs=1, batch_size=4, learning_rate=1e-3, **changes)


def test_without_mixing_everything_passes_through():
    images, targets = torch.randn(3, 1, 4, 4), torch.tensor([0, 2, 1])
    mixed = Mixing(recipe(), 3)(images, targets)
    assert mixed[0] is images
    assert mixed[1] is targets


def test_smoothed_targets_share_a_little_among_all():
    images = torch.randn(3, 1, 4, 4)
    kept, targets = Mixing(recipe(label_smoothing=0.2), 5)(images, torch.tensor([0, 4, 1]))
    assert kept is images
    torch.testing.assert_close(targets.sum(1), torch.ones(3))
    assert targets[1].tolist() == pytest.approx([0.04, 0.04, 0.04, 0.04, 0.84])


@pytest.mark.parametrize("change", [{"mixup": 0.8}, {"cutmix": 1.0}, {"mixup": 0.8, "cutmix": 1.0}])
def test_mixed_images_have_targets_in_the_same_proportion(change):
    torch.manual_seed(0)
    images = torch.stack([torch.full((1, 6, 6), float(value)) for value in range(4)])
    mixed, targets = Mixing(recipe(**change), 4)(images.clone(), torch.arange(4))
    torch.testing.assert_close(targets.sum(1), torch.ones(4))
    expected = (targets * torch.arange(4.0)).sum(1)
    torch.testing.assert_close(mixed.mean((1, 2, 3)), expected, rtol=1e-4, atol=1e-4)


def test_mixing_that_cannot_be():
    with pytest.raises(InputError, match="belong to tasks with classes"):
        Mixing(recipe(mixup=0.5), 0)
    with pytest.raises(InputError, match="need an even batch_size, got 3"):
        Mixing(Recipe("images", {"name": "vit"}, 1, 3, 1e-3, mixup=0.5), 4)


def test_stochastic_depth_grows_from_the_first_block_to_the_last():
    model = build({"name": "vit", "patch_size": 8, "embed_dim": 6, "depth": 3, "num_heads": 2})
    drop_paths(model, 0.4)
    assert [block.drop_path1.drop_prob for block in model.blocks] == [0, 0.2, 0.4]
    assert all(isinstance(block.drop_path2, DropPath) for block in model.blocks)
    images = torch.randn(2, 1, 16, 16)
    model.eval()
    torch.testing.assert_close(model(images), model(images))
    with pytest.raises(InputError, match="drop_path needs timm's blocks, and Linear has none"):
        drop_paths(torch.nn.Linear(2, 2), 0.1)
