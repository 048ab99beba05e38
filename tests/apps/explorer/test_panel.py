"""The controls: they follow one another, say what goes wrong, and keep the last good view. Without a browser or an
event loop, so that every change is done when the control has moved."""

import json
import re

import numpy as np
import pytest

from workbench.apps.explorer import Explorer
from workbench.apps.explorer.material import Material
from workbench.apps.explorer.panel import ALL, MOST_PINS, Panel
from workbench.core.errors import MissingResource


@pytest.fixture(scope="module")
def material():
    """What the panels of this file have loaded, captured and measured."""
    return Material()


@pytest.fixture
def panel(material, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("WORKBENCH_OUT", str(tmp_path / "figures"))
    monkeypatch.setenv("WORKBENCH_DEFER_EXPORT", str(tmp_path / "queue"))
    explorer = Explorer(n=2)
    explorer.material = material
    return Panel(explorer)


def maps(panel):
    return [np.asarray(trace.z, dtype=float) for trace in panel.main.widget.data if trace.type == "heatmap"]


def test_it_opens_with_a_figure_and_a_sentence(panel):
    assert panel.layer.options == (0, 1, 2, 3)
    assert panel.head.options == (0, 1, 2)
    assert (panel.layer.value, panel.head.value, panel.token.value) == (3, 0, 0)
    assert panel.inputs.value == "bundled:digits"
    assert "Layer 3, head 0, digits/" in panel.message.value
    assert panel.main.widget.data
    assert panel.map.widget.data


def test_a_slider_moves_the_explorer_and_its_figure(panel):
    before = maps(panel)
    widget = panel.main.widget
    panel.layer.value = 1
    assert panel.explorer.place.layer == 1
    assert "Layer 1" in panel.message.value
    assert not all(np.array_equal(a, b) for a, b in zip(before, maps(panel), strict=True))
    assert panel.main.widget is widget  # changed in place


def test_controls_follow_an_explorer_that_is_moved_by_a_script():
    explorer = Explorer(n=2)
    panel = Panel(explorer)
    explorer._panels.append(panel)
    explorer.move(layer=1, head=2)
    assert (panel.layer.value, panel.head.value) == (1, 2)
    assert "Layer 1, head 2" in panel.message.value


def test_a_click_on_a_token_looks_from_there(panel):
    panel.main._clicked(7)
    assert panel.explorer.place.token == panel.token.value == 7


def test_a_click_on_the_overview_opens_that_head(panel):
    panel.map._clicked([1, 2])
    assert (panel.explorer.place.layer, panel.explorer.place.head) == (1, 2)
    assert (panel.layer.value, panel.head.value) == (1, 2)


def test_arrows_change_layer_and_head_and_stop_at_the_ends(panel):
    for key, expected in [
        ("ArrowUp", (2, 0)),
        ("ArrowRight", (2, 1)),
        ("ArrowDown", (3, 1)),
        ("ArrowDown", (3, 1)),
    ]:
        panel._press(key)
        assert (panel.explorer.place.layer, panel.explorer.place.head) == expected


def test_another_input_goes_back_to_the_class_token(panel):
    panel.token.value = 7
    panel.index.value = 1
    assert panel.explorer.place.token == panel.token.value == 0
    assert panel.explorer.material.inputs(panel.explorer.place).ids[1] in panel.message.value


def test_a_mistake_is_reported_and_the_last_good_view_stays(panel):
    before = maps(panel)
    panel.model.value = "bundled:digit-vit"
    assert "digits-vit" in panel.message.value
    assert "alert" in panel.message.value
    assert panel.model.value == panel.explorer.place.model == "bundled:digits-vit"
    assert all(np.array_equal(a, b) for a, b in zip(before, maps(panel), strict=True))
    panel.layer.value = 0  # and the controls still work
    assert "Layer 0" in panel.message.value


def test_a_fault_is_reported_too_and_the_app_stays_usable(panel, monkeypatch):
    def broken(changes):
        raise RuntimeError("the roof is leaking")

    monkeypatch.setattr(panel.explorer, "after", broken)
    panel.layer.value = 1
    assert "the roof is leaking" in panel.message.value
    monkeypatch.undo()
    assert panel.layer.value == 3
    panel.layer.value = 2
    assert "Layer 2" in panel.message.value


def test_an_explorer_of_a_model_that_is_not_there_opens_and_says_so(tmp_path):
    panel = Panel(Explorer("bundled:digit-vit"))
    assert "digits-vit" in panel.message.value
    panel.model.value = "bundled:digits-vit"
    assert "Layer 3" in panel.message.value


def test_random_weights_are_offered_where_trained_ones_are_not_to_be_had_and_said(panel, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "random" not in panel.message.value + panel.badge.value
    panel.model.value = "timm:test_vit.nowhere"
    assert panel.take_random.layout.display == "none"  # no such weights anywhere
    panel._failed(MissingResource("timm:test_vit is not here; pass pretrained=False for random ones"))
    assert "take random weights (the button here)" in panel.message.value
    panel._missing = "timm:test_vit"
    panel.take_random.click()
    assert (panel.explorer.place.model, panel.explorer.place.pretrained) == ("timm:test_vit", False)
    assert "random weights" in panel.badge.value
    assert "random weights" in panel.message.value
    assert "pretrained=False" in panel.copy_code.text
    assert panel.take_random.layout.display == "none"
    panel.model.value = "bundled:digits-vit"
    assert panel.explorer.place.pretrained
    assert panel.badge.value == ""
    listed = [name for name in panel.model.options if name.startswith(("tost:", "crate:"))]
    assert listed
    assert all(name.endswith(" (random weights)") for name in listed)


def test_markup_in_a_message_is_shown_as_text(panel):
    panel.model.value = "<img src=x onerror=alert(1)>"
    assert "<img" not in panel.message.value
    assert "&lt;img" in panel.message.value


def test_a_text_model_brings_its_own_inputs_and_tokens(panel, tmp_path):
    from tests.folders import bert_folder

    panel.model.value = f"hf:{bert_folder(tmp_path / 'bert')}"
    assert panel.explorer.place.inputs == panel.inputs.value == "bundled:prose"
    assert panel.token.value == ALL
    assert "[CLS]" in panel.token.options[1][0]


@pytest.mark.parametrize("name", ["matrix", "norms", "spectrum", "singular", "membership", "trajectory"])
def test_every_view_shows_and_follows_the_layer(panel, name):
    panel.view.value = name
    assert panel.main.widget is not None, panel.message.value
    panel.layer.value = 1
    assert "Layer 1" in panel.message.value


def test_a_view_that_does_not_apply_says_why_and_the_next_one_shows(panel):
    panel.model.value = "bundled:digits-tost"
    panel.layer.value = 1
    assert panel.main.widget is None
    assert "membership map" in panel.message.value
    panel.view.value = "membership"
    assert panel.main.widget is not None


def test_a_pin_is_kept_and_compared_with(panel):
    panel._pin()
    panel._pin()  # the same view twice is one pin
    assert len(panel.pins) == len(panel.pinned.children) == 1
    panel.layer.value = 1
    panel.view.value = "compare"
    assert panel.explorer.place.against.layer == 3
    assert "to other tokens than with layer 3" in panel.message.value
    panel.layer.value = 0
    back, _, away = panel.pinned.children[0].children[-1].children
    back.click()
    assert (panel.explorer.place.layer, panel.explorer.place.view) == (3, "attention")
    away.click()
    assert panel.pins == []
    assert panel.pinned.children == ()


def test_pins_are_bounded_and_the_first_go(panel, monkeypatch):
    assert MOST_PINS > 2
    monkeypatch.setattr("workbench.apps.explorer.panel.MOST_PINS", 2)
    for layer in range(3):
        panel.layer.value = layer
        panel._pin()
    assert [pin.place.layer for pin in panel.pins] == [1, 2]


def test_an_image_of_ones_own_is_looked_at(panel):
    import io

    from PIL import Image

    written = io.BytesIO()
    Image.new("L", (40, 30), 90).save(written, "PNG")
    panel._upload(({"name": "../../my photo.png", "content": memoryview(written.getvalue())},))
    assert re.fullmatch(r"upload:[0-9a-f]{16}", panel.explorer.place.inputs)  # the same on every machine
    assert "my-photo.png" in panel.message.value.lower()


def test_a_broken_image_is_reported(panel):
    panel._upload(({"name": "broken.png", "content": memoryview(b"no picture")},))
    assert "broken.png" in panel.message.value
    assert panel.explorer.place.inputs == panel.inputs.value == "bundled:digits"
    panel._upload(({"name": "notes.docx", "content": memoryview(b"x")},))
    assert "not an image this reads" in panel.message.value


def test_a_text_of_ones_own_is_looked_at(panel, tmp_path):
    from tests.folders import bert_folder

    panel.model.value = f"hf:{bert_folder(tmp_path / 'bert')}"
    panel.text.value = "short"
    panel.use_text.click()
    assert "more than 30 characters" in panel.message.value
    panel.text.value = "the harbour was quiet before the boats came in"
    panel.use_text.click()
    assert re.fullmatch(r"upload:[0-9a-f]{16}", panel.explorer.place.inputs)
    panel._go({"inputs": "upload:0123456789abcdef"})
    assert "is not on this machine; hand the same file" in panel.message.value
    panel._go({"inputs": "upload:../../etc"})
    assert "16 digits" in panel.message.value
    assert any("harbour" in label for label, _ in panel.token.options)


def test_code_command_and_address_go_with_the_view(panel):
    panel.layer.value = 2
    assert "layers=[2]" in panel.copy_code.text
    assert "-p layer 2" in panel.copy_command.text
    saved = panel.copy_address.text
    panel.layer.value = 0
    panel.saved.value = saved
    assert panel.explorer.place.to_dict() == json.loads(saved)
    panel.saved.value = json.dumps(json.loads(saved) | {"layer": 3, "head": 2, "token": 12})
    assert (panel.layer.value, panel.head.value, panel.token.value) == (3, 2, 12)
    panel.saved.value = "{"
    assert "no saved address" in panel.message.value


def test_saving_writes_the_view_and_says_where(panel, tmp_path):
    panel.head.value = 2
    panel.name.value = "my-view"
    panel.save.click()
    assert str(tmp_path / "figures") in panel.message.value
    assert json.loads((tmp_path / "figures" / "my-view.json").read_text())["parameters"]["head"] == 2
    panel.name.value = "../outside"
    panel.save.click()
    assert "not a figure name" in panel.message.value
