"""What the position embedding contributes to an attention's input, beside the same written out by hand."""

import pytest
import torch

from tests.attention.modules import randn
from tests.captures.families import FAMILIES, images, words
from workbench.attention import replace_attention
from workbench.captures import capture
from workbench.captures.position_path import NoAdditivePositions, frozen, position_path
from workbench.core.errors import InputError
from workbench.models.architectures import build

INSTEAD = {
    "beit": "relative position bias", "eva": "rotary positions", "swin": "relative position bias",
    "xcit": "PositionalEncodingFourier", "xcit-tokens-norm": "PositionalEncodingFourier",
    "tost": "PositionalEncodingFourier", "tost-ista": "PositionalEncodingFourier",
    "cait": "skip path through timm.models.cait.LayerScaleBlock", "crate": "IstaBlock is not known",
    "llama": "rotary positions", "gemma2": "rotary positions",
}  # fmt: skip
ADDITIVE = [
    family for family in FAMILIES.values() if family.name not in INSTEAD and family.name != "luke-entities"
]
SOURCES = ("pos_embed", "position_embeddings", "wpe")


def wide(family):
    """The family's model and batch in float64."""
    batch = family.batch()
    return family.build().double(), batch.double() if torch.is_tensor(batch) else batch


def embedding_of(model):
    """The weights of the position embedding."""
    name = next(
        name for name, _ in model.named_parameters() if name.removesuffix(".weight").split(".")[-1] in SOURCES
    )
    return model.get_parameter(name)


@pytest.mark.parametrize("family", ADDITIVE, ids=lambda family: family.name)
def test_an_embedding_of_zeros_contributes_nothing_and_another_does_in_every_layer(family):
    model, batch = family.build(), family.batch()
    shares = [record.position for record in capture(model, batch, sites=("input", "position"))]
    assert len(shares) == family.layers
    assert all(share.dtype == torch.float64 and share.abs().max() > 0.01 for share in shares)
    embedding_of(model).data.zero_()
    for record in capture(model, batch, sites=("position",)):
        assert record.position.abs().max() == 0


@pytest.mark.parametrize("name", INSTEAD)
def test_a_model_without_them_says_what_it_has_instead(name):
    family = FAMILIES[name]
    with pytest.raises(NoAdditivePositions, match=INSTEAD[name]):
        capture(family.build(), family.batch(), sites=("q", "position"))


def norm_by_hand(norm, x):
    """(the output, the factor of what goes in less its mean), token by token."""
    out, factor = torch.empty_like(x), torch.empty_like(x)
    for place in range(len(x)):
        mean = x[place].mean()
        size = ((x[place] - mean) ** 2).mean().add(norm.eps).sqrt()
        factor[place] = norm.weight / size
        out[place] = (x[place] - mean) * factor[place] + norm.bias
    return out, factor


def through(norm, x, p):
    """What a norm, frozen at x, makes of p."""
    return norm_by_hand(norm, x)[1] * (p - p.mean(-1, keepdim=True))


@torch.no_grad()
def test_of_a_model_that_normalises_last_by_hand():
    model, batch = wide(FAMILIES["bert"])
    first = 2  # of three texts, the one with most padding
    seen = {}
    handles = [
        part.register_forward_hook(lambda m, args, out, name=name: seen.update({name: args[0][first]}))
        for name, part in model.named_modules()
        if name.endswith("LayerNorm")
    ]
    records = capture(model, batch, sites=("input", "position"))
    for handle in handles:
        handle.remove()
    p = model.embeddings.position_embeddings.weight[: batch["input_ids"].shape[1]]
    p = through(model.embeddings.LayerNorm, seen["embeddings.LayerNorm"], p)
    for number, layer in enumerate(model.encoder.layer):
        torch.testing.assert_close(records[number].position[first], p, rtol=0, atol=1e-12)
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            p = through(layer.get_submodule(name), seen[f"encoder.layer.{number}.{name}"], p)


@torch.no_grad()
@pytest.mark.parametrize("name", ["vit", "gpt2", "deit-distilled"])
def test_of_a_model_that_normalises_first_by_hand(name):
    model, batch = wide(FAMILIES[name])
    records = capture(model, batch, sites=("input", "position", "resid_post"))
    blocks, norm = (model.transformer.h, "ln_1") if name == "gpt2" else (model.blocks, "norm1")
    for before, record in zip(list(records), list(records)[1:], strict=False):
        stream, own = before.resid_post[1], getattr(blocks[record.index], norm)
        torch.testing.assert_close(norm_by_hand(own, stream)[0], record.input[1])
        p = embedding_of(model)
        p = p[: len(stream)] if p.ndim == 2 else p[0]
        torch.testing.assert_close(record.position[1], through(own, stream, p), rtol=0, atol=1e-12)


def test_the_boosted_residual_changes_nothing_on_the_skip_path():
    torch.manual_seed(0)
    model = build({"name": "vit", "boost": True, "depth": 3}).double().eval()
    for block in model.blocks:
        block.boost.t.data.fill_(0.3)
    batch = randn(2, 1, 16, 16)
    records = capture(model, batch, sites=("position", "resid_post"))
    for before, record in zip(list(records), list(records)[1:], strict=False):
        expected = through(model.blocks[record.index].norm1, before.resid_post[0], model.pos_embed[0])
        torch.testing.assert_close(record.position[0], expected, rtol=0, atol=1e-12)


def test_prefix_tokens_without_a_position_have_none():
    import timm

    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, reg_tokens=2, no_embed_class=True, num_classes=7
    ).eval()
    position = capture(model, images(), sites=("position",), layers=[0])[0].position
    assert position[:, :3].abs().max() == 0
    assert (position[:, 3:].abs().amax(-1) > 0).all()


def test_a_language_model_of_characters_takes_as_many_positions_as_the_text_has():
    model = build({"name": "lm", "context": 20, "depth": 2}).double().eval()
    ids = torch.randint(2, 60, (3, 13), generator=torch.manual_seed(0))
    records = capture(model, {"input_ids": ids}, sites=("position", "resid_post"))
    expected = through(model.blocks[1].norm1, records[0].resid_post[2], model.pos_embed[0, :13])
    torch.testing.assert_close(records[1].position[2], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("attention", ["bilateral", "alibi"])
def test_attention_that_brings_its_positions_is_told(attention):
    model = build({"name": "vit", "attention": attention}).eval()
    with pytest.raises(NoAdditivePositions, match=r"positions in the logits of (Bilateral|Alibi)"):
        capture(model, randn(1, 1, 16, 16, dtype=torch.float32), sites=("position",))


def language_models():
    """By the way in which each says that it has ALiBi, and a Falcon that has not."""
    import transformers as hf

    sizes = {"vocab_size": 20, "num_attention_heads": 2, "num_hidden_layers": 1, "hidden_size": 8}
    bloom = hf.BloomConfig(vocab_size=20, n_head=2, n_layer=1, hidden_size=8)
    mpt = hf.MptConfig(vocab_size=20, n_heads=2, n_layers=1, d_model=8, max_seq_len=8)
    yield "ALiBi", hf.BloomModel(bloom)
    yield "ALiBi", hf.BloomForCausalLM(bloom)
    yield "ALiBi", hf.MptModel(mpt)
    yield "ALiBi", hf.FalconModel(hf.FalconConfig(**sizes, alibi=True))
    yield "rotary positions", hf.FalconModel(hf.FalconConfig(**sizes, alibi=False))


def test_alibi_is_told_whichever_way_a_model_says_that_it_has_it():
    for instead, model in language_models():
        with pytest.raises(NoAdditivePositions, match=f"has {instead}"):
            position_path(model, "the model")


def test_a_model_of_ones_own_is_told_what_is_looked_for():
    encoder = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(12, 3, 17, batch_first=True), 2, enable_nested_tensor=False
    )
    with pytest.raises(NoAdditivePositions, match=r"looked for pos_embed, position_embeddings, wpe\); take"):
        capture(encoder.eval(), randn(2, 5, 12, dtype=torch.float32), sites=("position",))


def test_images_of_another_size_cannot_be_followed():
    import timm

    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, dynamic_img_size=True, num_classes=7
    ).eval()
    with pytest.raises(InputError, match="26 tokens, but pos_embed has positions of 17"):
        capture(model, torch.randn(1, 3, 40, 40), sites=("position",))


def test_tokens_with_positions_of_their_own_cannot_be_followed():
    family = FAMILIES["luke-entities"]
    with pytest.raises(
        InputError, match=r"13 tokens, but embeddings\.position_embeddings has positions of 11"
    ):
        capture(family.build(), family.batch(), sites=("position",))


def test_the_parts_of_what_goes_in_add_up_to_what_comes_out_less_the_bias():
    x, p = randn(2, 7, 12), randn(2, 7, 12, seed=1)
    import timm.layers

    for module in (
        torch.nn.LayerNorm(12), timm.layers.LayerNorm(12), torch.nn.LayerNorm(12, bias=False),
        torch.nn.RMSNorm(12), timm.layers.RmsNorm(12), torch.nn.Linear(12, 5), torch.nn.Identity(),
    ):  # fmt: skip
        for parameter in module.parameters():
            parameter.data = torch.randn_like(parameter)
        module = module.double()
        bias = getattr(module, "bias", None)
        whole = frozen(module, x, p) + frozen(module, x, x - p)
        torch.testing.assert_close(whole + (0 if bias is None else bias), module(x))
    with pytest.raises(InputError, match="BatchNorm1d on the skip path"):
        frozen(torch.nn.BatchNorm1d(7), x, p)


def test_the_model_is_left_as_found_and_without_the_site_nothing_is_held():
    model, batch = FAMILIES["bert"].build(), words()
    hooks = {name: len(part._forward_hooks) for name, part in model.named_modules()}
    capture(model, batch, sites=("position",))
    assert {name: len(part._forward_hooks) for name, part in model.named_modules()} == hooks
    assert "position" not in capture(model, batch, sites=("input",))[0].extra


def test_variants_that_read_positions_off_the_tokens_keep_them():
    model = FAMILIES["vit"].build()
    with replace_attention(model, "rpc-sym"):
        assert capture(model, images(), sites=("position",))[0].position.abs().max() > 0
