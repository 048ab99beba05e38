"""What figures call models."""

import pandas as pd
import pytest

from workbench.core.errors import InputError
from workbench.figures.frames import model_label, rows_of, series_labels, with_labels


def untrained(model="tost:tiny"):
    return pd.DataFrame({"model": [model, "timm:vit"], "checkpoint": ["random", None], "value": [1.0, 2.0]})


def test_a_legend_tells_random_weights_from_trained_ones():
    assert list(series_labels(untrained())) == ["tiny (random weights)", "vit"]
    both = untrained("timm:vit")
    assert list(series_labels(both)) == ["vit (random weights)", "vit"]


def test_a_label_of_one_model_tells_random_weights_by_column_or_provenance():
    frame = untrained()
    assert model_label(frame, "tost:tiny") == "tiny (random weights)"
    assert model_label(frame, "timm:vit") == "vit"
    bare = frame.drop(columns="checkpoint")
    assert model_label(bare, "tost:tiny") == "tiny"
    bare.attrs["provenance"] = [{"model": {"spec": "tost:tiny", "checkpoint": "random", "sha256": "0"}}]
    assert model_label(bare, "tost:tiny") == "tiny (random weights)"
    assert model_label(bare, "timm:vit") == "vit"


def test_options_of_a_spec_are_named_where_they_tell_models_apart():
    tuned = "timm:vit?img_size=64&depth=4"
    frame = pd.DataFrame({"model": [tuned, "timm:deit"], "value": [1.0, 2.0]})
    assert list(series_labels(frame)) == ["vit", "deit"]
    assert model_label(frame, tuned) == "vit"
    frame["model"] = [tuned, "timm:vit"]
    assert list(series_labels(frame)) == ["vit?img_size=64&depth=4", "vit"]
    assert model_label(frame, tuned) == "vit?img_size=64&depth=4"


def test_a_file_of_weights_names_the_model_and_other_checkpoints_do_not():
    tuned = "timm:vit?depth=2"
    frame = pd.DataFrame(
        {"model": [tuned, "bundled:a"], "checkpoint": ["files/flowers.pth", "epoch-000"], "value": 1.0}
    )
    assert list(series_labels(frame)) == ["flowers", "a"]
    assert (model_label(frame, tuned), model_label(frame, "bundled:a")) == ("flowers", "a")
    two = frame.assign(model=tuned)
    assert list(series_labels(two)) == ["vit flowers", "vit epoch-000"]
    runs = [{"model": {"spec": tuned, "checkpoint": "files/flowers.pth"}}, {"model": {"spec": "bundled:a"}}]
    assert (
        with_labels(f"Rank is 3 in {tuned} and 4 in bundled:a.", runs) == "Rank is 3 in flowers and 4 in a."
    )


def test_rows_of_an_absent_metric_are_refused_with_the_metrics_that_are_there():
    frame = pd.DataFrame({"metric": ["b", "a", "b"], "value": [1.0, 2.0, float("nan")]})
    assert list(rows_of(frame, "b")["value"]) == [1.0]
    with pytest.raises(InputError, match=r"no values of c; its metrics: a, b$"):
        rows_of(frame, "c")
    with pytest.raises(InputError, match=r"no values of c or d; its metrics: none$"):
        rows_of(frame[:0], ["c", "d"])
    with pytest.raises(InputError, match="all values of b are NaN"):
        rows_of(frame[2:], "b")
    with pytest.raises(InputError, match="column 'x' is empty for a and b"):
        rows_of(frame.assign(x=None), ["a", "b"], needs=["x"])
    named = frame.assign(model="net")[:1]
    assert list(series_labels(named)) == [model_label(named, "net")] == ["net"]
    assert (
        with_labels("Rank of net.", [{"model": {"name": "net", "checkpoint": "files/flowers.pth"}}])
        == "Rank of net."
    )
