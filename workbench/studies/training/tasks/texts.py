"""Tasks whose inputs are texts, character by character: foretell the next one."""

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
from workbench.studies.training.tasks.base import WATCHED, Asked, Task, spread

HELD_OUT = ("05-letters", "11-expeditions-and-towns", "17-cities-bridges-markets-night")
"""Files of the bundled prose that are its test set: every sixth, from the fifth."""
TEXT_SHARE = 10
"""Of a text file, the last 1/TEXT_SHARE is held out."""
_WIKITEXT_PARTS = {
    "train": [f"wikitext-103-raw-v1/train-{part:05d}-of-00002.parquet" for part in range(2)],
    "test": [WIKITEXT[1]],
}


class Windows(Dataset):
    """A text as stretches of ``context`` tokens, each with the tokens that follow.

    They lie end to end. With ``moving`` each begins at a random place up to ``context`` tokens later, drawn
    from torch's generator whenever it is read, so that a model sees other stretches in every epoch.
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
        """The inputs of some windows, where they lie."""
        return torch.stack(
            [self.ids[self.starts[number] : self.starts[number] + self.context] for number in numbers]
        )


def prose(asked: Asked) -> Task:
    """The bundled prose; three of its eighteen files are the test set."""
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
    return _task("prose", parts, asked, {"source": "bundled:prose", "held_out": list(HELD_OUT)})


def text(asked: Asked) -> Task:
    """A text file in UTF-8, or the .txt files of a folder by name; the last tenth is held out."""
    path = asked.data
    files = [] if path is None else sorted(path.glob("*.txt")) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path} holds no text; task text takes a file of UTF-8 text, or a folder of *.txt")
    content = "\n".join(map(_read, files))
    cut = len(content) - len(content) // TEXT_SHARE
    parts = {"train": content[:cut], "test": content[cut:]}
    return _task("text", parts, asked, {"source": "a text file", "held_out": f"the last 1/{TEXT_SHARE}"})


def wikitext(asked: Asked) -> Task:
    """WikiText-103 (raw): from a folder with ``wiki.train.*`` and ``wiki.test.*``, or the hub's copy."""
    parts = {split: _wikitext_part(split, asked.data) for split in ("train", "test")}
    return _task("wikitext-103", parts, asked, {"source": "wikitext-103", "held_out": "its test split"})


def _task(name: str, parts: dict[str, str], asked: Asked, source: dict[str, Any]) -> Task:
    context = asked.number("context")
    characters = characters_of([parts["train"]])
    numbers = {character: number for number, character in enumerate(characters, len(SPECIAL))}
    unknown = SPECIAL.index(UNKNOWN)
    windows, data = {}, dict(source)
    for split, content in parts.items():
        ids = torch.tensor([numbers.get(character, unknown) for character in content])
        made = Windows(ids, context, moving=split == "train")
        if not len(made):
            raise InputError(
                f"task {name}: its {split} text has {len(content)} characters, and one example takes "
                f"{context + 1} (context {context}); give more text, or a recipe with a shorter context"
            )
        if split == "train":
            made.starts = [made.starts[number] for number in spread(len(made), asked.limit)]
        windows[split] = made
        digest = hashlib.sha256(content.encode()).hexdigest()
        data[split] = {"n": len(made), "characters": len(content), "sha256": digest}
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
        watched={split: made.plain(spread(len(made), WATCHED)) for split, made in windows.items()},
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"byte {error.start} is {error.object[error.start]:#04x}"
        raise InputError(f"{path} is not UTF-8 text: {found}") from error
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
    places = [_cached(repo, name) for name in names]
    if None in places:
        problem = hub.obstacle()
        if problem is not None:
            raise hub.missing(
                f"the {split} split of wikitext-103", repo, problem, kind="dataset", random_weights=False
            )
        places = [
            hf_hub_download(repo, name, repo_type="dataset", revision=WIKITEXT_REVISION) for name in names
        ]
    return "".join(line for place in places if place for line in pd.read_parquet(place)["text"])


def _cached(repo: str, name: str) -> str | None:
    pinned = hub.cached_file(repo, [name], "dataset", WIKITEXT_REVISION)
    return pinned or hub.cached_file(repo, [name], "dataset")
