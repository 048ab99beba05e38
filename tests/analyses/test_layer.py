"""What a layer hands to an analysis of some of its heads."""

import math
from types import SimpleNamespace

import pytest
import torch

from workbench import analyze
from workbench.analyses.layer import Layer, NotApplicable
from workbench.captures import Capture, LayerRecord, TokenInfo


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


def test_cross_attention_is_read_over_its_real_keys_from_the_first():
    """Two queries of a decoder attend to five keys of an encoder, the first two of which are padding."""
    attn = torch.tensor([[0.0, 0.0, 0.7, 0.2, 0.1], [0.0, 0.0, 0.5, 0.1, 0.4]]).expand(1, 1, -1, -1)
    encoder = TokenInfo(
        [["", "", "a", "b", "c"]],
        [["padding"] * 2 + ["word"] * 3],
        None,
        torch.tensor([[0, 0, 1, 1, 1]]).bool(),
    )
    decoder = TokenInfo([["x", "y"]], [["word"] * 2], None, torch.ones(1, 2, dtype=torch.bool), keys=encoder)
    capture = Capture([LayerRecord(0, "", attn=attn, source="cross")], ("attn",), tokens=decoder)
    rows = analyze("attention-map", qkv=capture, per="pair")
    assert rows[["query_label", "key_label", "key"]].values.tolist() == [
        [query, label, key] for query in "xy" for key, label in zip((2, 3, 4), "abc", strict=True)
    ]
    assert rows["value"].tolist() == pytest.approx([0.7, 0.2, 0.1, 0.5, 0.1, 0.4])
    frame = analyze("attention-map", qkv=capture).set_index("metric")
    assert frame.loc["attention_sink_key", "value"] == 2
    assert frame.loc["attention_sink", "value"] == pytest.approx(0.6)
    assert frame.loc["attention_sink", "null_mean"] == pytest.approx(1 / 3)
    assert frame.loc["attention_entropy", "null_mean"] == pytest.approx(math.log(3))


def test_rows_leave_padding_out_as_query_and_as_key():
    """Two texts of five tokens, the first with two of padding, under a causal mask, with the second of three heads."""
    tokens = TokenInfo(
        [[*"abcde"]] * 2,
        [["word"] * 3 + ["padding"] * 2, ["word"] * 5],
        None,
        torch.tensor([[1, 1, 1, 0, 0], [1] * 5]).bool(),
    )
    attn = torch.rand(2, 3, 5, 5, generator=torch.manual_seed(0))
    causal = torch.ones(5, 5).tril().bool()
    record = LayerRecord(0, "", attn=attn, mask=causal)
    rows = Layer(record, ["one", "two"], tokens, 0, chosen_heads=[1]).rows()
    assert torch.equal(rows.weights, attn[:, 1:2])
    for text, length in enumerate((3, 5)):
        for query in range(5):
            assert rows.queries[text, query] == (query < length)
            seen = [key <= query and key < length for key in range(5)]
            assert rows.visible[text, 0, query].tolist() == seen
    plain = Layer(LayerRecord(0, "", attn=attn), ["one", "two"], None, 0).rows()
    assert plain.visible.all()
    assert plain.queries.all()
    with pytest.raises(NotApplicable, match="channel"):
        Layer(LayerRecord(0, "", kind="channel", attn=attn), ["one", "two"], None, 0).rows()
