"""Figure notebooks read a sweep in the place of a run."""

import json
import re

import numpy as np
import pytest

import workbench
from tests.runs.sweep.conftest import INPUTS, MODEL
from workbench.core.paths import bundled_notebooks

N = 5
EVERYTHING = {
    "sites": "all",
    "mean_token": "both",
    "rate": "fit",
}
READ = {
    "gram_spectra": ["gram-spectrum", ("gram-spectrum", {"standardize": "per-token"})],
    "cosine_decay": [("token-similarity", EVERYTHING)],
    "value_similarity": [("value-similarity", {"null_samples": 4})],
}


class Shown:
    def show(self):
        """Nothing: figures are looked at elsewhere."""


def cells(name, monkeypatch, parameters):
    """Run a notebook's cells with other parameters; returns its figures by name, with their captions."""
    saved = {}

    def save(figure, name, **about):
        saved[name] = figure, about["caption"]
        return Shown()

    monkeypatch.setattr(workbench, "save_figure", save)
    notebook, names = json.loads(bundled_notebooks()[name].read_text(encoding="utf-8")), {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
        if "parameters" in cell["metadata"].get("tags", ()):
            names |= parameters
    return saved


def _is_interval(trace):
    """A band over inputs, which single rows of theirs are needed for."""
    return trace.type == "scatter" and bool(trace.fill) and trace.name in ("", "95 % CI over inputs")


def same_traces(one, other, intervals=True):
    """The same traces, with numbers as near as the quantiles of a sweep's sketches are."""
    one, other = (
        [trace for trace in figure.data if intervals or not _is_interval(trace)] for figure in (one, other)
    )
    first, second = ([(trace.type, trace.name) for trace in traces] for traces in (one, other))
    if not intervals:
        first, second = (
            [(kind, name and re.sub(r"^mean over .*", "mean", name)) for kind, name in names]
            for names in (first, second)
        )
    assert first == second
    for first, second in zip(one, other, strict=True):
        for drawn, again in ((first.x, second.x), (first.y, second.y)):
            if np.asarray(drawn).dtype.kind in "if":
                # quartiles of few values, interpolated or not
                np.testing.assert_allclose(again, drawn, rtol=0.2)
            else:
                assert list(again) == list(drawn)


@pytest.mark.parametrize("name", READ)
def test_a_notebook_draws_from_a_sweep_what_it_draws_from_a_run(run, monkeypatch, name):
    preprocessing = "model" if name == "cosine_decay" else "saritas2025"  # that of the paper it is about
    status = run(analyses=READ[name], n=N, layers=[0, 3], preprocessing=preprocessing)
    parameters = {
        "n": N,
        "text_model": None,
        "null_samples": 4 if name == "value_similarity" else 0,
        "boosted": [],
        "per_input": False,
        "layers": "0,3",
    }
    found = [
        cells(name, monkeypatch, parameters | {"model": MODEL, "inputs": inputs})
        for inputs in (INPUTS, f"sweep:{status.folder}")
    ]
    one, other = found
    assert one.keys() == other.keys()
    for figure in one:
        # beside null samples a sweep keeps means alone
        same_traces(one[figure][0], other[figure][0], intervals=name == "cosine_decay")
    if name == "cosine_decay":  # without rows per input both are the same to the last word
        assert [caption for _, caption in one.values()] == [caption for _, caption in other.values()]


def test_medians_of_a_sweep_are_those_of_a_run_to_the_sketches_error(run):
    from workbench.frames.moments import ACCURACY

    status = run(analyses=["gram-spectrum"])
    whole = workbench.analyze("gram-spectrum", model=MODEL, inputs=INPUTS, n=21)
    swept = workbench.read_sweep(status.folder)
    for metric in ("eigenvalue", "effective_rank"):
        places = ["layer", "rank"] if metric == "eigenvalue" else "layer"
        rows = whole[whole["metric"] == metric]
        own = rows.groupby(places)["value"].quantile(0.5, interpolation="lower")
        medians = swept[(swept["metric"] == metric) & swept["head"].isna() & (swept["statistic"] == "median")]
        found = medians.set_index(places)["value"].sort_index()
        assert len(found) == len(own)
        np.testing.assert_allclose(found, own, rtol=ACCURACY)
