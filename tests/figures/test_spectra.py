"""Spectrum figures, from the spectra of real Gram matrices."""

import base64

import numpy as np
import pandas as pd
import pytest

from tests.figures.drawn import lines
from tests.figures.study import titles
from workbench.core.errors import InputError
from workbench.figures import spectrum_figure
from workbench.frames.metric import METRICS
from workbench.frames.results import make_frame


def spectra(layers=3, heads=2, inputs=5, tokens=11, model="bundled:digits-vit"):
    x = np.random.default_rng(0).normal(size=(inputs, layers, heads, tokens, 4))
    x *= np.arange(1, layers + 1).reshape(-1, 1, 1, 1)
    x -= x.mean(axis=-2, keepdims=True)
    values = np.linalg.eigvalsh(x @ np.swapaxes(x, -1, -2))[..., ::-1]
    axes = {
        "input": range(inputs),
        "layer": range(layers),
        "head": range(heads),
        "rank": range(1, tokens + 1),
    }
    return make_frame(values, "eigenvalue", axes, model=model)


def test_one_line_per_layer_is_the_median_over_inputs_and_heads():
    frame = spectra()
    drawn = lines(spectrum_figure(frame))
    assert [trace.name for trace in drawn] == ["layer 0", "layer 1", "layer 2"]
    first = frame[(frame["layer"] == 1) & (frame["rank"] == 2)]["value"].median()
    assert drawn[1].x[1] == 2
    assert drawn[1].y[1] == pytest.approx(first, rel=1e-12)


def test_eigenvalues_of_rounding_size_are_not_drawn_but_counted():
    # 11 tokens in 4 dimensions: seven eigenvalues are zero, and come out as ±1e-15.
    fig = spectrum_figure(spectra())
    assert all(list(trace.x) == [1, 2, 3, 4] for trace in lines(fig))
    assert fig.layout.xaxis.title.text.replace("<br>", " ") == "Rank (21 of 33 points below round-off)"
    two = spectrum_figure(pd.concat([spectra(), spectra(model="bundled:b").query("rank <= 4")]))
    assert [title for title in titles(two) if "span" not in title] == [
        "digits-vit<br>21 of 33 points below round-off",
        "b",
    ]


def test_the_axis_is_logarithmic_and_names_the_metric():
    fig = spectrum_figure(spectra())
    assert fig.layout.yaxis.type == "log"
    assert fig.layout.yaxis.title.text.replace("<br>", " ") == METRICS["eigenvalue"].axis_title
    assert fig.layout.xaxis.title.text.startswith("Rank")


def test_models_get_panels_and_share_their_axes():
    both = pd.concat([spectra(), spectra(layers=4, model="timm:vit_tiny_patch16_224")])
    fig = spectrum_figure(both)
    assert [title.split("<br>")[0] for title in titles(fig) if "span" not in title] == [
        "digits-vit",
        "vit_tiny_patch16_224",
    ]
    assert len(lines(fig)) == 3 + 3
    assert {trace.name for trace in lines(fig) if trace.xaxis == "x2"} == {"layer 0", "layer 2", "layer 3"}


@pytest.mark.parametrize(
    "change", [{"value": np.nan}, {"metric": "token_cosine"}, {"value": -1.0}, {"rank": pd.NA}]
)
def test_a_frame_without_a_spectrum_is_refused(change):
    with pytest.raises(InputError):
        spectrum_figure(spectra().assign(**change))


def test_the_eigenvalues_that_hold_90_percent_stand_over_the_null_of_their_own_head():
    """A head of few such eigenvalues is no lower than its null if that has few as well."""
    counts = {(0, 0): (5.0, 10.0), (0, 1): (60.0, 40.0), (1, 0): (8.0, 8.0), (1, 1): (1.0, 4.0)}
    rows = [
        {
            "layer": layer,
            "head": head,
            "input": name,
            "value": value,
            "null_mean": null,
            "null_low": null - 1,
            "null_high": null + 1,
        }
        for (layer, head), (value, null) in counts.items()
        for name in "ab"
    ]
    held = pd.DataFrame(rows).assign(metric="rank_90", null="gaussian", model="bundled:digits-vit")
    fig = spectrum_figure(pd.concat([spectra(layers=2), held]))
    (dots,) = (trace for trace in fig.data if trace.yaxis == "y2" and trace.mode == "markers")
    assert numbers(dots.x) == pytest.approx([-0.2, 0.2, 0.8, 1.2])
    assert numbers(dots.y) == pytest.approx([0.5, 1.5, 1.0, 0.25])
    (bars,) = (
        trace for trace in fig.data if trace.yaxis == "y2" and trace.mode == "lines" and len(trace.y) > 1
    )
    assert [y for y in bars.y if y is not None] == pytest.approx(
        [0.9, 1.1, 0.975, 1.025, 0.875, 1.125, 0.75, 1.25]
    )


def numbers(values):
    """Return an axis of a trace, as plotly's JSON has it."""
    return (
        [*np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"])]
        if isinstance(values, dict)
        else values
    )
