"""Interventions: equal to hooks written by hand, exact where nothing changes, and gone afterwards."""

import pytest
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tests.captures.families import FAMILIES, call, first_output, hf_model, words
from workbench import capture, intervene, load
from workbench import inputs as choose
from workbench.core.errors import IncompleteCapture, InputError, UnknownName

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9, 7]])
HEADS, WIDTH = 3, 4


def vit():
    torch.manual_seed(1)
    return VisionTransformer(
        img_size=8, patch_size=4, embed_dim=HEADS * WIDTH, depth=2, num_heads=HEADS, num_classes=5
    ).eval()


def llama(attention="sdpa"):
    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=11, hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM._from_config(config, attn_implementation=attention).eval()


class Decoder(nn.Module):
    """A causal layer of attention that is written out, beside one of torch's own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.qkv, self.out = nn.Linear(12, 36), nn.Linear(12, 12)
        self.mha = nn.MultiheadAttention(12, 3, batch_first=True)

    def forward(self, x):
        q, k, v = self.qkv(x).reshape(len(x), -1, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) / WIDTH**0.5
        hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        attn = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        x = x + self.out((attn @ v).transpose(1, 2).flatten(2))
        return x + self.mha(x, x, x)[0]


def logits(model, batch):
    result = model(batch)
    return result if isinstance(result, torch.Tensor) else result.logits


IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))
MODELS = {
    "vit": (vit, IMAGES, lambda model: model.blocks[1].attn.proj),
    "llama": (llama, IDS, lambda model: model.model.layers[1].self_attn.o_proj),
    "llama eager": (lambda: llama("eager"), IDS, lambda model: model.model.layers[1].self_attn.o_proj),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_head_set_to_zero_or_its_mean_is_what_a_hook_on_its_projection_gives(name):
    make, batch, projection = MODELS[name]
    model = make()

    def by_hand(function):
        def hook(_, args):
            (x,) = args
            x = x.clone()
            x[..., WIDTH : 2 * WIDTH] = function(x[..., WIDTH : 2 * WIDTH])
            return (x,)

        handle = projection(model).register_forward_pre_hook(hook)
        try:
            return logits(model, batch)
        finally:
            handle.remove()

    with torch.no_grad():
        plain = logits(model, batch)
        for value, function in {"zero": torch.zeros_like, "mean": lambda x: x.mean(1, keepdim=True)}.items():
            with intervene(model, {(1, 1): value}):
                changed = logits(model, batch)
            torch.testing.assert_close(changed, by_hand(function), rtol=0, atol=1e-6)
            assert not torch.allclose(changed, plain)
        assert torch.equal(logits(model, batch), plain)  # nothing is left behind


@pytest.mark.parametrize("site", ["head_out", "q", "k", "v", "attn", "resid_pre", "resid_mid", "resid_post"])
@pytest.mark.parametrize("make", [vit, llama, lambda: llama("eager"), Decoder])
def test_the_identity_changes_nothing(make, site):
    model = make()
    batch = {Decoder: TOKENS, vit: IMAGES}.get(make, IDS)
    with torch.no_grad():
        plain = logits(model, batch)
        if make is Decoder and site.startswith("resid"):
            return
        with intervene(model, {(0, "*"): lambda own: own}, site=site):
            again = logits(model, batch)
    if site in ("q", "k", "v", "attn"):
        torch.testing.assert_close(again, plain, rtol=0, atol=2e-6)
    else:
        assert torch.equal(again, plain)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_layer_of_every_family_is_changed_or_refused_by_name(name):
    family = FAMILIES[name]
    model, batch = family.build(), family.batch()
    plain = first_output(call(model, batch))
    refused = set()
    for layer in range(family.layers):
        for site, value in {"head_out": "zero", "attn": "uniform"}.items():
            try:
                with intervene(model, {(layer, "*"): lambda own: own}, site=site):
                    same = first_output(call(model, batch))
                with intervene(model, {(layer, "*"): value}, site=site):
                    changed = first_output(call(model, batch))
            except InputError as error:
                refused.add((site, f"layer {layer}" in str(error), layer))
                continue
            torch.testing.assert_close(same, plain, rtol=0, atol=1e-5 * plain.abs().max().item())
            assert not torch.equal(changed, plain)
    assert torch.equal(first_output(call(model, batch)), plain)
    expected = {
        "cait": 6,
        "luke": 4,
        "luke-entities": 4,
        "longformer": 4,
        "longformer-global": 4,
        "tost": 3,
        "tost-ista": 1,
    }
    assert len(refused) == expected.get(name, 0)
    assert all(named for _, named, _ in refused)


_MID_REFUSED = {
    "cait": 2,
    "xcit": 2,
    "xcit-tokens-norm": 2,
    "tost": 2,
    "tost-ista": 2,
    "luke": 2,
    "luke-entities": 2,
}
"""Layers whose stream is several tensors, or a part of the tokens."""
_ROUNDED = ("swin", "xcit", "xcit-tokens-norm")
"""Families whose attention a route computes in another order of sums."""


@pytest.mark.parametrize("name", FAMILIES)
def test_what_follows_the_stream_after_attention_depends_on_nothing_before_it(name):
    family = FAMILIES[name]
    model, batch = family.build(), family.batch()
    plain = first_output(call(model, batch))
    refused = 0

    def noise(stream):
        return torch.randn(stream.shape, generator=torch.Generator().manual_seed(1))

    for layer in range(family.layers):
        change, ends = {(layer, "*"): noise}, []
        try:
            with intervene(model, {(layer, "*"): lambda own: own}, site="resid_mid"):
                same = first_output(call(model, batch))
            with intervene(model, change, site="resid_mid"):
                for before in (lambda own: own, lambda own: 3 * own.flip(1)):
                    with intervene(model, {(layer, "*"): before}, site="resid_pre"):
                        record = capture(model, batch, sites=["resid_mid", "resid_post"], check=False)[layer]
                    assert torch.equal(record.resid_mid, noise(record.resid_mid))
                    ends.append(record.resid_post)
        except InputError as error:
            refused += f"layer {layer}" in str(error)
            continue
        assert torch.equal(*ends)
        assert torch.equal(same, plain) or name in _ROUNDED
        torch.testing.assert_close(same, plain, rtol=0, atol=1e-5 * plain.abs().max().item())
    assert torch.equal(first_output(call(model, batch)), plain)
    assert refused == _MID_REFUSED.get(name, 0)


@pytest.mark.parametrize("parallel", [False, True])
def test_a_block_whose_halves_read_the_same_stream_has_none_between_them(parallel):
    model = hf_model(
        "GPTNeoXModel",
        "GPTNeoXConfig",
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=20,
        use_parallel_residual=parallel,
    )()
    batch, block = words(), model.layers[1]
    if parallel:
        with pytest.raises(InputError, match="residual stream after attention is not known"):
            capture(model, batch, sites=["resid_mid"])
        refused = pytest.raises(InputError, match="layer 1 has no resid_mid that could be changed")
        with refused, torch.no_grad(), intervene(model, {(1, "*"): "zero"}, site="resid_mid"):
            model(**batch)
        return
    with torch.no_grad():
        with intervene(model, {(1, "*"): lambda stream: 2 * stream}, site="resid_mid"):
            changed = model(**batch).last_hidden_state
        stream = 2 * capture(model, batch, sites=["resid_mid"])[1].resid_mid
        by_hand = model.final_layer_norm(stream + block.mlp(block.post_attention_layernorm(stream)))
    torch.testing.assert_close(changed, by_hand, rtol=0, atol=1e-5)


def test_a_stream_of_another_width_than_the_block_s_is_refused():
    model = hf_model(
        "MobileBertModel",
        "MobileBertConfig",
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=1,
        embedding_size=16,
        num_attention_heads=2,
        intermediate_size=20,
        intra_bottleneck_size=16,
        true_hidden_size=16,
        num_feedforward_networks=1,
    )()
    refused = pytest.raises(InputError, match="layer 0: its stream after attention is not one tensor of all")
    with refused, torch.no_grad(), intervene(model, {(0, "*"): "zero"}, site="resid_mid"):
        model(**words())


def test_a_changed_stream_after_attention_is_what_a_block_by_hand_gives():
    model = vit()
    block = model.blocks[1]
    factor = torch.tensor(0.5, requires_grad=True)
    with intervene(model, {(1, "*"): lambda stream: factor * stream}, site="resid_mid", tokens=[2]):
        changed = model(IMAGES)
    changed.square().sum().backward()

    other = torch.tensor(0.5, requires_grad=True)
    stream = capture(model, IMAGES, sites=["resid_mid"])[1].resid_mid
    scale = torch.ones(5, 1).index_put((torch.tensor(2),), other)
    stream = scale * stream
    by_hand = model.forward_head(model.norm(stream + block.mlp(block.norm2(stream))))
    by_hand.square().sum().backward()
    torch.testing.assert_close(changed, by_hand, rtol=0, atol=1e-6)
    torch.testing.assert_close(factor.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_changed_operands_and_attention_are_those_of_a_naive_layer():
    model = Decoder()
    layer = capture(model, TOKENS)[0]
    noise = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(1))
    uniform = torch.ones(5, 5).tril()
    uniform = uniform / uniform.sum(-1, keepdim=True)
    visible = torch.ones(5, 5).tril().bool()
    expected = {}
    for site in ("q", "k", "v"):
        own = {name: getattr(layer, name).clone() for name in ("q", "k", "v")}
        own[site][:, 2] = noise
        expected[site] = F.scaled_dot_product_attention(own["q"], own["k"], own["v"], attn_mask=visible)[:, 2]
    expected["attn"] = uniform @ layer.v[:, 2]
    for site, output in expected.items():
        value = "uniform" if site == "attn" else noise
        seen = []
        with torch.no_grad(), intervene(model, {(0, 2): value}, site=site):
            handle = model.out.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0]))
            model(TOKENS)
            handle.remove()
        torch.testing.assert_close(seen[0][..., 2 * WIDTH :], output, rtol=1e-5, atol=1e-6)
        assert torch.equal(seen[0][..., : 2 * WIDTH], layer.head_out[:, :2].transpose(1, 2).flatten(2))


def test_activation_patching_of_a_whole_stream_gives_the_other_inputs_output():
    model = llama()
    clean, corrupted = IDS[:1], IDS[1:]
    donor = capture(model, clean, sites=["resid_post", "head_out"])
    with torch.no_grad():
        with intervene(model, {(1, "*"): donor}, site="resid_post"):
            patched = logits(model, corrupted)
        torch.testing.assert_close(patched, logits(model, clean), rtol=0, atol=1e-6)
        with intervene(model, {(0, "*"): donor}, site="resid_post", tokens=[6]):
            partly = logits(model, corrupted)
        assert torch.equal(partly[:, :6], logits(model, corrupted)[:, :6])  # causal: nothing before the token
        assert not torch.allclose(partly[:, 6], logits(model, corrupted)[:, 6])
        with intervene(model, {(1, 3): donor[1].head_out[:, 3], (1, 0): "zero"}):
            several = logits(model, corrupted)
        with intervene(model, {(1, 0): "zero"}), intervene(model, {(1, 3): donor[1]}):
            nested = logits(model, corrupted)
        assert torch.equal(several, nested)


def test_one_input_of_a_batch_is_changed_and_the_others_are_not():
    model = vit()
    with torch.no_grad():
        plain = model(IMAGES)
        with intervene(model, {(0, "*"): "zero"}, inputs=[2]):
            changed = model(IMAGES)
    assert torch.equal(changed[[0, 1, 3]], plain[[0, 1, 3]])
    assert not torch.allclose(changed[2], plain[2])


def test_a_group_of_keys_is_all_of_its_query_heads():
    model = llama()
    with torch.no_grad():
        with intervene(model, {(1, 1): "zero"}, site="v", kv=True):
            group = logits(model, IDS)
        with intervene(model, {(1, 2): "zero", (1, 3): "zero"}):
            heads = logits(model, IDS)
        with intervene(model, {(1, 2): "zero"}, site="v"):
            one = logits(model, IDS)
        with intervene(model, {(1, 2): "zero"}):
            head = logits(model, IDS)
    torch.testing.assert_close(group, heads, rtol=0, atol=1e-6)
    torch.testing.assert_close(one, head, rtol=0, atol=1e-6)


def test_gradients_are_those_of_the_hook_by_hand():
    model = vit()
    factor = torch.tensor(0.5, requires_grad=True)
    with intervene(model, {(0, 1): lambda out: factor * out}):
        model(IMAGES).square().sum().backward()

    other = torch.tensor(0.5, requires_grad=True)

    def hook(_, args):
        (x,) = args
        scale = torch.ones(HEADS).index_put((torch.tensor(1),), other).repeat_interleave(WIDTH)
        return (x * scale,)

    handle = model.blocks[0].attn.proj.register_forward_pre_hook(hook)
    weight = model.blocks[0].attn.qkv.weight
    of_weight, weight.grad = weight.grad, None
    model(IMAGES).square().sum().backward()
    handle.remove()
    torch.testing.assert_close(factor.grad, other.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(of_weight, weight.grad, rtol=1e-4, atol=1e-5)


def test_generation_with_a_cache_is_generation_of_the_changed_model():
    model = llama()
    asked = {"max_new_tokens": 5, "do_sample": False}
    with torch.no_grad():
        plain = model.generate(IDS, **asked)
        with intervene(model, {(0, "*"): lambda out: -60 * out, (1, 2): "zero"}):
            cached = model.generate(IDS, **asked)
            whole = model.generate(IDS, use_cache=False, **asked)
        assert torch.equal(cached, whole)
        assert torch.equal(model.generate(IDS, **asked), plain)
    assert not torch.equal(cached, plain)


def test_an_exception_leaves_the_model_as_it_was():
    model = Decoder()
    with torch.no_grad():
        plain = model(TOKENS)
        with pytest.raises(ZeroDivisionError), intervene(model, {(0, 0): lambda out: out / (1 // 0)}):
            model(TOKENS)
        assert torch.equal(model(TOKENS), plain)
    assert not any(child._forward_hooks or child._forward_pre_hooks for child in model.modules())


def test_a_capture_inside_sees_the_changed_output_and_says_that_it_is_not_the_operands():
    model = load("bundled:digits-vit")
    batch = choose("bundled:digits", model, n=2)
    with intervene(model, {(1, 0): "zero"}):
        with pytest.raises(IncompleteCapture):
            capture(model, batch)
        changed = capture(model, batch, check=False)
    assert changed[1].head_out[:, 0].abs().max() == 0
    assert torch.equal(changed[0].head_out, capture(model, batch)[0].head_out)


def test_variants_of_the_workbench_are_changed_where_they_hand_on_their_heads():
    model = load("bundled:digits-tssa")
    batch = choose("bundled:digits", model, n=2).batch
    with torch.no_grad():
        plain = model.module(batch)
        with intervene(model, {(1, "*"): lambda out: out}):
            assert torch.equal(model.module(batch), plain)
        with intervene(model, {(1, 0): "zero"}):
            assert not torch.allclose(model.module(batch), plain)
        refused = pytest.raises(
            InputError, match="layer 1: its output is not attn v, so attn cannot be changed"
        )
        with refused, intervene(model, {(1, 0): "uniform"}, site="attn"):
            model.module(batch)
        assert torch.equal(model.module(batch), plain)


def test_requests_that_cannot_be_met_are_refused_in_words():
    model = Decoder()

    def run(changes, **options):
        with torch.no_grad(), intervene(model, changes, **options):
            model(TOKENS)

    for changes in ({}, None, {(0, -1): "zero"}, {(0, True): "zero"}, {"0": "zero"}, {(0, 1, 2): "zero"}):
        with pytest.raises(InputError, match="layer, head"):
            run(changes)
    with pytest.raises(UnknownName, match="attn_out"):
        run({(0, 0): "zero"}, site="attn_out")
    with pytest.raises(InputError, match="'uniform' is no value for head_out; give zero, mean, a tensor"):
        run({(0, 0): "uniform"})
    for value in (0.5, None, [1.0]):
        with pytest.raises(
            InputError, match="is no value for head_out; give zero, mean, a tensor, a capture"
        ):
            run({(0, 0): value})
    with pytest.raises(InputError, match="resid_pre has no heads"):
        run({(0, 0): "zero"}, site="resid_pre")
    with pytest.raises(InputError, match="there is no head 3; heads are 0 to 2"):
        run({(0, 3): "zero"})
    with pytest.raises(InputError, match=r"layer 7 has no head_out .* 2 layers"):
        run({(7, 0): "zero"})
    with pytest.raises(InputError, match=r"has shape \(3,\); head_out has \(2, 5, 4\)"):
        run({(0, 0): torch.ones(3)})
    with pytest.raises(InputError, match="tokens are numbers from 0 to 4"):
        run({(0, 0): "zero"}, tokens=[5])
    with pytest.raises(
        InputError, match=r"layer 0 .* holds no head_out; capture it with sites=\['head_out'\]"
    ):
        run({(0, 0): capture(model, TOKENS, sites=["q"])})
    with pytest.raises(InputError, match=r"returned a NoneType, not a tensor; head_out has \(2, 5, 4\)"):
        run({(0, 0): lambda out: None})
    with pytest.raises(InputError, match=r"differ from a sum of one by 0\.5"):
        run({(0, 0): lambda attn: attn / 2}, site="attn")
    run({(0, 0): lambda attn: attn / 2}, site="attn", normalise=True)


def test_gpt2_by_name_and_a_function_of_attention():
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=11, n_embd=12, n_layer=2, n_head=3, n_positions=8, bos_token_id=1, eos_token_id=1
    )
    model = GPT2LMHeadModel(config).eval()
    seen = []
    with torch.no_grad(), intervene(model, {(1, 2): lambda attn: seen.append(attn) or attn}, site="attn"):
        logits(model, IDS)
    torch.testing.assert_close(seen[0], capture(model, IDS)[1].attn[:, 2])


class Precise(nn.Module):
    """A layer that attends in float32, also inside autocast."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.qkv, self.out = nn.Linear(12, 36), nn.Linear(12, 12)

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            q, k, v = self.qkv(x.float()).reshape(len(x), -1, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
            return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("site", ["attn", "v", "q"])
def test_a_changed_operand_is_multiplied_in_its_own_type_inside_autocast(site):
    model = Precise().eval()
    plain = model(TOKENS)
    with torch.autocast("cpu", torch.bfloat16), intervene(model, {(0, 1): lambda value: value}, site=site):
        torch.testing.assert_close(model(TOKENS), plain, atol=1e-6, rtol=0)


def test_an_exception_of_the_model_that_the_block_catches_is_not_replaced_by_another():
    model = vit()
    with intervene(model, {(1, 0): "zero"}), pytest.raises(RuntimeError, match="to have 3 channels"):
        model(IMAGES[:, :2])
    with (
        pytest.raises(
            InputError, match="layer 7 has no head_out that could be changed; the pass had 2 layers"
        ),
        intervene(model, {(7, 0): "zero"}),
    ):
        model(IMAGES)
