import json

import pytest
import torch

from workbench.architectures import build
from workbench.errors import InputError, UnknownName

# image 12, patch 3, 2 channels, 5 classes, width 14, 7 heads of 2, depth 3: every size another
SMALL = {
    "name": "vit",
    "img_size": 12,
    "patch_size": 3,
    "in_chans": 2,
    "num_classes": 5,
    "embed_dim": 14,
    "depth": 3,
    "num_heads": 7,
    "mlp_ratio": 2.0,
}


def test_the_default_is_the_bundled_model():
    model = build({"name": "vit"})
    assert model(torch.zeros(2, 1, 16, 16)).shape == (2, 10)
    assert model.patch_embed.grid_size == (8, 8)
    assert model.get_parameter("pos_embed").shape == (1, 65, 48)
    assert [block.attn.num_heads for block in model.blocks] == [3, 3, 3, 3]


def test_a_dict_that_went_through_json_builds_the_same_model():
    model = build(json.loads(json.dumps(SMALL)))
    assert model(torch.zeros(4, 2, 12, 12)).shape == (4, 5)
    assert {name: p.shape for name, p in model.named_parameters()} == {
        name: p.shape for name, p in build(SMALL).named_parameters()
    }


@pytest.mark.parametrize("std", [0.02, 0.5])
def test_position_embedding_starts_with_the_spread_asked_for(std):
    torch.manual_seed(0)
    embedding = build({"name": "vit", "pos_embed_std": std}).get_parameter("pos_embed")
    # 65 × 48 draws: the sample's standard deviation is within 1.3 % of the true one at one sigma.
    assert embedding.std().item() == pytest.approx(std, rel=0.06)


def test_building_leaves_the_description_as_it_was():
    description = dict(SMALL)
    build(description)
    assert description == SMALL


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"name": "vti"}, UnknownName, "did you mean 'vit'"),
        ({"embed_dimm": 4}, UnknownName, "did you mean 'embed_dim'"),
        ({"patch_size": 5}, InputError, "patch_size 5 does not divide img_size 12"),
        ({"num_heads": 4}, InputError, "num_heads 4 does not divide embed_dim 14"),
    ],
)
def test_descriptions_that_cannot_be(change, error, message):
    with pytest.raises(error, match=message):
        build({**SMALL, **change})


@pytest.mark.parametrize("description", [{}, {"img_size": 12}, {"name": 3}, "vit"])
def test_a_description_needs_a_name(description):
    with pytest.raises(InputError, match='a table with a "name"'):
        build(description)
