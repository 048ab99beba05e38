"""Rows of single tokens and pairs: what `analyze` gives with ``per``."""

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import workbench
from tests.captures.families import FAMILIES
from tests.runs.test_analyze import bert, images, texts, vit
from workbench.analyses.registry import ANALYSES
from workbench.apps.cli.command_tree import cli
from workbench.core.errors import InputError, UnknownName
from workbench.runs.analyze import analyze

FINER = [
    ("attention-map", "pair"),
    ("class-attention", "token"),
    ("membership", "token"),
    ("position-logits", "pair"),
    ("subspaces", "pair"),
    ("patching", "token"),
    ("relevance", "token"),
    ("patch-pca", "token"),
    ("value-output", "token"),
    ("value-output", "pair"),
    ("logit-attribution", "pair"),
]
OTHER_INPUTS = ("subspaces", "patching", "relevance", "patch-pca", "logit-attribution")
"""Of weights, of inputs to a model that predicts, and of images."""


def test_ten_analyses_have_rows_of_tokens_or_pairs():
    entries = [(entry.name, finer.per) for entry in ANALYSES.values() for finer in entry.finer]
    assert sorted(entries) == sorted(FINER)


@pytest.mark.parametrize(("name", "per"), [entry for entry in FINER if entry[0] not in OTHER_INPUTS])
def test_rows_do_not_depend_on_the_batches(name, per):
    given = {"model": bert(), "inputs": texts((9, 4, 7)), "per": per}
    given |= {"query": "first"} if name == "class-attention" else {}
    whole = analyze(name, **given)
    one = analyze(name, batch_size=1, **given)
    places = [column for column in whole if column != "value"]
    pd.testing.assert_frame_equal(one[places], whole[places])
    np.testing.assert_allclose(one["value"], whole["value"], rtol=1e-4, atol=1e-6)
    assert whole["layer"].is_monotonic_increasing
    assert {"input", "value"} <= set(whole)


@pytest.mark.parametrize(("name", "per"), FINER[:8])
def test_other_rows_and_options_are_refused_with_those_that_there_are(name, per):
    wrong = {"token": "pair", "pair": "token"}[per]
    with pytest.raises(InputError, match=f"{name} has no rows per '{wrong}'; per must be '{per}', or none"):
        analyze(name, model="bundled:digits-vit", inputs="bundled:digits", per=wrong)
    with pytest.raises(UnknownName, match=f"unknown option of {name} per {per} 'null_samples'"):
        analyze(name, model="bundled:digits-vit", inputs="bundled:digits", per=per, null_samples=3)


def test_an_analysis_of_metrics_alone_says_so():
    with pytest.raises(InputError, match="gram-spectrum has no rows per 'token'; it gives metrics alone"):
        analyze("gram-spectrum", model="bundled:digits-vit", inputs="bundled:digits", per="token")


def test_provenance_names_what_can_be_run_again():
    frame = analyze("membership", model=vit(), inputs=images(2), layers=[1], per="token")
    run = frame.attrs["provenance"]
    assert (run["analysis"], run["per"], run["options"]) == (
        "membership",
        "token",
        {"method": "auto", "convention": None},
    )
    again = analyze(
        run["analysis"], model=vit(), inputs=images(2), layers=[1], per=run["per"], **run["options"]
    )
    assert again["value"].tolist() == frame["value"].tolist()
    assert "per" not in analyze("membership", model=vit(), inputs=images(2)).attrs["provenance"]


def test_attention_rows_are_the_captured_weights():
    model = workbench.load("bundled:digits-vit")
    inputs = workbench.inputs("bundled:digits", model, n=2, seed=3)
    capture = workbench.capture(model, inputs, layers=[0, 2], sites=["attn"])
    run = {"model": model, "inputs": inputs, "layers": [0, 2], "per": "pair"}
    frame = analyze("attention-map", heads="1-2", query=4, **run)
    assert len(frame) == 2 * 2 * 2 * 65  # inputs, layers, heads, keys
    at = (
        (frame["input"] == inputs.ids[1]) & (frame["layer"] == 2) & (frame["head"] == 1) & (frame["key"] == 7)
    )
    row = frame[at].iloc[0]
    assert row["value"] == pytest.approx(float(capture[2].attn[1, 1, 4, 7]))
    assert (row["query_label"], row["key_label"]) == (inputs.tokens.labels[1][4], inputs.tokens.labels[1][7])
    np.testing.assert_allclose(frame.groupby(["input", "layer", "head"])["value"].sum(), 1, atol=1e-6)
    assert len(analyze("attention-map", **run)) == 2 * 2 * 3 * 65 * 65
    with pytest.raises(InputError, match="layers 0, 2 left out: has only 3 heads"):
        analyze("attention-map", heads=[3], **run)
    with pytest.raises(InputError, match="has no token 65: its tokens are 0 to 64"):
        analyze("attention-map", query=65, **run)


def test_attention_rows_leave_padding_out_and_a_file_gives_them_too(tmp_path):
    rows = analyze("attention-map", model=bert(), inputs=texts((9, 4)), layers=[1], per="pair")
    sizes = rows.groupby("input")[["query", "key"]].nunique()
    assert sizes.to_numpy().tolist() == [[9, 9], [4, 4]]
    path = workbench.capture(bert(), texts((9, 4)), layers=[1], sites=["q", "k", "v", "mask", "scale"]).save(
        tmp_path / "a.safetensors"
    )
    again = analyze("attention-map", qkv=path, per="pair")
    assert again[["layer", "head", "query", "key"]].equals(rows[["layer", "head", "query", "key"]])
    np.testing.assert_allclose(again["value"], rows["value"], atol=1e-6)


def test_layers_without_a_map_of_the_inputs_tokens_are_left_out():
    family = FAMILIES["xcit"]
    frame = analyze("attention-map", model=family.build(), inputs=family.batch(), per="pair")
    assert set(frame["query"]) == {0}  # the class token asks
    assert set(frame["layer"]) == {3, 4}
    assert frame.attrs["notes"] == [
        "layers 0-2 left out: attends from channel to channel and has no attention between tokens"
    ]
    windows = FAMILIES["swin"]
    with pytest.raises(
        InputError, match=r"attention-map: nothing to measure; .* cuts the image into windows"
    ):
        analyze("attention-map", model=windows.build(), inputs=windows.batch(), per="pair")


def test_rows_are_kept_in_the_cache_and_in_files(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    run = {"model": "bundled:digits-vit", "inputs": "bundled:digits", "n": 1, "layers": [3], "cache": True}
    metrics = analyze("membership", **run)
    frame = analyze("membership", per="token", **run)
    assert len(frame) == 65 * 3
    monkeypatch.setattr("workbench.runs.analyze.accumulate", None)  # nothing is computed
    again = analyze("membership", per="token", **run)
    pd.testing.assert_frame_equal(again, frame)
    assert again.attrs == frame.attrs
    pd.testing.assert_frame_equal(analyze("membership", **run), metrics)
    path = workbench.write_frame(frame, tmp_path / "tokens.parquet")
    pd.testing.assert_frame_equal(workbench.read_frame(path), frame)
    assert (
        r"\caption{Values of bundled:digits-vit.}"
        in workbench.write_frame(frame, tmp_path / "t.tex").read_text()
    )
    with pytest.raises(InputError, match=r"rows of tokens or pairs are read from \.parquet"):
        workbench.read_frame(workbench.write_frame(frame, tmp_path / "tokens.csv"))


def test_several_models_rows_under_one_another():
    pairs = [("bundled:digits-tost", "bundled:digits"), ("bundled:digits-vit", "bundled:digits")]
    frame = workbench.analyze_many("membership", pairs, n=1, layers=[0], per="token")
    assert frame["model"].unique().tolist() == [name for name, _ in pairs]
    assert [run["per"] for run in frame.attrs["provenance"]] == ["token", "token"]


def test_the_command_line_asks_for_them_too(tmp_path):
    out = tmp_path / "subspaces.csv"
    arguments = ["analyze", "subspaces", "--per", "pair", "-m", "bundled:digits-vit", "--layers", "1"]
    done = CliRunner().invoke(cli, [*arguments, "-s", "directions=2", "-o", str(out)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    rows = pd.read_csv(out)
    expected = analyze("subspaces", model="bundled:digits-vit", layers=[1], per="pair", directions=2)
    np.testing.assert_allclose(rows["value"], expected["value"])
    assert f"{len(expected)} rows written" in done.output
