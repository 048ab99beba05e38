"""Relative and disentangled scores: DeBERTa, SEW-D, XLNet, Funnel, whose scores are more than scale · q kᵀ."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.captures.families import hf_model, words
from workbench import analyze, capture
from workbench.captures import attention_weights

BERT = {
    "vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 34,
    "max_position_embeddings": 40, "pad_token_id": 1,
}  # fmt: skip
BOTH = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 16}
XLNET = {"vocab_size": 60, "d_model": 24, "n_layer": 2, "n_head": 3, "d_inner": 34}
FUNNEL = {
    "vocab_size": 60, "block_sizes": [1, 1], "num_decoder_layers": 1, "d_model": 24, "n_head": 3, "d_head": 8,
    "d_inner": 34, "pad_token_id": 1,
}  # fmt: skip
SEW_D = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 34, "conv_dim": (8, 8),
    "conv_stride": (5, 2), "conv_kernel": (10, 3), "squeeze_factor": 2, "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2, "feat_extract_norm": "group", "max_position_embeddings": 40,
    "position_buckets": 16, "apply_spec_augment": False,
}  # fmt: skip


def segments() -> dict[str, Tensor]:
    return words() | {
        "token_type_ids": torch.randint(0, 2, (3, 11), generator=torch.Generator().manual_seed(4))
    }


def sound() -> dict[str, Tensor]:
    return {"input_values": torch.randn(2, 400, generator=torch.Generator().manual_seed(4))}


def padded_sound() -> dict[str, Tensor]:
    marks = torch.ones(2, 400, dtype=torch.long)
    marks[1, 250:] = 0
    return sound() | {"attention_mask": marks}


MODELS = {
    "deberta": ("Deberta", BERT | BOTH, words),
    "deberta, no relative": ("Deberta", BERT, words),
    "deberta_v2, shared keys": ("DebertaV2", BERT | BOTH | {"share_att_key": True, "position_buckets": 8}, words),
    "deberta_v2, content to position": ("DebertaV2", BERT | BOTH | {"pos_att_type": ["c2p"]}, words),
    "sew_d": ("SEWD", SEW_D, sound),
    "sew_d, padded": ("SEWD", SEW_D, padded_sound),
    "xlnet": ("XLNet", XLNET, words),
    "xlnet, segments": ("XLNet", XLNET, segments),
    "funnel": ("Funnel", FUNNEL, segments),
    "funnel, factorised": ("Funnel", FUNNEL | {"attention_type": "factorized"}, words),
}  # fmt: skip


def build(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    kind, options, batch = MODELS[name]
    return hf_model(f"{kind}Model", f"{kind}Config", **options)(), batch()


@pytest.mark.parametrize("name", MODELS)
def test_the_weights_are_the_models_own_and_the_rest_of_the_scores_is_the_mask(name: str):
    model, batch = build(name)
    with torch.no_grad():
        before, own = model(**batch)[0], model(**batch, output_attentions=True).attentions
    captured = capture(model, batch)
    assert torch.equal(captured.result[0], before)
    assert len(captured) == len(own)
    real = batch["attention_mask"].bool() if "input_ids" in batch else slice(None)
    for record, expected in zip(captured, own, strict=True):
        rows = real if record.attn.shape[2] == expected.shape[3] else slice(None)
        attn, expected = (x.transpose(1, 2)[rows] for x in (record.attn, expected))
        torch.testing.assert_close(attn, expected, rtol=1e-5, atol=2e-6)
        again = attention_weights(record.q, record.k, record.scale, record.mask).transpose(1, 2)[rows]
        torch.testing.assert_close(again, expected, rtol=1e-4, atol=1e-5)
        assert (record.source, record.kind, record.rows_sum_to_one) == ("self", "token", True)


def test_content_alone_is_q_and_k_and_position_is_the_mask():
    """Without relative positions DeBERTa's mask is its padding; with them it differs between heads."""
    plain, relative = (capture(*build(name), sites=("mask",)) for name in ("deberta, no relative", "deberta"))
    assert plain[0].mask.shape[1] == 1 or torch.equal(plain[0].mask[:, 0], plain[0].mask[:, 1])
    assert not torch.equal(relative[0].mask[:, 0], relative[0].mask[:, 1])


def test_the_two_streams_of_xlnet_are_layers_of_their_own():
    """Permutation language modelling: the content stream sees its own tokens, the query stream those before it."""
    model = hf_model("XLNetLMHeadModel", "XLNetConfig", **XLNET)()
    hidden = torch.ones(11, 11).triu().expand(3, 11, 11).contiguous()
    asked = torch.eye(11)[[9, 10]].expand(3, 2, 11).contiguous()
    batch = words() | {"perm_mask": hidden, "target_mapping": asked}
    with torch.no_grad():
        own = model(**batch, output_attentions=True).attentions
    captured = capture(model, batch, sites=("attn",))
    assert [(record.path, record.call) for record in captured] == [
        (f"transformer.layer.{layer}.rel_attn", call) for layer in (0, 1) for call in (0, 1)
    ]
    for record, expected in zip(captured, [stream for layer in own for stream in layer], strict=True):
        rows = slice(1, None)  # nothing is left for the first token's query
        torch.testing.assert_close(record.attn[:1, :, rows], expected[:1, :, rows], rtol=1e-5, atol=2e-6)


def test_pooled_queries_have_no_rows_of_pairs():
    model = hf_model("FunnelBaseModel", "FunnelConfig", **FUNNEL)()
    batch = {name: value[:1] for name, value in words().items()}
    rows = analyze("attention-map", model=model, inputs=batch, per="pair")
    assert set(rows["layer"]) == {0}
    assert any("6 queries that are none of the 11 tokens" in note for note in rows.attrs["notes"])
