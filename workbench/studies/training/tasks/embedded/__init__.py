"""Embedded tasks: data generated on the spot from a published recipe or bundled files, in the layout a task reads.

They stand in for published benchmarks at minutes on one core; scores compare with each other, never with published
ones. Each is ``--data embedded:NAME`` of its task; without ``--data`` a task uses its first.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from workbench.core.errors import InputError, UnknownName
from workbench.studies.training.tasks.embedded import (
    control,
    listops,
    mosaics,
    pathfinder,
    pixels,
    prose,
    series,
)

PREFIX = "embedded:"
SEED = 21
"""Seed of all data: an embedded task is one data set, whatever the seed of a training."""


@dataclass(frozen=True)
class Embedded:
    """One embedded task: its reader, writer, number of examples, and recipe."""

    task: str
    title: str
    write: Callable[[Path, dict[str, int], int], None]
    """``write(folder, examples of each split, seed)`` puts the files into an empty folder."""
    train: int
    """Number of examples; 0 for a text, which is read completely."""
    test: int
    recipe: str
    asks_for: str
    """The published data it stands in for."""
    usual: bool = True
    """Whether its task may use it by default."""


_ARENA = "Long Range Arena"
EMBEDDED: dict[str, Embedded] = {
    "listops": Embedded(
        "listops", "nested lists of up to 100 words, by the published grammar", listops.write, 12000, 2000,
        "listops-embedded", f"{_ARENA} ListOps",
    ),
    "genre": Embedded(
        "bytes", "passages of the bundled prose: essay, story or report; files held out", prose.write_genres, 2400, 333,
        "bytes-embedded", f"{_ARENA} Text",
    ),
    "same-file": Embedded(
        "retrieval", "two passages of the bundled prose: from one file or not; files held out", prose.write_pairs,
        3000, 1000, "retrieval-embedded", f"{_ARENA} Retrieval",
    ),
    "digits": Embedded(
        "pixels", "scikit-learn's digits, 16×16 grey pixels in a row", pixels.write_digits, 1352, 445,
        "pixels-embedded", f"{_ARENA} Image",
    ),
    "photos": Embedded(
        "pixels", "cuts of the bundled photographs, 16×16 grey pixels in a row", pixels.write_photos, 1944, 648,
        "pixels-embedded", f"{_ARENA} Image",
    ),
    "cuts": Embedded(
        "images", "cuts of the bundled photographs in colour, 32×32: which photograph", pixels.write_cuts, 1944, 648,
        "fan-embedded", "ImageNet-1K (FAN)", usual=False,
    ),
    "genres": Embedded(
        "passages", "passages of the bundled prose: essay, story or report; files held out", prose.write_genres, 2400,
        333, "passages-embedded", "SST-2, IMDB",
    ),
    "five-files": Embedded(
        "passages", "passages of five files of the bundled prose: from which; the last fifth of each held out",
        prose.write_five, 800, 100, "passages-embedded", "SST-5",
    ),
    "unlabelled": Embedded(
        "text", "the files of the bundled prose without what genres and five-files test", prose.write_unlabelled, 0, 0,
        "text-mixture", "what a model of SST-2, IMDB, SST-5 reads before", usual=False,
    ),
    "pathfinder": Embedded(
        "pixels", "two ends of one dashed path or of two, 16×16 pixels in a row", pathfinder.write, 5000, 1000,
        "pathfinder-embedded", f"{_ARENA} Pathfinder",
    ),
    "mosaics": Embedded(
        "segmentation", "mosaics of eight textures from the bundled photographs, 32×32", mosaics.write_mosaics, 1200,
        300, "segmentation-embedded", "ADE20K",
    ),
    "collages": Embedded(
        "segmentation", "two or three of scikit-learn's digits on a texture, 32×32", mosaics.write_collages, 1200, 300,
        "segmentation-embedded", "ADE20K",
    ),
    **{
        name: Embedded(
            "rl", f"episodes of a scripted policy with noise: {name.replace('-', ' ')}", write, 180, 20,
            "rl-embedded", "D4RL",
        )
        for name, write in control.WRITERS.items()
    },
    **{
        name: Embedded(
            "series", f"time series, made: {what}", series.WRITERS[name], 300, 300, "series-embedded", "UEA archive"
        )
        for name, what in {
            "phase": "the phase between two sines",
            "lag": "whether one channel goes ahead of another, moves with it, or follows",
            "frequency": "the frequency of a sine in one of three channels",
            "shape": "cylinder, bell or funnel under noise",
            "chirp": "whether the frequency rises or falls",
            "oscillators": "which two of three oscillators are coupled",
        }.items()
    },
}  # fmt: skip


def embedded_name(task: str, data: str | Path | None) -> str | None:
    """Return the name of the embedded data: from ``data``, or the task's first by default; None for other data.

    Raises UnknownName for a name that the task lacks.
    """
    names = [name for name, entry in EMBEDDED.items() if entry.task == task]
    if data is None:
        return next((name for name in names if EMBEDDED[name].usual), None)
    if not str(data).startswith(PREFIX):
        return None
    if not names:
        raise InputError(f"task {task} has no embedded data; {data} is of another task, or leave --data out")
    name = str(data).removeprefix(PREFIX)
    if name not in names:
        raise UnknownName(f"embedded data of task {task}", name, names)
    return name


@contextmanager
def written(name: str) -> Generator[Path]:
    """Write the files of an embedded task to a temporary folder for the duration of this context."""
    entry = EMBEDDED[name]
    with tempfile.TemporaryDirectory(prefix="workbench-embedded-") as folder:
        entry.write(Path(folder), {"train": entry.train, "test": entry.test}, SEED)
        yield Path(folder)
