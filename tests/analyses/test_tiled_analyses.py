"""method="tiled" gives the frames of method="dense", "auto" chooses by size, and what has no tiles says so."""

import numpy as np
import pandas as pd
import pytest
import torch
import transformers

import workbench
from tests.analyses.test_class_attention import images, narrow_vit
from workbench.analyses import registry
from workbench.captures import Capture, LayerRecord, capture
from workbench.core.errors import InputError

NUMBERS = ["value", "null_mean", "null_low", "null_high", "z"]


def padded_texts(lengths=(9, 4, 7)):
    """Texts of a few words that come again."""
    ids = torch.randint(1, 6, (len(lengths), max(lengths)), generator=torch.manual_seed(2))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return {"input_ids": ids * mask, "attention_mask": mask.long()}


def grouped_llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        intermediate_size=16, max_position_embeddings=32,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).double().eval()


RUNS = {
    "image": lambda: (narrow_vit(), images(3)),
    "texts with padding": lambda: (grouped_llama(), padded_texts()),
}


@pytest.mark.parametrize("heads", [None, "0,2"])
@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("name", ["attention-map", "attention-patterns"])
def test_both_ways_give_the_same_frame(name, kind, heads):
    model, inputs = RUNS[kind]()
    more = {"null_samples": 0} if name == "attention-map" else {}
    dense, tiled = (
        workbench.analyze(name, model=model, inputs=inputs, method=method, heads=heads, **more)
        for method in ("dense", "tiled")
    )
    pd.testing.assert_frame_equal(dense.drop(columns=NUMBERS), tiled.drop(columns=NUMBERS))
    for column in NUMBERS:
        np.testing.assert_allclose(tiled[column], dense[column], rtol=1e-8, atol=1e-9, err_msg=column)
    assert not any("in tiles" in note for note in dense.attrs["notes"])
    assert any("were measured in tiles" in note for note in tiled.attrs["notes"])


def test_a_file_of_q_k_v_with_an_output_of_its_own_heads_is_measured_either_way(tmp_path):
    source = torch.manual_seed(1)
    q, k, v = (torch.randn(2, heads, 13, 5, generator=source) for heads in (6, 3, 3))
    path = tmp_path / "theirs.npz"
    np.savez(path, q=q.numpy(), k=k.numpy(), v=v.numpy())
    for heads in (None, "1,4"):
        dense, tiled = (
            workbench.analyze("attention-map", qkv=path, method=method, heads=heads, null_samples=0)
            for method in ("dense", "tiled")
        )
        assert set(tiled["metric"]) == set(dense["metric"]) >= {"head_output_norm"}
        np.testing.assert_allclose(tiled["value"], dense["value"], rtol=1e-5, atol=1e-7)


def test_auto_forms_maps_up_to_a_size_and_captures_no_larger_one(monkeypatch):
    model, inputs = RUNS["texts with padding"]()
    small = workbench.analyze("attention-patterns", model=model, inputs=inputs)
    assert not any("in tiles" in note for note in small.attrs["notes"])
    monkeypatch.setattr(registry, "MAP_ENTRIES", 6 * 9 * 9 - 1)
    large = workbench.analyze("attention-patterns", model=model, inputs=inputs)
    assert any("2 of 2 layers" in note for note in large.attrs["notes"])
    np.testing.assert_allclose(large["value"], small["value"], rtol=1e-8)
    for limit, held in ((6 * 9 * 9, True), (6 * 9 * 9 - 1, False)):
        layer = capture(model, inputs, sites=["attn"], map_limit=limit)[0]
        assert (layer.attn is not None) == held
        assert (layer.q is not None) == (layer.mask is not None) == (not held)


def test_weights_that_are_no_softmax_of_q_and_k_are_left_to_the_dense_way():
    source = torch.manual_seed(3)
    q, k = (torch.randn(1, 2, 5, 3, generator=source) for _ in range(2))
    attn = torch.rand(1, 2, 5, 5, generator=source).softmax(-1)
    given = Capture([LayerRecord(0, "", q=q, k=k, attn=attn)], ("q", "k", "attn"))
    assert len(workbench.analyze("attention-patterns", qkv=given))
    with pytest.raises(InputError, match="not the softmax of q k"):
        workbench.analyze("attention-patterns", qkv=given, method="tiled")


def test_broken_scores_are_counted_as_in_maps_and_named_by_their_place():
    source = torch.manual_seed(4)
    q, k, v = (torch.randn(2, 3, 7, 5, generator=source) for _ in range(3))
    q[1, 2, 4, 0] = torch.nan
    given = Capture([LayerRecord(0, "", q=q, k=k, v=v)], ("q", "k", "v"))
    dense, tiled = (
        workbench.analyze("attention-map", qkv=given, method=method, null_samples=0)
        for method in ("dense", "tiled")
    )
    np.testing.assert_allclose(tiled["value"], dense["value"], rtol=1e-5, atol=1e-7)
    assert tiled.loc[tiled["metric"] == "nonfinite", "value"].max() == 7
    assert any("input 1, head 2, queries 4 to 4, keys 0 to 6" in note for note in tiled.attrs["notes"])


def test_an_analysis_of_whole_matrices_refuses_tiles_and_knows_the_other_words():
    q, k, v = (torch.randn(1, 2, 5, 3, generator=torch.manual_seed(5)) for _ in range(3))
    given = Capture([LayerRecord(0, "", q=q, k=k, v=v)], ("q", "k", "v"))
    for method in ("auto", "dense"):
        assert len(workbench.analyze("gram-spectrum", qkv=given, method=method))
    with pytest.raises(
        InputError, match=r"gram-spectrum has no method 'tiled'.*attention-map or attention-patterns"
    ):
        workbench.analyze("gram-spectrum", qkv=given, method="tiled")
