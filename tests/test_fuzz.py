"""A few damaged files of every kind, the same ones always; `make fuzz` reads as many as there is time for."""

import tempfile
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import READERS


@pytest.mark.parametrize("name", READERS)
@settings(
    max_examples=3, deadline=None, derandomize=True, database=None, suppress_health_check=[*HealthCheck]
)
@given(st.data())
def test_whatever_a_file_holds_an_error_is_one_of_ours(name, data):
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        READERS[name](data, Path(folder))
