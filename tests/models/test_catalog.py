"""The catalog: every name in it exists where its spec says, and means one model."""

import shutil

import pytest
import timm
import torch

from workbench.core import paths
from workbench.core.errors import MissingResource
from workbench.models import catalog
from workbench.models.loading import NOT_INSTALLED, list_models, load, resolve
from workbench.models.weights import find_weights


def test_every_timm_name_exists_and_has_the_weights_the_note_states():
    for entry in catalog.CATALOG:
        scheme, _, name = entry.spec.partition(":")
        if scheme == "timm":
            config = timm.models.get_pretrained_cfg(name)
            assert config is not None, name
            assert config.tag in entry.note.replace(",", "").split(), entry.alias


def test_the_reproduction_study_has_ten_vision_and_nine_language_models():
    study = [entry for entry in catalog.CATALOG if "saritas2025" in entry.papers]
    assert sum(entry.modality == "image" for entry in study) == 10
    assert sum(entry.modality == "text" for entry in study) == 9


def test_a_name_means_one_model():
    names = [name for entry in catalog.CATALOG for name in (entry.alias, entry.spec, *entry.also)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("entry", catalog.CATALOG, ids=lambda entry: entry.alias)
def test_alias_short_name_and_spec_resolve_alike(entry):
    resolved = {resolve(name)[:2] for name in (entry.alias, entry.spec, *entry.also)}
    assert resolved == {tuple(entry.spec.split(":", 1))}


@pytest.mark.parametrize(("name", "kind"), [("bert-base-uncased", "Bert"), ("gpt2", "GPT2")])
def test_weights_of_the_catalog_are_those_of_the_architecture_in_transformers(name, kind):
    import transformers

    (entry,) = (entry for entry in catalog.CATALOG if entry.alias == name)
    with torch.device("meta"):
        module = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")())
    assert entry.weights == sum(parameter.numel() for parameter in module.parameters())


# (layers, heads, head_dim) as the papers of the architectures print them.
GEOMETRY = {
    "vit_tiny_patch16_224": (12, 3, 64),
    "vit_small_patch16_224": (12, 6, 64),
    "deit_tiny_patch16_224": (12, 3, 64),
    "deit_tiny_distilled_patch16_224": (12, 3, 64),
    "deit_small_distilled_patch16_224": (12, 6, 64),
    "xcit_small_12_p16_224": (14, 8, 48),  # 12 layers and 2 of class attention
    "xcit_medium_24_p16_224": (26, 8, 64),
    "tost-tiny": (14, 4, 48),
    "tost-small": (14, 8, 48),
    "crate-tiny": (12, 6, 64),
}


@pytest.mark.parametrize("name", GEOMETRY)
def test_geometry_of_catalog_models(name):
    model = load(name, pretrained=False)
    assert (model.num_layers, model.num_heads, model.head_dim) == GEOMETRY[name]
    assert model.family == name.replace("-", "_").split("_")[0]
    assert model.image is not None
    assert model.image.size == (224, 224)


def test_wu2025_compares_its_models_with_xcit_and_with_the_vit_of_deit():
    study = {entry.alias for entry in catalog.CATALOG if "wu2025" in entry.papers}
    assert {
        "tost-tiny",
        "tost-small",
        "tost-medium",
        "tost-base-lm",
        "tost-medium-lm",
        "tost-large-lm",
    } <= study
    assert {"xcit_small_12_p16_224", "xcit_medium_24_p16_224", "crate-tiny", "crate-small"} <= study
    assert {"deit_small_patch16_224", "deit_base_patch16_224", "gpt2"} <= study


def test_list_models_says_where_weights_are_and_loads_none(monkeypatch):
    monkeypatch.setattr(
        "workbench.models.hub.cached_repos",
        lambda: ["timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", "gpt2"],
    )
    weights = {row["alias"]: row["weights"] for row in list_models()}
    assert weights["vit_tiny_patch16_224"] == "cached"
    assert weights["gpt2"] == "cached"
    assert weights["vit_small_patch16_224"] == "hub"
    assert weights["tost-small"] == weights["crate-tiny"] == "random"
    assert {row["weights"] for row in list_models() if row["spec"].startswith("bundled:")} <= {"bundled"}
    installed = "installed package" if catalog.installed_minilm() else "hub"
    assert weights["all-MiniLM-L6-v2"] == installed


def test_a_bundled_model_without_its_weights_names_the_extra(monkeypatch, tmp_path):
    for name in ("digits-vit", "prose-tost"):
        shutil.copytree(paths.data_dir() / "models" / name, tmp_path / "models" / name)
    (tmp_path / "models" / "prose-tost" / "epoch-012.safetensors").unlink()
    monkeypatch.setattr(paths, "data_dir", lambda: tmp_path)
    weights = {row["alias"]: row["weights"] for row in list_models()}
    assert (weights["digits-vit"], weights["prose-tost"]) == ("bundled", NOT_INSTALLED)
    assert find_weights("bundled:prose-tost").where == "missing"
    with pytest.raises(
        MissingResource, match=r"bundled:prose-tost are not installed.*the extra 'models' with pip"
    ):
        load("prose-tost")


def test_minilm_is_found_only_where_it_is_installed(monkeypatch):
    monkeypatch.setattr(catalog, "MINILM_PACKAGE", "no_such_package_anywhere")
    assert catalog.installed_minilm() is None


def test_the_note_of_a_bundled_model_has_the_test_score_of_its_last_checkpoint():
    checkpoints = [{"test_accuracy": 0.5}, {"test_accuracy": 0.875}]
    assert catalog._bundled_note({"task": "digits", "checkpoints": checkpoints}) == (
        "trained on digits, test accuracy 87.5%, 2 checkpoints"
    )
    assert catalog._bundled_note({"checkpoints": [{"test_perplexity": 3.456}]}) == (
        "trained on its task, test perplexity 3.46 per character"
    )
    assert catalog._bundled_note({"task": "rl", "checkpoints": [{}]}) == "trained on rl"
