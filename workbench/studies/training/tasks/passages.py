"""The task of classifying passages by characters, for fine-tuning a language model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workbench.core.errors import InputError
from workbench.models.tokenizer import SPECIAL, UNKNOWN, characters_of
from workbench.studies.training.tasks.sequences import Sequences, content_of, sequence_task, text_files
from workbench.studies.training.tasks.task import DataRequest, Task, spread
from workbench.studies.training.tasks.user_files import check_classes, numbered_lines

TABLES = {"train": "train.tsv", "test": "dev.tsv"}
"""File names as in GLUE's SST-2, whose published test set has no labels: columns sentence and label."""


def passages(request: DataRequest) -> Task:
    """Read a folder with train/CLASS/*.txt and test/CLASS/*.txt (IMDB), or with train.tsv and dev.tsv (SST-2, SST-5).

    Characters are those of the initial model, otherwise of the training texts; a passage is cut at the recipe's
    context.
    """
    root, context = request.data, request.number("context")
    if root is None or not root.is_dir():
        raise InputError(
            f"{root} is no folder; task passages takes a folder with train/CLASS/*.txt or train.tsv"
        )
    examples = {split: _labelled(root, split) for split in ("train", "test")}
    classes = tuple(sorted({label for label, _ in examples["train"]}))
    check_classes(str(root), [label for label, _ in examples["test"]], set(classes))
    examples["train"] = [
        examples["train"][number] for number in spread(len(examples["train"]), request.limit)
    ]
    characters = request.characters or characters_of(text for _, text in examples["train"])
    sets: dict[str, Any] = {}
    data: dict[str, Any] = {"source": "passages in a folder"}
    for split, labelled in examples.items():
        ids = [encoded(text, characters, context) for _, text in labelled]
        sets[split] = Sequences(ids, [classes.index(label) for label, _ in labelled])
        data[split] = sets[split].identity() | {"cut": sum(len(text) > context for _, text in labelled)}
    return sequence_task(
        "passages",
        "input_ids",
        **sets,
        classes=classes,
        preprocessing={"characters": characters, "context": context},
        data=data,
        architecture={"vocabulary": len(SPECIAL) + len(characters)},
    )


def encoded(text: str, characters: str, context: int) -> np.ndarray:
    """Return the numbers of the first ``context`` characters."""
    numbers = {character: number for number, character in enumerate(characters, len(SPECIAL))}
    unknown = SPECIAL.index(UNKNOWN)
    return np.array([numbers.get(character, unknown) for character in text[:context]], dtype=np.uint16)


def decoded(ids: Sequence[int], characters: str) -> str:
    """Return the characters of token ids; an unknown one is "?"."""
    return "".join(characters[number - len(SPECIAL)] if number >= len(SPECIAL) else "?" for number in ids)


def _labelled(root: Path, split: str) -> list[tuple[str, str]]:
    """Return class and text of every passage of a split."""
    if (root / split).is_dir():
        return [
            (path.parent.name, content_of(path).decode("utf-8", "replace"))
            for path in text_files(root / split)
        ]
    path = root / TABLES[split]
    if not path.is_file():
        inside = ", ".join(sorted(path.name for path in root.iterdir())[:6]) or "nothing"
        raise InputError(
            f"{root} holds {inside}; task passages takes a folder with train/CLASS/*.txt and test/CLASS/*.txt, or with "
            "train.tsv and dev.tsv (sentence, label)"
        )
    lines = numbered_lines(path)
    header = next(lines, (0, ""))[1].split("\t")
    if "sentence" not in header or "label" not in header:
        raise InputError(
            f"{path} begins with {header[:4]}; its columns are sentence and label, a tab between"
        )
    rows = []
    for number, line in lines:
        cells = line.split("\t")
        if len(cells) != len(header) or not cells[header.index("sentence")].strip():
            raise InputError(
                f"{path}, line {number}: {cells[:3]}; a row has {', '.join(header)}, and a sentence"
            )
        rows.append((cells[header.index("label")].strip(), cells[header.index("sentence")].strip()))
    if not rows:
        raise InputError(f"{path} has a header and no rows; copy it again")
    return rows
