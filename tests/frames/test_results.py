import json
import math
import re

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest

from workbench import __version__
from workbench.core.errors import InputError, UnknownName
from workbench.frames.results import (
    COLUMNS,
    SCHEMA_VERSION,
    conform,
    join_frames,
    make_frame,
    provenance_of,
    read_frame,
    write_frame,
)

IDS = ["photos/a", 'text, with "quotes" and ü']
AWKWARD = [
    0.1 + 0.2,
    1 / 3,
    5e-324,
    1.7976931348623157e308,
    -0.0,
    1e-17,
    math.pi * 1e-200,
    123456789.123456789,
]


@pytest.fixture
def frame():
    values = np.array(AWKWARD).reshape(2, 1, 4)
    made = make_frame(
        values, "eigenvalue", {"input": IDS, "layer": [3], "rank": range(1, 5)}, model="m", head=2
    )
    made.attrs["provenance"] = {
        "analysis": "gram-spectrum",
        "seed": 4,
        "model": {"sha256": "ab"},
        "notes": ["ü"],
    }
    return made


def test_one_row_per_entry_in_the_shared_columns(frame):
    assert tuple(frame.columns) == COLUMNS
    assert len(frame) == 8
    row = frame.iloc[5]
    assert (row["input"], row["layer"], row["head"], row["rank"]) == (IDS[1], 3, 2, 2)
    assert row["value"] == AWKWARD[5]
    assert row["version"] == __version__
    assert frame[["axis", "statistic", "convention", "standardize", "null_mean", "z"]].isna().all(axis=None)


def test_numbers_stay_numbers_and_names_stay_text(frame):
    kinds = frame.dtypes.astype(str)
    assert set(kinds[["layer", "head", "rank"]]) == {"Int64"}
    assert set(kinds[["value", "null_mean", "null_low", "null_high", "z"]]) == {"float64"}
    assert all(str(kind).startswith("str") for kind in kinds[["model", "input", "metric", "axis"]])


@pytest.mark.parametrize("suffix", ["parquet", "csv", "json"])
def test_every_bit_of_every_number_comes_back(frame, suffix, tmp_path):
    again = read_frame(write_frame(frame, tmp_path / f"result.{suffix}"))
    pd.testing.assert_frame_equal(again, frame, check_exact=True)
    found, given = again["value"].to_numpy(), frame["value"].to_numpy()
    assert (found.view(np.int64) == given.view(np.int64)).all()


@pytest.mark.parametrize("suffix", ["parquet", "csv", "json"])
def test_infinite_values_and_absent_ones_are_distinguished(frame, suffix, tmp_path):
    odd = frame.assign(value=[math.inf, -math.inf, math.nan, 1.0, 2.0, 3.0, 4.0, 5.0])
    again = read_frame(write_frame(odd, tmp_path / f"result.{suffix}"))
    pd.testing.assert_frame_equal(again, odd, check_exact=True)


@pytest.mark.parametrize("suffix", ["parquet", "csv", "json"])
def test_an_empty_result_comes_back_empty(frame, suffix, tmp_path):
    again = read_frame(write_frame(frame.iloc[:0], tmp_path / f"result.{suffix}"))
    assert len(again) == 0
    assert tuple(again.columns) == COLUMNS


def test_names_that_look_like_numbers_or_missing_values_stay_names(frame, tmp_path):
    named = frame.assign(input=["1", "01", "NA", "None", "nan", "1e5", "true", "-"], model="007")
    for suffix in ("parquet", "csv", "json"):
        again = read_frame(write_frame(named, tmp_path / f"result.{suffix}"))
        assert again["input"].tolist() == named["input"].tolist(), suffix
        assert set(again["model"]) == {"007"}, suffix


def test_parquet_carries_schema_version_and_provenance(frame, tmp_path):
    path = write_frame(frame, tmp_path / "result.parquet")
    held = pyarrow.parquet.read_schema(path).metadata
    assert int(held[b"workbench_schema"]) == SCHEMA_VERSION
    assert json.loads(held[b"workbench_provenance"]) == [frame.attrs["provenance"]]
    assert read_frame(path).attrs["provenance"] == [frame.attrs["provenance"]]


def test_joined_frames_name_every_run(frame):
    other = frame.copy()
    other.attrs["provenance"] = {"analysis": "attention-map"}
    joined = join_frames([frame, other, join_frames([frame, other])])
    assert len(joined) == 4 * len(frame)
    assert [run["analysis"] for run in provenance_of(joined)] == ["gram-spectrum", "attention-map"] * 2
    assert provenance_of(frame) == [frame.attrs["provenance"]]
    assert provenance_of(frame.drop(columns=[]).assign()) == [frame.attrs["provenance"]]
    assert provenance_of(pd.DataFrame()) == []


@pytest.mark.parametrize(
    ("schema", "advice"), [(SCHEMA_VERSION + 1, "update"), (SCHEMA_VERSION - 1, "write the file again")]
)
def test_another_schema_is_refused(frame, tmp_path, schema, advice):
    path = write_frame(frame, tmp_path / "result.parquet")
    table = pyarrow.parquet.read_table(path)
    metadata = {**table.schema.metadata, b"workbench_schema": str(schema).encode()}
    pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), path)
    with pytest.raises(InputError, match=rf"result schema {schema}; .*{advice}"):
        read_frame(path)


def test_files_that_are_no_results_are_refused(frame, tmp_path):
    with pytest.raises(InputError, match="no result file at"):
        read_frame(tmp_path / "absent.csv")
    with pytest.raises(InputError, match=r"\.parquet, \.feather, \.csv or \.json"):
        read_frame(write_frame(frame, tmp_path / "result.tex"))
    with pytest.raises(InputError, match="cannot tell a format"):
        write_frame(frame, tmp_path / "result.xlsx")
    broken = write_frame(frame, tmp_path / "result.parquet")
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(InputError, match="not a whole file of its kind"):
        read_frame(broken)
    for name, content in (("a.json", "{"), ("b.json", "3"), ("c.csv", ""), ("d.csv", "x,y\n1,2\n")):
        (tmp_path / name).write_text(content)
        with pytest.raises(InputError, match=name[0]):
            read_frame(tmp_path / name)


@pytest.mark.parametrize("mark", [";", "\t"])
def test_a_table_of_another_separator_names_it(frame, tmp_path, mark):
    path = write_frame(frame, tmp_path / "result.csv")
    pd.read_csv(path).to_csv(path, sep=mark, decimal=",", index=False)
    with pytest.raises(InputError, match=re.escape(f"separated by {mark!r}; save it with commas")):
        read_frame(path)


def test_values_and_names_that_do_not_fit_are_refused():
    with pytest.raises(UnknownName, match="did you mean 'eigenvalue'"):
        make_frame([1.0], "eigenvalues", {"rank": [1]})
    with pytest.raises(InputError, match="do not fit the axes"):
        make_frame([1.0, 2.0], "eigenvalue", {"rank": [1]})
    with pytest.raises(InputError, match="no such result column: colour"):
        make_frame([1.0], "eigenvalue", {"rank": [1]}, colour="red")


def test_conform_keeps_rows_and_fills_columns():
    frame = conform(pd.DataFrame({"value": [1, 2], "layer": [0, 1], "more": ["a", "b"]}))
    assert tuple(frame.columns) == COLUMNS
    assert frame["value"].tolist() == [1.0, 2.0]
    stepped = conform(pd.DataFrame({"value": [1.0], "layer": [0], "step": [3]}))
    before = COLUMNS.index("layer") + 1
    assert tuple(stepped.columns) == (*COLUMNS[:before], "step", *COLUMNS[before:])


def test_a_latex_file_says_what_it_holds(tmp_path):
    frame = make_frame(
        [[1.5e-7], [2.5e-7]], "eigenvalue", {"input": IDS, "layer": [0]}, model="vit_tiny & co"
    )
    table = write_frame(frame, tmp_path / "spectrum.tex").read_text()
    assert r"vit\_tiny \& co" in table
    assert r"\toprule" in table
    assert r"2.0 [0.0, 8.4]\ensuremath{\cdot}10\ensuremath{^{-7}}" in table
    assert (
        r"vit\_tiny \& co: mean over inputs and heads. Brackets: 95 \% confidence interval over inputs."
        in table
    )
    assert r"\label{tab:spectrum}" in table


def test_a_written_file_is_as_readable_as_any_other(frame, tmp_path):
    plain = tmp_path / "plain"
    plain.touch()
    assert write_frame(frame, tmp_path / "result.csv").stat().st_mode == plain.stat().st_mode


def test_what_is_taken_from_a_frame_shares_its_provenance():
    """pandas would copy it, deeply, with every selection."""
    frame = make_frame([1.0, 2.0], "eigenvalue", {"rank": [1, 2]}, model="none")
    frame.attrs["provenance"] = run = {"analysis": "x", "options": {"order": [1, 2]}}
    joined = join_frames([frame, frame])
    assert joined.attrs["provenance"] == [run, run]
    for taken in (joined[joined["rank"] == 1], joined["value"], joined.assign(value=0.0)):
        assert taken.attrs["provenance"] is joined.attrs["provenance"]
    assert json.loads(json.dumps(joined.attrs["provenance"])) == [run, run]


@pytest.mark.parametrize(
    "text",
    [
        '{"metric": "effective_rank", "value": 1}', "[1, 2]", '[{"layer": 0}]', "7", "not JSON",
        '[{"metric": "effective_rank", "value": 1, "layer": 1000000000000000000000000000000}]',
    ],
)  # fmt: skip
def test_json_of_another_kind_is_no_result(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"other\.json holds no result"):
        read_frame(path)


def test_a_name_that_begins_as_a_formula_is_no_formula_in_csv_and_comes_back(tmp_path):
    frame = make_frame([1.0, -2.0], "effective_rank", {"layer": [0, 1]}, model="=HYPERLINK(1)", input="@a")
    path = write_frame(frame, tmp_path / "x.csv")
    assert "'=HYPERLINK(1)" in path.read_text()
    pd.testing.assert_frame_equal(read_frame(path), frame)
