import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

import workbench
from tests.attention.modules import randn
from workbench.attention import VARIANTS, attention_module, replace_attention
from workbench.errors import InputError, UnknownName


def tiny(**options):
    """4 layers, 3 heads of width 5, 2 × 2 patches and a class token."""
    torch.manual_seed(0)
    settings = {
        "img_size": 4,
        "patch_size": 2,
        "in_chans": 1,
        "num_classes": 6,
        "embed_dim": 15,
        "depth": 4,
        "num_heads": 3,
        "mlp_ratio": 2.0,
    }
    return VisionTransformer(**(settings | options)).eval()


IMAGES = randn(2, 1, 4, 4, dtype=torch.float32)


def test_softmax_for_softmax_keeps_every_weight_and_the_output():
    model = tiny()
    before = model(IMAGES)
    report = replace_attention(model, "softmax")
    assert report.layers == (0, 1, 2, 3)
    assert not any(report.new.values())
    assert not any(report.dropped.values())
    assert torch.equal(model(IMAGES), before)


def test_what_was_kept_and_what_not_is_said_and_can_be_undone():
    model = tiny()
    before, state, modules = model(IMAGES), dict(model.state_dict()), [block.attn for block in model.blocks]
    report = replace_attention(model, "rpc-sym", layers=[0], num_iter=4, lambd=4)
    assert report.layers == (0,)
    assert set(report.kept) == {"blocks.0.attn"}
    assert report.dropped["blocks.0.attn"] == ("qkv.weight[q]", "qkv.bias[q]")
    assert report.new["blocks.0.attn"] == ()
    rows = modules[0].qkv.weight.chunk(3)
    assert torch.equal(model.blocks[0].attn.qkv.weight, torch.cat(rows[1:]))
    assert [block.attn is old for block, old in zip(model.blocks, modules, strict=True)] == [
        False,
        True,
        True,
        True,
    ]
    assert "dropped qkv.weight[q], qkv.bias[q]" in str(report)
    assert not torch.equal(model(IMAGES), before)
    report.undo()
    report.undo()
    assert [block.attn for block in model.blocks] == modules
    assert torch.equal(model(IMAGES), before)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_undoing_follows_the_order_of_the_changes():
    model = tiny()
    first = replace_attention(model, "softmax-sym", layers="0,2")
    with replace_attention(model, "scaled-alpha", layers=-2) as second:
        assert second.layers == (2,)
        assert second.new["blocks.2.attn"] == ("alpha", "qkv.weight[q]", "qkv.bias[q]")
        with pytest.raises(InputError, match=r"blocks\.2\.attn is no longer the 'softmax-sym'"):
            first.undo()
    first.undo()


def test_the_number_of_tokens_is_that_of_the_model():
    model = tiny()
    replace_attention(model, "scaled-free")
    assert model.blocks[3].attn.scaling.shape == (3, 5, 5)
    assert torch.isfinite(model(IMAGES)).all()


def test_what_a_variant_cannot_have_is_reported_as_dropped():
    model = tiny(qk_norm=True, attn_drop_rate=0.25, qkv_bias=False)
    report = replace_attention(model, "softmax", layers=1)
    assert report.dropped["blocks.1.attn"] == (
        "q_norm.weight",
        "q_norm.bias",
        "k_norm.weight",
        "k_norm.bias",
        "attn_drop(p=0.25)",
    )
    assert model.blocks[1].attn.qkv.bias is None


def test_fresh_weights_come_from_the_seed_and_leave_the_random_state_alone():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    queries = []
    for seed in (0, 0, 1):
        model = tiny()
        replace_attention(model, "softmax-sym")
        torch.set_rng_state(state)
        replace_attention(model, "softmax", seed=seed)
        assert torch.equal(torch.get_rng_state(), state)
        queries.append(model.blocks[0].attn.qkv.weight[:15].clone())
    assert torch.equal(queries[0], queries[1])
    assert not torch.equal(queries[0], queries[2])


def test_mode_precision_and_gradients_carry_over():
    model = tiny().double().train()
    replace_attention(model, "rpc-asym", num_iter=2)
    assert model.blocks[0].attn.training
    model(IMAGES.double()).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.blocks.parameters())


def test_a_loaded_model_is_named_after_the_change():
    loaded = workbench.load("bundled:digits-vit")
    checkpoint, fingerprint = loaded.checkpoint, loaded.fingerprint
    batch = workbench.inputs("bundled:digits", loaded, n=2)
    with replace_attention(loaded, "rpc-sym", layers="0,1", num_iter=2):
        assert (
            loaded.checkpoint == f"{checkpoint}, rpc-sym in layers 0-1"
            if checkpoint
            else "rpc-sym in layers 0-1"
        )
        assert loaded.fingerprint != fingerprint
        capture = workbench.capture(loaded, batch)
        assert [hasattr(record, "sparse") for record in capture] == [True, True, False, False]
        assert capture.model["checkpoint"] == loaded.checkpoint
    assert (loaded.checkpoint, loaded.fingerprint) == (checkpoint, fingerprint)


def test_wrong_requests_change_nothing():
    model = tiny()
    modules = [block.attn for block in model.blocks]
    with pytest.raises(UnknownName, match="did you mean 'rpc-sym'"):
        replace_attention(model, "rpc-symm")
    with pytest.raises(
        UnknownName, match="option of attention 'rpc-sym' 'num_iters'; did you mean 'num_iter'"
    ):
        replace_attention(model, "rpc-sym", num_iters=4)
    with pytest.raises(InputError, match="layer"):
        replace_attention(model, "softmax", layers=[4])
    with pytest.raises(InputError, match=r"no timm\.layers\.Attention"):
        replace_attention(torch.nn.Linear(2, 3), "softmax")
    assert [block.attn for block in model.blocks] == modules


def test_a_causal_layer_stays_causal():
    model = torch.nn.Sequential(attention_module("softmax", 15, 3, causal=True))
    replace_attention(model, "softmax-sym")
    assert model[0].causal


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_takes_the_place_of_attention(name):
    model = tiny()
    before = model(IMAGES)
    with replace_attention(model, name):
        after = model(IMAGES)
        assert after.shape == before.shape
        assert torch.isfinite(after).all()
    assert torch.equal(model(IMAGES), before)
