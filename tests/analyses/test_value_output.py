"""What heads write: loops as oracle, the sum over heads as the model's own output, and planted heads."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import workbench
from tests.captures.families import FAMILIES, call
from tests.runs.test_analyze import bert, texts, vit
from workbench.analyses.value_output import link_norms, written_norms
from workbench.captures import capture, output_projection
from workbench.core.errors import InputError

BATCH, HEADS, QUERIES, KEYS, DIM, WIDTH = 2, 3, 5, 7, 4, 11


def operands():
    torch.manual_seed(0)
    attn = torch.randn(BATCH, HEADS, QUERIES, KEYS, dtype=torch.float64).softmax(-1)
    v = torch.randn(BATCH, HEADS, KEYS, DIM, dtype=torch.float64)
    return attn, v, torch.randn(HEADS, DIM, WIDTH, dtype=torch.float64)


def test_the_norm_of_every_link_is_that_of_a_loop():
    attn, v, weight = operands()
    links = link_norms(attn, v, weight)
    for b, h, i, j in np.ndindex(BATCH, HEADS, QUERIES, KEYS):
        written = [sum(v[b, h, j, d] * weight[h, d, w] for d in range(DIM)) for w in range(WIDTH)]
        norm = attn[b, h, i, j].item() * math.sqrt(sum(x.item() ** 2 for x in written))
        assert links[b, h, i, j].item() == pytest.approx(norm, rel=1e-12)


def test_a_value_that_the_projection_maps_to_nothing_writes_nothing():
    attn, v, weight = operands()
    weight[:, 0] = 0
    v[..., 1:] = 0
    assert written_norms(v, weight).count_nonzero() == 0
    assert link_norms(attn, v, weight).count_nonzero() == 0


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_what_heads_write_and_the_bias_sum_to_the_output_of_the_projection(name):
    family = FAMILIES[name]
    model, batch = family.build(), family.batch()
    for record in capture(model, batch, sites=("proj_out", "attn_out")):
        projection = output_projection(model, record)
        total = projection(record.head_out).sum(1)
        if projection.bias is not None:
            total = total + projection.bias
        torch.testing.assert_close(total, record.proj_out, rtol=1e-4, atol=1e-5)
        if name in ("vit", "gpt2", "llama", "hf-vit"):  # nothing follows the projection
            torch.testing.assert_close(record.attn_out, record.proj_out, rtol=1e-4, atol=1e-5)


def test_the_projection_of_a_loaded_model_is_that_of_its_module():
    model = workbench.load("bundled:digits-vit")
    record = capture(model, workbench.inputs("bundled:digits", model, n=2), sites=("proj_out",))[1]
    assert torch.equal(
        output_projection(model, record).weight, output_projection(model.module, record).weight
    )


PROJECTIONS = {
    "bert": "encoder.layer.1.attention.output.dense",
    "gpt2": "transformer.h.1.attn.c_proj",
    "llama": "model.layers.1.self_attn.o_proj",
    "beit": "blocks.1.attn.proj",
}


@pytest.mark.parametrize(("name", "path"), PROJECTIONS.items())
def test_the_site_is_the_output_of_the_projection_of_that_name(name, path):
    family = FAMILIES[name]
    model, batch = family.build(), family.batch()
    outputs = []
    module = model.get_submodule(path)
    handle = module.register_forward_hook(lambda _, args, output: outputs.append(output))
    call(model, batch)
    handle.remove()
    record = capture(model, batch, sites=("proj_out",))[1]
    torch.testing.assert_close(record.proj_out, outputs[0])
    weight = module.weight if name == "gpt2" else module.weight.mT
    found = output_projection(model, record).weight
    assert torch.equal(found, weight.unflatten(0, (record.head_out.shape[1], -1)))


@pytest.mark.parametrize("batch_first", [True, False])
def test_torch_s_own_attention_applies_its_projection_itself(batch_first):
    torch.manual_seed(0)
    model = nn.Sequential(nn.TransformerEncoderLayer(12, 3, 17, batch_first=batch_first)).eval()
    x = torch.randn(5, 2, 12)
    record = capture(model, x, sites=("proj_out",))[0]
    expected = model[0].self_attn(x, x, x)[0].detach()
    torch.testing.assert_close(record.proj_out, expected if batch_first else expected.transpose(0, 1))
    assert torch.equal(
        output_projection(model, record).weight.flatten(0, 1), model[0].self_attn.out_proj.weight.mT
    )


def test_t5_has_projections_of_self_and_cross_attention():
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=60, d_model=24, d_kv=5, d_ff=34, num_layers=1, num_heads=3, decoder_start_token_id=0
    )
    model, ids = T5ForConditionalGeneration(config).eval(), torch.randint(5, 60, (2, 11))
    captured = capture(model, {"input_ids": ids, "decoder_input_ids": ids[:, :7]}, sites=("proj_out",))
    owners = [model.encoder.block[0].layer[0].SelfAttention, model.decoder.block[0].layer[0].SelfAttention]
    for record, owner in zip(
        captured, [*owners, model.decoder.block[0].layer[1].EncDecAttention], strict=True
    ):
        assert torch.equal(output_projection(model, record).weight.flatten(0, 1), owner.o.weight.mT)


def loop(record, projection, head, number, tokens):
    """The norm of what a head writes over that of all heads, and shares of its most attended key, of an input."""
    heads = record.head_out.shape[1]
    v = record.v.repeat_interleave(heads // record.v.shape[1], 1).double()
    written = torch.einsum(
        "hij,hjd,hdw->hiw", record.attn[number].double(), v[number], projection.weight.double()
    )[:, :tokens]
    size = [sum(written[:, i].sum(0).square()).item() for i in range(tokens)]
    own = [sum(written[head, i].square()).item() for i in range(tokens)]
    attn = record.attn[number, head, :tokens, :tokens].double()
    links = [
        [
            attn[i, j].item() * (v[number, head, j] @ projection.weight[head].double()).norm().item()
            for j in range(tokens)
        ]
        for i in range(tokens)
    ]
    sink = attn.sum(0).argmax().item()
    shares = [attn[:, sink].sum().item() / tokens, sum(row[sink] for row in links) / sum(map(sum, links))]
    return math.sqrt(sum(own) / sum(size)), *shares


@pytest.mark.parametrize("method", ["dense", "tiled"])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_the_analysis_is_what_a_loop_computes_with_padding_and_grouped_queries(name, method):
    family = FAMILIES[name]
    model, batch = family.build(), family.batch()
    lengths = (
        batch["attention_mask"].sum(1).tolist() if isinstance(batch, dict) else [batch.shape[1]] * len(batch)
    )
    frame = workbench.analyze("value-output", model, batch, layers=[1], method=method)
    (record,) = capture(model, batch, layers=[1], sites=("v", "attn", "proj_out"))
    projection = output_projection(model, record)
    names = frame["input"].unique()
    for number, length in enumerate(lengths):
        for head in range(record.head_out.shape[1]):
            rows = frame[(frame["input"] == names[number]) & (frame["head"] == head)]
            values = [*rows[rows["metric"] == "value_output_norm"]["value"]]
            values += [*rows[rows["metric"] == "value_output_sink"].sort_values("candidate")["value"]]
            assert values == pytest.approx(loop(record, projection, head, number, length), rel=1e-4)


def test_uniform_attention_is_its_own_null_and_permuted_keys_leave_it():
    model = vit()
    for block in model.blocks:
        block.attn.qkv.weight[: 2 * block.attn.num_heads * block.attn.head_dim].data.zero_()
        block.attn.qkv.bias.data.zero_()
    frame = workbench.analyze("value-output", model, torch.randn(2, 3, 16, 16), null="both", null_samples=3)
    norms = frame[frame["metric"] == "value_output_norm"]
    assert set(norms["null"]) == {"uniform", "permutation"}
    np.testing.assert_allclose(norms["value"], norms["null_mean"], rtol=1e-5)


def test_a_sink_without_values_has_attention_and_writes_nothing():
    """Every head attends to token 0 with weight ½ or more, whose value is zero."""
    attn, v, weight = operands()
    attn = attn / 2
    attn[..., 0] += 0.5
    v[..., 0, :] = 0
    links = link_norms(attn, v, weight)
    assert (attn.sum(-2).argmax(-1) == 0).all()
    assert links[..., 0].count_nonzero() == 0
    assert links.sum() > 0


def test_rows_of_tokens_and_links_fit_the_metric():
    model, batch = bert(), texts((9, 4))
    links = workbench.analyze("value-output", model, batch, layers=[0], per="pair")
    tokens = workbench.analyze("value-output", model, batch, layers=[0], per="token")
    (record,) = capture(model, batch, layers=[0], sites=("v", "attn", "proj_out"))
    weight = output_projection(model, record).weight
    row = links[(links["head"] == 1) & (links["query"] == 2) & (links["key"] == 3)].iloc[0]
    expected = (record.attn[0, 1, 2, 3] * record.v[0, 1, 3] @ weight[1]).norm()
    assert row["value"] == pytest.approx(expected.item(), rel=1e-5)
    row = tokens[(tokens["head"] == 1) & (tokens["token"] == 2)].iloc[0]
    assert row["value"] == pytest.approx((record.head_out[0, 1, 2] @ weight[1]).norm().item(), rel=1e-5)


def test_a_layer_without_an_output_projection_is_left_out_by_name():
    class Bare(nn.Module):
        def forward(self, x):
            return nn.functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0]

    model = nn.ModuleDict({"attention": Bare()})
    model.forward = lambda x: model["attention"](x)
    with pytest.raises(InputError, match="has no linear layer that reads the outputs of its heads"):
        workbench.analyze("value-output", model, torch.randn(2, 5, 4))


def test_weights_that_changed_since_the_capture_are_refused():
    model, x = vit(), torch.randn(2, 3, 16, 16)
    (record,) = capture(model, x, layers=[0], sites=("proj_out",))
    model.blocks[0].attn.proj.weight.data.mul_(2)
    with pytest.raises(InputError, match="no linear layer makes its proj_out of the outputs of its heads"):
        output_projection(model, record)


def test_findings_compare_attention_with_what_is_written():
    frame = workbench.analyze("value-output", "all-MiniLM-L6-v2", "bundled:prose", n=4)
    shares = frame[frame["metric"] == "value_output_sink"].groupby("candidate")["value"].mean()
    assert shares["value-output"] < shares["attention"] / 4  # Kobayashi et al. 2020: BERT's [SEP] heads
    assert "of the attention and 3%" in workbench.findings(frame)[0]
