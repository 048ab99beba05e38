"""What a layer hands to an analysis of some of its heads."""

from types import SimpleNamespace

import torch

from workbench.analyses.layer import Layer


def test_query_heads_of_a_group_share_its_keys():
    """Six query heads over two heads of keys: 0 to 2 read the first, 3 to 5 the second."""
    k = torch.arange(2.0).view(1, 2, 1, 1).expand(4, 2, 3, 5)
    found = Layer.of_queries(SimpleNamespace(heads=(0, 1, 3, 5)), k, 6)
    assert found.shape == (4, 4, 3, 5)
    assert found[0, :, 0, 0].tolist() == [0, 0, 1, 1]


def test_a_scale_for_each_head_is_that_of_the_chosen_heads():
    scales = torch.tensor([0.1, 0.2, 0.3, 0.4]).view(4, 1, 1)
    layer = SimpleNamespace(record=SimpleNamespace(scale=scales), heads=[1, 3], index=0)
    assert torch.equal(Layer.scale(layer, 9, 4), torch.tensor([0.2, 0.4]))
    layer.record.scale = None
    assert Layer.scale(layer, 9, 4) == 1 / 3
