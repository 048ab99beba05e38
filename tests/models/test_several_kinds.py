"""Models of several kinds of tokens from local folders: loaded, given inputs of their kind, analysed and explored."""

from __future__ import annotations

import functools
import shutil

import pytest
import torch
from PIL import Image

from tests.captures.multimodal import MODELS
from tests.folders import several_kinds_folder
from workbench import analyze, capture, inputs, load
from workbench.apps.explorer import VIEWS, Explorer
from workbench.core.errors import InputError, WorkbenchError
from workbench.data.batches import QUESTION

NAMES = [model.name for model in MODELS]
PAIRS = ["clip", "siglip", "llava", "smolvlm", "qwen2-vl", "qwen2.5-vl"]
HEADS = {"t5": "T5ForConditionalGeneration", "bart": "BartForConditionalGeneration", "clip": "CLIPModel"}
CROSS = {"t5": 3, "bart": 3, "siglip": 2}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folder of a model by its name, written when it is first asked for."""
    root, made = tmp_path_factory.mktemp("several"), {}

    def folder(name: str) -> str:
        if name not in made:
            made[name] = several_kinds_folder(root / name, name)
        return f"hf:{made[name]}"

    return folder


@pytest.fixture(scope="module")
def loaded(folders):
    """The model of a name, loaded when it is first asked for."""
    return functools.cache(lambda name: load(folders(name)))


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_is_loaded_with_the_head_that_writes(loaded, name: str):
    model = loaded(name)
    kind = type(model.module).__name__
    assert kind == HEADS.get(name, kind)
    assert kind.endswith("ForConditionalGeneration") == (name not in ("clip", "siglip"))
    assert model.modality == ("image-text" if name in PAIRS else "other" if name == "whisper" else "text")


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_the_decoder_gets_the_text_shifted_right(loaded, name: str):
    model = loaded(name)
    given = inputs("bundled:prose", model, n=3)
    ids, written = given.batch["input_ids"], given.batch["decoder_input_ids"]
    assert torch.equal(written[:, 1:], ids[:, :-1])
    assert (written[:, 0] == model.module.config.decoder_start_token_id).all()
    captured = capture(model, given, sites=("attn",))
    cross = captured.tokens_of(3)
    assert cross.labels[0][1:] == cross.keys.labels[0][:-1]
    assert cross.kinds[0][0] == "special"


@pytest.mark.parametrize("name", PAIRS)
def test_an_image_goes_with_a_text(loaded, name: str):
    model = loaded(name)
    given = inputs("bundled:photos", model, n=3)
    assert given.texts == [QUESTION] * 3
    assert len(given.images) == 3
    captured = capture(model, given, sites=("attn",))
    image, joint = captured.tokens_of(captured.layers[0].index), captured.tokens_of(captured.layers[-1].index)
    assert name == "qwen2.5-vl" or "patch" in image.kinds[0]
    assert ("patch" in joint.kinds[0]) == (name not in ("clip", "siglip"))
    assert "word" in joint.kinds[0]
    whole = capture(model, given[1:], sites=("attn",))[captured.layers[-1].index].attn
    assert torch.allclose(whole, captured[-1].attn[1:], atol=1e-5)  # a slice holds its own images


def test_the_text_beside_an_image_goes_with_it(loaded, tmp_path):
    for number, words in enumerate(["the harbour was quiet", None]):
        Image.new("RGB", (40, 32), (90 * number, 20, 60)).save(tmp_path / f"{number}.png")
        if words:
            (tmp_path / f"{number}.txt").write_text(words, encoding="utf-8")
    model = loaded("llava")
    given = inputs(f"images:{tmp_path}", model)
    assert dict(zip(given.ids, given.texts, strict=True)) == {
        "0.png": "the harbour was quiet",
        "1.png": QUESTION,
    }
    before = given.sha256
    (tmp_path / "0.txt").write_text("the boats came in", encoding="utf-8")
    assert inputs(f"images:{tmp_path}", model).sha256 != before


@pytest.mark.parametrize("name", [name for name in NAMES if name != "whisper"])
def test_analyses_do_not_depend_on_the_batches(loaded, name: str):
    spec = "bundled:photos" if name in PAIRS else "bundled:prose"
    model = loaded(name)
    chosen = inputs(spec, model, n=3)
    frames = [
        analyze("attention-map", model=model, inputs=chosen, null_samples=0, batch_size=size)
        for size in (2, 3)
    ]
    first, second = (
        frame.sort_values(["layer", "metric", "input", "head"], ignore_index=True) for frame in frames
    )
    assert len(first) == len(second) > 0
    assert ((first["value"] - second["value"]).abs() <= 1e-4 * first["value"].abs() + 1e-5).all()
    crossed = set(first[first["source"] == "cross"]["layer"])
    assert (CROSS.get(name) in crossed) == (name in CROSS)


@pytest.mark.parametrize("name", ["t5", "siglip", "llava"])
def test_every_view_draws_or_says_why_not(folders, name: str):
    explorer = Explorer(folders(name), n=2)
    layers = [layer.index for layer in explorer.material.outline(explorer.location)]
    layers = [*dict.fromkeys((layers[0], CROSS.get(name, layers[0]), layers[-1]))]  # one of each kind
    said = {}
    for layer in layers:
        for view in VIEWS:
            explorer.move(layer=layer, head=1, view=view)
            try:
                assert explorer.figure().data
                assert explorer.interpretation()
                compile(explorer.code(), "view", "exec")
            except InputError as error:
                said[layer, view] = str(error)
    assert not {view for _, view in said} & {"matrix", "singular", "spectrum"} - (
        {"singular"} if name == "siglip" else set()
    )
    if name in CROSS:
        assert "the matrix shows it" in said[CROSS[name], "attention"]
        assert "cross attention" in said[CROSS[name], "norms"]
    first = next(layer for layer in layers if layer != CROSS.get(name))
    assert (first, "attention") not in said


def test_the_lines_of_a_cross_matrix_make_that_matrix(folders):
    explorer = Explorer(folders("t5"), n=2).move(layer=3, head=2, view="matrix")
    lines = explorer.code()
    assert "tokens_of(3)" in lines
    namespace: dict = {}
    exec(lines, namespace)
    assert namespace["figure"].data[0].z.tolist() == explorer.figure().data[0].z.tolist()
    assert namespace["figure"].layout.yaxis.title.text == "query (number of the token)"


def test_a_missing_processor_is_said_with_what_to_save(folders, tmp_path):
    source, bare = folders("llava").removeprefix("hf:"), tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(f"{source}/{name}", bare)
    with pytest.raises(InputError, match=r"processor\.save_pretrained"):
        inputs("bundled:photos", load(f"hf:{bare}"), n=1)


def test_texts_alone_and_sound_are_refused(loaded):
    with pytest.raises(InputError, match="takes images, and bundled:prose gives texts"):
        inputs("bundled:prose", loaded("clip"))
    with pytest.raises(InputError, match="a dict of tensors"):
        inputs("bundled:prose", loaded("whisper"))
    with pytest.raises(WorkbenchError, match="which only its own processor prepares"):
        inputs("bundled:photos", loaded("llava"), n=1, preprocessing="saritas2025")
