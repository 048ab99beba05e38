"""Tasks by name, as ``workbench study train`` takes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.core.errors import InputError, UnknownName
from workbench.studies.training.recipes import Images, load_recipe, recipe_names
from workbench.studies.training.tasks import images, offline, passages, segmentation, sequences, texts
from workbench.studies.training.tasks.embedded import EMBEDDED, PREFIX, SEED, embedded_name, written
from workbench.studies.training.tasks.task import DataRequest, Task

__all__ = ["TASKS", "Task", "TaskEntry", "check_data", "find_task", "load_task", "usual_recipe"]


@dataclass(frozen=True)
class TaskEntry:
    """One row of the table: the loader of a task, and the kind of --data it takes, if any."""

    load: Callable[[DataRequest], Task]
    title: str
    takes: str = ""
    """Description of ``data``; empty if the data come with the package and none can be given."""
    needs_data: bool = False


TASKS: dict[str, TaskEntry] = {
    "digits": TaskEntry(images.digits, "scikit-learn's handwritten digits, ten classes"),
    "photos": TaskEntry(images.photos, "32×32 cuts of the bundled photographs: which photograph is it from"),
    "images": TaskEntry(
        images.folder,
        "classes of images in a folder",
        "FOLDER with train/CLASS/IMAGE, and val/CLASS/IMAGE or test/CLASS/IMAGE",
        needs_data=True,
    ),
    "segmentation": TaskEntry(
        segmentation.segment,
        "a class for every pixel, as in ADE20K",
        "FOLDER with images/training/, annotations/training/, both for validation/, and objectInfo150.txt",
    ),
    "rl": TaskEntry(
        offline.offline,
        "actions of an agent from episodes on record, as in D4RL",
        "FOLDER with one ENVIRONMENT-NAME.npz (observations, actions, rewards, terminals, timeouts)",
    ),
    "passages": TaskEntry(
        passages.passages,
        "classes of passages, character by character, for a language model that is fine-tuned",
        "FOLDER with train/CLASS/*.txt and test/CLASS/*.txt, or with train.tsv and dev.tsv (sentence, label)",
    ),
    "prose": TaskEntry(texts.prose, "characters of the bundled prose, three of its files held out"),
    "text": TaskEntry(
        texts.text,
        "characters of a text, its last tenth held out",
        "FILE in UTF-8, or FOLDER of them (*.txt)",
        needs_data=True,
    ),
    "wikitext-103": TaskEntry(
        texts.wikitext,
        "characters of WikiText-103, its own test split held out",
        "FOLDER with wiki.train.* and wiki.test.* (otherwise the hub's copy)",
    ),
    "series": TaskEntry(
        sequences.series,
        "classes of time series, as in the UEA archive",
        "FOLDER with NAME_TRAIN.ts and NAME_TEST.ts",
    ),
    "bytes": TaskEntry(
        sequences.text_bytes,
        "classes of texts, byte by byte, such as IMDB's reviews",
        "FOLDER with train/CLASS/*.txt and test/CLASS/*.txt",
    ),
    "listops": TaskEntry(
        sequences.listops,
        "values of nested lists, word by word, as in the Long Range Arena",
        "FOLDER with NAME_train.tsv and NAME_test.tsv (Source, Target)",
    ),
    "pixels": TaskEntry(
        sequences.pixels,
        "classes of images, pixel by pixel in grey, as in the Long Range Arena",
        "FOLDER with train/CLASS/IMAGE, and val/CLASS/IMAGE or test/CLASS/IMAGE",
    ),
    "retrieval": TaskEntry(
        sequences.retrieval,
        "whether two texts belong together, byte by byte, as in the Long Range Arena",
        "FOLDER with NAME.train.tsv and NAME.test.tsv (0 or 1, two names, two texts)",
    ),
}


def find_task(name: str) -> TaskEntry:
    """Return the row of the table; UnknownName for other names."""
    if name not in TASKS:
        raise UnknownName("training task", name, TASKS)
    return TASKS[name]


def check_data(name: str, data: str | Path | None) -> Path | None:
    """Return ``data`` as an existing path if the task takes one and it is not embedded; InputError otherwise."""
    entry = find_task(name)
    if embedded_name(name, data) is not None:
        return None
    if data is None:
        if entry.needs_data:
            raise InputError(f"task {name} needs data (--data): {entry.takes}")
        return None
    if not entry.takes:
        takers = ", ".join(other for other, row in TASKS.items() if row.takes)
        raise InputError(
            f"task {name} has its own data; leave out {str(data)!r}, or take one of the tasks {takers}"
        )
    path = Path(data).expanduser()
    if not path.exists():
        raise InputError(f"there is no {path}; task {name} takes {entry.takes}")
    return path


def usual_recipe(name: str, data: str | Path | None = None) -> str:
    """Return the default recipe of a task: the one with its name, or that of its embedded data."""
    data_name = embedded_name(name, data)
    return name if data_name is None else EMBEDDED[data_name].recipe


def load_task(
    name: str,
    limit: int | None = None,
    *,
    data: str | Path | None = None,
    architecture: Mapping[str, Any] | None = None,
    images: Images | None = None,
    shuffled: bool = False,
    characters: str = "",
) -> Task:
    """Load a task by name.

    Args:
        name: a key of `TASKS`.
        limit: number of training examples kept; all by default.
        data: a folder or file, or "embedded:NAME"; the task's first embedded data by default.
        architecture: of a recipe, which sets the size of the data; by default of the recipe with the task's name.
        images: of a recipe, as ``architecture``.
        shuffled: shuffle the tokens of every sequence, the same way in every epoch: a control that keeps all but the
            order.
        characters: of the model that is fine-tuned, for tasks of characters and classes.

    Raises:
        UnknownName: an unknown task.
        InputError: a limit below 1, or missing, unexpected or unsuitable data.
    """
    entry, path = find_task(name), check_data(name, data)
    if limit is not None and limit < 1:
        raise InputError(f"limit: keep at least one training example, got {limit}")
    if architecture is None or images is None:
        recipe = usual_recipe(name, data)
        usual = load_recipe(recipe) if recipe in recipe_names() else None
        architecture = architecture or (usual.architecture if usual else {})
        images = images or (usual.images if usual else Images())
    request = DataRequest(limit, path, dict(architecture), images, characters)
    data_name = embedded_name(name, data)
    if data_name is None:
        task = entry.load(request)
    else:
        with written(data_name) as folder:
            task = entry.load(dataclasses.replace(request, data=folder))
            task = task if name == "text" else sequences.in_memory(task)
        task = dataclasses.replace(task, data=task.data | {"source": PREFIX + data_name, "seed": SEED})
    return sequences.shuffled(task) if shuffled else task
