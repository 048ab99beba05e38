"""The table of analyses says what their files say, and every one measures its own metrics."""

import subprocess
import sys
from dataclasses import fields, is_dataclass

import pytest

from workbench.analyses.registry import ANALYSES, Analysis, OfInputs
from workbench.core.errors import InputError
from workbench.frames.metric import METRICS, Metric
from workbench.frames.results import make_frame, write_frame

OURS = {name: ANALYSES[name] for name in ANALYSES if ANALYSES.is_ours(name)}


@pytest.mark.parametrize("name", OURS)
def test_the_table_names_the_analysis_and_its_metrics(name):
    analysis = OURS[name]
    assert analysis.name == name
    assert all(METRICS[metric.name] is metric for metric in analysis.metrics)
    assert ANALYSES.is_ours(name)


@pytest.mark.parametrize("name", OURS)
def test_its_options_are_a_frozen_dataclass_with_words(name):
    kind = OURS[name].options_type
    assert is_dataclass(kind)
    assert kind.__dataclass_params__.frozen
    assert set(OURS[name].options) == {field.name for field in fields(kind)}
    assert issubclass(kind, OfInputs) == bool(OURS[name].sites)


def test_an_analysis_that_joins_brings_its_metrics_and_may_not_redefine_one(monkeypatch):
    length = Metric("length_of_mine", "Length", "how long it is, from end to end")
    mine = Analysis("mine", "Mine", ("q",), lambda layer, options: iter(()), (length,))
    monkeypatch.setitem(ANALYSES, "mine", mine)
    try:
        assert METRICS["length_of_mine"] is length
        assert not ANALYSES.is_ours("mine")
        other = Metric("eigenvalue", "Another", "something else that has the same name")
        with pytest.raises(InputError, match="its metric 'eigenvalue' is the name of another"):
            ANALYSES["other"] = Analysis("other", "Other", ("q",), mine.measure, (other,))
        assert "other" not in ANALYSES
    finally:
        del METRICS["length_of_mine"]


@pytest.mark.parametrize(
    "code",
    [
        "import workbench; print(workbench.METRICS['gamma_abs'].label)",
        "from workbench.frames.results import METRICS; print(METRICS['gamma_abs'].label)",
        "from workbench.figures.forest import METRICS; print(METRICS.get('gamma_abs').label)",
        "from workbench.papers.verdicts import METRICS; print(dict(METRICS)['gamma_abs'].label)",
        "import workbench, pandas; frame = workbench.read_frame('frame.csv'); "
        "workbench.write_frame(frame, 'frame.tex'); print(open('frame.tex').read())",
    ],
    ids=["workbench", "frames", "figures", "papers", "table"],
)
def test_a_metric_is_known_before_its_analysis_is_imported(code, tmp_path):
    write_frame(make_frame([1.5], "gamma_abs", {"layer": [0]}, model="mine"), tmp_path / "frame.csv")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    words = METRICS["gamma_abs"].label.split()
    assert words[0] in done.stdout, done.stderr
