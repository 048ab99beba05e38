"""Tasks of next-character prediction on texts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from workbench.core import paths
from workbench.core.errors import InputError, MissingResource
from workbench.data.pools import WIKITEXT, WIKITEXT_REVISION
from workbench.models import hub
from workbench.models.tokenizer import SPECIAL, UNKNOWN, characters_of
from workbench.studies.training.objectives import LANGUAGE
from workbench.studies.training.tasks.task import WATCHED, DataRequest, Task, spread

HELD_OUT = ("05-letters", "11-expeditions-and-towns", "17-cities-bridges-markets-night")
"""Files of the bundled prose in its test set: every sixth, from the fifth."""
_TEXT_SHARE = 10
"""The last 1/TEXT_SHARE of a text file is held out."""
_WIKITEXT_PARTS = {
    "train": [f"wikitext-103-raw-v1/train-{part:05d}-of-00002.parquet" for part in range(2)],
    "test": [WIKITEXT[1]],
}


class Windows(Dataset):
    """Adjacent stretches of ``context`` tokens of a text, each with the tokens that follow.

    With ``moving`` each read starts up to ``context`` tokens later, drawn from torch's generator, so that every epoch
    has different stretches.
    """

    def __init__(self, ids: Tensor, context: int, moving: bool = False) -> None:
        self.ids, self.context, self.moving = ids, context, moving
        self.starts = list(range(0, len(ids) - context, context))

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = self.starts[index]
        if self.moving:
            room = min(self.context, len(self.ids) - self.context - start)
            start += int(torch.randint(room, ())) if room > 1 else 0
        piece = self.ids[start : start + self.context + 1]
        return piece[:-1], piece[1:]

    def plain(self, numbers: Sequence[int]) -> Tensor:
        """Return the inputs of some windows without random shifts."""
        return torch.stack(
            [self.ids[self.starts[number] : self.starts[number] + self.context] for number in numbers]
        )


def prose(request: DataRequest) -> Task:
    """Read the bundled prose; three of its eighteen files are the test set."""
    folder = paths.data_dir() / "prose"
    files = sorted(folder.glob("*.txt"))
    if not files:
        raise MissingResource(f"the bundled prose is not in {folder}; install the package again")
    parts = {
        split: "".join(
            file.read_text(encoding="utf-8") for file in files if (file.stem in HELD_OUT) == (split == "test")
        )
        for split in ("train", "test")
    }
    return _task("prose", parts, request, {"source": "bundled:prose", "held_out": list(HELD_OUT)})


def text(request: DataRequest) -> Task:
    """Read a UTF-8 text file, or the .txt files of a folder by name; the last tenth is held out."""
    path = request.data
    files = [] if path is None else sorted(path.glob("*.txt")) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path} holds no text; task text takes a file of UTF-8 text, or a folder of *.txt")
    content = "\n".join(map(_read, files))
    cut = len(content) - len(content) // _TEXT_SHARE
    parts = {"train": content[:cut], "test": content[cut:]}
    return _task("text", parts, request, {"source": "a text file", "held_out": f"the last 1/{_TEXT_SHARE}"})


def wikitext(request: DataRequest) -> Task:
    """Read WikiText-103 (raw) from a folder with ``wiki.train.*`` and ``wiki.test.*``, or the hub's copy."""
    parts = {split: _wikitext_part(split, request.data) for split in ("train", "test")}
    return _task("wikitext-103", parts, request, {"source": "wikitext-103", "held_out": "its test split"})


def _task(name: str, parts: dict[str, str], request: DataRequest, source: dict[str, Any]) -> Task:
    context = request.number("context")
    characters = characters_of([parts["train"]])
    numbers = {character: number for number, character in enumerate(characters, len(SPECIAL))}
    unknown = SPECIAL.index(UNKNOWN)
    windows, data = {}, dict(source)
    for split, content in parts.items():
        ids = torch.tensor([numbers.get(character, unknown) for character in content])
        split_windows = Windows(ids, context, moving=split == "train")
        if not len(split_windows):
            raise InputError(
                f"task {name}: its {split} text has {len(content)} characters, and one example takes "
                f"{context + 1} (context {context}); give more text, or a recipe with a shorter context"
            )
        if split == "train":
            split_windows.starts = [
                split_windows.starts[number] for number in spread(len(split_windows), request.limit)
            ]
        windows[split] = split_windows
        digest = hashlib.sha256(content.encode()).hexdigest()
        data[split] = {"n": len(split_windows), "characters": len(content), "sha256": digest}
    vocabulary = len(SPECIAL) + len(characters)
    return Task(
        name=name,
        classes=(),
        **windows,
        preprocessing={"characters": characters, "context": context},
        data=data,
        output=(context, vocabulary),
        objective=LANGUAGE,
        architecture={"vocabulary": vocabulary},
        watched={
            split: split_windows.plain(spread(len(split_windows), WATCHED))
            for split, split_windows in windows.items()
        },
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"byte {error.start} is {error.object[error.start]:#04x}"
        raise InputError(f"{path} is not UTF-8 text: {problem}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def _wikitext_part(split: str, folder: Path | None) -> str:
    if folder is not None:
        files = sorted(folder.glob(f"wiki.{split}.*")) if folder.is_dir() else []
        if not files:
            raise InputError(
                f"{folder} holds no wiki.{split}.raw or wiki.{split}.tokens: give the folder of WikiText-103 "
                "as it is unpacked"
            )
        return _read(files[0])
    import pandas as pd
    from huggingface_hub import hf_hub_download

    repo, names = WIKITEXT[0], _WIKITEXT_PARTS[split]
    cached_paths = [_cached(repo, name) for name in names]
    if None in cached_paths:
        problem = hub.obstacle()
        if problem is not None:
            raise hub.missing(
                f"the {split} split of wikitext-103", repo, problem, kind="dataset", random_weights=False
            )
        cached_paths = [
            hf_hub_download(repo, name, repo_type="dataset", revision=WIKITEXT_REVISION) for name in names
        ]
    return "".join(line for path in cached_paths if path for line in pd.read_parquet(path)["text"])


def _cached(repo: str, name: str) -> str | None:
    pinned = hub.cached_file(repo, [name], "dataset", WIKITEXT_REVISION)
    return pinned or hub.cached_file(repo, [name], "dataset")
