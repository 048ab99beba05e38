"""Quantiles of any number of values in bounded memory, which merge in any order to the same result.

A DDSketch (Masson, Rim & Lee 2019) counts values in bins whose bounds grow by a constant factor. A quantile comes from
the bin that holds it, so it is within the relative error `ACCURACY` of the value of that rank; nothing is drawn at
random. Negative values have bins of their own, and zero (anything below the smallest normal float) is counted as
itself, exactly. NaN and infinite values belong to no bin and must stay outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ddsketch import DDSketch

ACCURACY = 0.005
"""Largest relative error of a quantile."""
QUANTILES = {"q25": 0.25, "median": 0.5, "q75": 0.75}


def sketch_of(values: Iterable[float] = ()) -> DDSketch:
    """A sketch that holds these finite values."""
    sketch = DDSketch(ACCURACY)
    for value in values:
        sketch.add(value)
    return sketch


def bins_of(sketch: DDSketch) -> Iterator[tuple[float, int]]:
    """(value, count) of every bin that is not empty, from the least: what `sketch_from` makes the sketch from again."""
    mapping, negative, positive = sketch._mapping, sketch._negative_store, sketch._store
    for place in range(len(negative.bins) - 1, -1, -1):
        if negative.bins[place]:
            yield -mapping.value(place + negative.offset), int(negative.bins[place])
    if sketch._zero_count:
        yield 0.0, int(sketch._zero_count)
    for place, count in enumerate(positive.bins):
        if count:
            yield mapping.value(place + positive.offset), int(count)


def sketch_from(values: Iterable[float], counts: Iterable[int]) -> DDSketch:
    """The sketch of which `bins_of` gave these: the middle of a bin falls into that bin again."""
    sketch = DDSketch(ACCURACY)
    for value, count in zip(values, counts, strict=True):
        sketch.add(value, float(count))
    return sketch


def quantiles_of(sketch: DDSketch) -> list[float]:
    """The `QUANTILES`; NaN without values."""
    found = [sketch.get_quantile_value(share) for share in QUANTILES.values()]
    return [float("nan") if value is None else float(value) for value in found]
