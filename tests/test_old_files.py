"""Files of every kind that an older version wrote are read, in today's names, and stay as they are (`old_files`)."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose

import workbench
from workbench.apps.explorer.address import Address
from workbench.apps.explorer.bundle import read_bundle
from workbench.apps.rendering.gallery import write_gallery
from workbench.apps.rendering.notebooks import find_notebooks, read_typed_parameters, resolve_parameters
from workbench.apps.rendering.state import read_report
from workbench.core.errors import InputError
from workbench.core.renamed import RENAMED
from workbench.frames.provenance import read_provenance
from workbench.frames.results import COLUMNS
from workbench.models.checkpoints import read_checkpoint
from workbench.papers import published
from workbench.papers.verdicts import parse_measure
from workbench.runs.watch import read_watch, watch

OLD = Path(__file__).parent / "old_files"
MODEL = f"file:{OLD / 'training' / 'epoch-001.safetensors'}"
COLUMNS_RENAMED = ("metric", "axis", "candidate", "convention")


def hashes():
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in OLD.rglob("*") if path.is_file()}


@pytest.fixture(autouse=True)
def _unchanged():
    """Whatever a test reads, no old file is written, and none is added."""
    before = hashes()
    yield
    assert hashes() == before


@pytest.fixture(scope="module")
def results():
    """The rows of the old result, by today's package."""
    model = workbench.load(MODEL)
    inputs = workbench.inputs("bundled:digits", model, n=2, seed=0)
    asked = {
        "projection-error": {"null_samples": 2, "convention": "all", "per_head": True},
        "value-similarity": {"null_samples": 2, "per_head": True},
        "eigenvector-test": {"null_samples": 2, "per_head": True},
        "token-similarity": {},
        "membership": {"null_samples": 2},
        "coding-rate": {},
    }
    frames = [workbench.analyze(name, model=model, inputs=inputs, **more) for name, more in asked.items()]
    return pd.concat(frames, ignore_index=True).assign(model="old")


LABELS = [name for name in COLUMNS if name not in ("value", "z", "version") and not name.startswith("null_")]


def numbers(frame):
    """Values by what they are values of."""
    rows = frame.astype(dict.fromkeys(LABELS, "string")).fillna(dict.fromkeys(LABELS, ""))
    return rows.set_index(LABELS)[["value", "null_mean", "null_low", "null_high"]].sort_index()


def old_names(frame):
    """Old names that stand in a frame's columns."""
    return {name for column in COLUMNS_RENAMED for name in RENAMED[column] if (frame[column] == name).any()}


def test_an_old_result_is_what_is_measured_now(results):
    read = workbench.read_frame(OLD / "result.parquet")
    old, new = numbers(read), numbers(results)
    assert list(old.index) == list(new.index)
    assert_allclose(old.to_numpy(), new.to_numpy(), rtol=1e-5, atol=1e-6)
    assert "projection_zero_predictor" in set(read["metric"])
    assert {"resid_mid", "resid_post"} <= set(read["candidate"].dropna())
    assert read.attrs["provenance"][0]["options"]["null_samples"] == 2


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_an_old_table_of_a_result_has_the_same_rows_under_todays_names(suffix):
    text = (OLD / f"result.{suffix}").read_text(encoding="utf-8")
    assert "projection_baseline" in text
    assert "after_attn" in text
    read, whole = (workbench.read_frame(OLD / f"result.{kind}") for kind in (suffix, "parquet"))
    assert not old_names(read)
    missing = numbers(read).index.difference(numbers(whole).index)
    assert missing.empty
    assert_allclose(numbers(read)["value"], numbers(whole)["value"].loc[numbers(read).index], rtol=0)


def test_an_old_result_written_again_has_todays_schema(tmp_path):
    read = workbench.read_frame(OLD / "result.parquet")
    again = workbench.read_frame(workbench.write_frame(read, tmp_path / "result.parquet"))
    pd.testing.assert_frame_equal(again, read)


def test_a_result_of_today_is_not_renamed(tmp_path):
    frame = workbench.read_frame(OLD / "result.parquet").assign(candidate="hidden")  # a plug-in's own word
    written = workbench.write_frame(frame, tmp_path / "result.parquet")
    assert set(workbench.read_frame(written)["candidate"]) == {"hidden"}


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_an_old_capture_is_what_is_captured_now(suffix):
    model = workbench.load(MODEL)
    inputs = workbench.inputs("bundled:digits", model, n=2, seed=0)
    old = workbench.Capture.load(OLD / f"capture.{suffix}")
    new = workbench.capture(model, inputs, sites=old.sites)
    assert {"head_out", "resid_pre", "attn_out", "resid_mid", "resid_post"} <= set(old.sites)
    assert old.sites == new.sites
    assert len(old.layers) == len(new.layers) == 2
    for ours, theirs in zip(new, old, strict=True):
        assert ours.rows_sum_to_one == theirs.rows_sum_to_one
        assert sorted(ours.extra) == sorted(theirs.extra)
        for site in old.sites:
            now, before = getattr(ours, site), getattr(theirs, site)
            assert (now is None) == (before is None), site
            if isinstance(now, torch.Tensor):
                torch.testing.assert_close(before, now, rtol=1e-5, atol=1e-6)


def test_a_capture_of_a_newer_format_is_refused(tmp_path):
    with np.load(OLD / "capture.npz", allow_pickle=False) as archive:
        held = dict(archive)
    about = json.loads(str(held["workbench"])) | {"format_version": 99}
    np.savez(tmp_path / "newer.npz", **(held | {"workbench": np.array(json.dumps(about))}))
    with pytest.raises(InputError, match=r"capture format 99.*update it"):
        workbench.Capture.load(tmp_path / "newer.npz")


@pytest.mark.parametrize("suffix", ["json", "png", "svg", "pdf", "csv", "tex"])
def test_the_provenance_of_an_old_figure_has_todays_names(suffix):
    read = read_provenance(OLD / "figure" / f"figure.{suffix}")
    assert read["parameters"]["null_samples"] == 2
    assert "draws" not in read["parameters"]
    assert {run["options"].get("null_samples") for run in read["runs"]} == {2, 20, None}
    held = json.loads((OLD / "figure" / "figure.json").read_text(encoding="utf-8"))
    assert read["data"] == held["data"]
    assert read["figure"] == held["figure"]
    assert read["schema"] == 1
    assert read["parameters_from"] == "call"


def test_an_old_figure_is_drawn_again_by_todays_parameters(warm):
    again = workbench.reproduce(OLD / "render" / "projection_error.json")
    assert again.difference is not None, again.compared
    assert again.difference < 1e-4


def test_the_gallery_of_an_old_render_shows_its_figures_and_its_report(tmp_path):
    folder = shutil.copytree(OLD / "render", tmp_path / "render")
    assert read_report(folder)["projection_error"]["parameters"] == {
        "text_model": None, "n": 2, "null_samples": 2, "layers": "0",
    }  # fmt: skip
    gallery = write_gallery(folder)
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert not gallery.unknown
    assert "projection_error" in page
    assert "null_samples" in page
    assert "draws" not in page


def test_an_old_address_opens_the_view_that_it_named():
    saved = json.loads((OLD / "address.json").read_text(encoding="utf-8"))
    assert saved["metric"] == "projection_baseline"
    address = Address.from_dict(saved)
    assert (address.metric, address.layer) == ("projection_zero_predictor", 1)
    assert (address.against.metric, address.against.layer) == ("projection_zero_predictor", 0)


@pytest.mark.parametrize(
    ("notebook", "old", "new"),
    [
        ("projection_error", "draws", "null_samples"),
        ("coding_rate", "twin", "baseline"),
        ("attention_heatmaps", "twin", "other"),
        ("class_attention", "twins", "others"),
    ],
)
def test_a_notebook_takes_a_parameter_by_its_old_name_and_says_the_new_one(notebook, old, new):
    found = find_notebooks(notebook)
    assert old not in found[0].parameters
    value = {"draws": "3", "twins": '["bundled:digits-tssa"]'}.get(old, "bundled:digits-tssa")
    typed = read_typed_parameters([notebook], [(old, value)])
    with pytest.warns(UserWarning, match=f"{old} is called {new} now"):
        values = resolve_parameters(found, typed, "default", named=True)
    assert values[notebook][new] == typed[old]
    assert old not in values[notebook]


def test_an_old_watch_is_read_and_its_run_goes_on(tmp_path):
    logged = read_watch(OLD / "watch", "eigenvector-test")
    assert not old_names(logged)
    assert set(logged["candidate"].dropna()) == {"true", "perturbed", "values"}
    folder = shutil.copytree(OLD / "watch", tmp_path / "watch")
    model = workbench.load(MODEL)
    batch = torch.linspace(-1, 1, 512).reshape(2, 1, 16, 16)
    convention = read_watch(folder)["convention"].dropna().unique().tolist()
    analyses = {
        "projection-error": {"null_samples": 2, "convention": convention[0]},
        "eigenvector-test": {"null_samples": 2},
    }
    going = watch(model.module, batch, out=folder, every=1, max_cost=None, name="old", analyses=analyses)
    going.step(1)
    both = read_watch(folder)
    assert both.attrs["epochs"] == {"step-000000000": 0, "step-000000001": 1}
    first, second = (both[both["checkpoint"] == name] for name in both.attrs["epochs"])
    assert_allclose(first["value"], second["value"], rtol=1e-5)
    with pytest.raises(InputError, match="analyses"):
        watch(model.module, batch, out=folder, every=1, name="old", analyses=["token-similarity"])


def test_an_old_training_folder_is_the_finished_run_that_it_was(tmp_path):
    from workbench.studies.training import train

    folder = shutil.copytree(OLD / "training", tmp_path / "training")
    before = (folder / "model.json").read_bytes()
    recipe = tmp_path / "recipe.toml"
    option = read_checkpoint(OLD / "training" / "epoch-001.safetensors")[1]["architecture"][
        "attention_options"
    ]["convention"]
    text = (OLD / "recipe.toml").read_text(encoding="utf-8").replace('"code"', f'"{option}"')
    recipe.write_text(text, encoding="utf-8")
    result = train("digits", folder, recipe=recipe, limit=32, progress=False, device="cpu")
    assert [path.name for path in result.checkpoints] == ["epoch-000.safetensors", "epoch-001.safetensors"]
    assert (folder / "model.json").read_bytes() == before


def test_an_old_table_of_claims_is_todays(monkeypatch, tmp_path):
    old = pd.read_csv(OLD / "claims.csv", dtype=str, keep_default_na=False)
    assert "reading" in old
    assert "interpretation" not in old
    data = tmp_path / "data"
    (data / "published").mkdir(parents=True)
    shutil.copy(OLD / "claims.csv", data / "published" / "claims.csv")
    now = published._read("claims.csv", published.CLAIM_COLUMNS)
    monkeypatch.setattr(published.paths, "data_dir", lambda: data)
    read = published._read("claims.csv", published.CLAIM_COLUMNS)
    key = ["paper", "place"]
    left, right = (set(map(tuple, frame[key].to_numpy())) for frame in (read, now[now["paper"] == "teo2024"]))
    assert left <= right  # embedded tasks have rows since
    measures = [term for measure in now["measure"] for term in parse_measure(measure)]
    known = {part.metric for term in measures for part in (term, term.less) if part}
    terms = [term for measure in read["measure"] for term in parse_measure(measure)]
    assert {term.metric for term in terms} <= known
    words = (
        {word for term in terms for word in term.where.values()} | set(read["over"]) | set(read["comparison"])
    )
    assert not words & {name for column in COLUMNS_RENAMED for name in RENAMED[column]}
    assert set(read["primary"]) <= {"yes", ""}
    assert (read["primary"] == "yes").any()
    assert (read[["kind", "scale", "margin", "premise"]] == "").all(axis=None)


def test_an_old_sweep_is_read_as_what_is_measured_now(tmp_path):
    folder = shutil.copytree(OLD / "sweep", tmp_path / "sweep")
    parts = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    read = workbench.read_sweep(folder)
    assert not old_names(read)
    assert set(read["analysis"]) == {"projection-error:convention=teo2024-text:draws=2", "token-similarity"}
    assert set(read["candidate"].dropna()) == {"resid_post"}
    assert not [note for note in read.attrs["notes"] if "missing" in note]
    run = workbench.analyze(
        "projection-error", model="bundled:digits-vit", inputs="bundled:digits", layers=(0,), n=4,
        preprocessing="saritas2025", null_samples=2, convention="teo2024_as_published",
    )  # fmt: skip
    swept, measured = numbers(read[read["analysis"] != "token-similarity"])["value"], numbers(run)["value"]
    shared = swept.index.intersection(measured.index)
    assert "projection_error" in shared.get_level_values("metric")
    assert_allclose(swept.loc[shared], measured.loc[shared], rtol=1e-5, atol=1e-6)
    assert {path: path.read_bytes() for path in parts} == parts


def test_an_old_sweep_is_not_gone_on_with(tmp_path):
    folder = shutil.copytree(OLD / "sweep", tmp_path / "sweep")
    asked = ("projection-error", {"null_samples": 2, "convention": "teo2024_as_published"})
    before = (folder / "manifest.json").read_bytes()
    with pytest.raises(InputError, match="other settings"):
        workbench.sweep(
            "bundled:digits-vit", "bundled:digits", [asked, ("token-similarity", {})], folder,
            n=4, shards=2, batch_size=2, layers=(0,), preprocessing="saritas2025",
        )  # fmt: skip
    assert (folder / "manifest.json").read_bytes() == before


def test_a_bundle_of_schema_1_is_read():
    old = read_bundle(OLD / "bundle.safetensors")
    assert old.header.bundle_schema == 1
    assert old.attention(3).shape == (3, 65, 65)
    assert old.metric("attention_sink").shape == (1, 3)
    assert (old.header.inputs[0].prediction, old.header.spectra, old.header.ablations) == (None, [], {})
