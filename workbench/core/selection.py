"""Numbers as a person types them: layers and heads."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import overload

from workbench.core.errors import InputError

Numbers = None | int | str | Iterable[int]


@overload
def parse_numbers(kind: str, asked: Numbers, total: int) -> tuple[int, ...]: ...
@overload
def parse_numbers(kind: str, asked: Numbers, total: int | None = None) -> tuple[int, ...] | None: ...
def parse_numbers(kind: str, asked: Numbers, total: int | None = None) -> tuple[int, ...] | None:
    """Sorted numbers from None (all), a number, an iterable of numbers, or a string such as "0,3-5" or "-2,-1".

    ``kind`` ("layer", "head") names them in errors. With ``total`` negative numbers count from the end, and numbers
    outside the range raise InputError; without it negative numbers stay as they are, and None stays None.
    """
    if asked is None:
        return None if total is None else tuple(range(total))
    numbers: list[int] = []
    if isinstance(asked, str):
        for part in asked.split(","):
            match = re.fullmatch(r"\s*(-?\d+)(?:\s*-\s*(-?\d+))?\s*", part)
            if match is None:
                raise InputError(
                    f"{kind}s {asked!r}: {part.strip()!r} is neither a number nor a range such as 3-5"
                )
            first, last = int(match[1]), int(match[2] if match[2] is not None else match[1])
            if last < first or (first < 0 <= last):
                raise InputError(
                    f"{kind}s {asked!r}: the range {part.strip()!r} is empty; write 3-5, or -3--1"
                )
            numbers += range(first, last + 1)
    else:
        given = [asked] if isinstance(asked, int) else list(asked)
        for number in given:
            if isinstance(number, bool) or not hasattr(number, "__index__"):
                raise InputError(f"{kind}s must be whole numbers, got {number!r}")
        numbers = [int(number) for number in given]
    if not numbers:
        raise InputError(f"{kind}s is empty: name at least one, or None for all")
    if total is not None:
        for number in numbers:
            if not -total <= number < total:
                raise InputError(
                    f"there is no {kind} {number}: {kind}s are 0 to {total - 1} (or -{total} to -1)"
                )
        numbers = [number % total for number in numbers]
    return tuple(sorted(set(numbers)))


def ranges(numbers: Iterable[int]) -> str:
    """[0, 1, 2, 5] as "0-2, 5"; "none" for no number."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) or "none"
