"""Frames for figures."""

import pytest

import workbench
from workbench.core.errors import InputError, MissingResource, NothingToMeasure, UnknownName

DIGITS = ("bundled:digits-vit", "bundled:digits")


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def test_many_are_their_analyses_under_one_another():
    both = workbench.analyze_many(
        "gram-spectrum", [DIGITS, ("bundled:digits-vit", "bundled:photos")], n=2, layers=[1]
    )
    single = workbench.analyze("gram-spectrum", model=DIGITS[0], inputs=DIGITS[1], n=2, layers=[1])
    assert both.iloc[: len(single)]["value"].tolist() == single["value"].tolist()
    assert [run["inputs"]["spec"] for run in both.attrs["provenance"]] == ["bundled:digits", "bundled:photos"]


def test_a_model_that_is_not_here_is_reported_and_does_not_stop_the_others():
    frame = workbench.analyze_many("token-similarity", [DIGITS, ("hf:nobody/nothing", "bundled:prose")], n=2)
    assert list(frame["model"].unique()) == ["bundled:digits-vit"]
    assert "nobody/nothing" in frame.attrs["absent"]["hf:nobody/nothing"]


def test_a_model_that_the_analysis_cannot_measure_is_reported_and_does_not_stop_the_others():
    without_attention = ("bundled:prose-tost", "bundled:prose")
    frame = workbench.analyze_many("attention-map", [DIGITS, without_attention], n=2)
    assert list(frame["model"].unique()) == ["bundled:digits-vit"]
    assert "nothing to measure" in frame.attrs["absent"]["bundled:prose-tost"]
    with pytest.raises(NothingToMeasure, match="bundled:prose-tost: attention-map: nothing to measure"):
        workbench.analyze_many("attention-map", [without_attention], n=2)


def test_none_leaves_a_model_out_and_nothing_at_all_is_an_error():
    assert len(workbench.analyze_many("token-similarity", [DIGITS, (None, "bundled:prose")], n=2)) == 8
    with pytest.raises(InputError, match="at least one"):
        workbench.analyze_many("token-similarity", [(None, "bundled:prose")])
    with pytest.raises(MissingResource, match="nobody/nothing"):
        workbench.analyze_many("token-similarity", [("hf:nobody/nothing", "bundled:prose")])


def test_what_is_no_pair_is_reported_as_it_came():
    for runs in ("bundled:digits-vit", [("bundled:digits-vit",)], ["bundled:digits-vit"]):
        with pytest.raises(InputError, match=r"pairs \(model, inputs\), got .*bundled:digits-vit"):
            workbench.analyze_many("gram-spectrum", runs)


def test_a_misspelt_model_is_a_mistake_not_an_absence():
    with pytest.raises(UnknownName, match="digits-vit"):
        workbench.analyze_many("token-similarity", [DIGITS, ("bundled:digit-vit", "bundled:digits")], n=1)


def test_pairs_give_each_model_the_inputs_of_its_kind():
    assert workbench.runs.model_pairs("a", "x") == [("a", "x")]
    assert workbench.runs.model_pairs(["a", "b"], "x", "c", "y") == [("a", "x"), ("b", "x"), ("c", "y")]
    assert workbench.runs.model_pairs(["a", "b"], ["x", "z"], None, "y") == [("a", "x"), ("b", "z")]
    assert workbench.runs.model_pairs(None, "x", ["c"], ["y"]) == [("c", "y")]
    for word in (
        "none",
        "null",
        False,
    ):  # as `papermill -r text_model none` and `-p text_model false` hand them over
        assert workbench.runs.model_pairs("a", "x", word, "y") == [("a", "x")]
    with pytest.raises(InputError, match="2 models with 3 inputs"):
        workbench.runs.model_pairs(["a", "b"], ["x", "y", "z"])
    with pytest.raises(InputError, match="1 text_models with 0 text_inputs"):
        workbench.runs.model_pairs("a", "x", "c")


def test_checkpoints_are_measured_one_after_another_with_their_epochs():
    options = {"n": 2, "layers": [0], "max_rank": 1}
    frame = workbench.analyze_many(
        "gram-spectrum", [(DIGITS[0], "bundled:digits-train")], checkpoints=[30, "epoch-003"], **options
    )
    assert frame.attrs["epochs"] == {"epoch-003": 3, "epoch-030": 30}
    assert frame["checkpoint"].unique().tolist() == ["epoch-003", "epoch-030"]
    assert all(name.startswith("digits/train/") for name in frame["input"].unique())
    alone = workbench.analyze(
        "gram-spectrum", model=f"{DIGITS[0]}@epoch-003", inputs="bundled:digits-train", **options
    )
    assert frame.iloc[: len(alone)]["value"].tolist() == alone["value"].tolist()
    assert [run["model"]["checkpoint"] for run in frame.attrs["provenance"]] == ["epoch-003", "epoch-030"]
    every = workbench.analyze_many(
        "gram-spectrum", [("digits-vit", DIGITS[1])], checkpoints="all", n=1, layers=[0], max_rank=1
    )
    assert list(every.attrs["epochs"].values()) == [0, 1, 2, 3, 5, 8, 12, 18, 24, 30]


def test_only_bundled_models_have_checkpoints():
    with pytest.raises(InputError, match="bundled models only"):
        workbench.analyze_many("gram-spectrum", [("timm:vit_tiny_patch16_224", DIGITS[1])], checkpoints="all")
    with pytest.raises(UnknownName, match="epoch-003"):
        workbench.analyze_many("gram-spectrum", [DIGITS], checkpoints=[4])
    with pytest.raises(InputError, match="name some"):
        workbench.analyze_many("gram-spectrum", [DIGITS], checkpoints=[])
