"""Material: made once, kept within bounds, of the layers looked at alone."""

import shlex
import shutil
import threading

import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

import workbench
from workbench.apps.explorer import Address, Explorer, code
from workbench.apps.explorer.explorer import resolve
from workbench.apps.explorer.jobs import Cancelled, Report
from workbench.apps.explorer.material import Material, models_to_choose
from workbench.apps.explorer.measures import MEASURES, measure, series
from workbench.apps.explorer.uploads import keep_text, portable_inputs
from workbench.apps.explorer.views import without_attention
from workbench.captures import Family, capture, capturing, register_family
from workbench.captures.family import FAMILIES, class_path, replace_families
from workbench.core.errors import InputError
from workbench.core.paths import data_dir
from workbench.models.loading import load

PLACE = Address(n=3, layer=2, head=1)


@pytest.fixture(scope="module")
def material():
    return Material()


def test_a_layer_is_captured_once_and_alone(material, monkeypatch):
    runs = []
    run = capturing._run
    monkeypatch.setattr(
        capturing, "_run", lambda recorder, *given: runs.append(recorder.chosen) or run(recorder, *given)
    )
    fresh = Material()
    first = fresh.look(PLACE)
    assert fresh.look(PLACE.moved(head=0, token=5)) is first
    assert runs == [(2,)] or runs == [[2]]
    assert first.record.index == 2
    fresh.look(PLACE.moved(layer=0))
    assert len(runs) == 2


def test_what_is_looked_at_is_what_capture_gives(material):
    seen = material.look(PLACE.moved(index=1))
    whole = capture(material.model(PLACE), material.inputs(PLACE))
    assert torch.allclose(seen.record.attn[0], whole[2].attn[1], atol=1e-6)
    assert seen.name == material.inputs(PLACE).ids[1]
    assert (seen.image == material.inputs(PLACE).images[1]).all()


def test_a_number_measured_in_several_ways_is_a_series_each_also_one_without_a_name():
    ways = [None, "pairs", "local"]
    rows = [
        {"metric": "softmax_lipschitz", "candidate": way, "layer": layer, "value": 10.0 * layer + number}
        for layer in range(2)
        for number, way in enumerate(ways)
    ]
    empty = {
        "axis": None,
        "convention": None,
        "standardize": None,
        "statistic": None,
        "rank": None,
        "head": None,
    }
    frame = pd.DataFrame(rows).assign(**empty)
    values = {part.words: part.rows["value"].tolist() for part in series("softmax-sensitivity", frame)}
    assert values == {"": [0, 10], "pairs": [1, 11], "local": [2, 12]}


def test_the_command_names_weights_only_where_they_are_random():
    assert "pretrained" not in code.command(PLACE)
    assert "-p pretrained False" in code.command(PLACE.moved(pretrained=False))


def test_kept_material_stays_within_its_bound():
    one = Material()
    one.look(PLACE)
    small = Material(limit=3 * one.cached_bytes)
    for index in range(3):
        for layer in range(4):
            small.look(PLACE.moved(index=index, layer=layer))
            assert small.cached_bytes <= 3 * one.cached_bytes


def test_what_is_larger_than_the_bound_is_shown_and_not_kept():
    tiny = Material(limit=100)
    assert tiny.look(PLACE).record.index == 2
    assert tiny.cached_bytes <= 100


def test_the_outline_names_kinds_and_heads(material):
    kinds = [(layer.index, layer.kind, layer.heads) for layer in material.outline(PLACE)]
    assert kinds == [(layer, "token", 3) for layer in range(4)]
    mixed = material.outline(Address("bundled:digits-tost"))
    assert [layer.kind for layer in mixed] == ["none"] * 4 + ["token"] * 2
    assert mixed[0].convention == "as_implemented"


def test_layers_without_attention_are_named_and_not_shown(monkeypatch):
    class Sums(nn.Module):
        def forward(self, x: torch.Tensor, **options: object) -> torch.Tensor:
            return x.cumsum(dim=1)

    hybrid = load(PLACE.model)
    hybrid.module.blocks[1].attn = Sums()
    before = dict(FAMILIES)
    register_family(Family(mixers={class_path(Sums): "running sum"}))
    material = Material()
    monkeypatch.setattr(material, "model", lambda spec: hybrid)
    try:
        assert [layer.index for layer in material.outline(PLACE)] == [0, 2, 3]
        assert (
            without_attention(PLACE, material)
            == " Layers without attention, not shown: 1 Sums (running sum)."
        )
        with pytest.raises(
            InputError, match=r"layer 1 .* is a Sums \(running sum\).*layers with attention: 0, 2-3"
        ):
            resolve(PLACE.moved(layer=1), material)
        assert resolve(PLACE.moved(layer=-1), material).layer == 3
    finally:
        replace_families(before)
    assert without_attention(PLACE, Material()) == ""


def test_two_threads_make_a_thing_once(monkeypatch):
    made = []
    material = Material()
    first = threading.Event()

    def slow():
        first.wait(5)
        made.append(1)
        return "made"

    found = []
    threads = [
        threading.Thread(target=lambda: found.append(material._once(material._cached, "key", slow)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    first.set()
    for thread in threads:
        thread.join()
    assert (found, made) == (["made"] * 3, [1])


def test_a_capture_that_is_stopped_leaves_the_model_as_it_was(material):
    report = Report()
    report.stop()
    with pytest.raises(Cancelled), material.reporting(report):
        material.look(PLACE.moved(index=2, layer=3))
    assert material.look(PLACE.moved(index=2, layer=3)).record.attn is not None


def test_an_input_that_is_not_there_is_said(material):
    with pytest.raises(InputError, match="there is no input 3: bundled:digits gives 3"):
        material.one(PLACE.moved(index=3))


def test_more_inputs_than_there_are_mean_all_of_them(tmp_path):
    from PIL import Image

    Image.new("L", (16, 16), 200).save(tmp_path / "grey.png")
    assert Material().inputs(Address(inputs=f"images:{tmp_path}", n=8)).ids == ["grey.png"]


@pytest.mark.parametrize("name", MEASURES)
def test_every_measure_gives_one_number_per_layer_and_head(material, name):
    frame = measure(name).frame(PLACE, material)
    assert not frame.duplicated(["layer", "head"]).any()
    assert sorted(frame["layer"].unique()) == [0, 1, 2, 3]
    assert frame["head"].nunique() in (0, 3)
    assert frame["value"].notna().all()


def test_memberships_of_a_tost_are_by_its_own_formula():
    material = Material()
    frame = measure("membership_entropy_share").frame(Address("bundled:digits-tost", n=2), material)
    assert set(frame["convention"]) == {"as_implemented"}


def test_a_measure_that_a_model_does_not_have_is_said():
    with pytest.raises(InputError):
        measure("attention_distance").frame(Address("bundled:digits-tost", n=2), Material())


def test_runs_of_training_in_this_folder_are_models_to_choose(tmp_path, monkeypatch):
    """Each by its last checkpoint, which opens; a folder without one is none."""
    trained, run = data_dir() / "models" / "digits-xcit", tmp_path / "runs" / "mine" / "seed-3"
    run.mkdir(parents=True)
    (tmp_path / "runs" / "begun").mkdir()
    (tmp_path / "runs" / "begun" / "model.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert "checkpoint" not in {one["group"] for one in models_to_choose()}
    shutil.copy(trained / "model.json", run)
    last = next(trained.glob("*.safetensors"))
    for epoch in (2, 10):
        shutil.copy(last, run / f"epoch-{epoch:03}.safetensors")
    (found,) = [one for one in models_to_choose() if one["group"] == "checkpoint"]
    assert found["name"] == "file:runs/mine/seed-3/epoch-010.safetensors"
    assert found["note"] == "the last of 2"
    assert load(found["name"]).family == load("bundled:digits-xcit").family


def test_files_of_ones_own_are_taken_by_name(tmp_path):
    """And the lines of Python take the same."""
    from PIL import Image

    for name in ("c", "a", "d", "b"):
        Image.new("L", (16, 16), 200).save(tmp_path / f"{name}.png")
    address = Address(inputs=f"images:{tmp_path}", n=2)
    assert Material().inputs(address).ids == ["a.png", "b.png"]
    assert any('order="file"' in line for line in code.matrix(address.moved(layer=0), Material()))


def test_code_and_command_give_the_same_window_of_a_typed_text(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "here"))
    typed = ["A first line.", 'The harbour was quiet, and "nobody" came. ' * 5, "A third line."]
    here = Material()
    address = Address("bundled:prose-softmax", keep_text("\n".join(typed)), n=3, index=1, layer=0, window=1)
    seen = here.one(address)
    assert (seen.texts, seen.windows) == ([typed[1].strip()], [1])
    lines, words = code.matrix(address, here)[:2], shlex.split(code.command(address))
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "elsewhere"))
    names = {"workbench": workbench}
    exec("\n".join(lines), names)
    parts = {"inputs": words[words.index("inputs") + 1], "window": int(words[words.index("window") + 1])}
    for made in (names["inputs"], Material().one(address.moved(**parts))):
        assert made.texts == seen.texts
        assert made.tokens.labels == seen.tokens.labels


def test_inputs_too_long_for_a_link_keep_their_hash(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    for count, scheme in ((99, "text"), (9999, "upload")):
        assert portable_inputs(keep_text("word " * count)).startswith(f"{scheme}:")


def test_an_upload_is_not_called_by_its_hash(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    steps, material = [], Material()
    with material.reporting(Report(lambda text, share: steps.append(text))):
        material.inputs(Address("bundled:prose-softmax", keep_text("The harbour was quiet.")))
    assert "reading your input" in steps
    assert not [text for text in steps if "upload:" in text]


def test_images_of_a_folder_come_in_the_order_of_their_names(tmp_path):
    """The first of them is `--index 0`, whatever the seed of the inputs draws."""
    names = ["c.png", "a10.png", "b.png", "a9.png", "d.png"]
    for shade, name in enumerate(names):
        Image.new("RGB", (32, 32), (shade, 9, 9)).save(tmp_path / name)
    explorer = Explorer("bundled:photos-vit", f"images:{tmp_path}", seed=3)
    assert explorer.material.inputs(explorer.location).ids == sorted(names)
