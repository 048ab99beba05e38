"""The settings of a run: declared once, and the same arguments in every function that runs."""

import importlib
import inspect
from typing import get_args, get_type_hints

import pytest

import workbench
from workbench.core.errors import InputError
from workbench.data.batches import PREPROCESSING
from workbench.runs.loop import capture_inputs
from workbench.runs.settings import SETTINGS, Preprocessing, RunSettings

CHOSEN = {
    "n": 3, "seed": 4, "layers": "1", "heads": "2", "order": "file", "preprocessing": "saritas2025",
    "batch_size": 5, "device": "cpu", "dtype": "float64", "name": "ours",
}  # fmt: skip
"""A value of every setting that is not its default."""
WITHOUT = {
    workbench.analyze: set(),
    workbench.analyze_many: {"model", "inputs"},
    workbench.analyze_grid: {"model", "inputs"},
    workbench.sweep: {"model", "name"},
    workbench.claims: {"layers", "heads", "order", "name"},
    capture_inputs: {"heads", "name"},
}
"""Functions that run a model over inputs, and the settings that they have not."""
OTHER = {
    workbench.sweep: {"inputs"},
    workbench.claims: {"model", "inputs", "n", "preprocessing"},
    capture_inputs: {"model", "inputs"},
}
"""Settings with another type or default: several specs, those of the papers, and none left out."""


def settings_of(function):
    return {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if name in SETTINGS
    }


@pytest.mark.parametrize("function", WITHOUT, ids=lambda function: function.__name__)
def test_every_function_that_runs_has_the_settings_as_arguments(function):
    written, kinds = settings_of(function), get_type_hints(function)
    assert list(written) == [name for name in SETTINGS if name not in WITHOUT[function]]
    declared = get_type_hints(RunSettings)
    for name in written.keys() - OTHER.get(function, set()):
        assert written[name].default == SETTINGS[name].default, name
        assert kinds[name] == declared[name], name
        assert written[name].kind is (
            inspect.Parameter.POSITIONAL_OR_KEYWORD
            if name in ("model", "inputs")
            else inspect.Parameter.KEYWORD_ONLY
        )


def test_every_argument_reaches_the_setting_of_its_name(monkeypatch):
    runs = []

    def run(name, settings, options, **rest):
        runs.append((name, settings, options))
        raise InputError("seen")

    monkeypatch.setattr("workbench.runs.analyze.run_analysis", run)
    monkeypatch.setattr("workbench.runs.many.run_analysis", run)
    monkeypatch.setattr("workbench.runs.many.load", lambda model, **chosen: loaded.append(chosen) or model)
    loaded = []
    pair = ("bundled:digits-vit", "bundled:digits")
    with pytest.raises(InputError, match="seen"):
        workbench.analyze("gram-spectrum", *pair, **CHOSEN, max_rank=2)
    with pytest.raises(InputError, match="seen"):
        workbench.analyze_many("gram-spectrum", [pair], **CHOSEN, max_rank=2)
    expected = RunSettings(*pair, **CHOSEN)
    assert runs == [("gram-spectrum", expected, {"max_rank": 2})] * 2
    monkeypatch.setattr(
        "workbench.runs.many.choose_inputs", lambda *given, **chosen: loaded.append(chosen) or []
    )
    with pytest.raises(InputError, match="seen"):
        workbench.analyze_grid("gram-spectrum", [pair], {"max_rank": [2]}, **CHOSEN)
    keys = ("layers", "heads", "batch_size", "name", "seed", "preprocessing")
    assert [getattr(runs[2][1], key) for key in keys] == [CHOSEN[key] for key in keys]
    assert runs[2][2] == {"max_rank": 2}
    assert loaded == [{key: CHOSEN[key] for key in part} for part in (
        ("device", "dtype"), ("n", "seed", "preprocessing", "order"),
    )]  # fmt: skip


def test_a_sweep_and_a_capture_get_every_setting(monkeypatch, tmp_path):
    seen = []

    def stop(*given, **_):
        seen.extend(part for part in given if isinstance(part, RunSettings))
        raise InputError("seen")

    monkeypatch.setattr("workbench.runs.sweep.running.make_plan", stop)
    monkeypatch.setattr("workbench.runs.loop._loaded_inputs", stop)
    chosen = {name: value for name, value in CHOSEN.items() if name != "name"}
    with pytest.raises(InputError, match="seen"):
        workbench.sweep("bundled:digits-vit", "bundled:digits", "gram-spectrum", tmp_path, **chosen)
    del chosen["heads"]
    with pytest.raises(InputError, match="seen"):
        capture_inputs("bundled:digits-vit", "bundled:digits", **chosen)
    assert seen == [
        RunSettings(**chosen, heads="2"),
        RunSettings("bundled:digits-vit", "bundled:digits", **chosen),
    ]


def test_each_setting_is_described_once_and_analyze_repeats_it():
    text = " ".join(inspect.getdoc(workbench.analyze).split())
    for name, setting in SETTINGS.items():
        assert f" {name}: {setting.help}" in text, name


def test_no_option_of_an_analysis_has_the_name_of_an_argument():
    arguments = {*inspect.signature(workbench.analyze).parameters} - {"options"}
    for analysis in workbench.ANALYSES.values():
        for entry in (analysis, *analysis.finer):
            assert not arguments & entry.options.keys(), entry.name


def test_the_preprocessings_are_those_of_inputs():
    assert get_args(Preprocessing) == PREPROCESSING


def test_a_grid_does_not_vary_what_is_given():
    with pytest.raises(InputError, match="max_rank is in the grid and given as an option"):
        workbench.analyze_grid("gram-spectrum", [("a", "b")], {"max_rank": [2]}, max_rank=3)


def test_a_sweep_has_no_finer_rows(tmp_path):
    with pytest.raises(InputError, match="a sweep holds metrics, and no rows per token"):
        workbench.analyze_many("membership", [("bundled:digits-tssa", f"sweep:{tmp_path}")], per="token")


@pytest.mark.parametrize("kind", ["trainer_callback.HuggingFaceCallback", "lightning.LightningCallback"])
def test_a_callback_has_the_arguments_of_the_watch(kind):
    module, _, name = kind.rpartition(".")
    callback = getattr(importlib.import_module(f"workbench.runs.watch.{module}"), name)
    expected = inspect.signature(workbench.watch).parameters
    written = inspect.signature(callback).parameters
    assert {*written} - {"submodule"} == {*expected} - {"model"}
    for argument in {*written} - {"submodule", "out", "batch"}:
        assert written[argument].default == expected[argument].default, argument
    chosen = {"every": 7, "analyses": ["membership"], "layers": "1", "seed": 3, "max_cost": 0.5, "name": "a"}
    assert callback(None, **chosen, restart=True).settings == chosen | {"restart": True}
