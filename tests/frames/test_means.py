"""Aggregated rows: means of what was observed and of every draw, however the inputs were batched."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from workbench.analyses.layer import Layer
from workbench.captures import LayerRecord
from workbench.core.null_distributions import null_of_draws
from workbench.frames.measurement import Accumulator, Counts, Measurement, _Sums

INPUTS, LAYERS, HEADS, RANKS = 5, 2, 3, 4
NULLS = ("gaussian", "permutation")


def layer(index, ids, heads=HEADS):
    made = Layer(LayerRecord(index, "path"), ids, None, 0)
    made.heads = [*range(heads)]
    return made


def numbers(*shape):
    return torch.rand(*shape, dtype=torch.float64, generator=torch.manual_seed(sum(shape)))


@pytest.fixture(params=[((), 7), ((RANKS,), 7), ((), 40)], ids=["plain", "ranked", "many samples"])
def study(request):
    """Values (layer, input, head[, rank]) and null samples with one more axis, some values undefined."""
    ranks, count = request.param
    shape = (LAYERS, INPUTS, HEADS, *ranks)
    values = numbers(*shape)
    values[1, 2, 0] = math.nan
    null_samples = {name: numbers(*shape, count) + number for number, name in enumerate(NULLS)}
    return values, null_samples


def rows_of(values, null_samples, batch=INPUTS, aggregate=True):
    rows = Accumulator(aggregate=aggregate)
    axes = ("input", "head", "rank")[: values.ndim - 1]
    for start in range(0, INPUTS, batch):
        cut = slice(start, start + batch)
        ids = [f"in{i}" for i in range(INPUTS)[cut]]
        for index in range(LAYERS):
            drawn = {name: part[index, cut] for name, part in null_samples.items()}
            columns = {"statistic": "mean"}
            rows.add(Measurement("MDC", values[index, cut], axes, None, columns, drawn), layer(index, ids))
    return rows


def expected(values, null_samples, place):
    """Mean and null over the first axes of what ``place`` picks, with undefined heads left out."""
    taken, drawn = values[place].clone(), null_samples[place].clone()
    drawn[taken.isnan()] = math.nan
    keep = values.ndim - 3  # a rank axis stays
    over = tuple(range(taken.ndim - keep))
    return taken.nanmean(over), null_of_draws(taken.nanmean(over), drawn.nanmean(over))


def check(frame, value, null):
    np.testing.assert_allclose(frame["value"], value.reshape(-1), rtol=1e-12)
    for name, part in zip(("null_mean", "null_low", "null_high", "z"), null, strict=True):
        np.testing.assert_allclose(frame[name], part.reshape(-1), rtol=1e-9)


def test_means_and_their_chance_come_from_all_heads_and_aggregated_draws(study):
    values, null_samples = study
    frame = rows_of(values, null_samples).frame()
    assert frame["head"].isna().all()
    for name in NULLS:
        rows = frame[frame["null"] == name]
        whole = rows[rows["layer"].isna() & rows["input"].isna()]
        check(whole, *expected(values, null_samples[name], (slice(None),)))
        for index in range(LAYERS):
            check(
                rows[rows["layer"] == index],
                *expected(values, null_samples[name], (slice(index, index + 1),)),
            )
        for number in range(INPUTS):
            place = (slice(None), slice(number, number + 1))
            check(rows[rows["input"] == f"in{number}"], *expected(values, null_samples[name], place))
    per_null = (LAYERS + INPUTS + 1) * (RANKS if values.ndim == 4 else 1)
    assert len(frame) == 2 * per_null


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("aggregate", [True, False])
def test_no_bit_depends_on_the_batches(study, batch, aggregate):
    whole = rows_of(*study, aggregate=aggregate).frame()
    pd.testing.assert_frame_equal(rows_of(*study, batch=batch, aggregate=aggregate).frame(), whole)


def test_single_heads_have_a_row_for_each_chance_level(study):
    values, null_samples = study
    frame = rows_of(values, null_samples, aggregate=False).frame()
    for name in NULLS:
        rows = frame[(frame["null"] == name) & frame["value"].notna()]
        null = null_of_draws(values, null_samples[name])
        kept = ~values.isnan()
        np.testing.assert_array_equal(rows["value"], values[kept])
        np.testing.assert_array_equal(rows["z"], null.z[kept])


def test_without_draws_there_is_one_row_and_no_chance(study):
    frame = rows_of(study[0], {}).frame()
    assert frame[["null", "null_mean", "z"]].isna().all(axis=None)
    assert len(frame) == (LAYERS + INPUTS + 1) * (RANKS if study[0].ndim == 4 else 1)


def test_undefined_values_are_counted():
    values = numbers(LAYERS, INPUTS, HEADS)
    assert rows_of(values, {}).notes() == []
    values[0, :2, 1] = math.nan
    assert rows_of(values, {}).notes() == ["2 of 30 values of MDC mean are undefined and left out"]


def test_counts_of_parts_are_added_by_message():
    first, second = (
        Counts({"rows are empty": [2, 5]}),
        Counts({"rows are empty": [1, 7], "heads tie": [0, 3]}),
    )
    second.add("heads tie", torch.tensor([True, False]))
    first.merge(second)
    assert first.counts == {"rows are empty": [3, 12], "heads tie": [1, 5]}
    assert first.notes() == ["3 of 12 rows are empty", "1 of 5 heads tie"]


def test_inputs_and_layers_may_differ_in_their_number_of_ranks():
    rows = Accumulator(aggregate=True)
    long, short = numbers(2, 3, 6), numbers(2, 1, 2)
    short[1, 0, 1] = math.nan
    for index, values in enumerate((long, short)):
        measurement = Measurement("eigen_residual", values, ("input", "head", "rank"))
        rows.add(measurement, layer(index, ["a", "b"], values.shape[1]))
    frame = rows.frame()
    assert frame[frame["layer"] == 1]["rank"].tolist() == [1, 2]
    whole = frame[frame["layer"].isna() & frame["input"].isna()]
    expected = [
        torch.cat([long[..., rank].ravel(), short[..., rank].ravel()]).nanmean() if rank < 2 else
        long[..., rank].mean() for rank in range(6)
    ]  # fmt: skip
    np.testing.assert_allclose(whole["value"], expected, rtol=1e-12)
    one = frame[(frame["input"] == "b") & (frame["rank"] == 2)]["value"].item()
    assert one == pytest.approx(float(long[1, :, 1].mean()))


def test_heads_of_shards_are_merged_also_from_a_file():
    """One shard measured heads 0 and 2 of 4, the other head 5 of 8."""
    shards = [Accumulator(), Accumulator()]
    for shard, heads, most in zip(shards, ({0, 2}, {5}), (4, 8), strict=True):
        shard.heads, shard.most_heads = heads, most
    for order in (shards, shards[::-1]):
        merged = Accumulator.from_state(*order[0].state())
        merged.merge(Accumulator.from_state(*order[1].state()))
        assert (merged.heads, merged.most_heads) == ({0, 2, 5}, 8)


def test_a_mean_of_nothing_is_not_a_number():
    sums = _Sums()
    sums.add(np.array([[[1.0, np.nan]], [[4.0, np.nan]]]))
    np.testing.assert_array_equal(sums.mean(), [[2.5, np.nan]])
    sums.add(np.array([[[np.nan, 3.0], [6.0, np.nan]]]))
    np.testing.assert_array_equal(sums.mean(), [[2.5, 3.0], [6.0, np.nan]])
