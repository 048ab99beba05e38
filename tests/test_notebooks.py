"""Every figure notebook runs with its quick preset, and is stored as a notebook should be."""

import json

import nbformat
import pandas as pd
import pytest

from workbench.apps.rendering import render
from workbench.apps.rendering.notebooks import find_notebooks
from workbench.core.paths import notebooks_dir

NOTEBOOKS = sorted(notebooks_dir().glob("*.ipynb"))
COMMON = {"model", "inputs", "n", "seed", "out"}
OF_WEIGHTS = {"subspaces"}  # these run no input
OF_OPERATORS = {"operator_efficiency"}  # these no model either
MODELS = {  # figures of another model than the plain one
    "robust_components": "bundled:digits-rpc-sym",
    "robust_components_auc": "bundled:digits-rpc-sym",
    "membership_maps": "bundled:digits-tost",
    "membership_maps_baseline": "bundled:digits-tost",
    "membership_agreement": "bundled:digits-tost",
    "coding_rate": "bundled:digits-tost",
    "subspaces": "bundled:digits-tost",
    "subspaces_all": "bundled:digits-tost",
    "subspaces_coherence": "bundled:digits-tost",
    **dict.fromkeys(
        [f"tost_training{part}" for part in ("", "_ablation", "_digits", "_photos", "_text")],
        "bundled:digits-tost",
    ),
    **dict.fromkeys(
        [f"class_attention{part}" for part in ("", "_heads", "_summary", "_masks")], "bundled:photos-tost"
    ),
    "attention_in_one_hour_text": "bundled:prose-softmax",
    "attention_in_one_hour_words": "bundled:prose-softmax",
    "attention_in_one_hour_members": "bundled:prose-tost",
    "language_modelling": "bundled:prose-softmax",
    "language_modelling_effects": "bundled:prose-softmax",
}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_stored_without_outputs_and_opens_without_a_question(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert "widgets" not in notebook.metadata
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
    assert [cell.metadata.get("tags") for cell in notebook.cells].count(["parameters"]) == 1


@pytest.mark.parametrize("notebook", find_notebooks(), ids=lambda notebook: notebook.name)
def test_it_takes_the_parameters_that_all_take_and_has_its_presets(notebook):
    absent = {"inputs", "n"} if notebook.name in OF_WEIGHTS | OF_OPERATORS else set()
    absent |= {"model"} if notebook.name in OF_OPERATORS else set()
    assert set(notebook.parameters) >= COMMON - absent
    assert set(notebook.presets) == {"quick", "paper"}


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    out = tmp_path_factory.mktemp("figures")
    report = render(preset="quick", out=out, formats=("html",), workers=2, progress=False)
    return out, report


def test_every_notebook_renders_with_the_quick_preset(rendered):
    out, report = rendered
    assert report.failed == []
    assert {path.stem for path in (out / "notebooks").glob("*.ipynb")} == {path.stem for path in NOTEBOOKS}
    assert (out / "index.html").is_file()


@pytest.mark.parametrize(
    "name",
    [
        "gram_spectra",
        "gram_spectra_statistics",
        "value_similarity",
        "value_similarity_invariant",
        "eigenvector_test",
        "eigenvector_test_layers",
        "eigenvector_test_exact",
        "projection_error",
        "projection_error_training",
        "projection_error_by_attention",
        "projection_error_by_attention_change",
        "training_curves_scaled",
        "training_curves_bilateral",
        "training_curves_others",
        "training_curves_language",
        "training_curves_results_digits",
        "training_curves_results_prose",
        "tost_training",
        "tost_training_ablation",
        "tost_training_digits",
        "tost_training_photos",
        "tost_training_text",
        "squared_norms",
        "claims_teo2024",
        "claims_saritas2025",
        "claims_trained_wu2025",
        "membership_maps",
        "membership_maps_baseline",
        "membership_agreement",
        "coding_rate",
        "subspaces",
        "subspaces_all",
        "subspaces_coherence",
        "position_logits",
        "position_logits_shares",
        "attention_spectrum",
        "attention_spectrum_layers",
        "softmax_sensitivity",
        "cosine_decay",
        "cosine_decay_sites",
        "robustness",
        "robustness_rpc",
        "robustness_bilateral",
        "robustness_operators",
        "robustness_effects",
        "robustness_corruptions",
        "robustness_ood",
        "language_modelling",
        "language_modelling_effects",
        "efficiency_variants",
        "robust_components",
        "robust_components_auc",
        "attention_as_filter",
        "attention_as_filter_photograph",
        "snr_boost",
        "snr_boost_shares",
        "snr_boost_depth",
        "attention_heatmaps",
        "attention_heatmaps_pair",
        "class_attention",
        "class_attention_heads",
        "class_attention_summary",
        "class_attention_masks",
        "attention_summary",
        "explorer",
        *[
            f"attention_in_one_hour_{part}"
            for part in ("norms", "image", "patch", "matrix", "distance", "entropy", "spectrum", "depth")
        ],
        *[f"attention_in_one_hour_{part}" for part in ("text", "words", "members")],
    ],
)
def test_a_figure_comes_with_its_data_and_where_it_comes_from(rendered, name):
    out, _ = rendered
    provenance = json.loads((out / f"{name}.json").read_text())
    assert provenance["parameters"]["model"] == MODELS.get(name, "bundled:digits-vit")
    assert provenance["seed"] == 0
    assert len(provenance["models"][0]["sha256"]) == 64
    assert len(pd.read_csv(out / f"{name}.csv")) > 0
    assert "\\toprule" in (out / f"{name}.tex").read_text()


def test_the_efficiency_of_operators_is_measured_on_this_machine(rendered):
    out, _ = rendered
    provenance = json.loads((out / "operator_efficiency_here.json").read_text())
    (run,) = provenance["runs"]
    assert run["device"]
    assert run["threads"] == 1
    frame = pd.read_csv(out / "operator_efficiency_here.csv")
    exponent = frame[(frame["metric"] == "time_exponent_tokens") & (frame["source"] == "measured")]
    assert list(exponent["operator"]) == ["tssa"]
    assert f"n^{exponent['value'].iloc[0]:.2f}" in provenance["figure"]["caption"]
