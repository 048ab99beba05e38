"""The .ts format of the UEA archive, against values written by hand."""

import math

import numpy as np
import pytest

from workbench.core.errors import InputError
from workbench.studies.training.tasks.ts_files import read_ts

HEADER = """# Made for a test: 2 channels,
#the lengths differ
@problemName Made
@timeStamps false
@missing true
@univariate false
@dimensions 2
@equalLength false
@classLabel true low high
@data
"""


@pytest.fixture
def write(tmp_path):
    def written(content):
        path = tmp_path / "Made_TRAIN.ts"
        path.write_text(content, encoding="utf-8")
        return path

    return written


def test_values_missing_ones_and_lengths_are_those_of_the_file(write):
    held = read_ts(write(HEADER + "1,2.5,-3e2:0,?,7:high\n\n 4 , 5: 6,7 :low \n?:?:high"))
    assert held.classes == ("low", "high")
    assert held.labels == ["high", "low", "high"]
    assert held.channels == 2
    expected = [
        [[1, 0], [2.5, math.nan], [-300, 7]],
        [[4, 6], [5, 7]],
        [[math.nan, math.nan]],
    ]
    for found, wanted in zip(held.series, expected, strict=True):
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, np.array(wanted))


def test_names_of_the_header_may_be_written_small_and_classes_left_to_the_cases(write):
    held = read_ts(write("@problemname x\n@univariate true\n@classlabel true\n@DATA\nNaN,3:b\n1,2:a\n"))
    assert held.classes == ("a", "b")
    assert [one.shape for one in held.series] == [(2, 1), (2, 1)]
    assert np.isnan(held.series[0][0, 0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has nothing in it; it may be cut short: copy it again"),
        ("@problemName x\n", "has no @data; it may be cut short"),
        (HEADER, "has no cases after @data; it may be cut short"),
        (
            "a,b\n1,2\n",
            "line 1: 'a,b' is neither a comment .* nor data after @data; give a .ts file of the UEA",
        ),
        ("@attribute x\n1,2:a\n", "line 2: '1,2:a' is neither a comment"),
        (
            HEADER.replace("Stamps false", "Stamps true"),
            "has time stamps .*; only values at even steps are read",
        ),
        (
            HEADER.replace("@classLabel true low high", "@targetLabel true"),
            "names no classes .*to be classified",
        ),
        (HEADER.replace("true low high", "false"), "names no classes"),
        (HEADER + "1,2\n", "line 11: a case is channel:…:channel:class, and here is no colon"),
        (
            HEADER + "1,2:3,4:high\n1,x:3,4:low\n",
            "line 12: .*'x'; values are numbers between commas, a missing",
        ),
        (HEADER + "1,1e999:3,4:high\n", "line 11: a value is infinite; a missing one is"),
        ("@\n1,2:a\n", "line 2: '1,2:a' is neither a comment"),
        (HEADER.replace("dimensions 2", "dimensions ²") + "1:2:middle\n", "class 'middle' is not among"),
        (HEADER + "1,,2:3,4,5:high\n", "line 11: .*values are numbers between commas"),
        (HEADER + "1,2:3,4,5:high\n", "line 11: the channels of a case must have one length, .* 2, 3 values"),
        (HEADER + "1,2:high\n", "line 11: a case with 1 channels, and the header .@dimensions. says 2"),
        (
            HEADER.replace("@dimensions 2\n", "") + "1:2:high\n1:2:3:high\n",
            "line 11: a case with 3 channels, and the cases before have 2",
        ),
        (HEADER + "1:2:middle\n", "line 11: class 'middle' is not among those of the header, low, high"),
    ],
)
def test_files_that_are_no_such_thing(content, message, write):
    with pytest.raises(InputError, match=message):
        read_ts(write(content))


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "Made_TRAIN.ts"
    path.write_bytes(b"@problemName \xff\n")
    with pytest.raises(InputError, match="is not UTF-8 text: it holds the byte 0xff"):
        read_ts(path)
