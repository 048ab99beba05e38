"""Tasks with whole sequences to classify: time series, texts and pairs of them, lists of words, pixels.

They read a folder; the test set is the published one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from workbench.core.errors import InputError
from workbench.models.tokenizer import BYTES, SPECIAL, UNKNOWN
from workbench.studies.training.feeding import pad_pairs, pad_together
from workbench.studies.training.tasks.images import folder_identity, open_splits
from workbench.studies.training.tasks.task import WATCHED, DataRequest, Task, spread
from workbench.studies.training.tasks.ts_files import SeriesFile, read_ts
from workbench.studies.training.tasks.user_files import check_classes, file_pair, numbered_lines

_BRACKETS = "()"
"""Words of ListOps that are dropped: [MAX and ] suffice. The Long Range Arena's reader drops ] as well."""


class Sequences(Dataset):
    """Sequences of different lengths in their smallest types, and the numbers of their classes."""

    def __init__(self, sequences: Sequence[np.ndarray], targets: Sequence[int]) -> None:
        self.sequences, self.targets = sequences, targets

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return _tensor(self.sequences[index]), self.targets[index]

    def identity(self) -> dict[str, Any]:
        """Return the number, shortest and longest length, and a hash over values and classes in order."""
        digest = hashlib.sha256()
        for sequence, target in zip(self.sequences, self.targets, strict=True):
            digest.update(f"{target} {sequence.shape} {sequence.dtype.str}\n".encode())
            digest.update(np.ascontiguousarray(sequence).data)
        lengths = [len(sequence) for sequence in self.sequences]
        return {"n": len(self), "lengths": [min(lengths), max(lengths)], "sha256": digest.hexdigest()}


def _tensor(sequence: np.ndarray) -> Tensor:
    is_integer = np.issubdtype(sequence.dtype, np.integer)
    return torch.from_numpy(sequence.astype(np.int64 if is_integer else np.float32))


class Pairs(Sequences):
    """Two sequences per example: those at 2i and 2i + 1 belong to target i."""

    def __getitem__(self, index: int) -> tuple[Any, int]:
        pair = _tensor(self.sequences[2 * index]), _tensor(self.sequences[2 * index + 1])
        return pair, self.targets[index]

    def __len__(self) -> int:
        return len(self.targets)

    def identity(self) -> dict[str, Any]:
        """Return the identity of the sequences, each half with the pair's target."""
        halves = [target for target in self.targets for _ in range(2)]
        return Sequences(self.sequences, halves).identity() | {"n": len(self)}


class _Shuffled(Dataset):
    """The same examples with tokens in a fixed random order, different for each example."""

    def __init__(self, examples: Any, reorder: Callable[..., tuple[Any, Any]]) -> None:
        self.examples, self.reorder = examples, reorder

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.reorder(*self.examples[index], np.random.default_rng(index))


def reordered(sequence: Any, target: int, draw: np.random.Generator) -> tuple[Any, int]:
    """Shuffle the tokens of a sequence, or of each of several."""
    if isinstance(sequence, tuple):
        return tuple(part[draw.permutation(len(part))] for part in sequence), target
    return sequence[draw.permutation(len(sequence))], target


def shuffled(task: Task) -> Task:
    """Return a task with its tokens in random order; InputError for inputs without ordered tokens."""
    if task.reorder is None or task.collate is None:
        raise InputError(
            f"task {task.name} has no sequences to classify whose tokens could be shuffled; leave shuffled out"
        )
    sets = {split: _Shuffled(getattr(task, split), task.reorder) for split in ("train", "test")}
    return dataclasses.replace(
        task,
        **sets,
        watched=_watched(sets, task.collate),
        data=task.data | {"shuffled": True},
        acting=task.acting and partial(task.acting, shuffled=True),
    )


def in_memory(task: Task) -> Task:
    """Return a task that no longer needs its files."""
    sets, data = {}, dict(task.data)
    for split in ("train", "test"):
        part: Any = getattr(task, split)
        if hasattr(part, "in_memory"):
            part, data[split] = part.in_memory()
        elif task.collate is None:
            part = TensorDataset(*default_collate([part[number] for number in range(len(part))]))
        elif not isinstance(part, Sequences):
            examples = [part[number] for number in range(len(part))]
            small = [ids.numpy().astype(np.uint16) for ids, _ in examples]
            part = Sequences(small, [target for _, target in examples])
            data[split] = part.identity()
        sets[split] = part
    return dataclasses.replace(task, **sets, data=data, workers=0)


def _watched(sets: dict[str, Any], collate: Callable[..., Any]) -> dict[str, Any]:
    """Return a few examples of each split, without sequences of a single token."""
    batches = {}
    for split, items in sets.items():
        chosen = [items[number] for number in spread(len(items), WATCHED)]
        if longer := [example for example in chosen if _shortest(example[0]) > 1]:
            batches[split] = collate(longer)[0]
    return batches


def _shortest(sequence: Any) -> int:
    return min(map(len, sequence)) if isinstance(sequence, tuple) else len(sequence)


def sequence_task(
    name: str,
    argument: str,
    train: Any,
    test: Any,
    classes: tuple[str, ...],
    architecture: dict[str, Any],
    padded: Callable[..., Any] = pad_together,
    **rest: Any,
) -> Task:
    """Return a task of sequences that the model takes as ``argument``."""
    collate = partial(padded, name=argument)
    return Task(
        name=name,
        classes=classes,
        train=train,
        test=test,
        output=(len(classes),),
        architecture={**architecture, "num_classes": len(classes)},
        watched=_watched({"train": train, "test": test}, collate),
        collate=collate,
        reorder=reordered,
        **rest,
    )


# Time series ------------------------------------------------------------------------------------------------


def series(request: DataRequest) -> Task:
    """Read a problem of the UEA archive: NAME_TRAIN.ts and NAME_TEST.ts, channels standardised as in training."""
    paths = file_pair("series", request.data, "_TRAIN.ts", "_TEST.ts")
    train, test = (read_ts(path) for path in paths)
    check_classes(str(paths[1]), test.labels, set(train.labels))
    if train.channels != test.channels:
        raise InputError(
            f"{paths[1]}: series of {test.channels} channels, and those of {paths[0].name} have {train.channels}; "
            "take both files from the same problem"
        )
    context = request.number("context") if "context" in request.architecture else None
    for path, file in zip(paths, (train, test), strict=True):
        _check_lengths(path, file, context)
    numbers = spread(len(train.series), request.limit)
    raw = {
        "train": _chosen(train, numbers, train.classes),
        "test": _chosen(test, range(len(test.series)), train.classes),
    }
    mean, std = channel_statistics(raw["train"].sequences)
    sets: dict[str, Any] = {
        split: Sequences([standardised(values, mean, std) for values in part.sequences], part.targets)
        for split, part in raw.items()
    }
    return sequence_task(
        "series",
        "values",
        **sets,
        classes=train.classes,
        preprocessing={"mean": mean.tolist(), "std": std.tolist(), "missing": "mean"},
        data={"source": "series of a .ts file", **{split: part.identity() for split, part in raw.items()}},
        architecture={
            "channels": train.channels,
            "context": max(len(values) for file in (train, test) for values in file.series),
        },
    )


def _check_lengths(path: Path, file: SeriesFile, context: int | None) -> None:
    longest = max(len(values) for values in file.series)
    if context is not None and longest > context:
        raise InputError(
            f"{path}: a series of {longest} steps, and the recipe's context is {context}; leave context out of "
            f"[architecture], or set at least {longest}"
        )


def _chosen(file: SeriesFile, numbers: Sequence[int], classes: tuple[str, ...]) -> Sequences:
    return Sequences(
        [file.series[number] for number in numbers],
        [classes.index(file.labels[number]) for number in numbers],
    )


def channel_statistics(
    series: Sequence[Float[np.ndarray, "step channel"]],
) -> tuple[Float[np.ndarray, " channel"], Float[np.ndarray, " channel"]]:
    """Return mean and standard deviation of each channel over all present values.

    A channel without values has mean 0; a constant one has standard deviation 1, so that it becomes 0.
    """
    values = np.concatenate(series)
    count = np.maximum(np.isfinite(values).sum(0), 1)
    mean = np.nansum(values, 0) / count
    std = np.sqrt(np.nansum((values - mean) ** 2, 0) / count)
    return mean, np.where(std > 0, std, 1.0)


def standardised(
    series: Float[np.ndarray, "step channel"],
    mean: Float[np.ndarray, " channel"],
    std: Float[np.ndarray, " channel"],
) -> Float[np.ndarray, "step channel"]:
    """Return (series − mean)/std in float32, with 0 (the mean) for missing values."""
    return np.nan_to_num((series - mean) / std, nan=0.0).astype(np.float32)


# Bytes ------------------------------------------------------------------------------------------------------


def text_bytes(request: DataRequest) -> Task:
    """Read texts in train/CLASS/*.txt and test/CLASS/*.txt as bytes, cut at the recipe's context."""
    root, context = request.data, request.number("context")
    if root is None or not (root / "train").is_dir() or not (root / "test").is_dir():
        inside = ", ".join(sorted(path.name for path in root.iterdir())[:6]) if root and root.is_dir() else ""
        raise InputError(
            f"{root} holds {inside or 'no folders'}; task bytes takes a folder with train/CLASS/*.txt and "
            "test/CLASS/*.txt, such as aclImdb/"
        )
    files = {split: text_files(root / split) for split in ("train", "test")}
    classes = tuple(sorted({path.parent.name for path in files["train"]}))
    check_classes(str(root / "test"), [path.parent.name for path in files["test"]], set(classes))
    files["train"] = [files["train"][number] for number in spread(len(files["train"]), request.limit)]
    sets: dict[str, Any] = {}
    data: dict[str, Any] = {"source": "texts in a folder"}
    for split, paths in files.items():
        texts = [content_of(path) for path in paths]
        ids = [_byte_ids(text, context) for text in texts]
        sets[split] = Sequences(ids, [classes.index(path.parent.name) for path in paths])
        cut = sum(len(text) > context for text in texts)
        data[split] = sets[split].identity() | {"cut": cut}
    return sequence_task(
        "bytes",
        "input_ids",
        **sets,
        classes=classes,
        preprocessing={"tokens": "bytes", "context": context},
        data=data,
        architecture={"vocabulary": len(SPECIAL) + BYTES},
    )


def _byte_ids(text: bytes, context: int) -> np.ndarray:
    return np.frombuffer(text[:context], np.uint8).astype(np.uint16) + len(SPECIAL)


def text_files(folder: Path) -> list[Path]:
    """List the texts in the class folders of a split, without ``unsup``, IMDB's unlabelled texts."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and path.name != "unsup")
    for path in classes:
        if not any(path.glob("*.txt")):
            raise InputError(f"{path} holds no .txt file; a class folder holds its texts, or is removed")
    if not classes:
        raise InputError(f"{folder} holds no class folders; texts lie in {folder.name}/CLASS/*.txt")
    return [file for path in classes for file in sorted(path.glob("*.txt"))]


def content_of(path: Path) -> bytes:
    """Return the bytes of a non-empty file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    if not content:
        raise InputError(f"{path} is empty; remove it, or copy it again")
    return content


# Pairs of texts ---------------------------------------------------------------------------------------------


def retrieval(request: DataRequest) -> Task:
    """Read NAME.train.tsv and NAME.test.tsv without a header: 0 or 1, two names and two texts, as bytes."""
    context = request.number("context")
    paths = file_pair("retrieval", request.data, ".train.tsv", ".test.tsv")
    sets: dict[str, Any] = {}
    data: dict[str, Any] = {"source": "pairs of a .tsv file"}
    for split, path in zip(("train", "test"), paths, strict=True):
        rows = list(_pairs(path))
        chosen = [rows[number] for number in spread(len(rows), request.limit if split == "train" else None)]
        texts = [text for _, *both in chosen for text in both]
        sets[split] = Pairs([_byte_ids(text, context) for text in texts], [label for label, *_ in chosen])
        data[split] = sets[split].identity() | {"cut": sum(len(text) > context for text in texts)}
    return sequence_task(
        "retrieval",
        "input_ids",
        **sets,
        classes=("0", "1"),
        preprocessing={"tokens": "bytes", "context": context},
        data=data,
        architecture={"vocabulary": len(SPECIAL) + BYTES, "pairs": True},
        padded=pad_pairs,
    )


def _pairs(path: Path) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield label and texts of every row; quotes around cells in the arena's files stay part of the text."""
    row = 0
    for row, line in numbered_lines(path):
        cells = line.split("\t")
        if len(cells) != 5:
            raise InputError(
                f"{path}, line {row}: {len(cells)} columns; a row is 0 or 1, two names, two texts, tabs between"
            )
        label = cells[0].strip('" ')
        if label not in ("0", "1", "0.0", "1.0"):
            raise InputError(f"{path}, line {row}: class {label[:40]!r}; a row begins with 0 or 1")
        if not (cells[3] and cells[4]):
            raise InputError(f"{path}, line {row}: a text is empty; remove the line")
        yield int(label[0]), cells[3].encode(), cells[4].encode()
    if not row:
        raise InputError(f"{path} has no rows; copy it again")


# Lists of words ---------------------------------------------------------------------------------------------


def listops(request: DataRequest) -> Task:
    """Read NAME_train.tsv and NAME_test.tsv with the columns Source and Target, words separated by blanks."""
    context = request.number("context")
    paths = dict(
        zip(("train", "test"), file_pair("listops", request.data, "_train.tsv", "_test.tsv"), strict=True)
    )
    vocabulary: dict[str, int] = {}
    listed: dict[str, tuple[list[np.ndarray], list[str]]] = {}
    for split, path in paths.items():
        sequences, labels = [], []
        for number, words, label in _rows(path):
            if len(words) > context:
                raise InputError(
                    f"{path}, line {number}: a sequence of {len(words)} words, and the recipe's context is {context}; "
                    f"set at least {len(words)} in your recipe"
                )
            if split == "train":
                for word in words:
                    vocabulary.setdefault(word, len(SPECIAL) + len(vocabulary))
            unknown = SPECIAL.index(UNKNOWN)
            ids = np.array([vocabulary.get(word, unknown) for word in words])
            sequences.append(ids.astype(np.min_scalar_type(int(ids.max()))))
            labels.append(label)
        listed[split] = sequences, labels
    classes = tuple(sorted(set(listed["train"][1]), key=lambda label: (len(label), label)))
    check_classes(str(paths["test"]), listed["test"][1], set(classes))
    sets: dict[str, Any] = {}
    for split, (sequences, labels) in listed.items():
        numbers = spread(len(sequences), request.limit if split == "train" else None)
        sets[split] = Sequences(
            [sequences[number] for number in numbers], [classes.index(labels[number]) for number in numbers]
        )
    return sequence_task(
        "listops",
        "input_ids",
        **sets,
        classes=classes,
        preprocessing={
            "tokens": "words",
            "words": list(vocabulary),
            "dropped": _BRACKETS,
            "context": context,
        },
        data={"source": "lists of a .tsv file", **{split: part.identity() for split, part in sets.items()}},
        architecture={"vocabulary": len(SPECIAL) + len(vocabulary)},
    )


def _rows(path: Path) -> Iterator[tuple[int, list[str], str]]:
    """Yield line number, words and class of every row."""
    lines = numbered_lines(path)
    header = next(lines, (0, ""))[1].split("\t")
    if "Source" not in header or "Target" not in header:
        raise InputError(
            f"{path} begins with {header[:4]}; a file of lists begins with a line Source<TAB>Target"
        )
    source, target = header.index("Source"), header.index("Target")
    blank = str.maketrans(dict.fromkeys(_BRACKETS, " "))
    row = 0
    for row, line in lines:
        cells = line.split("\t")
        if len(cells) != len(header):
            raise InputError(f"{path}, line {row}: {len(cells)} columns, and the header has {len(header)}")
        words = cells[source].translate(blank).split()
        if not words:
            raise InputError(f"{path}, line {row}: the sequence is empty; remove the line")
        yield row, words, cells[target].strip()
    if not row:
        raise InputError(f"{path} has a header and no rows; copy it again")


# Pixels -----------------------------------------------------------------------------------------------------


def pixels(request: DataRequest) -> Task:
    """Read images in train/CLASS/ and val/ or test/ as grey levels in reading order, one token each."""
    context = request.number("context")
    side = math.isqrt(context)
    if side**2 != context:
        raise InputError(
            f"recipe: the context of task pixels is that of a square image; got {context}, next is {side**2}"
        )
    grey = partial(_grey_levels, side=side)
    train, test = open_splits("pixels", request.data, grey, grey)
    seen: Any = Subset(train, spread(len(train), request.limit))
    return sequence_task(
        "pixels",
        "input_ids",
        seen,
        test,
        classes=tuple(train.classes),
        preprocessing={"tokens": "pixels", "resize": side, "interpolation": "bilinear"},
        data={
            "source": "images in a folder",
            "train": folder_identity(train, seen.indices),
            "test": folder_identity(test, range(len(test))),
        },
        architecture={"vocabulary": len(SPECIAL) + BYTES},
        workers=request.images.workers,
    )


def _grey_levels(image: Image.Image, side: int) -> Tensor:
    small = image.convert("L").resize((side, side), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.asarray(small).astype(np.int64)).flatten() + len(SPECIAL)
