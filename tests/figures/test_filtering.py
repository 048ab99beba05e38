"""Shares that filters explain, by layer, and a photograph after each."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from tests.figures.drawn import bands, key
from tests.figures.study import named, study, titles
from workbench.core.errors import InputError
from workbench.figures import filter_share_figure, filtered_figure
from workbench.figures.theme import NULL_BAND

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
    (first, second) = named(fig, "non-local means: q, k")
    assert list(first.y) == pytest.approx([0.08, 0.081, 0.082])
    assert list(second.x) == [0, 1]
    assert key(fig).count("non-local means: q, k") == 1
    assert fig.layout.yaxis.type == "log"


def test_chance_is_that_of_the_kernel_that_gains_most_from_it():
    fig = filter_share_figure(shares())
    (band,) = bands(fig, NULL_BAND)
    assert (min(band.y), max(band.y)) == pytest.approx((2e-3, 8e-3))


def test_single_heads_and_other_frames_are_refused():
    with pytest.raises(InputError, match="leave out per_head"):
        filter_share_figure(shares().assign(input="digits/1"))
    with pytest.raises(InputError, match="holds no values of filter_share"):
        filter_share_figure(study({"metric": "eigenvalue", "value": 1.0, "layer": 0}))


def test_images_stand_under_their_names_with_their_psnr():
    images = {name: np.full((4, 6, 1), level) for name, level in (("noisy", 0.2), ("filter", 1.4))}
    rows = [{"filter": "noisy", "psnr": 20.04}, {"filter": "filter", "psnr": 25.06}]
    held = SimpleNamespace(clean=np.zeros((4, 6, 1)), images=images, rows=rows)
    fig = filtered_figure(held, columns=2)
    assert titles(fig) == ["clean", "noisy<br>20.0 dB", "filter<br>25.1 dB"]
    assert [trace.name for trace in fig.data] == ["clean", "noisy", "filter"]
    with pytest.raises(InputError, match="at least one column"):
        filtered_figure(held, columns=0)
