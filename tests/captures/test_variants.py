"""Our own attention variants, captured inside a vision transformer."""

import math

import pytest
import torch

import workbench
from tests.attention.modules import randn
from tests.attention.test_replacing import IMAGES, tiny
from workbench.attention import VARIANTS, AttentionModule, attention_module, replace_attention
from workbench.attention.base import merge_heads
from workbench.attention.softmax import SoftmaxAttention
from workbench.captures import SITES, Capture, attention_geometry, compare
from workbench.core.errors import IncompleteCapture


def model_with(name, layers=None, **options):
    model = tiny().double()
    replace_attention(model, name, layers, **options)
    return model


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_captured_completely(name):
    model = model_with(name)
    held = [set(vars(block.attn)) for block in model.blocks]
    with torch.no_grad():
        before = model(IMAGES.double())
    capture = workbench.capture(model, IMAGES.double(), sites=SITES)
    assert torch.equal(capture.result, before)
    assert [set(vars(block.attn)) for block in model.blocks] == held
    assert [record.index for record in capture] == [0, 1, 2, 3]
    assert capture.tokens.kinds[0] == ["class", "patch", "patch", "patch", "patch"]
    stream = model.patch_embed(IMAGES.double())
    stream = torch.cat([model.cls_token.expand(2, -1, -1), stream], 1) + model.pos_embed
    for record, block in zip(capture, model.blocks, strict=True):
        assert record.kind == VARIANTS[name].attends
        torch.testing.assert_close(block.attn.proj(merge_heads(record.head_out)) + stream, record.resid_mid)
        torch.testing.assert_close(block(stream), record.resid_post, rtol=0, atol=1e-12)
        stream = record.resid_post
        if record.kind == "token":
            mixed = record.attn @ record.v
            if name == "gated":
                mixed = mixed * record.gate
            elif name == "differential":
                size = (mixed.square().mean(-1, keepdim=True) + 1e-5).sqrt()
                mixed = (1 - block.attn.start) * mixed / size
            torch.testing.assert_close(mixed, record.head_out, rtol=0, atol=1e-12)
        elif record.kind == "none":
            assert record.attn is None
    # The first layer holds all a variant has; in a later one a pursuit may be left out.
    held_sites = {site for site in SITES if getattr(capture[0], site) is not None}
    assert set(VARIANTS[name].sites) <= held_sites | set(capture[0].extra)


def test_own_sites_are_attributes_too_and_travel_through_files(tmp_path):
    model = model_with("tssa", layers=[1])
    replace_attention(model, "rpc-sym", layers=[2], num_iter=2, lambd=0.1)
    capture = workbench.capture(model, IMAGES.double())
    assert [record.kind for record in capture] == ["token", "none", "token", "token"]
    assert capture[1].q is None
    torch.testing.assert_close(capture[1].membership.sum(1), torch.ones(2, 5, dtype=torch.float64))
    assert capture[2].sparse.shape == capture[2].k.shape
    with pytest.raises(AttributeError, match=r"no 'sparse'; beside the usual sites it has membership"):
        _ = capture[1].sparse
    loaded = Capture.load(capture.save(tmp_path / "capture.safetensors"))
    assert [record.kind for record in loaded] == ["token", "none", "token", "token"]
    assert torch.equal(loaded[1].membership, capture[1].membership)
    assert loaded[1].attn is None
    assert compare(capture, loaded)["relative_difference"].max() == 0


def test_chosen_layers_count_each_variant_once_however_often_it_attends():
    # RPC calls the kernel three times in a layer, scaled-alpha twice.
    model = model_with("rpc-asym", num_iter=3)
    replace_attention(model, "scaled-alpha", layers="1,2")
    everything = workbench.capture(model, IMAGES.double())
    for layers in ("2", "-1", "0,3", [-3]):
        chosen = workbench.capture(model, IMAGES.double(), layers=layers, sites=("k",))
        for record in chosen:
            assert torch.equal(record.k, everything[record.index].k)
            assert record.path == f"blocks.{record.index}.attn"


def test_gradients_flow_through_what_was_captured():
    model = model_with("rpc-sym", layers=[0], num_iter=2)
    capture = workbench.capture(model, IMAGES.double(), layers=[0], grad=True)
    gradient = torch.autograd.grad(capture.result.sum(), [capture[0].k, capture[0].sparse], allow_unused=True)
    assert gradient[0].abs().max() > 0


def test_a_causal_variant_records_its_mask():
    module = attention_module("scaled-alpha", 15, 3, causal=True).double()
    capture = workbench.capture(module, randn(2, 7, 15))
    assert not capture[0].attn.triu(1).any()
    assert torch.equal(capture[0].mask[0, 0], torch.ones(7, 7, dtype=torch.bool).tril())


def test_analyses_leave_out_layers_without_attention_between_tokens_and_say_so():
    model = model_with("tssa", layers=[1])
    capture = workbench.capture(
        model, randn(5, 1, 4, 4), sites=("q", "k", "v", "scale", "attn", "resid_post")
    )
    maps = workbench.analyze("attention-map", qkv=capture, batch_size=2)
    assert set(maps["layer"].dropna()) == {0, 2, 3}
    assert "layer 1 left out: mixes tokens without attention from token to token" in maps.attrs["notes"]
    similarity = workbench.analyze("token-similarity", qkv=capture, batch_size=2)
    assert set(similarity["layer"].dropna()) == {0, 1, 2, 3}


def test_geometry_is_known_without_running():
    assert attention_geometry(model_with("rpc-sym")) == (4, 3, 5)


class _Wrong(SoftmaxAttention):
    """Reports keys that it did not use."""

    def attend(self, x, mask=None, *, observe=False):
        output, inside = super().attend(x, mask, observe=observe)
        return output, inside | ({"k": 2 * inside["k"]} if observe else {})


class _Silent(AttentionModule):
    """Attends behind the back of attend()."""

    def forward(self, x, attn_mask=None, is_causal=False):
        return self.proj(x)


def test_a_variant_that_reports_something_else_is_caught():
    with pytest.raises(IncompleteCapture, match="differs from the captured output"):
        workbench.capture(_Wrong(15, 3).double(), randn(2, 7, 15))
    with pytest.raises(IncompleteCapture, match="never called its attend"):
        workbench.capture(_Silent(15, 3).double(), randn(2, 7, 15))


def test_an_error_leaves_the_model_as_it_was():
    model = model_with("softmax-sym")
    with pytest.raises(ValueError, match="NaN or infinite"):
        workbench.capture(model, torch.full((2, 1, 4, 4), math.nan, dtype=torch.float64))
    assert all("attend" not in vars(block.attn) for block in model.blocks)
