"""Tasks by name: what ``workbench study train`` can be asked to train on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.core.errors import InputError, UnknownName
from workbench.studies.training.recipes import Images, load_recipe, recipe_names
from workbench.studies.training.tasks import images, offline, passages, segmentation, sequences, texts
from workbench.studies.training.tasks.base import Asked, Task
from workbench.studies.training.tasks.embedded import EMBEDDED, PREFIX, SEED, embedded_name, written

__all__ = ["TASKS", "Task", "TaskEntry", "check_data", "find_task", "load_task", "usual_recipe"]


@dataclass(frozen=True)
class TaskEntry:
    """One row of the table: how to load a task, and what kind of --data it takes, if any."""

    load: Callable[[Asked], Task]
    title: str
    takes: str = ""
    """What ``data`` names, in words; empty: the data come with the package, and none can be given."""
    needs_data: bool = False


TASKS: dict[str, TaskEntry] = {
    "digits": TaskEntry(images.digits, "scikit-learn's handwritten digits, ten classes"),
    "photos": TaskEntry(images.photos, "32×32 cuts of the bundled photographs: which photograph is it from"),
    "images": TaskEntry(
        images.folder,
        "classes of images in a folder",
        "FOLDER with train/CLASS/IMAGE, and val/ or test/ likewise",
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
        "FOLDER with train/CLASS/IMAGE, and val/ or test/ likewise",
    ),
    "retrieval": TaskEntry(
        sequences.retrieval,
        "whether two texts belong together, byte by byte, as in the Long Range Arena",
        "FOLDER with NAME.train.tsv and NAME.test.tsv (0 or 1, two names, two texts)",
    ),
}


def find_task(name: str) -> TaskEntry:
    """The row of the table; UnknownName otherwise."""
    if name not in TASKS:
        raise UnknownName("training task", name, TASKS)
    return TASKS[name]


def check_data(name: str, data: str | Path | None) -> Path | None:
    """``data`` as a path that is there, if the task takes one and it is not embedded; InputError otherwise."""
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
    """The recipe of a task where none is named: that with its name, or of the embedded data that it takes."""
    made = embedded_name(name, data)
    return name if made is None else EMBEDDED[made].recipe


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
    """A task by name; ``limit`` keeps only that many training examples, for trying things out.

    ``data`` is a folder or file, or "embedded:NAME" for data that are made here; a task that has such takes its first
    unless ``data`` says otherwise. ``architecture`` and ``images`` are those of a recipe, which cut the data to its
    size: unless given, those of the recipe with the task's name. With ``shuffled`` the tokens of every sequence stand
    in an order drawn at random, the same in every epoch: a control that keeps everything but the order. ``characters``
    are those of a model that is fine-tuned, for tasks of characters and classes.

    Raises UnknownName for a task that does not exist, InputError for a limit below 1 and for data that are
    not there, not asked for or not what the task takes.
    """
    entry, path = find_task(name), check_data(name, data)
    if limit is not None and limit < 1:
        raise InputError(f"limit: keep at least one training example, got {limit}")
    if architecture is None or images is None:
        recipe = usual_recipe(name, data)
        usual = load_recipe(recipe) if recipe in recipe_names() else None
        architecture = architecture or (usual.architecture if usual else {})
        images = images or (usual.images if usual else Images())
    asked = Asked(limit, path, dict(architecture), images, characters)
    made = embedded_name(name, data)
    if made is None:
        task = entry.load(asked)
    else:
        with written(made) as folder:
            task = entry.load(dataclasses.replace(asked, data=folder))
            task = task if name == "text" else sequences.in_memory(task)
        task = dataclasses.replace(task, data=task.data | {"source": PREFIX + made, "seed": SEED})
    return sequences.shuffled(task) if shuffled else task
