"""What a render would need, read from the notebooks themselves, and the device that it is handed."""

import json

import pytest

from tests.figure_notebooks import write_notebook
from workbench.apps.rendering import find_notebooks, needs, read_notebook, render
from workbench.apps.rendering.needs import Pass, passes_of, render_needs, roles
from workbench.apps.rendering.notebooks import PRESETS, resolve_parameters
from workbench.core.errors import InputError, MissingResource
from workbench.models import catalog
from workbench.models.loading import find_device, load
from workbench.models.source import Unfilled
from workbench.models.weights import find_weights, weight_count
from workbench.runs.settings import RunSettings


@pytest.fixture
def offline(monkeypatch):
    """A hub that does not answer."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def bundled():
    return {notebook.name: notebook for notebook in find_notebooks()}


def test_every_parameter_of_the_notebooks_that_names_models_or_inputs_is_known_as_one():
    entries = [*catalog.CATALOG, *catalog.bundled_models()]
    named = {name for entry in entries for name in (entry.alias, entry.spec)} | set(needs._model_names())
    for notebook in bundled().values():
        models, inputs = roles(notebook, notebook.filled({}))
        for name in notebook.parameters:
            if name.endswith(("model", "inputs")):
                unset = notebook.parameters[name].default is None
                assert unset or name in models or name in inputs, f"{name} of {notebook.name}"
        for preset in PRESETS:
            values = notebook.filled(notebook.presets.get(preset, {}))
            wanted = {
                text
                for value in values.values()
                for text in needs._texts(value)
                if text.partition("@")[0] in named
            }
            assert wanted == {one.model for one in passes_of(notebook, values)}, notebook.name


def test_models_run_over_their_own_inputs():
    notebooks = bundled()
    values = resolve_parameters([notebooks["class_attention"]], {}, "paper", named=True)["class_attention"]
    found = passes_of(notebooks["class_attention"], notebooks["class_attention"].filled(values))
    assert found == [
        Pass("tost:small@tost_small.pth", "imagenet:imagenet", 100),
        Pass("timm:xcit_small_12_p16_224", "imagenet:imagenet", 100),
        Pass("deit_small_patch16_224", "imagenet:imagenet", 100),
        Pass("bundled:digits-vit", "bundled:digits", 100),
    ]
    own = notebooks["class_attention"].filled({"others": None})
    found = passes_of(notebooks["class_attention"], own)
    assert Pass("bundled:digits-xcit", "bundled:digits", 18) in found
    assert Pass("bundled:photos-tost", "bundled:photos", 18) in found
    both = {one.inputs for one in passes_of(notebooks["coding_rate"], notebooks["coding_rate"].filled({}))}
    assert both == {"bundled:digits", "bundled:digits-train"}
    text = {"text_n": 7, "text_model": "gpt2", "others": []}
    found = passes_of(notebooks["attention_as_filter"], notebooks["attention_as_filter"].filled(text))
    assert Pass("gpt2", "bundled:prose", 7) in found


def test_what_is_missing_and_what_it_takes(offline, tmp_path):
    given = {
        "model": ["vit_large_patch16_224", "deit_base_patch16_224"],
        "n": 10,
        "inputs": f"imagenet:{tmp_path}",
    }
    found = {need.name: need for need in render_needs(["gram_spectra"], parameters=given, preset="quick")}
    large, base = found["vit_large_patch16_224"], found["deit_base_patch16_224"]
    assert (large.state, base.state) == ("missing", "missing")
    assert large.gigabytes == pytest.approx(1.217, abs=0.001)  # 304 326 632 weights of 4 bytes
    assert base.gigabytes == pytest.approx(0.346, abs=0.001)
    images = found[f"imagenet:{tmp_path}"]
    assert images.state == "missing"
    assert images.gigabytes == pytest.approx(6.74 * 10 / 50_000)  # of the archive of 50 000 images
    assert "HF_HUB_OFFLINE" in found["Hugging Face"].note
    assert "gram_spectra" not in found


def test_what_is_here_is_not_missing(offline):
    found = render_needs(["gram_spectra", "subspaces"], preset="quick")
    assert not [need for need in found if need.state == "missing"]
    kinds = [need.kind for need in found]
    assert kinds == ["device", "weights", "weights", "data"]
    few = render_needs(["gram_spectra"], parameters={"n": 10_000}, preset="quick")
    assert "has 445" in next(need for need in few if need.kind == "data").note


def test_the_number_of_weights_of_a_model_of_the_hub_is_that_of_its_architecture():
    import torch
    import transformers

    more = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
    configs = {
        "bert-base-uncased": transformers.BertConfig(),
        "xlm-roberta-base": transformers.XLMRobertaConfig(**more | {"vocab_size": 250002}),
        "luke-base": transformers.LukeConfig(**more | {"vocab_size": 50267}),
        "gpt2": transformers.GPT2Config(),
    }
    for alias, config in configs.items():
        with torch.device("meta"), Unfilled():
            module = transformers.AutoModel.from_config(config)
        assert weight_count(alias) == sum(value.numel() for value in module.parameters()), alias


def test_weights_are_found_where_they_lie(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert find_weights("bundled:digits-vit").where == "bundled"
    assert find_weights("tost:small").where == "random"
    assert find_weights(f"tost:small@{tmp_path / 'no.pth'}").where == "missing"
    (tmp_path / "some.pth").write_bytes(b"x" * 7)
    assert find_weights(f"tost:small@{tmp_path / 'some.pth'}")[1:3] == ("here", 7)
    assert find_weights("bert-base-uncased").where in ("missing", "here")
    module = load("bundled:digits-vit").module
    assert weight_count("bundled:digits-vit") == sum(value.numel() for value in module.parameters())


def test_load_honours_the_one_setting_of_the_device(monkeypatch):
    monkeypatch.setenv("WORKBENCH_DEVICE", "nowhere")
    with pytest.raises(InputError, match="'nowhere' is not one torch knows"):
        load("bundled:digits-vit")
    assert str(load("bundled:digits-vit", device="cpu").device) == "cpu"
    settings = RunSettings("bundled:digits-vit", "bundled:digits")
    assert settings.recorded()["device"] == "nowhere"
    monkeypatch.delenv("WORKBENCH_DEVICE")
    assert str(find_device()) == "cpu"
    with pytest.raises((InputError, MissingResource)):
        render(["gram_spectra"], device="nowhere")


def test_the_device_reaches_a_notebook_s_parameter_and_the_kernel(tmp_path, monkeypatch):
    parameters = 'device: str = "elsewhere"\nn, seed, scale = 3, 0, 1\nout = "figures"\n'
    path = write_notebook(tmp_path, "placed", parameters=parameters)
    seen = {}

    class Stopped(Exception):
        pass

    def run(renderer, notebooks, values):
        (notebook,) = notebooks
        seen.update(values["placed"])
        seen["kernel"] = renderer._environment(
            notebook, values["placed"], tmp_path / values["placed"]["device"], tmp_path
        )
        raise Stopped

    monkeypatch.setattr("workbench.apps.rendering.run._Render.run", run)
    monkeypatch.delenv("WORKBENCH_CACHE_RESULTS", raising=False)
    with pytest.raises(Stopped):
        render([path], device="cpu", preset="paper", out=tmp_path / "figures", progress=False)
    assert seen["kernel"]["WORKBENCH_CACHE_RESULTS"] == "1"  # an interrupted one goes on
    assert seen["device"] == "cpu"
    assert seen["kernel"]["WORKBENCH_DEVICE"] == "cpu"
    assert json.loads(seen["kernel"]["WORKBENCH_NOTEBOOK"])["device"] == "cpu"
    with pytest.raises(Stopped):
        render([path], parameters={"device": "mine"}, device="cpu", out=tmp_path / "figures", progress=False)
    assert seen["device"] == "mine"
    assert "WORKBENCH_CACHE_RESULTS" not in seen["kernel"]
    assert read_notebook(path).parameters["device"].default == "elsewhere"
