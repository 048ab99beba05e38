"""Write passages of the bundled prose: by genre (the Long Range Arena's Text), and pairs of one file (its Retrieval).

The split is by files, so that no file has both training and test passages. The pre-training text of a fine-tuned
language model excludes the test passages.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from workbench.core import paths
from workbench.core.errors import MissingResource
from workbench.studies.training.tasks.task import spread

GENRES = {
    "essay": ("01", "03", "07", "09", "12", "13", "17"),
    "story": ("02", "04", "08", "10", "14", "16"),
    "report": ("05", "06", "11", "15", "18"),
}
"""Genre → numbers of its files: explanations, narrative with dialogue, and letters, lives, journeys or diaries."""
HELD_OUT = ("07", "17", "08", "16", "11", "18")
"""Files of the test set: two of each genre."""
FIVE = ("02", "05", "09", "13", "18")
"""Files of the five-way task."""
LENGTH = 256
"""Bytes of a passage."""
STRIDE = {"train": 64, "test": 256}
"""Bytes between the beginnings of two passages: those of the test set do not overlap."""


def passages(split: str) -> dict[str, list[str]]:
    """Return the passages of each file by its number, without headings, in order."""
    cut_files = {}
    for number in sorted(number for numbers in GENRES.values() for number in numbers):
        if (number in HELD_OUT) != (split == "test"):
            continue
        cut_files[number] = _cut(_running_text(number), STRIDE[split])
    return cut_files


def _running_text(number: str) -> str:
    """Return a file without its headings, in one line."""
    folder = paths.data_dir() / "prose"
    file = next(iter(folder.glob(f"{number}-*.txt")), None)
    if file is None:
        raise MissingResource(f"the bundled prose is not in {folder}; install the package again")
    lines = file.read_text(encoding="utf-8").splitlines()
    return " ".join(line for line in lines if line and not line.startswith("= "))


def _cut(text: str, stride: int) -> list[str]:
    return [text[start : start + LENGTH] for start in range(0, len(text) - LENGTH + 1, stride)]


def write_genres(folder: Path, sizes: dict[str, int], seed: int) -> None:
    """Write ``train/GENRE/*.txt`` and ``test/GENRE/*.txt``; nothing is drawn at random."""
    genre = {number: name for name, numbers in GENRES.items() for number in numbers}
    for split, count in sizes.items():
        _write(folder / split, passages(split), genre, count)


def write_five(folder: Path, sizes: dict[str, int], seed: int) -> None:
    """Write ``train/FILE/*.txt`` and ``test/FILE/*.txt`` of `FIVE`, tests from the last fifth, without random draws."""
    for split, count in sizes.items():
        cut = {number: _cut(_part(number, split), STRIDE["train"]) for number in FIVE}
        _write(folder / split, cut, {number: number for number in FIVE}, count)


def write_unlabelled(folder: Path, sizes: dict[str, int], seed: int) -> None:
    """Write ``NUMBER.txt`` of files without test passages of `write_genres` or `write_five`."""
    for number in sorted(number for numbers in GENRES.values() for number in numbers):
        if number not in HELD_OUT:
            text = _part(number, "train") if number in FIVE else _running_text(number)
            (folder / f"{number}.txt").write_text(text, encoding="utf-8")


def _part(number: str, split: str) -> str:
    """Return the first four fifths of a file, or the last fifth, which is for tests."""
    text = _running_text(number)
    cut = len(text) * 4 // 5
    return text[:cut] if split == "train" else text[cut:]


def _write(folder: Path, texts: dict[str, list[str]], label: dict[str, str], count: int) -> None:
    listed = [
        (number, index, text)
        for number, passages_of_file in texts.items()
        for index, text in enumerate(passages_of_file)
    ]
    for chosen in spread(len(listed), count):
        number, index, text = listed[chosen]
        target = folder / label[number]
        target.mkdir(parents=True, exist_ok=True)
        (target / f"{number}_{index:03d}.txt").write_text(text, encoding="utf-8")


def write_pairs(folder: Path, sizes: dict[str, int], seed: int) -> None:
    """Write ``prose.train.tsv`` and ``prose.test.tsv``; two passages of one file (1) do not overlap."""
    for at, (split, count) in enumerate(sizes.items()):
        draw = np.random.default_rng([seed, at])
        files = passages(split)
        numbers, separation = [*files], -(-LENGTH // STRIDE[split])
        lines = []
        for index in range(count):
            same = index % 2
            first_index, second_index = draw.choice(len(numbers), 2, replace=False)
            first, second = numbers[first_index], numbers[first_index if same else second_index]
            left, right = int(draw.integers(len(files[first]))), int(draw.integers(len(files[second])))
            while same and abs(left - right) < separation:
                right = int(draw.integers(len(files[second])))
            names = f"{first}_{left:03d}\t{second}_{right:03d}"
            lines.append(f"{same}\t{names}\t{files[first][left]}\t{files[second][right]}\n")
        (folder / f"prose.{split}.tsv").write_text("".join(lines), encoding="utf-8")
