"""Rows by level of averaging, and intervals over inputs."""

import pandas as pd
import pytest

from tests.figures.study import levels, study
from workbench.core.errors import InputError
from workbench.figures import model_pages, page_name
from workbench.figures.estimates import at_level, null_of_means, values_once


def frame():
    return study(*levels(0.5, inputs=(0.4, 0.6, 0.5), layers=(0.1, 0.9), metric="LCKA"))


def test_levels_are_known_by_which_columns_are_empty():
    assert list(at_level(frame(), "overall")["value"]) == [0.5]
    assert list(at_level(frame(), "input")["value"]) == [0.4, 0.6, 0.5]
    assert list(at_level(frame(), "layer")["value"]) == [0.1, 0.9]


def test_rows_of_single_heads_are_refused_with_the_way_out():
    heads = study({"metric": "LCKA", "input": "digits/0", "layer": 0, "head": 1, "value": 0.2})
    with pytest.raises(InputError, match="per_head"):
        at_level(heads, "layer")


def test_a_value_with_two_nulls_counts_once():
    twice = study(
        {"metric": "MOC", "value": 0.3, "null": "gaussian", "null_mean": 0.1, "z": 2.0},
        {"metric": "MOC", "value": 0.3, "null": "permutation", "null_mean": 0.2, "z": 1.0},
        {"metric": "MOC", "value": 0.3, "axis": "tokens"},
    )
    assert len(values_once(twice)) == 2


def test_rows_of_layers_keep_the_null_of_means_and_lose_that_of_inputs():
    null = {"null": "gaussian", "null_mean": 0.1, "null_low": 0.0, "null_high": 0.2, "z": 3.0}
    rows = null_of_means(
        study(
            {"metric": "LCKA", "value": 0.3, **null},
            {"metric": "LCKA", "value": 0.4, "layer": 1, **null},
            {"metric": "LCKA", "value": 0.5, "layer": 1, "input": "digits/0", **null},
        )
    )
    assert list(rows["value"]) == [0.4, 0.5]
    assert rows.iloc[0][[*null]].to_dict() == null
    assert rows.iloc[1][[*null]].isna().all()


def test_many_models_are_cut_into_pages():
    names = [f"m{number}" for number in range(5)]
    whole = pd.concat([study({"metric": "LCKA", "value": 0.1}, model=name) for name in names])
    pages = model_pages(whole, 2)
    assert [list(page["model"]) for page in pages] == [["m0", "m1"], ["m2", "m3"], ["m4"]]
    assert [page_name("norms", number) for number in (1, 2)] == ["norms", "norms_2"]
