import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer

import workbench
from tests.attention.modules import randn
from workbench.attention import VARIANTS, attention_module, replace_attention
from workbench.core.errors import InputError, UnknownName
from workbench.models.architectures import build


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


def added(model):
    """What the model adds to its tokens."""
    seen = []
    handle = model.blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    model(IMAGES)
    handle.remove()
    patches = model.patch_embed(IMAGES)
    prefix = [part for part in (model.cls_token, model.reg_token) if part is not None]
    bare = torch.cat([*(part.expand(len(IMAGES), -1, -1) for part in prefix), patches], dim=1)
    return seen[0] - bare


@pytest.mark.parametrize("name", ["bilateral", "nonlocal", "alibi"])
def test_positions_in_the_logits_are_not_on_the_tokens_too(name):
    model = tiny()
    embedding, before = model.pos_embed, model(IMAGES)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    assert added(model).abs().max() > 0.01
    report = replace_attention(model, name)
    assert not added(model).any()
    assert "pos_embed taken off the tokens" in str(report)
    assert not model.pos_embed.requires_grad
    with torch.no_grad():
        for parameter in model.blocks.parameters():  # whatever is learned now goes with the variant
            parameter += 1
    report.undo()
    assert model.pos_embed is embedding
    assert embedding.requires_grad
    model.load_state_dict({**state, "pos_embed": model.pos_embed})
    assert torch.equal(model.pos_embed, state["pos_embed"])
    assert torch.equal(model(IMAGES), before)
    assert list(model.state_dict()) == list(state)


def test_the_embedding_becomes_the_positions_of_every_layer():
    model = tiny()
    embedding = model.pos_embed
    report = replace_attention(model, "bilateral")
    layers = [block.attn for block in model.blocks]
    assert all(layer.positions is layers[0].positions for layer in layers)
    assert torch.equal(layers[0].positions, embedding)
    assert layers[0].positions is not embedding
    assert "positions" in report.kept["blocks.3.attn"]
    assert report.new["blocks.3.attn"] == ("h_y", "h_p")
    # The logits are those of contents and positions apart: a naive loop over one head.
    x = randn(1, 5, 15, dtype=torch.float32)
    layer = layers[2]
    width = layer.head_dim
    rows = layer.qkv.weight.reshape(3, 3, width, 15)[:2, 1]
    bias = layer.qkv.bias.reshape(3, 3, width)[:2, 1]
    _, inside = layer.attend(x, observe=True)
    for i in range(5):
        for j in range(5):
            positions = (rows[0] @ embedding[0, i]) @ (rows[1] @ embedding[0, j]) / width**0.5
            content = (rows[0] @ x[0, i] + bias[0]) @ (rows[1] @ x[0, j] + bias[1]) / width**0.5
            q, k = inside["q"][0, 1, i], inside["k"][0, 1, j]
            both = inside["scale"] * q @ k + inside["mask"].expand(1, 3, 5, 5)[0, 1, i, j]
            torch.testing.assert_close(both, positions + content, rtol=1e-4, atol=1e-5)


def test_tokens_without_a_position_have_one_of_zero():
    model = tiny(no_embed_class=True, reg_tokens=2)
    embedding = model.pos_embed
    assert embedding.shape == (1, 4, 15)
    replace_attention(model, "bilateral")
    positions = model.blocks[1].attn.positions
    assert not positions[:, :3].any()
    assert torch.equal(positions[:, 3:], embedding)
    replace_attention(model, "softmax")
    assert torch.equal(model.pos_embed, embedding)


def test_a_part_of_the_layers_leaves_the_embedding_where_it_is():
    model = tiny()
    embedding = model.pos_embed
    first = replace_attention(model, "bilateral", layers="0,2")
    assert model.pos_embed is embedding
    assert "stays on the tokens" in first.positions
    assert first.positions.endswith("reaches blocks.0.attn, blocks.2.attn too")
    own = [model.blocks[layer].attn.positions for layer in (0, 2)]
    assert not torch.equal(own[0], embedding)
    second = replace_attention(model, "bilateral", layers="1,3")
    assert not added(model).any()
    assert torch.equal(model.blocks[3].attn.positions, embedding)
    assert model.blocks[0].attn.positions is own[0]
    with pytest.raises(InputError, match=r"pos_embed has been replaced since .* undo the later change first"):
        first.undo()
    second.undo()
    first.undo()
    assert model.pos_embed is embedding


@pytest.mark.parametrize("layers", [None, 1])
def test_positions_go_back_to_the_tokens_where_a_layer_needs_them_there(layers):
    model = build(
        {"name": "vit", "patch_size": 8, "embed_dim": 6, "depth": 2, "num_heads": 2, "attention": "bilateral"}
    )
    positions = model.blocks[0].attn.positions
    report = replace_attention(model, "softmax", layers=layers)
    assert torch.equal(model.pos_embed, positions)
    assert model.pos_embed is not positions
    assert report.positions == "those of the layers, now added to the tokens as pos_embed"
    report.undo()
    assert model.pos_embed is None
    assert model.blocks[1].attn.positions is positions


def test_layers_left_without_positions_are_named():
    model = tiny()
    replace_attention(model, "alibi")
    report = replace_attention(model, "softmax", layers="1,2")
    assert report.positions == "none reach blocks.1.attn, blocks.2.attn"
    assert not added(model).any()


def test_shared_positions_stay_shared():
    model = tiny()
    replace_attention(model, "bilateral")
    shared = model.blocks[0].attn.positions
    with replace_attention(model, "bilateral", layers="1,2"):
        assert all(block.attn.positions is shared for block in model.blocks)
    with replace_attention(model, "bilateral"):
        fresh = model.blocks[0].attn.positions
        assert fresh is not shared
        assert torch.equal(fresh, shared)
        assert all(block.attn.positions is fresh for block in model.blocks)
    replace_attention(model, "alibi")
    replace_attention(model, "bilateral")
    assert all(block.attn.positions is model.blocks[0].attn.positions for block in model.blocks)


def test_positions_of_another_length_start_fresh():
    model = tiny()
    report = replace_attention(model, "bilateral", num_tokens=7)
    assert model.blocks[0].attn.positions.shape == (1, 7, 15)
    assert "positions" in report.new["blocks.0.attn"]
    assert report.positions == "pos_embed taken off the tokens; the layers use none of it"


def test_a_model_that_cannot_do_without_an_embedding():
    model = timm.create_model(
        "deit_tiny_distilled_patch16_224", img_size=32, embed_dim=12, num_heads=3, depth=2
    ).eval()
    images = randn(1, 3, 32, 32, dtype=torch.float32)
    before, embedding = model(images), model.pos_embed
    with replace_attention(model, "bilateral"):
        assert torch.equal(model.blocks[1].attn.positions, embedding)
        assert not torch.equal(model(images), before)
    assert torch.equal(model(images), before)


def test_positions_of_a_language_model():
    model = build({"name": "lm", "context": 9, "embed_dim": 6, "depth": 2, "num_heads": 2})
    ids = torch.arange(8)[None]
    before, embedding = model(ids), model.pos_embed
    with replace_attention(model, "bilateral"):
        assert torch.equal(model.blocks[1].attn.positions, embedding)
        assert not model.pos_embed.any()
        assert model.blocks[1].attn.causal
        assert torch.isfinite(model(ids)).all()
    assert torch.equal(model(ids), before)


def test_positions_that_a_module_makes_come_off_the_tokens_and_back():
    """ToST adds Fourier positions to its tokens; where every layer brings its own, they would count twice."""
    torch.manual_seed(0)
    model = build({"name": "tost", "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 3}).eval()
    images, maker = randn(2, 1, 16, 16, dtype=torch.float32), model.pos_embed
    before = model(images)
    some = replace_attention(model, "bilateral", layers=[0])
    assert model.pos_embed is maker
    assert "pos_embed stays on the tokens, as other layers need it" in str(some)
    some.undo()
    report = replace_attention(model, "bilateral")
    assert model.pos_embed is None
    assert "pos_embed taken off the tokens; the layers use none of it" in str(report)
    assert model.blocks[0].attn.positions is model.blocks[1].attn.positions
    assert not torch.allclose(model(images), before)
    report.undo()
    assert model.pos_embed is maker
    assert torch.equal(model(images), before)
