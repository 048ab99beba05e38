"""Divide the training set of embedded data into a part to train on and a validation split."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from workbench.studies.training.tasks.embedded import EMBEDDED, SEED
from workbench.studies.training.tasks.embedded.prose import GENRES, LENGTH, STRIDE
from workbench.studies.training.tasks.images import CUTS

SHARE = 0.2
"""Share of the sources of each class in the validation split, rounded, at least one source."""
_FIFTHS = 5


class _Example(NamedTuple):
    sources: frozenset[str]
    """The files, parts of a file, or tiles of a photograph that it is cut from."""
    pieces: frozenset[Hashable] = frozenset()
    """Pieces of its sources that it covers; two examples with a common piece overlap."""


def validation_split(name: str, folder: Path, targets: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the numbers of the training examples to train on, and those of the validation split.

    Sources are drawn by the seed of the data, a `SHARE` of each class: files of prose (of ``five-files`` fifths of a
    file), tiles of a photograph, otherwise single examples. An example is in a part if all its sources are. No example
    to train on overlaps a validation source, and validation examples do not overlap each other. Pairs of passages are
    balanced: as many of one file as of two.

    Args:
        name: the embedded data.
        folder: its written files.
        targets: the class of every training example; 0 if it has a class for every pixel.
    """
    examples, classes = _examples(name, folder, targets)
    draw, held_out = np.random.default_rng(SEED), set()
    for label in sorted({*classes.values()}):
        sources = sorted(source for source, of_source in classes.items() if of_source == label)
        held_out.update(draw.permutation(sources)[: max(1, round(SHARE * len(sources)))].tolist())
    candidates = [number for number, example in enumerate(examples) if example.sources <= held_out]
    covered = frozenset[Hashable]().union(*(examples[number].pieces for number in candidates))
    training = [
        number
        for number, (sources, pieces) in enumerate(examples)
        if not sources & held_out and not pieces & covered
    ]
    validation, used = [], set()
    for number in candidates:
        if not examples[number].pieces & used:
            validation.append(number)
            used |= examples[number].pieces
    if EMBEDDED[name].task == "retrieval":
        return _balanced(training, targets), _balanced(validation, targets)
    return training, validation


def _examples(name: str, folder: Path, targets: Sequence[int]) -> tuple[list[_Example], Mapping[str, str]]:
    """Return every training example in order, and the class of every source."""
    task = EMBEDDED[name].task
    genre = {file: kind for kind, files in GENRES.items() for file in files}
    if task == "retrieval":
        (table,) = folder.glob("*.train.tsv")
        rows = [line.split("\t")[1:3] for line in table.read_text(encoding="utf-8").splitlines()]
        pairs = [_Example(frozenset(passage.partition("_")[0] for passage in row)) for row in rows]
        return pairs, {file: genre[file] for pair in pairs for file in pair.sources}
    paths = sorted((folder / "train").glob("*/*"))
    if task in ("bytes", "passages"):
        cut = pd.DataFrame([path.stem.split("_") for path in paths], columns=["file", "place"])
        cut["place"] = cut["place"].astype(int)
        passages = cut["place"].groupby(cut["file"]).transform("max") + 1
        fifth = cut["file"] + "." + (cut["place"] * _FIFTHS // passages).astype(str)
        sources = fifth if name == "five-files" else cut["file"]
        length = -(-LENGTH // STRIDE["train"])
        return [
            _Example(frozenset([source]), frozenset((file, place + step) for step in range(length)))
            for source, file, place in zip(sources, cut["file"], cut["place"], strict=True)
        ], {source: path.parent.name for source, path in zip(sources, paths, strict=True)}
    if name == "cuts":
        tiles = [str(int(path.stem) // CUTS**2) for path in paths]
        return [_Example(frozenset([tile]), frozenset([tile])) for tile in tiles], {
            tile: path.parent.name for tile, path in zip(tiles, paths, strict=True)
        }
    numbers = [f"{number:05d}" for number in range(len(targets))]
    return [_Example(frozenset([number])) for number in numbers], dict(
        zip(numbers, map(str, targets), strict=True)
    )


def _balanced(numbers: Sequence[int], targets: Sequence[int]) -> list[int]:
    """Return the first numbers of every class, equally many of each."""
    classes = pd.Series([targets[number] for number in numbers], index=numbers)
    fewest = int(classes.value_counts().min())
    return sorted(classes.groupby(classes).head(fewest).index.tolist())
