"""The eigenvector test as a figure."""

import pandas as pd
import pytest

from tests.figures.drawn import bands, key
from tests.figures.study import study
from workbench.core.errors import InputError
from workbench.figures import eigenvector_figure
from workbench.figures.theme import NULL_BAND

VALUES = {"values": 0.6, "perturbed": 0.7, "true": 0.2}
AXES = 5


def eigen_frame(model="bundled:digits-vit"):
    """Means over layers and heads: per axis of both tests of axes, and of two of whole heads, of two inputs and all."""
    rows = []
    for name, shift in ((None, 0.0), ("a", -0.1), ("b", 0.1)):
        for candidate, value in VALUES.items():
            own = {"candidate": candidate, "input": name}
            for axis in range(1, AXES + 1):
                at = {**own, "rank": axis, "value": value + shift + 0.01 * axis}
                rows.append({"metric": "eigen_residual", **at})
                for convention, less in (("as_published", 0.0), ("as_implemented", 0.2)):
                    gamma = {
                        **at,
                        "metric": "gamma_rel",
                        "convention": convention,
                        "value": at["value"] - less,
                    }
                    rows += [{**gamma, "statistic": "mean"}, {**gamma, "statistic": "std", "value": 9.0}]
        for metric in ("inconsistency", "span_share"):
            rows.append({"metric": metric, "candidate": "values", "input": name, "value": 0.4 + shift})
    frame = study(*rows, model=model)
    with_null = (frame["candidate"] == "values") & (frame["metric"] != "gamma_rel")
    null = {"null": "gaussian", "null_mean": 0.8, "null_low": 0.7, "null_high": 0.9}
    parts = [frame[~with_null], frame[with_null].assign(**null)]
    return pd.concat([*parts, frame[with_null].assign(**null | {"null": "permutation", "null_low": 0.2})])


def dots(fig):
    """Rows → value, and how far its interval reaches, of each marker."""
    (trace,) = [trace for trace in fig.data if trace.error_x.array is not None]
    ends = zip(trace.x, trace.error_x.array, strict=True)
    return dict(zip(trace.text, ends, strict=True))


def test_a_marker_is_the_mean_over_axes_and_inputs_with_an_interval_over_inputs():
    fig = eigenvector_figure(eigen_frame())
    rows = ["<b>digits-vit</b>", "recovered from V", "perturbed eigenvectors", "eigenvectors of K̃"]
    assert list(fig.layout.yaxis.ticktext) == rows
    residuals = dots(fig)
    assert [value for value, _ in residuals.values()] == pytest.approx([0.63, 0.73, 0.23])
    # 12.7 · 0.1, cut where a residual ends
    assert residuals["recovered from V"][1] == pytest.approx(1 - 0.63)


def test_the_null_is_noise_instead_of_v_and_no_other():
    fig = eigenvector_figure(eigen_frame())
    nulls = bands(fig, NULL_BAND)
    assert len(nulls) == 1
    assert {value for trace in nulls for value in trace.x} == {0.7, 0.9}
    assert any("Gaussian noise for V" in words for words in key(fig))


def test_every_model_has_a_heading():
    fig = eigenvector_figure(pd.concat([eigen_frame(), eigen_frame("hf:google-bert/bert-base-uncased")]))
    headings = [words for words in fig.layout.yaxis.ticktext if words.startswith("<b>")]
    assert headings == ["<b>digits-vit</b>", "<b>bert-base-uncased</b>"]


def test_frames_without_what_is_needed_are_refused():
    with pytest.raises(InputError, match="eigen_residual"):
        eigenvector_figure(study({"metric": "LCKA", "value": 0.1}))
    with pytest.raises(InputError, match="per_head"):
        eigenvector_figure(eigen_frame().assign(layer=0))
