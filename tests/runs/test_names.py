"""Different weights are never averaged under one name: names are numbered, or given."""

from __future__ import annotations

import copy
from typing import Any

import pandas as pd
import pytest
import torch

import workbench
from tests.captures.families import VIT, timm_model
from workbench.core.errors import InputError
from workbench.figures.grammar import Line, Plot
from workbench.frames.results import join_frames, read_frame, write_frame
from workbench.models.loading import fingerprint


def vit(seed: int) -> torch.nn.Module:
    model = timm_model("vit_tiny_patch16_224", **VIT)().eval()
    torch.manual_seed(seed)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape) * 0.1
    return model


def images() -> torch.Tensor:
    return torch.randn(3, 3, VIT["img_size"], VIT["img_size"], generator=torch.Generator().manual_seed(3))


def single(model: Any, **asked: Any) -> pd.DataFrame:
    return workbench.analyze("attention-map", model=model, inputs=images(), layers=0, **asked)


def check_apart(joined: pd.DataFrame, *parts: pd.DataFrame) -> None:
    """Every part has a model of its own in the joined frame, with the numbers that it had."""
    models = joined["model"].unique()
    assert len(models) == len(parts)
    for model, part in zip(models, parts, strict=True):
        assert joined.loc[joined["model"] == model, "value"].tolist() == part["value"].tolist()
    figure = Plot(joined, color="model").metric("attention_entropy").add(Line()).figure()
    assert {*models} <= {trace.name for trace in figure.data}


def test_modules_of_one_class_are_numbered():
    first, second = vit(0), vit(1)
    frame = workbench.analyze_many("attention-map", [(first, images()), (second, images())], layers=0)
    assert list(frame["model"].unique()) == ["VisionTransformer 1", "VisionTransformer 2"]
    check_apart(frame, single(first), single(second))
    assert [run["model"]["name"] for run in frame.attrs["provenance"]] == list(frame["model"].unique())
    assert any(
        "2 models of different weights are called VisionTransformer" in n for n in frame.attrs["notes"]
    )
    said = " ".join(workbench.findings(frame))
    assert "VisionTransformer 1: " in said
    assert "VisionTransformer 2: " in said


def test_one_module_over_two_inputs_is_one_model():
    model = vit(0)
    frame = workbench.analyze_many("attention-map", [(model, images()), (copy.deepcopy(model), images() + 1)])
    assert list(frame["model"].unique()) == ["VisionTransformer"]


def test_frames_that_are_joined_are_numbered_also_from_files(tmp_path):
    first, second = single(vit(0)), single(vit(1))
    again = read_frame(write_frame(second, tmp_path / "second.parquet"))
    check_apart(join_frames([first, again]), first, second)
    check_apart(join_frames([join_frames([first, again]), single(vit(2))]), first, second, single(vit(2)))


def test_a_module_that_is_trained_between_two_runs_is_two_models():
    model = workbench.load("bundled:digits-vit")
    before = workbench.analyze("token-similarity", model=model, inputs="bundled:digits", n=2)
    with torch.no_grad():
        next(model.module.parameters()).mul_(1.5)
    after = workbench.analyze("token-similarity", model=model, inputs="bundled:digits", n=2)
    joined = join_frames([before, after])
    assert list(joined["model"].unique()) == ["bundled:digits-vit 1", "bundled:digits-vit 2"]


def test_another_attention_with_the_same_weights_is_another_model():
    model, other = vit(0), vit(0)
    workbench.replace_attention(model, "softmax-sym")
    workbench.replace_attention(other, "rpc-sym")
    assert fingerprint(model) == fingerprint(other)
    frames = [single(model), single(other)]
    assert join_frames(frames)["model"].nunique() == 2


def test_checkpoints_stay_checkpoints_of_one_model_and_name_rows_of_tokens():
    pair, asked = [("bundled:digits-vit", "bundled:digits")], {"checkpoints": [0, 3], "n": 1}
    frame = workbench.analyze_many("token-similarity", pair, **asked)
    assert list(frame["model"].unique()) == ["bundled:digits-vit"]
    tokens = workbench.analyze_many("attention-map", pair, per="pair", query=0, layers=0, **asked)
    assert list(tokens["model"].unique()) == [f"bundled:digits-vit, epoch-00{epoch}" for epoch in (0, 3)]


def test_a_grid_and_two_watches_keep_models_apart(tmp_path):
    models = vit(0), vit(1)
    grid = workbench.analyze_grid(
        "attention-map", [(model, images()) for model in models], {"null_samples": [0]}, layers=0
    )
    assert grid["model"].nunique() == 2
    watched = []
    for number, model in enumerate(models):
        out = tmp_path / str(number)
        workbench.watch(model, images(), out=out, analyses=["attention-map"]).step(0)
        watched.append(workbench.read_watch(out, "attention-map"))
    assert join_frames(watched)["model"].nunique() == 2


def test_names_are_given_by_load_and_by_settings(tmp_path):
    model = workbench.load("bundled:digits-vit", name="ours")
    assert model.identity["name"] == "ours"
    frame = workbench.analyze("token-similarity", model=model, inputs="bundled:digits", n=2)
    assert list(frame["model"].unique()) == ["ours"]
    assert workbench.findings(frame)[0].startswith("ours: ")
    named = single(vit(1), name="theirs")
    assert list(named["model"].unique()) == ["theirs"]
    assert list(join_frames([frame, named])["model"].unique()) == ["ours", "theirs"]
    frame = workbench.analyze("attention-map", vit(0), images(), name="mine")
    assert list(frame["model"].unique()) == ["mine"]
    captured = workbench.capture(vit(0), images())
    assert set(workbench.analyze("gram-spectrum", qkv=captured, name="kept")["model"]) == {"kept"}


def test_one_name_for_several_models_is_refused():
    with pytest.raises(InputError, match="name='ours' names one model, and there are 2"):
        workbench.analyze_many("attention-map", [(vit(0), images()), (vit(1), images())], name="ours")


def test_seeds_of_a_record_keep_the_name_of_their_model():
    weights = [{"model": {"spec": "bundled:digits-vit", "sha256": letter * 64}} for letter in "abc"]
    seeds = pd.DataFrame({"model": "bundled:digits-vit", "training_seed": [0, 1], "value": [0.3, 0.5]})
    seeds.attrs["provenance"] = weights[:2]
    other = pd.DataFrame({"model": ["bundled:digits-vit"], "training_seed": [2], "value": [0.7]})
    other.attrs["provenance"] = weights[2:]
    joined = join_frames([seeds, other])
    assert set(joined["model"]) == {"bundled:digits-vit"}
    alone = seeds[:1].copy()
    alone.attrs["provenance"] = weights[:1]
    assert list(join_frames([alone, other])["model"]) == ["bundled:digits-vit 1", "bundled:digits-vit 2"]
