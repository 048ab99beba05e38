import numpy as np
import pytest

from workbench.runs.sweep import read_sweep, sweep

MODEL, INPUTS, N = "bundled:digits-vit", "bundled:digits", 21


@pytest.fixture
def run(tmp_path):
    """A small sweep into a folder of the test: 21 digits in micro-batches of 4, in 3 shards, unless said otherwise."""

    def start(name="sweep", **changed):
        asked = {"models": MODEL, "inputs": INPUTS, "analyses": ["token-similarity"], "n": N, "shards": 3}
        return sweep(**(asked | {"batch_size": 4, "out": tmp_path / name} | changed))

    return start


def read(status, name="token-similarity"):
    """What the sweep has of one analysis."""
    return read_sweep(status.folder, name)


def partly(status, name="token-similarity"):
    """The same of a sweep that is not whole."""
    return read_sweep(status.folder, name, allow_partial=True)


def same_numbers(one, other, rtol=1e-9):
    """Two frames with the same rows, and numbers as near one another as that."""
    assert one.drop(columns=[*_NUMBERS]).equals(other.drop(columns=[*_NUMBERS]))
    for name in _NUMBERS:
        np.testing.assert_allclose(one[name], other[name], rtol=rtol, atol=1e-14, err_msg=name)


_NUMBERS = ("value", "null_mean", "null_low", "null_high", "z")
