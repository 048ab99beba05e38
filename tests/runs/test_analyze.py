import json
import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import timm
import torch
import transformers
from torch import nn

import workbench
from workbench.analyses import attention_map
from workbench.analyses.gram_spectrum import gram_eigenvalues
from workbench.analyses.token_similarity import token_cosine_similarity
from workbench.attention import replace_attention
from workbench.captures import Capture, capture
from workbench.core.errors import InputError, UnknownName
from workbench.frames.results import COLUMNS, read_frame, write_frame
from workbench.runs.analyze import ANALYSES, analyze, capture_inputs, check_request

INPUTS, LAYERS, HEADS, TOKENS, DIM = 5, 3, 2, 17, 4
# the analyses of the kernel-PCA study and their nulls are in test_study.py, those of wu2025 in test_rate_reduction.py
PLAIN = ("gram-spectrum", "attention-map", "token-similarity")


def vit():
    torch.manual_seed(0)
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=16, patch_size=4, embed_dim=HEADS * DIM, depth=LAYERS, num_heads=HEADS, num_classes=7
    )
    for parameter in model.parameters():  # away from timm's near-zero start, so that heads differ
        parameter.data += 0.3 * torch.randn_like(parameter)
    return model.eval()


def images(n=INPUTS, size=16):
    return torch.randn(n, 3, size, size, generator=torch.manual_seed(1))


def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=16
    )
    return transformers.BertModel(config).eval()


def texts(lengths=(9, 4, 7)):
    ids = torch.randint(1, 50, (len(lengths), max(lengths)), generator=torch.manual_seed(2))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return {"input_ids": ids * mask, "attention_mask": mask.long()}


def gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=50, n_embd=12, n_layer=2, n_head=3, n_positions=16)
    return transformers.GPT2LMHeadModel(config).eval()


def grouped_llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        intermediate_size=16, max_position_embeddings=32,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def wide(frame, metric, index="input"):
    """Values of one metric as a table, one column per place other than ``index``."""
    rows = frame[frame["metric"] == metric].dropna(axis=1, how="all")
    places = [name for name in ("layer", "head", "rank") if name in rows]
    return rows.pivot_table(index=index, columns=places, values="value", sort=False, dropna=False)


def same(a, b, rtol=1e-4, atol=1e-6):
    """The same rows in the same order, and the same numbers up to rounding of the model's own float32.

    What is nearly 0 beside the other numbers of its metric is rounding itself, which differs between processors:
    ``atol`` is a share of the largest of them, and z of null samples that differ by less says nothing.
    """
    numbers = ["value", "null_mean", "null_low", "null_high", "z"]
    pd.testing.assert_frame_equal(a.drop(columns=numbers), b.drop(columns=numbers))
    largest = b[numbers].where(np.isfinite(b[numbers])).abs().groupby(b["metric"]).transform("max")
    largest = largest.fillna(1).replace(0, 1)
    significant = ~(b["null_high"] - b["null_low"] < atol * largest["value"])
    for name in numbers:
        found, wanted = (frame[name].where(significant | (name != "z")) / largest[name] for frame in (a, b))
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize(
    "name", [name for name in ANALYSES if ANALYSES[name].perturb is None]
)  # see tests/analyses/test_snr.py
def test_frames_have_the_shared_columns_and_known_metrics_in_their_range(name):
    options = {"null_samples": 2} if "null_samples" in ANALYSES[name].options else {}
    runs = bool(ANALYSES[name].sites)  # an analysis of weights takes no inputs
    count = 4 if name == "patching" else INPUTS  # which takes pairs
    model = vit()
    if name == "robust-components":
        replace_attention(model, "rpc-sym")
    if name == "patching":  # it leaves out pairs of one prediction
        with torch.no_grad():
            model.head.bias -= model(images(50)).mean(0)
    frame = analyze(name, model=model, inputs=images(count) if runs else None, **options)
    assert tuple(frame.columns) == COLUMNS
    assert set(frame["model"]) == {"VisionTransformer"}
    step = 2 if name == "patching" else 1  # a pair is named by its first input
    assert set(frame["input"].dropna()) == {str(i) for i in range(0, count if runs else 0, step)}
    assert set(frame["layer"].dropna()) == set(range(LAYERS))
    for metric, rows in frame.groupby("metric"):
        known = workbench.METRICS[metric]
        values = rows["value"].dropna()
        assert len(values)
        assert values.between(known.low - 1e-12, known.high + 1e-12).all(), metric


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize(("make", "batch"), [(vit, images), (bert, texts)])
def test_batch_size_does_not_change_rows_or_numbers(name, make, batch):
    model, inputs = make(), batch()
    whole = analyze(name, model=model, inputs=inputs, batch_size=8)
    for size in (1, 2):
        same(analyze(name, model=model, inputs=inputs, batch_size=size), whole)


@pytest.mark.parametrize("name", PLAIN)
def test_same_seed_same_numbers(name):
    options = {"null": "permutation", "null_samples": 3} if name == "token-similarity" else {}
    model = vit()
    first, second = (analyze(name, model=model, inputs=images(), seed=4, **options) for _ in range(2))
    pd.testing.assert_frame_equal(first, second)


def test_the_permutation_null_follows_the_seed_and_not_the_batching():
    options = {"model": vit(), "inputs": images(), "null": "permutation", "null_samples": 3}
    whole = analyze("token-similarity", seed=1, **options)
    same(analyze("token-similarity", seed=1, batch_size=2, **options), whole)
    other = analyze("token-similarity", seed=2, **options)
    assert not np.allclose(other["null_mean"], whole["null_mean"])
    assert other["value"].tolist() == whole["value"].tolist()


def test_gram_spectrum_is_that_of_the_captured_keys():
    model = vit()
    frame = analyze("gram-spectrum", model=model, inputs=images(), max_rank="all")
    captured = capture(model, images(), sites=("k", "scale"))
    table = (
        frame[frame["metric"] == "eigenvalue"]
        .set_index(["input", "layer", "head", "rank"])["value"]
        .sort_index()
    )
    for layer, head, number in ((0, 0, 0), (2, 1, 4)):
        expected = gram_eigenvalues(captured[layer].k[number, head], captured[layer].scale)
        found = table.loc[str(number), layer, head]
        assert found.index.tolist() == list(range(1, TOKENS + 1))
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)


def test_ranks_end_at_head_dim_unless_asked_and_shares_sum_to_one():
    model = vit()
    ranks = analyze("gram-spectrum", model=model, inputs=images())["rank"].dropna()
    assert set(ranks) == set(range(1, DIM + 1))
    assert set(analyze("gram-spectrum", model=model, inputs=images(), max_rank=2)["rank"].dropna()) == {1, 2}
    shares = analyze("gram-spectrum", model=model, inputs=images(), max_rank="all", normalize="trace")
    sums = shares[shares["metric"] == "eigenvalue_share"].groupby(["input", "layer", "head"])["value"].sum()
    np.testing.assert_allclose(sums, 1.0)


def test_shares_and_trace_give_the_eigenvalues_back():
    model = vit()
    plain = wide(analyze("gram-spectrum", model=model, inputs=images()), "eigenvalue")
    normal = analyze("gram-spectrum", model=model, inputs=images(), normalize="trace")
    shares, trace = wide(normal, "eigenvalue_share"), wide(normal, "gram_log_trace")
    for layer, head in ((0, 1), (2, 0)):
        again = shares[layer, head].mul(np.exp(trace[layer, head]), axis=0)
        np.testing.assert_allclose(again, plain[layer, head], rtol=1e-9)


def test_padding_makes_no_ranks_and_changes_no_number():
    model, batch = bert(), texts(lengths=(9, 4))
    alone = {"input_ids": batch["input_ids"][1:, :4], "attention_mask": batch["attention_mask"][1:, :4]}
    for name in PLAIN:
        # null samples depend on the name of the input
        options = {"gram-spectrum": {"max_rank": "all"}, "attention-map": {"null_samples": 0}}.get(name, {})
        padded = analyze(name, model=model, inputs=batch, **options)
        padded = padded[padded["input"] == "1"].reset_index(drop=True).assign(input="0")
        same(padded, analyze(name, model=model, inputs=alone, **options).astype(padded.dtypes), rtol=1e-3)


def test_layers_and_heads_choose_rows_and_change_none():
    model = vit()
    for name in ("gram-spectrum", "attention-map"):
        whole = analyze(name, model=model, inputs=images())
        chosen = analyze(name, model=model, inputs=images(), layers="1-2", heads=[1])
        rows = whole[whole["layer"].isin([1, 2]) & (whole["head"] == 1)].reset_index(drop=True)
        same(chosen[chosen["layer"].notna()].reset_index(drop=True), rows)
    last = analyze("token-similarity", model=model, inputs=images(), layers=-1)
    assert set(last["layer"]) == {LAYERS - 1}


def test_token_similarity_is_that_of_the_blocks_beside_chance():
    model = vit()
    frame = analyze("token-similarity", model=model, inputs=images())
    captured = capture(model, images(), sites=("resid_post",))
    for layer in range(LAYERS):
        rows = frame[frame["layer"] == layer]
        np.testing.assert_allclose(
            rows["value"], token_cosine_similarity(captured[layer].resid_post), rtol=1e-5
        )
    deviation = math.sqrt(2 / (TOKENS * (TOKENS - 1) * HEADS * DIM))
    np.testing.assert_allclose(frame["z"], frame["value"] / deviation)
    assert (frame["null_low"] < 0).all()
    assert (frame["null_high"] > 0).all()
    assert frame["head"].isna().all()
    none = analyze("token-similarity", model=model, inputs=images(), null_samples=0)
    assert none[["null_mean", "null_low", "null_high", "z"]].isna().all(axis=None)


def test_attention_measures_of_a_vit_are_in_patches_and_of_a_text_in_tokens():
    frames = (
        analyze("attention-map", model=vit(), inputs=images()),
        analyze("attention-map", model=bert(), inputs=texts()),
    )
    for frame, unit, most in zip(frames, ("patches", "tokens"), (math.hypot(3, 3), 8), strict=True):
        rows = frame[frame["metric"] == "attention_distance"]
        assert set(rows["unit"]) == {unit}
        assert rows["value"].between(0, most).all()


def test_notes_follow_the_rules_and_change_no_number(monkeypatch):
    model = vit()
    plain = analyze("attention-map", model=model, inputs=images())
    monkeypatch.setattr(attention_map, "SINK_SHARE", 0.0)
    monkeypatch.setattr(attention_map, "SINK_OVER_UNIFORM", 0.0)
    strict = analyze("attention-map", model=model, inputs=images())
    assert plain.attrs["notes"] == []
    assert sum("sink" in note for note in strict.attrs["notes"]) == LAYERS * HEADS
    same(plain, strict)


def test_causal_attention_is_judged_by_what_a_query_may_see():
    frame = analyze("attention-map", model=gpt2(), inputs=texts(lengths=(6, 6)))
    even = sum(1 / i for i in range(1, 7)) / 6
    sinks = frame[frame["metric"] == "attention_sink"]
    np.testing.assert_allclose(sinks["null_mean"], even)
    # random weights attend almost evenly, and an even head is judged even although it sees few keys
    assert (wide(frame, "attention_entropy_share") > 0.9).all(axis=None)


def test_grouped_queries_have_spectra_per_key_head_and_maps_per_query_head():
    model, batch = grouped_llama(), texts()
    assert set(analyze("gram-spectrum", model=model, inputs=batch)["head"].dropna()) == {0, 1}
    assert set(analyze("attention-map", model=model, inputs=batch)["head"].dropna()) == set(range(6))


def swin():
    torch.manual_seed(0)
    return timm.models.swin_transformer.SwinTransformer(
        img_size=32, patch_size=4, window_size=4, embed_dim=8, depths=(2, 1), num_heads=(2, 4), num_classes=3
    ).eval()


def test_windows_count_as_their_image():
    model = swin()
    whole = analyze("gram-spectrum", model=model, inputs=images(3, size=32))
    assert set(whole["input"]) == {"0", "1", "2"}
    assert set(whole[whole["layer"].notna()]["statistic"]) == {"mean"}
    keys = capture(model, images(3, size=32), layers=0, sites=("k", "scale"))[0]
    expected = gram_eigenvalues(keys.k, keys.scale)[:, 1, 0].unflatten(0, (3, 4)).mean(1)
    found = whole.query("metric == 'eigenvalue' and layer == 0 and head == 1 and rank == 1")["value"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    maps = analyze("attention-map", model=model, inputs=images(3, size=32))
    assert maps.query("metric == 'attention_distance'")["value"].between(0, math.hypot(3, 3)).all()
    assert maps.query("metric == 'attention_entropy_share'")["value"].between(0.9, 1).all()
    for name in PLAIN:
        one = analyze(name, model=model, inputs=images(3, size=32), batch_size=1)
        same(one, analyze(name, model=model, inputs=images(3, size=32)), rtol=1e-3)
    assert set(analyze("attention-map", model=model, inputs=images(3, size=32), heads=3)["layer"]) == {2}


def test_channel_attention_is_left_out_and_said_to_be():
    torch.manual_seed(0)
    model = timm.models.xcit.Xcit(
        img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=3
    ).eval()
    frame = analyze("attention-map", model=model, inputs=images(2, size=32))
    assert set(frame["layer"]) == {2, 3}  # class attention
    assert any("layers 0-1 left out" in note and "channel" in note for note in frame.attrs["notes"])
    assert not (frame["metric"] == "attention_distance").any()  # a single query, of the class token
    assert frame.query("metric == 'attention_entropy'")["value"].notna().all()
    with pytest.raises(InputError, match="nothing to measure"):
        analyze("attention-map", model=model, inputs=images(2, size=32), layers="0-1")


def test_talking_heads_have_no_entropy():
    torch.manual_seed(0)
    model = timm.models.cait.Cait(
        img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=3
    ).eval()
    frame = analyze("attention-map", model=model, inputs=images(2, size=32))
    entropy = frame[frame["metric"] == "attention_entropy"]
    assert entropy[entropy["layer"] < 2]["value"].isna().all()
    assert entropy[entropy["layer"] >= 2]["value"].notna().all()


def test_a_users_own_module_is_measured():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(d_model=12, nhead=3, dim_feedforward=16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    batch = torch.randn(4, 6, 12, generator=torch.manual_seed(3))
    for name in ("gram-spectrum", "attention-map"):
        frame = analyze(name, model=model, inputs=batch)
        assert set(frame["head"].dropna()) == {0, 1, 2}
        assert frame["value"].notna().all()


def test_nonfinite_attention_is_reported_and_stops_a_spectrum():
    model, batch = vit(), images()
    batch[1, 0, 0, 0] = math.inf
    frame = analyze("attention-map", model=model, inputs=batch, batch_size=2)
    counts = frame[frame["metric"] == "nonfinite"].groupby("input")["value"].sum()
    assert (counts > 0).to_dict() == {"0": False, "1": True, "2": False, "3": False, "4": False}
    assert any("non-finite" in note for note in frame.attrs["notes"])
    assert any("without checks" in note for note in frame.attrs["notes"])
    with pytest.raises(InputError, match="NaN or infinite"):
        analyze("gram-spectrum", model=model, inputs=batch)


# From a file ------------------------------------------------------------------------------------------------


def write_qkv(path, **more):
    make = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, HEADS, 7, DIM, generator=make) for _ in "qkv")
    np.savez(path, q=q, k=k, v=v, **more)
    return q, k, v


def test_a_file_gives_what_the_tensors_give(tmp_path):
    q, k, v = write_qkv(tmp_path / "some qkv.npz", scale=0.3)
    frame = analyze("gram-spectrum", qkv=tmp_path / "some qkv.npz", max_rank="all", batch_size=2)
    values = frame[frame["metric"] == "eigenvalue"]["value"].to_numpy().reshape(2, 3, HEADS, 7)
    np.testing.assert_allclose(values, gram_eigenvalues(k, 0.3), rtol=1e-9, atol=1e-17)
    assert set(frame["model"]) == {"some qkv.npz"}
    assert len(frame.attrs["provenance"]["inputs"]["qkv"]["sha256"]) == 64
    maps = analyze("attention-map", qkv=str(tmp_path / "some qkv.npz"))
    attn = (0.3 * q.double() @ k.double().mT).softmax(-1)
    entropy = torch.special.entr(attn).sum(-1).mean(-1)
    np.testing.assert_allclose(
        maps.query("metric == 'attention_entropy'")["value"], entropy.ravel(), rtol=1e-6
    )
    square = (attn @ v.double()).square().mean((-2, -1))
    norms = (square / square.mean(-1, keepdim=True)).sqrt()
    np.testing.assert_allclose(maps.query("metric == 'head_output_norm'")["value"], norms.ravel(), rtol=1e-6)
    with pytest.raises(InputError, match="read whole; leave n out"):
        analyze("attention-map", qkv=tmp_path / "some qkv.npz", n=2)


def test_keys_of_any_size_have_ranks_and_shares_and_are_spoken_of(tmp_path):
    k = torch.randn(1, HEADS, 7, DIM, generator=torch.manual_seed(0))
    for factor, words in (
        (1.0, []),
        (100.0, ["2 of 2 spectra are too small"]),
        (0.0, ["2 of 2 spectra are zero"]),
    ):
        np.savez(tmp_path / "a.npz", q=k, k=factor * k, v=k)
        plain = analyze("gram-spectrum", qkv=tmp_path / "a.npz")
        shares = analyze("gram-spectrum", qkv=tmp_path / "a.npz", normalize="trace")
        assert [note[: len(word)] for note, word in zip(plain.attrs["notes"], words, strict=True)] == words
        assert plain["value"].notna().all()
        assert shares["value"].notna().all()
        ranks = shares[shares["metric"] == "effective_rank"]["value"]
        assert (ranks == 0).all() if factor == 0 else (ranks >= 1).all()


@pytest.mark.parametrize("axes", [2, 4])
def test_a_mask_in_the_file_leaves_padding_out(tmp_path, axes):
    mask = torch.arange(7) < torch.tensor([7, 5, 4])[:, None]
    given = mask if axes == 2 else mask[:, None, None, :].expand(3, HEADS, 7, 7)
    _, k, _ = write_qkv(tmp_path / "a.npz", mask=given)
    frame = analyze("gram-spectrum", qkv=tmp_path / "a.npz", max_rank="all")
    rows = frame.query("metric == 'eigenvalue' and input == '1' and layer == 1 and head == 0")
    expected = gram_eigenvalues(k[1, 1, 0, :5], DIM**-0.5)
    np.testing.assert_allclose(rows["value"], expected, rtol=1e-9, atol=1e-17)
    maps = analyze("attention-map", qkv=tmp_path / "a.npz", batch_size=2)
    assert maps["value"].notna().all()


@pytest.mark.parametrize("make", [(vit, images), (bert, texts), (gpt2, texts), (grouped_llama, texts)])
def test_a_saved_capture_gives_what_the_model_gives(make, tmp_path):
    model, batch = make[0](), make[1]()
    capture(model, batch, sites=("q", "k", "v", "scale", "mask")).save(tmp_path / "c.safetensors")
    for name in ("gram-spectrum", "attention-map"):
        direct = analyze(name, model=model, inputs=batch)
        held = analyze(name, qkv=tmp_path / "c.safetensors", batch_size=2).assign(model=direct["model"])
        same(held, direct, rtol=1e-3)  # the z of a value near its null distribution's mean has fewer digits


def test_heads_that_attend_alike_have_no_diversity_and_unlike_ones_have_that_of_chance():
    model, batch = vit(), images(3)
    frame = analyze("attention-map", model=model, inputs=batch, null_samples=6)
    rows = frame[frame["metric"] == "attention_diversity"]
    assert len(rows) == 3 * LAYERS
    assert rows["head"].isna().all()
    assert set(rows["null"]) == {"permutation"}
    assert rows["value"].between(0, 1).all()
    for block in model.blocks:  # the second head becomes the first
        for weights in (block.attn.qkv.weight, block.attn.qkv.bias):
            q, k, _ = weights.data.chunk(3)
            q[DIM:], k[DIM:] = q[:DIM], k[:DIM]
    alike = analyze("attention-map", model=model, inputs=batch, null_samples=6)
    alike = alike[alike["metric"] == "attention_diversity"]
    assert (alike["value"] < 1e-6).all()
    assert (alike["null_low"] > alike["value"]).all()
    alone = analyze("attention-map", model=model, inputs=batch, heads=0)
    assert "attention_diversity" not in set(alone["metric"])  # one head differs from none


def test_hidden_states_are_not_in_q_k_v(tmp_path):
    write_qkv(tmp_path / "a.npz")
    with pytest.raises(InputError, match=r"holds no 'resid_post'.*give model and inputs"):
        analyze("token-similarity", qkv=tmp_path / "a.npz")
    held = capture(vit(), images(), sites=("resid_post",))
    direct = analyze("token-similarity", model=vit(), inputs=images())
    same(analyze("token-similarity", qkv=held, batch_size=2).assign(model=direct["model"]), direct)


def test_layers_of_a_file_are_chosen_or_refused(tmp_path):
    write_qkv(tmp_path / "a.npz")
    assert set(analyze("gram-spectrum", qkv=tmp_path / "a.npz", layers=-1)["layer"].dropna()) == {1}
    held = capture(vit(), images(), sites=("q",))
    with pytest.raises(InputError, match=r"takes one layer, capture\[1\], not slice\(1, 2, None\)"):
        held[1:2]
    with pytest.raises(InputError, match=r"layer 5 is not in this capture"):
        analyze("gram-spectrum", qkv=tmp_path / "a.npz", layers="0,5")


# Named models and inputs ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny():
    return workbench.load("timm:vit_tiny_patch16_224", pretrained=False)


def test_inputs_by_name_keep_their_names_and_their_provenance(tiny, tmp_path):
    frame = analyze(
        "gram-spectrum", model=tiny, inputs="bundled:photos", n=2, seed=3, layers=0, heads=1, max_rank=3
    )
    chosen = workbench.inputs("bundled:photos", tiny, n=2, seed=3)
    assert frame["input"].unique().tolist() == chosen.ids
    provenance = frame.attrs["provenance"]
    assert provenance["analysis"] == "gram-spectrum"
    plain = {
        "standardize": "none",
        "normalize": "none",
        "null_samples": 0,
        "per_input": True,
        "method": "auto",
    }
    assert provenance["options"] == {"max_rank": 3, **plain}
    assert provenance["model"] == tiny.identity
    assert provenance["inputs"]["sha256"] == chosen.sha256
    assert provenance["inputs"]["n"] == 2
    assert provenance["seed"] == 3
    assert torch.__version__.startswith(provenance["versions"]["torch"].partition("+")[0])
    assert json.loads(json.dumps(provenance)) == provenance
    again = read_frame(write_frame(frame, tmp_path / "frame.parquet"))
    pd.testing.assert_frame_equal(again, frame, check_exact=True)
    assert again.attrs["provenance"] == [provenance]
    same(analyze("gram-spectrum", model=tiny, inputs=chosen, layers=0, heads=1, max_rank=3), frame)


def test_capture_inputs_does_not_depend_on_batches(tiny, tmp_path):
    options = {"layers": [0, 11], "n": 3, "sites": ("k", "resid_post")}
    whole = capture_inputs(tiny, "bundled:photos", batch_size=3, **options)
    parts = capture_inputs(tiny, "bundled:photos", batch_size=2, **options)
    assert len(parts.tokens) == 3
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one.k, other.k, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(one.resid_post, other.resid_post, rtol=1e-3, atol=1e-5)
    again = Capture.load(parts.save(tmp_path / "parts.safetensors"))
    assert again.inputs["spec"] == "bundled:photos"
    torch.testing.assert_close(again[11].k, parts[11].k)


@pytest.mark.parametrize(("make", "batch"), [(bert, texts()), (gpt2, texts()), (swin, images(3, size=32))])
def test_capture_of_masks_and_windows_is_joined(make, batch):
    model = make()
    sites = ("q", "k", "v", "scale", "mask")
    whole, parts = (capture_inputs(model, batch, sites=sites, batch_size=size) for size in (3, 1))
    for one, other in zip(whole, parts, strict=True):
        for site in ("q", "k", "v"):
            torch.testing.assert_close(getattr(one, site), getattr(other, site), rtol=1e-3, atol=1e-5)
        if one.mask is not None:  # a mask may be shared, or repeated for each input
            shape = torch.broadcast_shapes(one.mask.shape, other.mask.shape)
            assert torch.equal(one.mask.expand(shape), other.mask.expand(shape))
        if one.origin is not None:
            assert torch.equal(one.origin.image, other.origin.image)
    same(*(analyze("attention-map", qkv=held) for held in (whole, parts)), rtol=1e-3)


# What is refused --------------------------------------------------------------------------------------------


def test_unknown_names_offer_the_nearest():
    with pytest.raises(UnknownName, match="did you mean 'gram-spectrum'"):
        analyze("gram-spectrm", model=vit(), inputs=images())
    with pytest.raises(UnknownName, match="did you mean 'max_rank'"):
        analyze("gram-spectrum", model=vit(), inputs=images(), max_ranks=3)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "gram-spectrum",
            {"max_rank": 0},
            "max_rank must be 'head_dim', 'all' or a whole number from 1 up; got 0",
        ),
        ("gram-spectrum", {"max_rank": "half"}, "got 'half'"),
        ("gram-spectrum", {"max_rank": True}, "got True"),
        ("gram-spectrum", {"normalize": 3}, "normalize must be 'none' or 'trace'; got 3"),
        ("eigenvector-test", {"noise": -1}, "noise must be a number from 0"),
        ("eigenvector-test", {"noise": math.nan}, "got nan"),
        (
            "token-similarity",
            {"null_samples": 1},
            "null_samples must be 0, or a whole number from 2 up; got 1",
        ),
        ("token-similarity", {"null_samples": 2.5}, "got 2.5"),
        ("token-similarity", {"null": "uniform"}, "null must be 'gaussian' or 'permutation'"),
    ],
)
def test_ill_typed_options_are_refused_before_anything_runs(name, options, message):
    with pytest.raises(InputError, match=re.escape(message)):
        check_request(name, options)


def test_every_default_is_valid():
    for name, analysis in ANALYSES.items():
        assert check_request(name, {}) == {key: option.default for key, option in analysis.options.items()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "got no model and no inputs: give both, as in analyze("),
        ({"model": "x"}, "got no inputs: give both"),
        ({"inputs": "x"}, "got no model: give both"),
        ({"model": "x", "qkv": "z.npz"}, "qkv replaces a model and its inputs"),
        ({"model": "x", "inputs": "y", "qkv": "z.npz"}, "not both"),
        ({"model": nn.Linear(2, 2), "inputs": "bundled:digits"}, "give Linear its batch itself"),
        ({"model": 3, "inputs": torch.ones(2, 3)}, "model must be a spec"),
        (
            {"model": nn.Linear(2, 2), "inputs": torch.ones(2, 3), "n": 1},
            "n chooses among inputs given by name",
        ),
        ({"model": nn.Linear(2, 2), "inputs": torch.ones(2, 3), "dtype": "float64"}, "dtype loads a model"),
        ({"model": nn.Linear(2, 2), "inputs": [1, 2]}, "inputs must be a spec"),
        (
            {"model": nn.Linear(2, 2), "inputs": {"a": torch.ones(2), "b": torch.ones(3)}},
            "one size along axis 0",
        ),
        ({"model": "x", "inputs": "y", "batch_size": 0}, "batch_size must be"),
        ({"model": "x", "inputs": "y", "heads": "a"}, "heads 'a'"),
    ],
)
def test_requests_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(InputError, match=re.escape(message)):
        analyze("gram-spectrum", **arguments)


def test_heads_that_do_not_exist_are_refused():
    with pytest.raises(InputError, match=r"there is no head 5: heads are 0 to 1"):
        analyze("gram-spectrum", model=vit(), inputs=images(), heads="0,5")
    with pytest.raises(InputError, match="has only 2 heads"):
        analyze("gram-spectrum", model=vit(), inputs=images(), heads=5)
    with pytest.raises(InputError, match="measures whole layers"):
        analyze("token-similarity", model=vit(), inputs=images(), heads=0)


def test_progress_is_shown_on_the_error_stream_only_when_long(capsys, monkeypatch):
    analyze("token-similarity", model=vit(), inputs=images(), progress=True)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("workbench.core.progress.PATIENCE", 0.0)
    analyze("token-similarity", model=vit(), inputs=images(), progress=True, batch_size=2)
    out, err = capsys.readouterr()
    assert out == ""
    assert "Mean cosine similarity" in err


def test_progress_is_the_fraction_after_every_layer_of_every_batch():
    shares = []
    analyze(
        "gram-spectrum", model=vit(), inputs=images(), batch_size=2, layers=[0, 2], progress=shares.append
    )
    # two layers of 2, 2 and 1 of 5 inputs
    np.testing.assert_allclose(shares, [0.2, 0.4, 0.6, 0.8, 0.9, 1.0])
    shares.clear()
    analyze("subspaces", model=vit(), progress=shares.append)
    np.testing.assert_allclose(shares, [1 / LAYERS, 2 / LAYERS, 1.0])


def test_progress_can_stop_the_work():
    class Stopped(Exception):
        pass

    def stop(done):
        if done > 0.5:
            raise Stopped(str(done))

    model, batch = vit(), images()
    before = model(batch)
    hooks = [(len(child._forward_hooks), len(child._forward_pre_hooks)) for child in model.modules()]
    with pytest.raises(Stopped, match=r"0\.6"):
        analyze("gram-spectrum", model=model, inputs=batch, batch_size=1, layers=[1, 2], progress=stop)
    assert hooks == [(len(child._forward_hooks), len(child._forward_pre_hooks)) for child in model.modules()]
    assert torch.equal(model(batch), before)
    assert len(capture(model, batch)) == LAYERS


TOGETHER = [*PLAIN, "value-similarity", "class-attention", "coding-rate", "membership", "position-logits"]


@pytest.mark.parametrize("name", TOGETHER)
def test_layers_measured_while_the_model_runs_are_those_measured_afterwards(name, monkeypatch):
    options = {"rate": "fit"} if name == "token-similarity" else {}
    arguments = {"model": vit(), "inputs": images(), "batch_size": 2, **options}
    streamed = analyze(name, **arguments)
    analysis = replace(ANALYSES[name], together=lambda options: True)
    monkeypatch.setitem(ANALYSES, name, analysis)
    held = analyze(name, **arguments)
    pd.testing.assert_frame_equal(streamed, held)
    assert streamed.attrs["notes"] == held.attrs["notes"]


def test_rollout_holds_the_layers_it_multiplies():
    frame = analyze("class-attention", model=vit(), inputs=images(2), rollout=True, per_head=True)
    assert set(frame.loc[frame["candidate"] == "rollout", "layer"]) == set(range(LAYERS))


def test_random_weights_are_said_in_the_notes_and_the_provenance():
    asked = {"inputs": "bundled:digits", "n": 2, "layers": 0}
    frame = analyze("gram-spectrum", model="bundled:digits-vit@random", **asked)
    assert "bundled:digits-vit has random weights: its numbers" in frame.attrs["notes"][0]
    assert frame.attrs["provenance"]["notes"] == frame.attrs["notes"]
    trained = analyze("gram-spectrum", model="bundled:digits-vit", **asked)
    assert not any("random weights" in note for note in trained.attrs["notes"])


def test_runs_of_one_model_load_it_once_where_asked_to(monkeypatch):
    from workbench.models import loading
    from workbench.runs.loop import keeping_the_model

    loads, load = [], loading.load

    def counted(spec, **named):
        loads.append(spec)
        return load(spec, **named)

    def run(end=""):
        return analyze("token-similarity", model=f"bundled:digits-vit{end}", inputs="bundled:digits", n=1)

    monkeypatch.setattr(loading, "load", counted)
    alone = [run(), run("@0")]
    assert len(loads) == 2
    with keeping_the_model():
        kept = [run(), run(), run("@0"), run()]
    last = "bundled:digits-vit"
    assert loads[2:] == [last, f"{last}@0", last]  # one at a time is kept
    for one, other in zip(kept, [alone[0], *alone, alone[0]], strict=True):
        pd.testing.assert_frame_equal(one, other)
    run()
    assert len(loads) == 6


@pytest.mark.parametrize("analysis", ["attention-map", "sinks", "token-similarity"])
def test_an_input_of_padding_only_is_named(analysis):
    sizes = {"hidden_size": 12, "intermediate_size": 14, "num_hidden_layers": 1, "num_attention_heads": 3}
    model = transformers.BertModel(transformers.BertConfig(vocab_size=30, **sizes)).eval()
    ids, mask = torch.arange(1, 11).view(2, 5), torch.tensor([[1, 1, 1, 1, 0], [0, 0, 0, 0, 0]])
    with pytest.raises(InputError, match="input 1 holds only padding; leave it out"):
        workbench.analyze(analysis, model, {"input_ids": ids, "attention_mask": mask})
    frame = workbench.analyze(analysis, model, {"input_ids": ids[:1], "attention_mask": mask[:1]})
    assert set(frame["input"].dropna()) == {"0"}
