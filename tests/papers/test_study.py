"""The analyses of the kernel-PCA study through `analyze`: what reaches the numerics, and what comes of it."""

import math
import re

import numpy as np
import pandas as pd
import pytest
import timm
import torch
import transformers

from workbench.analyses.gram_spectrum import gram_eigenvalues
from workbench.captures import Capture, LayerRecord, capture
from workbench.core.errors import InputError
from workbench.core.null_distributions import derived_seed, null_of_draws
from workbench.runs.analyze import ANALYSES, analyze

LAYERS, INPUTS, HEADS, TOKENS, DIM, VALUE_DIM = 2, 3, 2, 9, 4, 3
STUDY = ("value-similarity", "eigenvector-test", "projection-error")
FEW = {"null_samples": 3}
NULL_COLUMNS = ["null_mean", "null_low", "null_high", "z"]


def tensors(tokens=TOKENS, value_dim=VALUE_DIM):
    make = torch.Generator().manual_seed(tokens)
    q, k = (torch.randn(LAYERS, INPUTS, HEADS, tokens, DIM, generator=make) for _ in "qk")
    return q, k, torch.randn(LAYERS, INPUTS, HEADS, tokens, value_dim, generator=make)


def write(path, q, k, v, **more):
    np.savez(path, q=q, k=k, v=v, **more)
    return path


@pytest.fixture
def qkv(tmp_path):
    return write(tmp_path / "qkv.npz", *tensors(), scale=0.4)


def overall(frame):
    return frame[frame[["input", "layer", "head"]].isna().all(axis=1)]


def swin():
    torch.manual_seed(0)
    return timm.models.swin_transformer.SwinTransformer(
        img_size=32, patch_size=4, window_size=4, embed_dim=8, depths=(2, 1), num_heads=(2, 4), num_classes=3
    ).eval()


def cait():
    torch.manual_seed(0)
    return timm.models.cait.Cait(
        img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=3
    ).eval()


def xcit():
    torch.manual_seed(0)
    return timm.models.xcit.Xcit(
        img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=3
    ).eval()


def grouped_llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        intermediate_size=16, max_position_embeddings=32,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def images(n=2):
    return torch.randn(n, 3, 32, 32, generator=torch.manual_seed(1))


def texts(lengths=(9, 4, 7)):
    ids = torch.randint(1, 50, (len(lengths), max(lengths)), generator=torch.manual_seed(2))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return {"input_ids": ids * mask, "attention_mask": mask.long()}


# Rows and means ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STUDY)
def test_means_are_those_of_the_single_heads(name, qkv):
    heads = analyze(name, qkv=qkv, per_head=True, **FEW)
    means = analyze(name, qkv=qkv, **FEW)
    keys = ["metric", "axis", "statistic", "convention", "candidate", "rank", "null"]
    for place in ([], ["layer"], ["input"]):
        rows = means
        for column in ("input", "layer"):
            rows = rows[rows[column].notna() if column in place else rows[column].isna()]
        expected = heads.groupby([*place, *keys], dropna=False)[["value", "null_mean"]].mean().reset_index()
        both = rows.merge(expected, "left", [*place, *keys], suffixes=("", "_expected"))
        assert len(both) == len(expected)
        # undefined heads are left out of both
        defined = both["value_expected"].notna()
        for number in ("value", "null_mean"):
            np.testing.assert_allclose(both[number][defined], both[f"{number}_expected"][defined], rtol=1e-9)
    assert means["head"].isna().all()


@pytest.mark.parametrize("name", STUDY)
@pytest.mark.parametrize("per_head", [True, False])
def test_numbers_from_a_file_do_not_depend_on_batches(name, per_head, qkv):
    whole = analyze(name, qkv=qkv, per_head=per_head, **FEW)
    parts = analyze(name, qkv=qkv, per_head=per_head, batch_size=2, **FEW)
    numbers = ["value", *NULL_COLUMNS]
    pd.testing.assert_frame_equal(parts.drop(columns=numbers), whole.drop(columns=numbers))
    for number in numbers:
        np.testing.assert_allclose(parts[number], whole[number], rtol=1e-8, atol=1e-15)


@pytest.mark.parametrize("name", STUDY)
def test_metrics_are_in_their_range_and_chance_follows_the_seed(name, qkv):
    from workbench.frames.metric import METRICS

    first, other = (analyze(name, qkv=qkv, seed=seed, **FEW) for seed in (1, 2))
    for metric, rows in first.groupby("metric"):
        assert rows["value"].between(METRICS[metric].low - 1e-9, METRICS[metric].high + 1e-9).all(), metric
    fixed = first["candidate"].isna() | (first["candidate"] != "perturbed")
    np.testing.assert_allclose(first["value"][fixed], other["value"][fixed], rtol=1e-12)
    drawn = first["null_mean"].notna() & (first["metric"] != "allclose")
    assert drawn.any()
    assert not np.allclose(first["null_mean"][drawn], other["null_mean"][drawn])
    assert set(first["null"].dropna()) == {"gaussian", "permutation"}
    one = analyze(name, qkv=qkv, null="gaussian", seed=1, **FEW)
    gaussian = first[(first["null"] == "gaussian") | first["null"].isna()].reset_index(drop=True)
    pd.testing.assert_frame_equal(one, gaussian)
    none = analyze(name, qkv=qkv, null_samples=0)
    assert none[["null", *NULL_COLUMNS]].isna().all(axis=None)
    keys = ["input", "layer", "metric", "axis", "statistic", "convention", "candidate", "rank"]
    assert not none.duplicated(keys).any()


def test_similarity_is_that_of_the_tensors_with_seeds_of_their_place(qkv):
    from workbench.analyses.value_similarity import QUANTITIES, value_similarity

    _, k, v = tensors()
    frame = analyze("value-similarity", qkv=qkv, per_head=True, seed=5, **FEW)
    layer, number, head = 1, 2, 0
    found = value_similarity(
        k[layer, number, head],
        v[layer, number, head],
        0.4,
        null_samples=3,
        seeds=[derived_seed(5, "2", 1, 0)],
    )
    place = (frame["layer"] == layer) & (frame["input"] == str(number)) & (frame["head"] == head)
    for place_in, quantity in enumerate(QUANTITIES):
        rows = frame[place & (frame["metric"] == quantity.metric)]
        for column in ("axis", "statistic", "convention"):
            wanted = getattr(quantity, column)
            rows = rows[rows[column].isna() if wanted is None else rows[column] == wanted]
        assert rows["null"].tolist() == ["gaussian", "permutation"]
        np.testing.assert_allclose(rows["value"], found.observed[place_in], rtol=1e-9)
        for null, row in zip(rows["null"], rows.to_dict("records"), strict=True):
            expected = null_of_draws(found.observed[place_in], found.null_samples[null][..., place_in])
            np.testing.assert_allclose([row[name] for name in NULL_COLUMNS], expected, rtol=1e-6)


def test_axis_and_statistic_choose_rows_and_change_none(qkv):
    whole = analyze("value-similarity", qkv=qkv, null_samples=0)
    for axis in ("tokens", "features"):
        rows = analyze("value-similarity", qkv=qkv, null_samples=0, axis=axis)
        expected = whole[whole["axis"].isna() | (whole["axis"] == axis)].reset_index(drop=True)
        pd.testing.assert_frame_equal(rows, expected)
    rows = analyze("value-similarity", qkv=qkv, null_samples=0, statistic="max")
    assert set(rows["statistic"].dropna()) == {"max", "min"}
    assert set(rows[rows["statistic"] == "min"]["metric"]) == {"principal_angle"}


def test_a_convention_chooses_rows_and_changes_none(qkv):
    whole = analyze("projection-error", qkv=qkv, **FEW)
    errors = whole[whole["metric"] == "projection_error"]
    assert set(errors["convention"]) == {
        "teo2024_as_published",
        "teo2024_as_implemented",
        "saritas2025",
        "exact",
    }
    for convention in ("saritas2025", "exact"):
        rows = analyze("projection-error", qkv=qkv, convention=convention, **FEW)
        expected = whole[whole["convention"].isna() | (whole["convention"] == convention)]
        expected = expected.reset_index(drop=True)
        pd.testing.assert_frame_equal(rows, expected)


# Padding, short sequences, degenerate heads ------------------------------------------------------------------


@pytest.mark.parametrize("name", STUDY)
def test_masked_padding_changes_nothing_and_kept_padding_counts(name, tmp_path):
    q, k, v = tensors()
    mask = torch.arange(TOKENS) < torch.tensor([TOKENS, 7, 8])[:, None]
    padded = write(tmp_path / "padded.npz", q, k, v, mask=mask)
    alone = write(tmp_path / "alone.npz", *(tensor[:, 1:2, :, :7] for tensor in (q, k, v)))
    options = {"per_head": True, "null_samples": 0}
    found = analyze(name, qkv=padded, **options)
    found = found[(found["input"] == "1") & (found["candidate"] != "perturbed").fillna(True)]
    expected = analyze(name, qkv=alone, **options)
    expected = expected[(expected["candidate"] != "perturbed").fillna(True)]
    np.testing.assert_allclose(found["value"], expected["value"], rtol=1e-7, atol=1e-15)
    assert found["metric"].tolist() == expected["metric"].tolist()
    kept = analyze(name, qkv=padded, padding="keep", **options)
    assert kept.attrs["provenance"]["options"]["padding"] == "keep"
    plain = analyze(name, qkv=write(tmp_path / "plain.npz", q, k, v), **options)
    if name != "projection-error":  # there the mask still hides keys from the attention itself
        fixed = (plain["candidate"] != "perturbed").fillna(True)
        np.testing.assert_allclose(kept["value"][fixed], plain["value"][fixed], rtol=1e-9)


@pytest.mark.parametrize("name", STUDY)
def test_sequences_shorter_than_the_value_dimension_work_and_say_so(name, tmp_path):
    q, k, v = tensors(tokens=5, value_dim=7)
    frame = analyze(name, qkv=write(tmp_path / "short.npz", q, k, v), **FEW)
    assert any(note.startswith("12 of 12 heads have no more tokens") for note in frame.attrs["notes"])
    assert frame.loc[frame["metric"] != "projection_error", "value"].notna().all()
    assert frame.loc[frame["convention"] == "exact", "value"].notna().all()


@pytest.mark.parametrize("name", STUDY)
def test_heads_with_equal_keys_are_left_out_and_counted(name, tmp_path):
    q, k, v = tensors()
    k[0, 1, 0] = k[0, 1, 0, :1]
    file = write(tmp_path / "a.npz", q, k, v)
    frame = analyze(name, qkv=file, **FEW)
    assert any(note.startswith("1 of 12 heads have keys that are all equal") for note in frame.attrs["notes"])
    heads = analyze(name, qkv=file, per_head=True, **FEW)
    degenerate = (heads["layer"] == 0) & (heads["input"] == "1") & (heads["head"] == 0)
    metric = {"value-similarity": "MOC", "eigenvector-test": "inconsistency"}.get(name, "projection_floor")
    if metric != "inconsistency":
        assert heads[degenerate & (heads["metric"] == metric)]["value"].isna().all()
        # one line names all that are undefined in the same number of heads
        (alike,) = [note for note in frame.attrs["notes"] if note.startswith("1 of 12 values of ")]
        assert metric in alike
    assert overall(frame)["value"].notna().all()


@pytest.mark.parametrize("name", STUDY)
def test_what_cannot_be_measured_is_refused(name, tmp_path):
    q, k, v = tensors()
    mask = torch.arange(TOKENS) < torch.tensor([TOKENS, 1, 8])[:, None]
    with pytest.raises(InputError, match=r"leaves 1 token.*at least 2"):
        analyze(name, qkv=write(tmp_path / "few.npz", q, k, v, mask=mask))
    held = capture(swin(), images(), sites=("q", "k", "scale"))
    with pytest.raises(InputError, match="holds no 'v'"):
        analyze(name, qkv=held)
    with pytest.raises(InputError, match="nothing to measure; layers 0-1 left out: attends from channel"):
        analyze(name, model=xcit(), inputs=images(), layers="0-1")


def test_projection_needs_queries(tmp_path):
    held = capture(swin(), images(), sites=("k", "v", "scale"))
    with pytest.raises(InputError, match="holds no 'q'"):
        analyze("projection-error", qkv=held)


# Families ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STUDY)
@pytest.mark.parametrize(
    ("make", "batch"), [(swin, images), (cait, images), (xcit, images), (grouped_llama, texts)]
)
def test_families_give_values_whatever_the_batches(name, make, batch):
    model = make()
    whole = analyze(name, model=model, inputs=batch(), null_samples=2)
    one = analyze(name, model=model, inputs=batch(), null_samples=2, batch_size=1)
    undefined = overall(whole)[overall(whole)["value"].isna()]
    assert set(undefined["convention"]) <= {"teo2024_as_implemented"}  # the logarithm of a negative mean
    numbers = ["value", *NULL_COLUMNS]
    assert whole.drop(columns=numbers).equals(one.drop(columns=numbers))
    # what eigenvectors enter may turn with the rounding of a random model's own float32
    firm = whole["metric"].isin(
        ["KCKA", "gamma_size", "inconsistency", "phi_norm2", "h_norm2", "projection_zero_predictor"]
    )
    assert firm.any()
    np.testing.assert_allclose(one["value"][firm], whole["value"][firm], rtol=1e-2, atol=1e-9)


def test_windows_are_averaged_over_their_image():
    from workbench.analyses.value_similarity import QUANTITIES, value_similarity

    model = swin()
    record = capture(model, images(), layers=0, sites=("k", "v", "scale"))[0]
    expected = value_similarity(record.k, record.v, record.scale).observed[:, 1].unflatten(0, (2, 4)).mean(1)
    frame = analyze("value-similarity", model=model, inputs=images(), layers=0, null_samples=0, per_head=True)
    number = next(i for i, quantity in enumerate(QUANTITIES) if quantity.metric == "LCKA")
    found = frame[(frame["metric"] == "LCKA") & (frame["head"] == 1)]["value"]
    np.testing.assert_allclose(found, expected[:, number], rtol=1e-5)


def test_grouped_queries_project_on_the_axes_of_their_keys():
    model, batch = grouped_llama(), texts(lengths=(9, 9))
    heads = analyze("projection-error", model=model, inputs=batch, null_samples=0, per_head=True)
    assert set(heads["head"]) == set(range(6))
    assert set(
        analyze("value-similarity", model=model, inputs=batch, null_samples=0, per_head=True)["head"]
    ) == {
        0,
        1,
    }
    record = capture(model, batch, layers=1, sites=("q", "k", "scale"))[1]
    q, k = record.q[0, 4].double(), record.k[0, 1].double()  # heads 3-5 read the second keys
    scores = record.scale * q @ k.mT
    phi = (record.scale * q.square().sum(-1) - 2 * scores.logsumexp(-1)).exp()
    rows = heads[(heads["layer"] == 1) & (heads["head"] == 4) & (heads["input"] == "0")]
    found = rows[(rows["metric"] == "phi_norm2") & (rows["statistic"] == "mean")]["value"].item()
    assert found == pytest.approx(float(phi.mean()), rel=1e-5)


def test_attention_that_is_not_the_kernels_is_spoken_of():
    causal = analyze("projection-error", model=grouped_llama(), inputs=texts(), null_samples=0)
    assert any("differs from query to query" in note for note in causal.attrs["notes"])
    talking = analyze("projection-error", model=cait(), inputs=images(), null_samples=0)
    assert any("do not attend by a softmax" in note for note in talking.attrs["notes"])


# Standardised keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["per-token", "per-feature"])
def test_standardised_keys_are_named_in_every_row(how, qkv):
    from workbench.core.operands import standardize

    for name in ("value-similarity", "eigenvector-test", "gram-spectrum"):
        plain, frame = (
            analyze(
                name, qkv=qkv, standardize=choice, **({} if name == "gram-spectrum" else {"null_samples": 0})
            )
            for choice in ("none", how)
        )
        assert set(frame["standardize"]) == {how}
        assert plain["standardize"].isna().all()
        assert not np.allclose(plain["value"], frame["value"])
    _, k, _ = tensors()
    spectrum = frame[frame["metric"] == "eigenvalue"]["value"].to_numpy()
    expected = gram_eigenvalues(standardize(k, how), 0.4)[..., :DIM]
    np.testing.assert_allclose(spectrum, expected.ravel(), rtol=1e-8, atol=1e-17)


def test_the_profile_is_that_of_the_mean_spectrum(qkv):
    _, k, _ = tensors()
    frame = analyze("gram-spectrum", qkv=qkv, batch_size=2, max_rank=1)
    profile = frame[frame["metric"] == "eigenvalue_profile"]
    means = gram_eigenvalues(k, 0.4)[..., :DIM].mean((0, 2))  # over layers and heads
    assert sorted(profile["input"]) == sorted(str(number) for number in range(INPUTS) for _ in range(4))
    for statistic in ("max", "min", "mean", "median"):
        expected = [float(getattr(mean, statistic)()) for mean in means]
        found = profile[profile["statistic"] == statistic]["value"]
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert profile[["layer", "head", "rank"]].isna().all(axis=None)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("value-similarity", {"axis": "rows"}, "axis must be 'tokens', 'features' or 'both'; got 'rows'"),
        (
            "value-similarity",
            {"null_samples": 1},
            "null_samples must be 0, or a whole number from 2 up; got 1",
        ),
        ("value-similarity", {"per_head": "yes"}, "per_head must be true or false; got 'yes'"),
        ("eigenvector-test", {"noise": -1}, "noise must be a number from 0"),
        ("eigenvector-test", {"precision": "float16"}, "precision must be 'float64' or 'float32'"),
        (
            "projection-error",
            {"convention": "as_published"},
            "convention must be 'teo2024_as_published', 'teo2024_as_implemented'",
        ),
        ("projection-error", {"standardize": "per-feature"}, "standardize must be 'none' or 'per-token'"),
    ],
)
def test_wrong_options_are_refused(name, options, message, qkv):
    with pytest.raises(InputError, match=re.escape(message)):
        analyze(name, qkv=qkv, **options)


def test_chance_that_cannot_differ_has_no_z_and_says_so(qkv):
    frame = analyze("value-similarity", qkv=qkv, **FEW)
    # the best matching of rows does not care in which order they come
    rows = frame[(frame["metric"] == "MOC") & (frame["axis"] == "tokens") & (frame["null"] == "permutation")]
    np.testing.assert_allclose(rows["value"], rows["null_mean"], rtol=1e-9)
    assert rows["z"].isna().all()
    (note,) = (note for note in frame.attrs["notes"] if note.startswith("no z"))
    assert "MOC tokens max (permutation)" in note
    assert "(gaussian)" not in note.replace("allclose as_published (gaussian)", "").replace(
        "allclose as_implemented (gaussian)", ""
    )
    assert not math.isnan(frame[frame["metric"] == "LCKA"]["z"].iloc[0])


def test_the_study_is_registered():
    assert set(STUDY) <= set(ANALYSES)


@pytest.mark.parametrize("name", STUDY)
@pytest.mark.parametrize(("make", "batch"), [(swin, images), (grouped_llama, texts)])
def test_a_saved_capture_gives_what_the_model_gives(name, make, batch, tmp_path):
    model, inputs = make(), batch()
    capture(model, inputs, sites=("q", "k", "v", "scale", "mask")).save(tmp_path / "c.safetensors")
    direct = analyze(name, model=model, inputs=inputs, null_samples=2, per_head=True)
    again = analyze(name, qkv=tmp_path / "c.safetensors", null_samples=2, per_head=True, batch_size=2)
    numbers = ["value", *NULL_COLUMNS, "model"]
    assert again.drop(columns=numbers).equals(direct.drop(columns=numbers))
    # without the captured output, attention is computed again in double precision
    np.testing.assert_allclose(again["value"], direct["value"], rtol=1e-3, atol=1e-9)


def test_axes_too_close_to_be_distinguished_are_in_the_notes():
    angle = 2 * math.pi * torch.arange(24, dtype=torch.float64) / 24
    circle = torch.stack([angle.cos(), angle.sin()], -1)  # its eigenvalues come in pairs
    k = torch.stack([circle, circle * torch.tensor([1.0, 0.7])])[None]
    v = torch.randn(1, 2, 24, 3, dtype=torch.float64, generator=torch.manual_seed(0))
    held = Capture([LayerRecord(0, "file", q=k, k=k, v=v)], ("q", "k", "v"))
    notes = analyze("value-similarity", qkv=held, null_samples=0).attrs["notes"]
    assert any(note.startswith("1 of 2 heads have top axes whose eigenvalues lie closer") for note in notes)
