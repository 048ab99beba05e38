"""What figures call models."""

import pandas as pd

from workbench.figures.frames import model_label, series_labels


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
