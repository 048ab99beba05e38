"""Shares that filters explain, by layer, and a photograph after each."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from tests.figures.drawn import bands, key
from tests.figures.study import named, study, titles
from workbench.core.errors import InputError
from workbench.figures.theme import NULL_BAND
from workbench.studies.figures import filter_share_figure, filtered_figure

KINDS = (
    ("gaussian", None),
    ("nlm", "tokens"),
    ("bilateral", "tokens"),
    ("nlm", "heads"),
    ("bilateral", "heads"),
)


def shares(model="bundled:one", layers=3):
    rows = [
        {
            "metric": "filter_share", "candidate": kernel, "convention": content, "layer": layer,
            "value": 0.01 * 2**number + 0.001 * layer, "null": "permutation", "null_mean": 1e-3 * number,
            "null_low": 0.5e-3 * number, "null_high": 2e-3 * number,
        }
        for number, (kernel, content) in enumerate(KINDS)
        for layer in range(layers)
    ]  # fmt: skip
    return study(*rows, model=model)


def test_a_line_for_each_kernel_and_a_panel_for_each_model():
    fig = filter_share_figure(pd.concat([shares(), shares("bundled:two", 2)], ignore_index=True))
    assert titles(fig) == ["one", "two"]
    (first, second) = named(fig, "non-local means (q, k)")
    assert list(first.y) == pytest.approx([0.08, 0.081, 0.082])
    assert list(second.x) == [0, 1]
    assert key(fig).count("non-local means (q, k)") == 1
    assert key(fig)[:2] == ["non-local means (q, k)", "bilateral (positions, tokens)"]


def test_the_null_is_that_of_the_bilateral_filter_and_says_so():
    fig = filter_share_figure(shares())
    (band,) = bands(fig, NULL_BAND)
    assert (min(band.y), max(band.y)) == pytest.approx((1e-3, 4e-3))
    assert key(fig)[-1].startswith("null: tokens permuted (95 % range of the mean")


def test_single_inputs_give_the_means_an_interval():
    means = shares().assign(input=None, head=None)
    single = [
        means.assign(input=name, head=head, value=means["value"] * factor, null_mean=0.5)
        for name, factor in (("a", 0.9), ("b", 1.1))
        for head in (0, 1)
    ]
    fig = filter_share_figure(pd.concat([means, *single]))
    line = next(trace for trace in named(fig, "non-local means (q, k)") if trace.mode == "lines+markers")
    assert list(line.y) == pytest.approx([0.08, 0.081, 0.082])
    assert "95 % CI over inputs" in key(fig)
    (band,) = bands(fig, NULL_BAND)
    assert max(band.y) == pytest.approx(4e-3)  # of the means


def test_single_heads_and_other_frames_are_refused():
    with pytest.raises(InputError, match="without per_head"):
        filter_share_figure(shares().assign(input="digits/1"))
    with pytest.raises(InputError, match="holds no values of filter_share"):
        filter_share_figure(study({"metric": "eigenvalue", "value": 1.0, "layer": 0}))


def test_images_stand_under_their_names_with_their_psnr():
    names = ("noisy", "identity attention", *(f"layer {layer}" for layer in range(7)))
    images = {name: np.full((4, 6, 1), 1.4) for name in names}
    rows = [{"filter": name, "psnr": 20.04 + number} for number, name in enumerate(names)]
    held = SimpleNamespace(
        clean=np.zeros((4, 6, 1)), images=images, rows=rows, window=(2, 3), model="bundled:b"
    )
    fig = filtered_figure(held)
    assert [trace.name for trace in fig.data] == [
        "clean",
        "noisy",
        "layer 0",
        "layer 2",
        "layer 4",
        "layer 6",
    ]
    assert titles(fig)[:3] == ["clean<br>reference", "noisy<br>20.0 dB", "b, layer 0<br>22.0 dB"]
    assert "windows of 2 × 3 pixels" in fig.layout.meta["marks"][-1]
    axes = [*fig.select_yaxes()]
    assert all(axis.scaleanchor == axis.anchor for axis in axes)  # pictures keep their shape at any width
