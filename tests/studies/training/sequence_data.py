"""Folders of sequences as users have them, small enough to be written by a test."""

from __future__ import annotations

from pathlib import Path

import numpy as np

HEADER = "@problemName Made\n@timeStamps false\n@univariate false\n@classLabel true down up\n@data\n"


def series_folder(root: Path, train: int = 24, test: int = 12, channels: int = 3) -> Path:
    """Noisy series of 5 to 9 steps: the first channel goes down in the first half, up in the others."""
    rng = np.random.default_rng(0)
    root.mkdir(parents=True, exist_ok=True)
    for split, count in (("TRAIN", train), ("TEST", test)):
        lines = []
        for number in range(count):
            up, steps = 2 * number // count, 5 + number % 5
            values = rng.normal(size=(channels, steps))
            values[0] += (2 * up - 1) * np.linspace(-3, 3, steps) + 100
            cells = [",".join(f"{value:.4f}" for value in channel) for channel in values]
            lines.append(":".join([*cells, ("down", "up")[up]]))
        (root / f"Made_{split}.ts").write_text(HEADER + "\n".join(lines) + "\n")
    return root


def text_folder(root: Path) -> Path:
    """Two classes of three and two texts, and a folder of texts without a class."""
    for split, count in (("train", 3), ("test", 2)):
        for label, word in (("neg", "bad"), ("pos", "gut ß")):
            place = root / split / label
            place.mkdir(parents=True)
            for number in range(count):
                (place / f"{number}_7.txt").write_text(f"{word} {number} " * (number + 1), encoding="utf-8")
    (root / "train" / "unsup").mkdir()
    (root / "train" / "unsup" / "0_0.txt").write_text("no class")
    return root


def list_folder(root: Path) -> Path:
    """Lists as the Long Range Arena publishes them."""
    root.mkdir(parents=True, exist_ok=True)
    rows = {
        "train": ["( ( ( [MAX 3 ) 10 ) ] )\t10", "( ( ( [MIN 3 ) 10 ) ] )\t3", "( ( [MAX 3 ) ] )\t3"],
        "val": ["nothing reads this"],
        "test": ["( ( ( [MED 3 ) 10 ) ] )\t10", "3\t3", "( ( [MED 10 ) ] )\t10"],
    }
    for split, lines in rows.items():
        (root / f"basic_{split}.tsv").write_text("\n".join(["Source\tTarget", *lines]) + "\n")
    return root
