"""The class token's attention over images, over words, and as measures by layer."""

import numpy as np
import pandas as pd
import pytest

from tests.figures.drawn import maps
from workbench.core.errors import InputError
from workbench.figures import (
    class_attention_figure,
    class_attention_text_figure,
)

ROWS, COLUMNS, HEADS = 2, 5, 3
CANDIDATES = [("head", head) for head in range(HEADS)] + [("mean", None), ("rollout", None)]


def rows(tokens, model, layers, inputs, query="class"):
    """A frame as ``class-attention`` gives it per token; ``tokens`` are (label, kind, row, column)."""
    parts = [
        (model, name, layer, candidate, head, query, key, *token)
        for layer in layers
        for candidate, head in CANDIDATES
        for name in inputs
        for key, token in enumerate(tokens)
    ]
    columns = [
        "model",
        "input",
        "layer",
        "candidate",
        "head",
        "query",
        "key",
        "label",
        "kind",
        "row",
        "column",
    ]
    frame = pd.DataFrame(parts, columns=columns).astype(dict.fromkeys(["head", "row", "column"], "Int64"))
    return frame.assign(value=np.random.default_rng(0).uniform(0, 0.4, len(frame)))


def over_images(model="bundled:digits-vit", layers=(1, 3), inputs=("a", "b")):
    prefix = [("[CLS]", "class", None, None), ("[REG]", "register", None, None)]
    patches = [(f"{i},{j}", "patch", i, j) for i in range(ROWS) for j in range(COLUMNS)]
    return rows(prefix + patches, model, layers, inputs)


WORDS = ("[CLS]", "bread", "is", "dry", "[SEP]")


def over_text(words=WORDS, layers=(0, 5), **more):
    return rows(
        [(word, "word", None, None) for word in words], "all-MiniLM-L6-v2", layers, ["prose/1"], **more
    )


def images(count=2):
    return [np.full((8, 20, 3), 40 * number, np.uint8) for number in range(count)]


def test_every_map_is_its_row_on_a_grid_that_is_no_square_without_the_prefix():
    frame = over_images()
    fig = class_attention_figure(frame, images())
    drawn = maps(fig)
    assert len(drawn) == 2 * 2 * len(CANDIDATES)  # inputs, layers, maps
    for trace in drawn:
        assert np.shape(trace.z) == (ROWS, COLUMNS)
        name, place = trace.name.split("<br>")
        _, layer, title = place.split(", ")
        titles = frame["candidate"].where(frame["head"].isna(), "head " + frame["head"].astype("string"))
        title = "mean" if title == f"mean of {HEADS} heads" else title
        own = frame[(frame["input"] == name) & (frame["layer"] == int(layer.split()[-1])) & (titles == title)]
        at = own[(own["row"] == 1) & (own["column"] == 3)]
        assert trace.z[1][3] == at["value"].item()
    assert fig.layout.coloraxis.cmax == frame.loc[frame["kind"] == "patch", "value"].max()
    assert (
        fig.layout.coloraxis.colorbar.title.text.replace("<br>", " ")
        == "Attention weight, from the class token"
    )


def test_images_stand_before_their_maps_and_heads_come_before_mean_and_rollout():
    fig = class_attention_figure(over_images().iloc[::-1], images())
    assert len({image.source for image in fig.layout.images}) == len(fig.layout.images) == 2
    titles = [note.text for note in fig.layout.annotations]
    named = [*(f"head {head}" for head in range(HEADS)), "mean", "rollout"]
    assert titles[:11] == ["input", *named, *named]
    plain = class_attention_figure(over_images())
    assert len(plain.layout.images) == 0
    assert [note.text for note in plain.layout.annotations][:5] == named


def test_models_stand_side_by_side_and_a_long_name_is_broken():
    one = over_images("timm:xcit_small_12_p16_224", [12])
    both = pd.concat([one[one["candidate"] == "mean"], over_images(layers=[3])])
    titles = [note.text for note in class_attention_figure(both, images()).layout.annotations]
    assert titles[1:7] == ["mean", "head 0", "head 1", "head 2", "mean", "rollout"]
    assert titles[7:] == ["xcit_small_12_p16_224,<br>layer 12", "digits-vit, layer 3"]


def test_maps_that_cannot_be_drawn_are_refused():
    with pytest.raises(
        InputError, match="no patches to map: the tokens are word; `class_attention_text_figure`"
    ):
        class_attention_figure(over_text())
    with pytest.raises(
        InputError,
        match=r'no column kind; give the frame of `workbench\.analyze\("class-attention", …, per="token"\)`',
    ):
        class_attention_figure(over_images().drop(columns="kind"))
    with pytest.raises(InputError, match="3 images for 2 inputs"):
        class_attention_figure(over_images(), images(3))
    frame = over_images()
    with pytest.raises(InputError, match="layer 1, mean of 3 heads: 0 values for a map of 2 × 5 cells"):
        class_attention_figure(
            frame[(frame["input"] == "a") | (frame["layer"] == 3) | (frame["candidate"] != "mean")]
        )
    other = over_images("b")
    with pytest.raises(InputError, match="patch grids of 2 × 3 and 2 × 5 have unlike shapes"):
        class_attention_figure(pd.concat([frame, other[(other["column"] < 3).fillna(False)]]))


def test_models_of_other_patch_sizes_stand_side_by_side():
    one = over_images()
    fine = one.loc[one.index.repeat(4)].assign(model="fine")
    quarter = np.tile(np.arange(4), len(one))
    fine = fine.assign(row=2 * fine["row"] + quarter // 2, column=2 * fine["column"] + quarter % 2)
    fig = class_attention_figure(pd.concat([one, fine]))
    coarse_map, fine_map = fig.data[0], fig.data[len(fig.data) // 4]
    assert np.shape(coarse_map.z) == (2, 5)
    np.testing.assert_array_equal(np.asarray(fine_map.z)[::2, ::2], coarse_map.z)
    ends = [[*axis.range] for axis in (fig.layout.xaxis, fig.layout[f"xaxis{len(fig.data) // 4 + 1}"])]
    assert ends == [[-0.5, 4.5], [-0.5, 9.5]]


def test_words_have_a_bar_for_the_mean_and_a_line_for_every_head():
    frame = over_text()
    fig = class_attention_text_figure(frame)
    bars = [trace for trace in fig.data if trace.type == "bar"]
    lines = [trace for trace in fig.data if trace.type == "heatmap"]
    assert [list(line.y) for line in lines] == [["head 0", "head 1", "head 2", "rollout, all layers"]] * 2
    own = frame[(frame["layer"] == 5) & (frame["head"] == 2)]
    assert list(lines[1].z[2]) == own["value"].tolist()
    mean = frame[(frame["layer"] == 0) & (frame["candidate"] == "mean")]
    assert list(bars[0].y) == mean["value"].tolist()
    bottom = fig.layout["xaxis4"]
    assert list(bottom.ticktext) == list(WORDS)
    assert [shape.y0 for shape in fig.layout.shapes] == [1 / len(WORDS)] * 2  # uniform attention
    assert fig.layout.coloraxis.cmax == frame.loc[frame["candidate"] != "mean", "value"].max()


def test_a_long_text_is_cut_and_says_so_and_queries_that_see_less_have_no_line_of_evenness():
    fig = class_attention_text_figure(
        over_text([f"w{i}" for i in range(50)], [0], query="mean"), max_tokens=30
    )
    assert np.shape(fig.data[1].z) == (HEADS + 1, 30)
    assert fig.layout.xaxis2.title.text == "key (first 30 of 50 tokens)"
    assert fig.layout.shapes == ()
    assert fig.layout.coloraxis.colorbar.title.text == "Attention weight or rollout,<br>from the mean query"


def test_several_texts_do_not_fit_one_figure():
    with pytest.raises(InputError, match="2 inputs do not fit one figure"):
        class_attention_text_figure(pd.concat([over_text(), over_text().assign(input="prose/2")]))
