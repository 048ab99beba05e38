"""Attention over an image and over a text."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import workbench
from tests.figures.drawn import key, lines
from workbench.core.errors import InputError
from workbench.figures import attention_heatmap_figure, attention_summary_figure
from workbench.figures.export.checks import page_flaws
from workbench.figures.export.saving import measure_figure
from workbench.figures.marks import NULL_LINE
from workbench.frames.results import make_frame


class Captured(list):
    """As much of a capture as the figure reads."""


def captured(kinds, labels, grid=None, layers=5, heads=3, inputs=2):
    raw = np.random.default_rng(0).random((layers, inputs, heads, len(kinds), len(kinds)))
    weights = raw / raw.sum(axis=-1, keepdims=True)
    found = Captured(SimpleNamespace(index=index, attn=weights[index]) for index in range(layers))
    found.tokens = SimpleNamespace(labels=[labels] * inputs, kinds=[kinds] * inputs, grid=grid)
    return found


def image_capture(rows=2, columns=3):
    kinds = ["class", *["patch"] * (rows * columns)]
    return captured(kinds, ["[CLS]", *(f"patch {index}" for index in range(rows * columns))], (rows, columns))


def text_capture():
    labels = ["[CLS]", "the", "clock", "had", "stopped", "[SEP]", "[PAD]", "[PAD]"]
    return captured(["word"] * 6 + ["padding"] * 2, labels)


def maps(fig):
    return [trace for trace in fig.data if trace.type == "heatmap" and trace.name != "input"]


def test_over_an_image_a_panel_shows_the_class_token_s_attention_patch_by_patch():
    capture = image_capture()
    fig = attention_heatmap_figure(capture, input=1, layers=[0, -1], heads=[2])
    first, last = maps(fig)
    assert first.name == "layer 0, head 2"
    assert last.name == "layer 4, head 2"
    np.testing.assert_allclose(np.asarray(first.z), capture[0].attn[1, 2, 0, 1:].reshape(2, 3), rtol=1e-12)
    assert fig.layout.coloraxis.colorbar.title.text == "Attention weight, from [CLS]"


def test_another_query_may_be_asked_for():
    capture = image_capture()
    fig = attention_heatmap_figure(capture, layers=[1], heads=[0], query=4)
    np.testing.assert_allclose(
        np.asarray(maps(fig)[0].z), capture[1].attn[0, 0, 4, 1:].reshape(2, 3), rtol=1e-12
    )


def test_the_input_is_shown_once_beside_all_layers_and_leaves_no_words_on_others():
    image = np.zeros((20, 30, 3), np.uint8)
    fig = attention_heatmap_figure(image_capture(), layers=[0, 1, 2], heads=[0, 1], image=image)
    (own,) = [shown for shown in fig.layout.images if shown.xref == "paper"]
    assert len(fig.layout.images) == 1
    assert list(fig.layout.yaxis.range) == [1.5, -0.5]  # row 0 is at the top
    assert own.x >= 0
    assert own.x + own.sizex < min(axis.domain[0] for axis in fig.select_xaxes())
    wide, tall = own.sizex * fig.layout.width, own.sizey * fig.layout.height
    assert wide / tall == pytest.approx(30 / 20, rel=0.01)
    page = measure_figure(fig)
    assert {"input", "head 0", "head 1", "layer 2"} <= {one.text for one in page.words}
    assert page_flaws(page) == []


def test_over_a_text_padding_is_left_out_and_every_cell_names_its_tokens():
    fig = attention_heatmap_figure(text_capture(), layers=[2], heads=[1])
    (panel,) = maps(fig)
    assert np.asarray(panel.z).shape == (6, 6)
    assert list(fig.layout.xaxis.ticktext) == ["[CLS]", "the", "clock", "had", "stopped", "[SEP]"]
    assert (panel.y[2], panel.x[1]) == ("clock", "the")
    assert list(panel.customdata[2][1]) == [2, 1]


def test_a_long_text_is_cut_and_says_so():
    capture = captured(["word"] * 60, [f"w{index}" for index in range(60)])
    fig = attention_heatmap_figure(capture, layers=[0], heads=[0])
    assert np.asarray(maps(fig)[0].z).shape == (40, 40)
    assert "first 40 of 60" in fig.layout.xaxis.title.text
    # every label keeps the room that 7 pt needs
    assert fig.layout.height >= 40 * 9.5


def test_all_panels_share_one_scale_from_zero():
    capture = text_capture()
    fig = attention_heatmap_figure(capture)
    assert {panel.coloraxis for panel in maps(fig)} == {"coloraxis"}
    assert fig.layout.coloraxis.cmin == 0
    shown = max(np.asarray(panel.z).max() for panel in maps(fig))
    assert fig.layout.coloraxis.cmax == pytest.approx(shown)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"layers": [5]}, "no layer 5; there are 0-4"),
        ({"heads": [-4]}, "no head -4"),
        ({"layers": []}, "layers is empty"),
        ({"input": 2}, "holds 2"),
        ({"query": 7}, "no token 7"),
        ({"image": np.zeros((4, 4, 4), np.uint8)}, "shape"),
        ({"image": np.full((4, 4), 7.0)}, "0 to 1"),
    ],
)
def test_what_does_not_exist_is_refused(arguments, says):
    with pytest.raises(InputError, match=says):
        attention_heatmap_figure(image_capture(), **arguments)


def test_the_written_norm_of_every_pair_is_that_of_the_layer_by_hand():
    model = workbench.load("bundled:digits-vit")
    batch = workbench.inputs("bundled:digits", model, n=2)
    capture = workbench.capture(model, batch, sites=["attn", "v", "head_out", "proj_out"])
    fig = attention_heatmap_figure(capture, input=1, layers=[2], heads=[1], query=5, written_by=model)
    weight = model.module.blocks[2].attn.proj.weight[:, 16:32].detach()  # of head 1, whose width is 16
    written = capture[2].v[1, 1] @ weight.T
    expected = capture[2].attn[1, 1, 5] * written.norm(dim=-1)
    np.testing.assert_allclose(np.ravel(maps(fig)[0].z), expected[1:], rtol=1e-5)
    assert fig.layout.coloraxis.colorbar.title.text.startswith("Written norm")
    with pytest.raises(InputError, match="proj_out"):
        attention_heatmap_figure(workbench.capture(model, batch, sites=["attn", "v"]), written_by=model)
    with pytest.raises(InputError, match="holds no v"):
        attention_heatmap_figure(
            workbench.capture(model, batch, sites=["attn", "head_out", "proj_out"]), written_by=model
        )


def test_a_capture_without_attention_is_refused():
    capture = image_capture()
    for record in capture:
        record.attn = None
    with pytest.raises(InputError, match="sites"):
        attention_heatmap_figure(capture)


def test_the_summary_draws_uniform_attention_and_the_range_of_permuted_keys():
    axes = {"input": range(2), "layer": range(3), "head": range(2)}
    values = np.random.default_rng(0).random((2, 3, 2))
    metrics = "attention_entropy_share", "attention_distance"
    null = {"null": "uniform", "null_mean": 0.9}
    frame = pd.concat(make_frame(values, name, axes, model="m").assign(**null) for name in metrics)
    permuted = frame[frame["metric"] == metrics[1]].assign(null="permutation", null_low=0.3, null_high=0.5)
    fig = attention_summary_figure(pd.concat([frame, permuted]), metrics)
    levels = [trace for trace in fig.data if trace.line.dash == NULL_LINE["dash"] and trace.y[0] == 0.9]
    assert len(levels) == 3  # one of the entropy, and of the distance one under each null
    assert "null: uniform attention" in key(fig)
    assert any("null: permuted" in entry for entry in key(fig))


def test_the_summary_shows_every_head_as_a_dot_and_their_mean_as_a_line():
    values = np.random.default_rng(0).random((3, 5, 4))
    axes = {"input": range(3), "layer": range(5), "head": range(4)}
    frame = make_frame(values, "attention_entropy", axes, model="bundled:digits-vit")
    fig = attention_summary_figure(frame)
    dots = next(trace for trace in fig.data if trace.mode == "markers" and trace.x[0] is not None)
    (line,) = lines(fig)
    assert key(fig) == ["mean over inputs and heads", "one head", "95 % CI over inputs"]
    assert len(dots.x) == 5 * 4
    np.testing.assert_allclose(line.y, values.mean(axis=(0, 2)), rtol=1e-12)
    assert fig.layout.yaxis.title.text == "Attention entropy (nats)"
    with pytest.raises(InputError, match="attention_distance"):
        attention_summary_figure(frame, metrics=["attention_distance"])


def mixed(shapes, kinds=None, grid=(4, 4), classes=1, **more):
    """Two inputs of 16 patches (or 16 words), and layers whose attention has these shapes (head, query, key)."""
    rng = np.random.default_rng(0)
    tokens = classes + 16
    found = Captured()
    for index, shape in enumerate(shapes):
        raw = None if shape is None else rng.random(shape if len(shape) == 4 else (2, *shape))
        weights = None if raw is None else raw / raw.sum(axis=-1, keepdims=True)
        kind = (kinds or {}).get(index, "token")
        found.append(
            SimpleNamespace(
                index=index, attn=weights, kind=kind, source=more.get("sources", {}).get(index, "self")
            )
        )
    word = "patch" if grid else "word"
    kinds = ["class"] * classes + [word] * 16
    labels = [f"t{index}" for index in range(tokens)]
    found.tokens = SimpleNamespace(labels=[labels] * 2, kinds=[kinds] * 2, grid=grid)
    return found


def words(fig):
    return " ".join(note.text for note in fig.layout.annotations)


def test_layers_with_and_without_the_class_token_stand_in_one_figure_as_in_cait():
    capture = mixed([(2, 16, 16), (2, 16, 16), (2, 1, 17)])
    fig = attention_heatmap_figure(capture, input=1)
    found = {panel.name: np.asarray(panel.z) for panel in maps(fig)}
    assert [*found] == [f"layer {layer}, head {head}" for layer in range(3) for head in range(2)]
    patches = capture[0].attn[1, 1].mean(axis=0).reshape(4, 4)
    np.testing.assert_allclose(found["layer 0, head 1"], patches, rtol=1e-12)
    np.testing.assert_allclose(
        found["layer 2, head 0"], capture[2].attn[1, 0, 0, 1:].reshape(4, 4), rtol=1e-12
    )
    sides = [axis.title.text for axis in fig.select_yaxes() if axis.title.text]
    assert [side.replace("<br>", " ") for side in sides] == [
        "layer 0, mean over queries", "layer 1, mean over queries", "layer 2, from t0",
    ]  # fmt: skip
    assert fig.layout.coloraxis.colorbar.title.text == "Attention weight"


def test_a_pooling_query_that_is_no_token_is_called_the_one_query_as_in_siglip():
    fig = attention_heatmap_figure(mixed([(2, 16, 16), (2, 1, 16)], classes=0))
    assert len(maps(fig)) == 4
    assert "layer 1, from its one query" in {
        (axis.title.text or "").replace("<br>", " ") for axis in fig.select_yaxes()
    }


def test_keys_that_are_pooled_patches_and_layers_of_fewer_heads_are_drawn_as_in_pvt():
    capture = mixed([(1, 64, 4), (2, 16, 4), (4, 4, 4)], classes=0)
    fig = attention_heatmap_figure(capture, heads=[0, 1])
    assert [panel.name for panel in maps(fig)] == [
        "layer 0, head 0", "layer 1, head 0", "layer 1, head 1", "layer 2, head 0", "layer 2, head 1",
    ]  # fmt: skip
    pooled = capture[1].attn[0, 1].mean(axis=0).reshape(2, 2)
    np.testing.assert_allclose(np.asarray(maps(fig)[2].z), pooled, rtol=1e-12)
    assert words(fig).count("no such head") == 1
    bar = fig.layout.coloraxis.colorbar.title.text.replace("<br>", " ")
    assert bar == "Attention weight, mean over queries, to pooled patches"
    assert "Layer 0 not shown: 1 heads." in words(attention_heatmap_figure(capture, heads=[1]))


def test_what_attends_over_anything_but_the_tokens_is_named_under_the_figure():
    capture = mixed(
        [(3, 8, 8), (3, 8, 8), None, (8, 3, 9, 9), (3, 17, 17)], {0: "channel", 1: "channel", 2: "none"}
    )
    fig = attention_heatmap_figure(capture)
    assert {panel.name[:7] for panel in maps(fig)} == {"layer 4"}
    for said in (
        "Layers 0-1 not shown: attention over channels.", "Layer 2 not shown: no map of attention.",
        "Layer 3 not shown: attention within windows.",
    ):  # fmt: skip
        assert said in words(fig).replace("<br>", " ")
    assert [panel.name for panel in maps(attention_heatmap_figure(capture, layers=[0, 4], heads=[2]))] == [
        "layer 4, head 2"
    ]
    with pytest.raises(
        InputError, match="no layer can be drawn: Layers 0-1 not shown: attention over channels"
    ):
        attention_heatmap_figure(capture, layers=[0, 1])


def test_a_decoder_s_layers_are_named_beside_the_encoder_s_matrices_as_in_t5():
    capture = mixed([(2, 16, 16), (2, 5, 5), (2, 5, 16)], grid=None, classes=0, sources={2: "cross"})
    fig = attention_heatmap_figure(capture, input=1)
    assert [panel.name for panel in maps(fig)] == ["layer 0, head 0", "layer 0, head 1"]
    np.testing.assert_allclose(np.asarray(maps(fig)[1].z), capture[0].attn[1, 1], rtol=1e-6)
    assert "Layer 1 not shown: attention among other tokens" in words(fig)
    assert "Layer 2 not shown: cross attention" in words(fig)
