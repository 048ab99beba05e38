"""method="tiled" gives the frames of method="dense", "auto" chooses by size, and what has no tiles says so."""

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import timm
import torch
import transformers

import workbench
from tests.analyses.test_class_attention import images, narrow_vit
from workbench.analyses import (
    registry,
    softmax_sensitivity,
    tiled_spectra,
    tiles,
    value_matrix,
    value_similarity,
)
from workbench.analyses.reductions import ChosenColumns, ChosenRows
from workbench.analyses.tiled_spectra import GramTiles
from workbench.captures import Capture, LayerRecord, attention_weights, capture, layer_records
from workbench.captures.implicit_masks import causal_mask
from workbench.core import memory
from workbench.core.errors import InputError
from workbench.studies.training.cost_measures import Allocations

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


@pytest.mark.parametrize(
    ("name", "options", "instead"),
    [
        ("filter-kernels", {}, "4 such at once would take 1,024.0 GiB.*fewer tokens, or images at a lower"),
        ("position-logits", {}, "8 such at once would take 2,048.0 GiB.*contexts are of a few thousand"),
        (
            "attention-map",
            {"method": "dense"},
            "2 such at once would take 512.0 GiB.*leave method='dense' out",
        ),
        ("attention-patterns", {"method": "dense"}, "2 such at once would take 512.0 GiB"),
    ],
)
def test_whole_maps_of_32768_tokens_are_refused_before_one_is_formed(name, options, instead):
    tokens, heads = 32_768, 32
    q = torch.zeros(1, heads, 1, 2).expand(-1, -1, tokens, -1)
    x = torch.zeros(1, 1, 4).expand(-1, tokens, -1)
    record = LayerRecord(7, "", q=q, k=q[:, :8], input=x, scale=0.5, extra={"position": x})
    said = r"layer 7: attention of 1 × 32 × 32,768 × 32,768 numbers \(batch, head, query, key\) in float64, "
    with pytest.raises(InputError, match=said + instead):
        workbench.analyze(name, qkv=Capture([record], ("input", "q", "k", "scale")), **options)


def test_a_captured_map_that_cannot_be_copied_in_double_precision_is_refused():
    attn = torch.zeros(1, 1, 1, 1).expand(1, 32, 32_768, 32_768)
    with pytest.raises(
        InputError, match=r"1 × 32 × 32,768 × 32,768 .* in float64, 2 such at once would take 512.0 GiB"
    ):
        workbench.analyze(
            "attention-map", qkv=Capture([LayerRecord(7, "", attn=attn)], ("attn",)), method="dense"
        )


def test_a_map_that_the_free_memory_cannot_hold_is_refused_with_its_layer(monkeypatch):
    model, inputs = narrow_vit(), images(1)
    attn = capture(model, inputs, sites=["attn"])[1].attn
    free = SimpleNamespace(available=attn.numel() * attn.itemsize - 1)
    monkeypatch.setattr("psutil.virtual_memory", lambda: free)
    assert capture(model, inputs, sites=["attn"])[1].attn is not None  # what is small is taken without asking
    monkeypatch.setattr(memory, "SMALL", 0)
    with pytest.raises(InputError, match=r"layer 0 \(blocks.0.attn\): attention of 1 × .*method='tiled'"):
        capture(model, inputs, sites=["attn"])
    assert capture(model, inputs, sites=["attn"], map_limit=0)[1].q is not None
    free.available += 1
    assert capture(model, inputs, sites=["attn"])[1].attn is not None


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


def test_an_analysis_of_whole_matrices_says_why_it_refuses_tiles_and_others_take_the_word():
    given = layer_of(5)
    for method in ("auto", "dense"):
        assert len(workbench.analyze("gram-spectrum", qkv=given, method=method))
    for name, reason in {"filter-kernels": "every fit", "position-logits": "the four terms"}.items():
        with pytest.raises(
            InputError, match=f"{name}: method must be 'auto' or 'dense': .*{reason}.*got 'tiled'"
        ):
            workbench.analyze(name, qkv=given, method="tiled")
    with pytest.raises(InputError, match="method must be 'auto', 'dense' or 'tiled'; got 'whole'"):
        workbench.analyze("token-similarity", qkv=given, method="whole")
    for name, analysis in registry.ANALYSES.items():
        for entry in (analysis, *analysis.finer):
            assert entry.asked({"method": "dense"}).method == "dense", name


SPECTRA = ["gram-spectrum", "value-similarity", "eigenvector-test", "projection-error"]
# numbers of what is rounding in both ways; and an estimate, which has a test of its own
ROUNDING = {"gamma_abs", "gamma_rel", "eigen_residual"}


def layer_of(tokens, size=1.0, dtype=torch.float32):
    source = torch.manual_seed(5)
    fall = (-2 * torch.linspace(0, 1, 7)).exp() * 2
    q, k, v = (torch.randn(2, heads, tokens, 7, generator=source) * fall for heads in (4, 2, 2))
    record = LayerRecord(0, "", q=q.to(dtype), k=(size * k).to(dtype), v=v.to(dtype))
    return Capture([record], ("q", "k", "v"))


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of odd sizes, of which a few tokens have several."""
    monkeypatch.setattr(tiled_spectra, "_SIDE", 17)
    monkeypatch.setattr(value_matrix, "_SIDE", 19)


def beside_each_other(name, given, **options):
    """Rows of both ways that are of the same number, matched."""
    dense, tiled = (
        workbench.analyze(name, qkv=given, method=method, **options) for method in ("dense", "tiled")
    )
    assert any("were measured in tiles" in note for note in tiled.attrs["notes"])
    labels = [column for column in dense if column not in (*NUMBERS, "samples", "run")]
    both = dense.merge(tiled, how="left", on=labels, suffixes=("", "_tiled"), indicator=True)
    assert (both["_merge"] == "both").all()
    arbitrary = (
        both["metric"].isin(ROUNDING) & (both["candidate"] == "true") if "candidate" in both else False
    )
    return both[~(both["metric"].isin(["effective_rank", "rank_90"]) | arbitrary)], tiled


@pytest.mark.parametrize(
    ("name", "size", "dtype"),
    [
        *((name, 1.0, torch.float32) for name in SPECTRA),
        # one axis is left, and what is made of single others is arbitrary
        *((name, 100.0, torch.float32) for name in ("gram-spectrum", "projection-error")),
        ("gram-spectrum", 1.0, torch.bfloat16),
    ],
)
def test_spectra_and_what_is_made_of_them_are_the_same_in_tiles(name, size, dtype, small_tiles):
    given = layer_of(53, size, dtype)
    both, _ = beside_each_other(name, given, null_samples=2 if name != "gram-spectrum" else 0)
    for column in ("value", "null_mean"):
        scale = both.groupby("metric")[column].transform(lambda values: values.abs().max())
        off = (both[column] - both[f"{column}_tiled"]).abs() / scale.clip(lower=1e-300)
        assert (both[column].isna() == both[f"{column}_tiled"].isna()).all()
        assert off.max() < 1e-6 or off.isna().all()


def test_padding_is_left_out_of_tiles(small_tiles):
    model, inputs = RUNS["texts with padding"]()
    for name in SPECTRA[::3]:
        more = {} if name == "gram-spectrum" else {"null_samples": 0}
        dense, tiled = (
            workbench.analyze(name, model=model, inputs=inputs, method=method, layers="0", **more)
            for method in ("dense", "tiled")
        )
        kept = dense["metric"].isin({"eigenvalue", "gram_log_trace", "projection_floor", "phi_norm2"})
        labels = [column for column in dense if column not in (*NUMBERS, "run")]
        found = dense[kept].merge(tiled, on=labels, suffixes=("", "_tiled"))
        assert len(found) == kept.sum()
        np.testing.assert_allclose(found["value_tiled"], found["value"], rtol=1e-7, atol=1e-12)


def test_equal_keys_have_no_axes_in_tiles_either(small_tiles):
    given = layer_of(23)
    given[0].k[:] = 0.5
    for name in SPECTRA[::2]:
        both, _ = beside_each_other(name, given, **({} if name == "gram-spectrum" else {"null_samples": 0}))
        known = both[both["metric"] != "gram_log_trace"]  # −∞ both ways
        np.testing.assert_allclose(known["value_tiled"], known["value"], rtol=1e-8, atol=1e-12)


def test_the_effective_rank_lies_between_its_bounds_and_within_its_error(small_tiles):
    given = layer_of(61)
    dense = workbench.analyze("gram-spectrum", qkv=given)
    tiled = workbench.analyze("gram-spectrum", qkv=given, method="tiled", max_rank=40)
    numbers = {
        name: tiled[tiled["metric"] == name].set_index(["input", "head"])["value"]
        for name in (
            "effective_rank",
            "effective_rank_low",
            "effective_rank_high",
            "effective_rank_error",
            "rank_90",
        )
    }
    exact = {
        name: dense[dense["metric"] == name].set_index(["input", "head"])["value"]
        for name in ("effective_rank", "rank_90")
    }
    rank = exact["effective_rank"]
    assert (numbers["effective_rank_low"] <= rank * (1 + 1e-9)).all()
    assert (numbers["effective_rank_high"] >= rank * (1 - 1e-9)).all()
    assert (
        (numbers["effective_rank"] - rank).abs() <= 5 * numbers["effective_rank_error"] + 1e-6 * rank
    ).all()
    assert (numbers["effective_rank_error"] < 0.02 * rank).all()
    pd.testing.assert_series_equal(numbers["rank_90"], exact["rank_90"])
    most = numbers["effective_rank_error"].max()
    estimated = "effective_rank is estimated, with a standard error of at most"
    assert any(note.startswith(f"{estimated} {most:.2g};") for note in tiled.attrs["notes"])
    assert not any(note.startswith(estimated) for note in dense.attrs["notes"])
    with pytest.raises(InputError, match="max_rank='all' asks for all 61 eigenvalues"):
        workbench.analyze("gram-spectrum", qkv=given, method="tiled", max_rank="all")
    with pytest.raises(InputError, match="tiles are float64"):
        workbench.analyze("eigenvector-test", qkv=given, method="tiled", precision="float32")


def test_the_leading_singular_triplets_of_attention_are_those_of_the_matrix():
    model, inputs = RUNS["texts with padding"]()
    for given in ({"model": model, "inputs": inputs, "layers": "1"}, {"qkv": layer_of(29)}):
        dense, tiled = (
            workbench.analyze("attention-spectrum", method=method, max_rank=5, null_samples=2, **given)
            for method in ("dense", "tiled")
        )
        left_out = {"effective_rank", "rank_90", "rank_90_share"}
        spectra = {
            "singular_value",
            "singular_value_relative",
            "explained_variance",
        }  # without a null in tiles
        labels = [column for column in dense if column not in (*NUMBERS, "run", "null", "null_samples")]
        wanted = dense[
            ~dense["metric"].isin(left_out) & (dense["null"].notna() | dense["metric"].isin(spectra))
        ]
        for metric, rows in wanted.groupby("metric"):
            key = labels if metric in spectra else [*labels, "null"]
            both = rows.merge(tiled, on=key, suffixes=("", "_tiled"))
            assert len(both) == len(rows), metric
            for column in ["value"] if metric in spectra else ["value", "null_mean"]:
                np.testing.assert_allclose(
                    both[f"{column}_tiled"], both[column], rtol=1e-6, atol=1e-7, err_msg=metric
                )
    with pytest.raises(InputError, match="max_rank='all' asks for every singular value"):
        workbench.analyze("attention-spectrum", qkv=layer_of(9), method="tiled")


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("query", ["auto", "mean", "first"])
def test_rows_of_attention_and_their_rollout_need_no_maps(kind, query):
    model, inputs = RUNS[kind]()
    for per in (None, "token"):
        more = {"tokens": True} if per is None else {}
        dense, tiled = (
            workbench.analyze(
                "class-attention",
                model=model,
                inputs=inputs,
                method=method,
                query=query,
                rollout=True,
                per=per,
                **more,
            )
            for method in ("dense", "tiled")
        )
        pd.testing.assert_frame_equal(
            dense.drop(columns=NUMBERS, errors="ignore"), tiled.drop(columns=NUMBERS, errors="ignore")
        )
        np.testing.assert_allclose(tiled["value"], dense["value"], rtol=1e-6, atol=1e-9)


def test_logits_are_looked_at_a_few_queries_at_a_time(monkeypatch):
    given = layer_of(37)
    whole = workbench.analyze("softmax-sensitivity", qkv=given, null_samples=2)
    monkeypatch.setattr(softmax_sensitivity, "_AT_ONCE", 1)
    parts = workbench.analyze("softmax-sensitivity", qkv=given, null_samples=2)
    np.testing.assert_allclose(parts["value"], whole["value"], rtol=1e-12)
    np.testing.assert_allclose(parts["null_mean"], whole["null_mean"], rtol=1e-12)


def test_auto_works_in_tiles_above_a_size(monkeypatch):
    given = layer_of(12)
    monkeypatch.setattr(registry, "MAP_ENTRIES", 12 * 12)
    assert not any(
        "in tiles" in note for note in workbench.analyze("gram-spectrum", qkv=given).attrs["notes"]
    )
    monkeypatch.setattr(registry, "MAP_ENTRIES", 12 * 12 - 1)
    assert any("in tiles" in note for note in workbench.analyze("gram-spectrum", qkv=given).attrs["notes"])
    whole = workbench.analyze("gram-spectrum", qkv=given, max_rank="all")  # which tiles cannot give
    assert not any("in tiles" in note for note in whole.attrs["notes"])


def test_samples_of_tokens_stand_for_the_matching_of_all_and_the_median_is_exact(monkeypatch):
    monkeypatch.setattr(value_similarity, "SAMPLED", 10)
    monkeypatch.setattr(value_matrix, "_FEW_PAIRS", 10)
    monkeypatch.setattr(value_matrix, "_DRAWN", 100)  # so few that the bracket may miss
    given = layer_of(47)
    dense, tiled = (
        workbench.analyze("value-similarity", qkv=given, method=method, null_samples=0)
        for method in ("dense", "tiled")
    )
    matched = [
        frame[(frame["metric"] == "MOC") & (frame["axis"] == "tokens") & (frame["statistic"] == "mean")][
            "value"
        ]
        for frame in (dense, tiled)
    ]
    assert (matched[1] < matched[0]).all()  # fewer to choose from
    assert any("MOC of tokens is of samples" in note for note in tiled.attrs["notes"])
    kernels = [frame[frame["metric"] == "KCKA"]["value"] for frame in (dense, tiled)]
    np.testing.assert_allclose(kernels[1], kernels[0], rtol=1e-10)


LONG = 2048
OPTIONS = {
    "attention-spectrum": {"max_rank": 4},
    "gram-spectrum": {"max_rank": 16},
    "class-attention": {"query": "mean"},
}
ESTIMATED = {"effective_rank", "rank_90"}  # of tiles; a test of their own holds them to their error


def one_head(tokens, kind="", dtype=torch.float32):
    """A head whose keys have directions of unequal weight, or that is hard on numbers in one way."""
    source = torch.manual_seed(6)
    fall = (-2 * torch.linspace(0, 1, 5)).exp() * 2
    q, k, v = (torch.randn(1, 1, tokens, 5, generator=source).bfloat16().float() * fall for _ in range(3))
    mask = None
    if kind == "one giant logit":
        k[:, :, 17], k[:, :, 17, 0], q[..., 0] = 0, 64.0, 8.0
    if kind == "all equal":
        k[:] = k[:, :, :1]
    if kind == "nearly equal":
        k = k[:, :, :1] * (1 + 1e-6 * torch.randn(1, 1, tokens, 1, generator=source))
    if kind == "keys × 100":
        k *= 100
    if kind == "rows that see nothing":
        mask = torch.ones(tokens, tokens, dtype=torch.bool).tril()[None, None]
        mask[..., tokens // 3 : tokens // 2, :] = False
    if kind == "bfloat16":
        q, k, v = (part.bfloat16() for part in (q, k, v))
    record = LayerRecord(0, "", q=q.to(dtype), k=k.to(dtype), v=v.to(dtype), mask=mask)
    return Capture([record], ("q", "k", "v", "mask"))


def rows_of_both(name, given, **options):
    """Rows of the dense and the tiled way that are of the same number."""
    more = OPTIONS.get(name, {}) | options
    if "null_samples" in registry.ANALYSES[name].options:
        more["null_samples"] = 0
    dense, tiled = (
        workbench.analyze(name, qkv=given, method=method, **more) for method in ("dense", "tiled")
    )
    labels = [column for column in dense if column not in (*NUMBERS, "samples", "run")]
    both = dense.merge(tiled, how="left", on=labels, suffixes=("", "_tiled"), indicator=True)
    arbitrary = both["metric"].isin(ESTIMATED) | (
        both["metric"].isin(ROUNDING) & (both["candidate"] == "true") if "candidate" in both else False
    )
    if name == "value-similarity":  # of samples of the tokens
        arbitrary |= (both["metric"] == "MOC") & (both["axis"] == "tokens")
    if name == "attention-spectrum":
        arbitrary |= both["metric"] == "rank_90_share"
    both = both[~arbitrary]
    assert (both["_merge"] == "both").all()
    return both


IN_TILES = [*SPECTRA, "attention-map", "attention-patterns", "class-attention", "attention-spectrum"]


@pytest.mark.parametrize("name", IN_TILES)
def test_both_ways_agree_to_a_millionth_at_2048_tokens(name):
    both = rows_of_both(name, one_head(LONG))
    np.testing.assert_allclose(both["value_tiled"], both["value"], rtol=1e-6, atol=1e-12)


HARD = ["one giant logit", "all equal", "keys × 100", "rows that see nothing", "bfloat16"]
# of keys × 100 one axis is left, and what is made of single others is arbitrary
ARBITRARY = {("value-similarity", "keys × 100"), ("eigenvector-test", "keys × 100")}


@pytest.mark.parametrize("kind", HARD)
@pytest.mark.parametrize("name", IN_TILES)
def test_both_ways_agree_where_numbers_are_hard(name, kind, small_tiles):
    both = rows_of_both(name, one_head(61, kind))
    if (name, kind) in ARBITRARY:
        assert both["value_tiled"].notna().equals(both["value"].notna())
        return
    # singular values are roots of sums that are right to 1e-15; scores of a thousand have 1e-4 of rounding in float32
    right = 3e-8 * both["value"].max() if name == "attention-spectrum" else 1e-12
    relative = 1e-5 if kind == "keys × 100" and name.startswith("attention-") else 1e-6
    np.testing.assert_allclose(both["value_tiled"], both["value"], rtol=relative, atol=right)


@pytest.mark.parametrize("site", ["q", "k", "v"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", IN_TILES)
def test_numbers_that_are_none_are_named_by_where_they_stand(name, bad, site):
    given, more = one_head(37), OPTIONS.get(name, {})
    getattr(given[0], site)[0, 0, 11, 2] = bad
    try:
        said = " ".join(workbench.analyze(name, qkv=given, method="tiled", **more).attrs["notes"])
    except InputError as error:
        said = str(error)
    read = "qk" if "attn" in (sites := registry.ANALYSES[name].sites) else sites
    if site not in read and (name, site) != ("attention-spectrum", "v"):
        return
    assert re.search(
        r"layer 0.*(token 11|input 0, head 0, (queries 11 to 11|queries \d+ to 36, keys 11 to 11))", said
    )


@pytest.mark.parametrize("tokens", [61, 601])
def test_keys_that_hardly_differ_have_a_spectrum_near_rounding(tokens, small_tiles):
    """Rounding makes some eigenvalues negative that are no smaller than most of the positive ones."""
    given = one_head(tokens, "nearly equal", torch.float64)
    both = rows_of_both("gram-spectrum", given)
    first = both[both["metric"] == "eigenvalue"].iloc[0]
    assert first["value_tiled"] == pytest.approx(first["value"], rel=1e-3)
    assert first["value"] > 0
    errors = rows_of_both("projection-error", given).set_index("metric")
    for way in ("value", "value_tiled"):  # no axes of rounding are taken for axes
        floor, zero = errors.loc["projection_floor", way], errors.loc["projection_zero_predictor", way]
        assert (floor >= 0).all()
        assert (floor.to_numpy() <= zero.to_numpy()).all()


SIDE = 20  # patches on a side of an image


@pytest.fixture(scope="module")
def many_tokens():
    """A model that sees 401 tokens of 8 features with 2 heads, and one image."""
    torch.manual_seed(0)
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=SIDE * 2, patch_size=2, in_chans=1, embed_dim=8, depth=1, num_heads=2, num_classes=3
    )
    return model.eval(), torch.randn(1, 1, SIDE * 2, SIDE * 2)


@pytest.mark.parametrize(
    "name",
    [
        *SPECTRA, "attention-map", "attention-patterns", "class-attention", "attention-spectrum",
        "softmax-sensitivity", "token-similarity", "membership", "coding-rate",
    ],
)  # fmt: skip
def test_nothing_as_large_as_tokens_times_tokens_is_formed(name, many_tokens, monkeypatch):
    monkeypatch.setattr(tiled_spectra, "_SIDE", 101)
    monkeypatch.setattr(value_matrix, "_SIDE", 101)
    for function in (tiles.reduce_tiles, tiled_spectra.attention_leading):
        monkeypatch.setitem(function.__wrapped__.__kwdefaults__, "memory", 2**18)
    monkeypatch.setattr(GramTiles.__init__, "__defaults__", (2**18,))
    monkeypatch.setattr(softmax_sensitivity, "_AT_ONCE", 2**13)
    monkeypatch.setattr(value_similarity, "SAMPLED", 50)
    monkeypatch.setattr(value_matrix, "_FEW_PAIRS", 10)
    monkeypatch.setattr(value_matrix, "_DRAWN", 2**11)
    monkeypatch.setitem(tiled_spectra.attention_leading.__wrapped__.__kwdefaults__, "products", 4)
    monkeypatch.setattr(registry, "MAP_ENTRIES", 100)
    analysis = registry.ANALYSES[name]
    largest = []

    def watched(layer, options):
        with Allocations() as made:  # of this thread
            found = [*analysis.measure(layer, options)]
        largest.append(made.largest)
        return found

    monkeypatch.setitem(registry.ANALYSES, name, replace(analysis, measure=watched))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # heads one after the other, in this thread
    model, inputs = many_tokens
    more = {"null_samples": 0} if "null_samples" in analysis.options else {}
    if name == "attention-spectrum":
        more |= {"max_rank": 3}
    assert len(
        workbench.analyze(
            name, model=model, inputs=inputs, method="tiled", heads="0" if analysis.of_heads else None, **more
        )
    )
    tokens = SIDE**2 + 1
    assert largest
    assert max(largest) < tokens**2


def test_rows_columns_and_blocks_of_a_captured_layer_are_those_of_its_map():
    """The way of `docs/tutorials/long.md`: operands captured without a map, of chosen heads with their group's keys."""
    model, inputs = grouped_llama(), padded_texts((9,))
    whole = capture(model, inputs, sites=["attn"])[1].attn
    layer = capture(model, inputs, sites=["q", "k", "scale", "mask", "attn"], map_limit=0)[1]
    assert layer.attn is None
    assert layer.causal
    group = slice(3, 6)  # the queries that read the second of the keys
    found = tiles.reduce_tiles(
        layer.q[:, group], layer.k[:, 1:2], ChosenRows([8, 2]), ChosenColumns([0, 5]),
        scale=layer.scale, mask=tiles.Mask(causal=True),
    )  # fmt: skip
    for name, wanted in {"rows": whole[:, group, [8, 2]], "columns": whole[:, group, :, [0, 5]]}.items():
        torch.testing.assert_close(found[name], wanted, rtol=1e-12, atol=1e-15)
    some = torch.tensor([4, 7])
    block = attention_weights(layer.q[:, :, some], layer.k, layer.scale, torch.arange(9) <= some[:, None])
    torch.testing.assert_close(block[..., 2:6], whole[:, :, some, 2:6], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("lengths", [(9,), (9, 4, 7)])
@pytest.mark.parametrize("name", ["attention-map", "projection-error", "softmax-sensitivity"])
def test_a_causal_mask_of_long_texts_is_not_written_out(name, lengths, monkeypatch):
    """Padding alone is a mask that is written out as it came, beside which nothing is causal any more."""
    model, inputs = grouped_llama(), padded_texts(lengths)
    more = {"null_samples": 0} | ({} if name == "softmax-sensitivity" else {"method": "dense"})
    dense = workbench.analyze(name, model=model, inputs=inputs, **more)
    written = []
    monkeypatch.setattr(
        layer_records, "causal_mask", lambda *sizes: written.append(sizes) or causal_mask(*sizes)
    )
    monkeypatch.setattr(registry, "MAP_ENTRIES", 9)
    tiled = workbench.analyze(name, model=model, inputs=inputs, **more | {"method": "auto"})
    np.testing.assert_allclose(tiled["value"], dense["value"], rtol=1e-6, atol=1e-12)
    assert not written


@pytest.mark.parametrize("name", ["gram-spectrum", "token-similarity", "coding-rate"])
def test_a_causal_mask_is_not_written_out_for_who_reads_none(name, monkeypatch):
    written = []
    monkeypatch.setattr(
        layer_records, "causal_mask", lambda *sizes: written.append(sizes) or causal_mask(*sizes)
    )
    assert len(workbench.analyze(name, model=grouped_llama(), inputs=padded_texts((9,))))
    assert not written


def test_a_causal_mask_is_written_out_when_it_is_read():
    model = grouped_llama()
    inputs = {"input_ids": torch.randint(1, 6, (1, 9), generator=torch.manual_seed(2))}
    whole = capture(model, inputs, sites=["attn", "mask"])[0]
    long = capture(model, inputs, sites=["attn", "mask"], map_limit=9)[0]
    assert long.causal
    assert not whole.causal
    assert torch.equal(long.mask, whole.mask)
    assert not long.causal  # now there is a tensor
    assert long.mask is long.mask
