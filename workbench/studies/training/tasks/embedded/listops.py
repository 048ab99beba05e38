"""Generate ListOps by the grammar of Nangia & Bowman (2018) as in the Long Range Arena (Tay et al. 2021), but shorter.

An expression is a digit with probability 3/4, otherwise an operator with 2 to 10 arguments, at most 10 levels deep.
The arena keeps lengths between 500 and 2000; here 10 to 100 words, without round brackets, as in the arena.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

OPERATORS: dict[str, Callable[[Sequence[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(median(values)),
    "[SM": lambda values: sum(values) % 10,
}
_NESTED = 0.25
"""Probability of an operator instead of a digit."""
_MOST_ARGUMENTS, _DEEPEST = 10, 10
SHORTEST, LONGEST = 10, 100


class _TooLong(Exception):
    """The expression exceeds the longest length, so drawing stops."""


def expression(draw: random.Random) -> tuple[str, int, int]:
    """Draw an expression in the arena's notation, its length in words without round brackets, and its value."""
    while True:
        try:
            words, value, length = _tree(draw, 1, LONGEST)
        except _TooLong:
            continue
        if length >= SHORTEST:
            return " ".join(words), length, value


def _tree(draw: random.Random, depth: int, room: int) -> tuple[list[str], int, int]:
    if depth >= _DEEPEST or draw.random() > _NESTED:
        digit = draw.randrange(10)
        return [str(digit)], digit, 1
    count = draw.randint(2, _MOST_ARGUMENTS)
    values: list[int] = []
    inside: list[str] = []
    length = 2  # the operator and its bracket
    for _ in range(count):
        words, value, part = _tree(draw, depth + 1, room - length)
        length += part
        if length > room:
            raise _TooLong
        values.append(value)
        inside += [*words, ")"]
    name = draw.choice([*OPERATORS])
    return ["("] * (count + 1) + [name, *inside, "]", ")"], OPERATORS[name](values), length


def write(folder: Path, sizes: dict[str, int], seed: int) -> None:
    """Write ``basic_train.tsv`` and ``basic_test.tsv`` without duplicate expressions."""
    draw, seen = random.Random(seed), set()
    for split, count in sizes.items():
        lines = []
        while len(lines) < count:
            text, _, value = expression(draw)
            if text not in seen:
                seen.add(text)
                lines.append(f"{text}\t{value}\n")
        (folder / f"basic_{split}.tsv").write_text("Source\tTarget\n" + "".join(lines), encoding="utf-8")
