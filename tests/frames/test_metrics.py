import pytest

from workbench.frames.metric import METRICS, Metric


def test_the_table_is_keyed_by_name_without_duplicates():
    assert all(name == metric.name for name, metric in METRICS.items())
    labels = [metric.label for metric in METRICS.values()]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_every_metric_says_what_it_is(metric):
    assert metric.low < metric.high
    assert len(metric.definition) > 20
    assert metric.source
    assert not metric.definition.endswith(".")  # printed in a table


def test_names_agreed_from_the_start_are_there():
    agreed = {
        "eigenvalue",
        "effective_rank",
        "rank_90",
        "token_cosine",
        "attention_entropy",
        "attention_distance",
    }
    assert agreed <= set(METRICS)


def test_axis_title_carries_the_unit_where_there_is_one():
    assert METRICS["attention_entropy"].axis_title == "Attention entropy (nats)"
    assert METRICS["token_cosine"].axis_title == METRICS["token_cosine"].label
    assert Metric("a", "A", "the length", "us", unit="cm").axis_title == "A (cm)"
