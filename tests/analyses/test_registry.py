"""The table of analyses says what their files say, and every one measures its own metrics."""

from dataclasses import fields, is_dataclass

import pytest

from workbench.analyses import registry
from workbench.analyses.registry import ANALYSES, METRIC_PLACES, Analysis, OfInputs
from workbench.core.errors import InputError
from workbench.frames.metrics import METRICS, Metric

OURS = {name: ANALYSES[name] for name in registry._OURS}


@pytest.mark.parametrize("name", OURS)
def test_the_table_names_the_analysis_and_its_metrics(name):
    analysis = OURS[name]
    assert analysis.name == name
    assert [metric.name for metric in analysis.metrics] == registry._OURS[name].split()
    assert all(METRICS[metric.name] is metric for metric in analysis.metrics)
    assert ANALYSES.is_ours(name)


@pytest.mark.parametrize("name", OURS)
def test_its_options_are_a_frozen_dataclass_with_words(name):
    kind = OURS[name].options_type
    assert is_dataclass(kind)
    assert kind.__dataclass_params__.frozen
    assert set(OURS[name].options) == {field.name for field in fields(kind)}
    assert issubclass(kind, OfInputs) == bool(OURS[name].sites)


def test_every_metric_of_an_analysis_has_one_place():
    assert set(METRIC_PLACES) == {metric.name for analysis in OURS.values() for metric in analysis.metrics}


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
