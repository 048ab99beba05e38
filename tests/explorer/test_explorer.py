"""The explorer: what a control asks for is what is drawn, and a mistake leaves the last good view."""

import pytest

from workbench.architectures import build
from workbench.checkpoints import write_checkpoint
from workbench.errors import InputError
from workbench.explorer import Explorer, notebook_to_open
from workbench.explorer.panel import _Panel


@pytest.fixture(scope="module")
def explorer():
    return Explorer(n=3)


def test_it_opens_on_the_last_layer_of_the_bundled_model(explorer):
    fresh = Explorer(n=2)
    assert (fresh.layers, fresh.layer, fresh.head, fresh.heads) == ([0, 1, 2, 3], 3, 0, [0, 1, 2])
    assert fresh.tokens.labels[0][fresh.query] == "[CLS]"


def test_the_heat_map_shows_the_chosen_head_of_the_chosen_layer(explorer):
    explorer.layer, explorer.head, explorer.query = 1, 2, 5
    shown = [trace for trace in explorer.attention().data if trace.name == "layer 1, head 2"]
    expected = explorer.attn[2, 5, 1:].reshape(8, 8).double().numpy()
    assert shown[0].z.tolist() == expected.tolist()


def test_the_spectrum_marks_the_chosen_layer(explorer):
    explorer.layer = 2
    widths = {trace.name: trace.line.width for trace in explorer.spectrum().data if trace.name}
    assert [name for name, width in widths.items() if width == max(widths.values())] == ["layer 2"]


def test_the_reading_is_computed_from_what_is_shown(explorer):
    explorer.layer, explorer.head, explorer.query = 0, 1, 3
    top = int(explorer.attn[1, 3].argmax())
    assert repr(explorer.tokens.labels[0][top]) in explorer.reading()
    assert f"{float(explorer.attn[1, 3, top]):.1%}" in explorer.reading()


def test_a_model_without_inputs_to_choose_from_is_refused(tmp_path):
    sizes = {"name": "sequence", "channels": 2, "context": 5, "embed_dim": 6, "depth": 1}
    path = tmp_path / "epoch-001.safetensors"
    about = {"architecture": sizes, "preprocessing": {"mean": [0.0, 0.0], "std": [1.0, 1.0]}}
    write_checkpoint(path, build(sizes), about)
    with pytest.raises(
        InputError, match="takes neither pictures nor texts alone, and the explorer shows those"
    ):
        Explorer(f"file:{path}")


@pytest.mark.parametrize(("kind", "number"), [("layer", 4), ("head", 3), ("layer", -5)])
def test_what_does_not_exist_is_refused(kind, number):
    with pytest.raises(InputError, match=f"no {kind} {number}"):
        Explorer(n=1, **{kind: number})


def test_controls_follow_one_another():
    panel = _Panel(Explorer(n=2))
    panel.layer.value = 1
    assert panel.explorer.layer == 1
    assert "Layer 1" in panel.message.value
    panel.query.value = 7
    assert panel.explorer.query == 7
    panel.index.value = 1  # another image: back to the class token
    assert panel.explorer.query == panel.query.value == 0
    assert panel.explorer.batch.ids[1] in panel.message.value
    assert len(panel.figures["image"].data) == 2
    lines = [trace.name for trace in panel.figures["spectrum"].data if trace.name]
    assert lines == [f"layer {layer}" for layer in range(4)]


def test_a_mistake_is_told_and_the_last_good_view_stays():
    panel = _Panel(Explorer(n=1))
    before = panel.figures["image"].data[1].z
    panel.model.value = "bundled:digit-vit"
    assert "digits-vit" in panel.message.value
    assert panel.explorer.model == "bundled:digits-vit"
    assert (panel.figures["image"].data[1].z == before).all()
    panel.layer.value = 0  # and the controls still work
    assert "Layer 0" in panel.message.value


def test_a_text_model_brings_its_own_inputs_and_view(tmp_path):
    from tests.folders import bert_folder

    panel = _Panel(Explorer(n=2))
    panel.model.value = f"hf:{bert_folder(tmp_path / 'bert')}"
    assert panel.explorer.inputs == panel.inputs.value == "bundled:prose"
    assert panel.frames["image"].layout.display == "none"
    assert len(panel.figures["text"].data) == 1
    assert panel.query.label == "all queries"


def test_saving_writes_the_view_with_its_parameters(tmp_path, monkeypatch):
    import json

    monkeypatch.setenv("WORKBENCH_OUT", str(tmp_path))
    monkeypatch.setenv("WORKBENCH_DEFER_EXPORT", str(tmp_path / "queue"))
    panel = _Panel(Explorer(n=1, layer=1, head=2))
    panel.name.value = "my-view"
    panel.save.click()
    assert str(tmp_path) in panel.message.value
    parameters = json.loads((tmp_path / "my-view.json").read_text())["parameters"]
    assert (parameters["layer"], parameters["head"]) == (1, 2)
    assert (tmp_path / "my-view.csv").stat().st_size > 500


def test_the_notebook_of_a_checkout_opens_in_place_and_a_copy_is_kept(tmp_path, monkeypatch):
    from workbench import paths

    assert notebook_to_open(tmp_path) == paths.notebooks_dir() / "explorer.ipynb"
    installed = tmp_path / "installed" / "notebooks"
    installed.mkdir(parents=True)
    (installed / "explorer.ipynb").write_text("as installed")
    monkeypatch.setattr(paths, "notebooks_dir", lambda: installed)
    here = tmp_path / "here"
    here.mkdir()
    assert notebook_to_open(here).read_text() == "as installed"
    (here / "explorer.ipynb").write_text("edited by its user")
    assert notebook_to_open(here).read_text() == "edited by its user"
