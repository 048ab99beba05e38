"""The projections to the heads, read off the weights of every family."""

import itertools

import pytest
import torch
from torch import nn

from tests.attention.modules import randn
from tests.captures.families import FAMILIES, Family
from workbench.attention import VARIANTS, attention_module
from workbench.captures import capture, first_norm, head_projection
from workbench.core.errors import InputError, UnknownName


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_projections_of_the_input_are_the_captured_operands(family: Family):
    model, batch = family.build(), family.batch()
    for record in capture(model, batch, sites=("input", "q", "k", "v")):
        module = model.get_submodule(record.path)
        operands = family.project(module, record.input)
        if not operands:  # token statistics attention has no q, k, v: see the test of the variants
            assert record.v is None
            continue
        expected = dict(zip("qkv", operands, strict=True))
        sites = "v" if family.name in ("vit-qk-norm", "xcit", "xcit-tokens-norm") else "qkv"
        for site in sites:
            found = head_projection(module, site, record.path)(record.input)
            # class attention has one query, the first token
            torch.testing.assert_close(
                found[:, :, : expected[site].shape[2]], expected[site], rtol=1e-5, atol=1e-5
            )


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_give_what_their_own_projection_gives(name):
    module = attention_module(name, 15, 3, num_tokens=9).double()
    x = randn(2, 7, 15)
    projected = dict(zip(module.projections, module.project(x), strict=True))
    for site in "qkv":
        if len(projected) > 1 and site not in projected and site != "q":
            with pytest.raises(InputError, match=f"blocks.4: {type(module).__name__} has no projection to v"):
                head_projection(module, site, "blocks.4")
            continue
        # one projection serves everything; symmetric attention has its keys for queries
        expected = projected.get(site, projected.get("w", projected.get("k")))
        torch.testing.assert_close(head_projection(module, site)(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sizes", [{}, {"kdim": 11, "vdim": 5}])
@pytest.mark.parametrize("bias", [True, False])
def test_torch_multihead_attention(sizes, bias):
    module = nn.MultiheadAttention(12, 3, batch_first=True, bias=bias, **sizes).double()
    for name, width in {"q": 12, "k": sizes.get("kdim", 12), "v": sizes.get("vdim", 12)}.items():
        found = head_projection(module, name)
        assert found.weight.shape == (3, width, 4)
        assert (found.bias is None) == (not bias)
    x = randn(2, 7, 12)
    if not sizes:
        v = head_projection(module, "v")(x)
        torch.testing.assert_close(v, capture(module, (x, x, x), sites=("v",))[0].v)


def test_what_is_not_known_is_named():
    module = attention_module("softmax", 15, 3)
    with pytest.raises(UnknownName, match="projection"):
        head_projection(module, "w")

    class Odd(nn.Module):
        num_heads = 3
        mixed = nn.Linear(6, 6)

    with pytest.raises(InputError, match=r"encoder\.2: where .*Odd keeps its projection to v is not known"):
        head_projection(Odd(), "v", "encoder.2")


@pytest.mark.parametrize(
    ("name", "norm"),
    [("vit", "norm1"), ("hf-vit", "layernorm_before"), ("gpt2", "ln_1"), ("llama", "input_layernorm"),
     ("xcit", "norm1"), ("bert", None), ("distilbert", None)],
)  # fmt: skip
def test_the_norm_before_attention_gives_its_input(name, norm):
    family = FAMILIES[name]
    model, batch = family.build(), family.batch()
    records = list(capture(model, batch, sites=("input", "resid_post")))
    for before, record in itertools.pairwise(records):
        found = first_norm(model, record.path)
        assert (found is None) == (norm is None)
        if found is not None and before.resid_post.shape == record.input.shape:
            torch.testing.assert_close(found(before.resid_post), record.input)


@pytest.mark.parametrize("first", [True, False])
def test_torch_encoders_say_where_they_normalise(first):
    layer = nn.TransformerEncoderLayer(12, 3, 17, batch_first=True, norm_first=first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    assert (first_norm(model, "layers.1.self_attn") is model.layers[1].norm1) == first
