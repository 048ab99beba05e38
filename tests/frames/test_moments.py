"""Statistics over inputs, head by head and rank by rank, without the inputs: against numpy, and merged in parts."""

import math
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from workbench.analyses.layer import Layer
from workbench.captures import LayerRecord
from workbench.frames.measurement import Accumulator, Measurement
from workbench.frames.moments import (
    ACCURACY,
    QUANTILES,
    Moments,
    bins_of,
    quantiles_of,
    sketch_from,
    sketch_of,
)

INPUTS, HEADS, RANKS = 11, 3, 4


def numbers(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.manual_seed(sum(shape)))


def moments_of(values, size, **columns):
    made = Moments(columns, range(HEADS), ranked=True)
    for part in values.split(size):
        made.add(part)
    return made


def test_statistics_are_numpys_whatever_the_batches():
    values = numbers(INPUTS, HEADS, RANKS) * 3 - 1
    for size in (1, 2, INPUTS):
        found = moments_of(values, size).statistics()
        array = values.numpy()
        np.testing.assert_allclose(found["mean"], array.mean(0), rtol=1e-12)
        np.testing.assert_allclose(found["std"], array.std(0, ddof=1), rtol=1e-12)
        np.testing.assert_array_equal(found["min"], array.min(0))
        np.testing.assert_array_equal(found["max"], array.max(0))


def test_memory_does_not_grow_with_the_inputs():
    made = Moments({"metric": "token_cosine"})
    values = numbers(10_007) * 1e-3 + 1e6
    sizes = []
    for part in values.split(64):
        made.add(part)
        sizes.append(sum(array.nbytes for array in made._sums.values()) + len(made._sketches[0]._store.bins))
    assert len(set(sizes[1:])) == 1
    found = made.statistics()
    assert found["mean"].item() == pytest.approx(values.mean().item(), rel=1e-14)
    assert found["std"].item() == pytest.approx(values.std().item(), rel=1e-6)


def test_ranks_that_an_input_has_not_got_are_absent_and_batches_may_differ_in_ranks():
    values = numbers(INPUTS, HEADS, RANKS)
    values[:5, :, 2:] = torch.nan
    made = Moments({}, range(HEADS), ranked=True)
    made.add(values[:5, :, :2])  # the first batch is of shorter inputs
    made.add(values[5:])
    np.testing.assert_allclose(made.statistics()["mean"], np.nanmean(values.numpy(), axis=0), rtol=1e-12)
    assert made.count[0].tolist() == [INPUTS, INPUTS, INPUTS - 5, INPUTS - 5]
    assert made.left_out == 0


def test_undefined_and_infinite_values_are_left_out_and_counted_and_one_value_has_no_interval():
    made = Moments({})
    made.add(torch.tensor([torch.nan, 2.0]))
    made.add(torch.tensor([torch.nan, -torch.inf]))
    found = {name: values.item() for name, values in made.statistics().items()}
    assert (made.count.item(), found["mean"], made.left_out) == (1, 2, 3)
    assert all(math.isnan(found[name]) for name in ("std", "low", "high"))
    empty = pd.concat([pd.DataFrame(part) for part in Moments({}).rows()])
    assert empty["value"].isna().all()


def test_quantiles_of_all_heads_are_within_the_stated_error_for_either_sign_and_zero():
    values = torch.cat([numbers(401) * 10, torch.zeros(7, dtype=torch.float64), -numbers(305).exp()])
    sketch = sketch_of(values.tolist())
    exact = np.quantile(values.numpy(), [*QUANTILES.values()], method="lower")
    np.testing.assert_allclose(quantiles_of(sketch), exact, rtol=ACCURACY, atol=0)
    assert quantiles_of(sketch_of([0.0, 0.0, sys.float_info.min / 4])) == [0, 0, 0]
    assert np.isnan(quantiles_of(sketch_of())).all()


def test_sketches_merge_in_any_order_and_come_back_from_their_bins():
    values = numbers(307).tolist()
    whole, parts = sketch_of(values), [sketch_of(values[start::3]) for start in range(3)]
    for order in ([0, 1, 2], [2, 0, 1]):
        merged = sketch_of()
        for number in order:
            merged.merge(parts[number])
        assert quantiles_of(merged) == quantiles_of(whole)
        assert [*bins_of(merged)] == [*bins_of(whole)]
    again = sketch_from(*zip(*bins_of(whole), strict=True))
    assert [*bins_of(again)] == [*bins_of(whole)]


def layer(index, ids):
    made = Layer(LayerRecord(index, "path"), ids, None, 0)
    made.heads = [*range(HEADS)]
    return made


def rows_of(cut, ids, **how):
    values, null_samples = numbers(INPUTS, HEADS), numbers(INPUTS, HEADS, 5)
    ranked = numbers(INPUTS, HEADS, RANKS)
    rows = Accumulator(**how)
    for index in (0, 2):
        add = [
            Measurement("MDC", values[cut] + index, columns={"axis": "tokens", "statistic": "max"},
                        null_samples={"gaussian": null_samples[cut], "permutation": null_samples[cut] * 2}),
            Measurement("eigenvalue", ranked[cut] + index, ("input", "head", "rank")),
        ]  # fmt: skip
        for measurement in add:
            rows.add(measurement, layer(index, ids[cut]))
    return rows


@pytest.mark.parametrize("aggregate", [True, False])
@pytest.mark.parametrize("per_input", [True, False])
def test_parts_merged_by_way_of_their_state_give_the_rows_of_one_run(aggregate, per_input):
    ids, how = [f"in{i}" for i in range(INPUTS)], {"aggregate": aggregate, "per_input": per_input}
    whole = rows_of(slice(None), ids, **how)
    merged = Accumulator()
    for start in (0, 4, 8):
        merged.merge(Accumulator.from_state(*rows_of(slice(start, start + 4), ids, **how).state()))
    frame = merged.frame()
    pd.testing.assert_frame_equal(frame, whole.frame(), rtol=1e-10)
    assert frame["input"].notna().any() == per_input


def test_the_interval_of_a_mean_is_student_s():
    values = np.array([1.0, 4.0, 2.0, 8.0])
    moments = Moments({"metric": "logit"}, (), ranked=False)
    moments.add(torch.tensor(values).view(4), None)
    found = moments.statistics()
    half = stats.t.ppf(0.975, 3) * values.std(ddof=1) / 2
    assert found["low"].item() == pytest.approx(values.mean() - half)
    assert found["high"].item() == pytest.approx(values.mean() + half)


def test_the_mean_of_a_null_counts_the_inputs_that_have_a_value():
    """Inputs 1 and 3 have no value, and input 2 no null."""
    made = Moments({"metric": "attention_distance"})
    nan = math.nan
    made.add(torch.tensor([1.0, nan]), torch.tensor([10.0, 1000.0]))
    made.add(torch.tensor([3.0, torch.inf, 5.0]), torch.tensor([nan, 1000.0, 20.0]))
    (mean,) = [row for row in made.rows() if row["statistic"] == "mean" and "null_mean" in row]
    assert mean["value"].tolist() == [3.0]
    assert mean["null_mean"].tolist() == [15.0]
