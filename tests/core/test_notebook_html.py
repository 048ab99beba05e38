"""Captures, layers, inputs and models show themselves in a notebook: as small, whole, escaped HTML."""

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

import workbench
from workbench.core import notebook_html

HOSTILE = '<script>alert("1")</script>'


class Tags(HTMLParser):
    """The tags of a document that opens and closes them in order, and its text."""

    def __init__(self, document):
        super().__init__()
        self.open, self.met, self.text = [], [], []
        self.feed(document)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.met.append(tag)
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def shown():
    model = workbench.load("bundled:digits-vit")
    digits = workbench.inputs("bundled:digits", model, n=3)
    capture = workbench.capture(model, digits, layers=[1, 2], sites=["q", "scale", "attn"])
    return {"model": model, "inputs": digits, "capture": capture, "layer": capture[2]}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("model", ["Model bundled:digits-vit epoch-030", "vit, image", "4 layers, 3 heads of 16", "1 × 16 × 16"]),
        ("inputs", ["Inputs bundled:digits", "65 tokens: 1 class, 64 patch (8 × 8)", "3 × 1 × 16 × 16 on cpu"]),
        ("capture", ["Capture of 2 layers of bundled:digits-vit epoch-030", "bundled:digits, n = 3, seed 0",
                     "3 × 65 tokens: 1 class, 64 patch (8 × 8)", "q, scale, attn", "layer 2 blocks.2.attn"]),
        ("layer", ["layer 2 blocks.2.attn", "batch, head, query, key", "3 × 3 × 65 × 65", "float32", "0.25"]),
    ],
)  # fmt: skip
def test_each_says_what_it_holds(shown, name, said):
    document = shown[name]._repr_html_()
    text = "|".join(Tags(document).text)
    assert [words for words in said if words not in text] == []
    assert len(document) < 20_000


def test_layers_fold_and_inputs_show_their_images(shown):
    assert Tags(shown["capture"]._repr_html_()).met.count("details") == 2
    assert Tags(shown["inputs"]._repr_html_()).met.count("img") == 3


def test_a_repr_is_short_whatever_the_number_of_inputs(shown):
    assert repr(shown["inputs"]) == (
        "<Inputs bundled:digits: 3 images, seed 0, 65 tokens: 1 class, 64 patch (8 × 8)>"
    )
    first, *layers = repr(shown["capture"]).splitlines()
    assert first == (
        "<Capture of 2 layers of bundled:digits-vit epoch-030, sites q, scale, attn, "
        "3 × 65 tokens: 1 class, 64 patch (8 × 8)>"
    )
    assert layers[0] == "  <layer 1 blocks.1.attn: q[3, 3, 65, 16] scale=0.25 attn[3, 3, 65, 65]>"


def test_a_model_is_not_hashed_to_be_shown(shown, monkeypatch):
    def hashed(model):
        raise AssertionError("a large model takes seconds")

    monkeypatch.setattr(type(shown["model"]), "fingerprint", property(hashed))
    assert "bundled:digits-vit" in shown["capture"]._repr_html_() + repr(shown["capture"])


def test_a_capture_read_from_a_file_still_names_its_model(shown, tmp_path):
    read = workbench.Capture.load(shown["capture"].save(tmp_path / "qkv.safetensors"))
    assert read._repr_html_() == shown["capture"]._repr_html_()


def test_what_people_wrote_is_escaped(shown):
    parts = notebook_html.fold(HOSTILE, notebook_html.table([HOSTILE], [(HOSTILE, HOSTILE)]))
    parts += notebook_html.thumbnail(np.zeros((4, 5, 3), dtype=np.uint8), HOSTILE)
    document = Tags(notebook_html.card(HOSTILE, {HOSTILE: HOSTILE}, parts))
    assert "script" not in document.met
    assert "".join(document.text).count(HOSTILE) == 7


def test_empty_facts_are_left_out_and_long_texts_cut():
    assert notebook_html.card("Heading", {"a": None, "b": "", "c": ()}).count("<td") == 0
    assert notebook_html.shortened("one\n two " * 20, 20) == "one two one two one…"


def test_a_thumbnail_holds_its_image_at_most_twice_as_large_as_it_is_shown(monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    for side, size in ((10, (20, 13)), (56, (60, 40))):
        monkeypatch.setattr(notebook_html, "_SIDE", side)
        (source,) = re.findall(r"base64,([^\"]+)", notebook_html.thumbnail(pixels, "seven"))
        image = Image.open(io.BytesIO(base64.b64decode(source)))
        assert image.size == size
    assert np.array_equal(np.asarray(image), pixels)


def test_a_shape_has_its_sizes_and_a_number_four_digits():
    assert notebook_html.shape(np.zeros((2, 3, 5))) == "2 × 3 × 5"
    assert notebook_html.shape(np.float64(0.5).reshape(())) == "()"
    assert notebook_html.shape(1 / 3) == "0.3333"
