"""Data sets that need no download, split the same way for training, for inputs and for evaluation."""

from __future__ import annotations

import hashlib
import importlib.util
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from workbench.core.errors import MissingResource, UnknownName

if TYPE_CHECKING:
    from jaxtyping import Float, Int, UInt8
    from torch import Tensor

DIGITS_SIZE = 16
# Mean and standard deviation of the training images after scaling to [0, 1] and resizing, to four digits.
DIGITS_MEAN = 0.3049
DIGITS_STD = 0.3187
_TEST_EVERY = 4


class Digits(NamedTuple):
    """One split of the digits."""

    images: Float[Tensor, "n 1 16 16"]
    """What a model receives: scaled to [0, 1], resized, normalised."""
    raw: UInt8[np.ndarray, "n 8 8"]
    """The images as scikit-learn holds them: grey levels 0 (paper) to 16 (ink)."""
    labels: Int[Tensor, " n"]
    """The digit drawn, 0 to 9."""
    ids: list[str]
    """``digits/SPLIT/NUMBER``, the number being the image's place in scikit-learn's set."""

    def first(self, n: int | None) -> Digits:
        """The first `n` images of the split; all of them for None."""
        return Digits(self.images[:n], self.raw[:n], self.labels[:n], self.ids[:n])

    def sha256(self) -> str:
        """Hash of the grey levels, labels and ids: the split's identity, whatever is done to it later."""
        digest = hashlib.sha256(np.ascontiguousarray(self.raw).tobytes())
        digest.update(self.labels.numpy().astype("<i8").tobytes())
        digest.update("\n".join(self.ids).encode())
        return digest.hexdigest()


def digits_split(split: str) -> Digits:
    """Scikit-learn's digits, ``"train"`` (1352 images) or ``"test"`` (445).

    Of each class, in the order of the set, every fourth image is a test image: the split is stratified and
    depends on no seed. The set is ordered by writer, so both splits hold images of the same people; accuracy
    on people never seen is lower. Raises UnknownName for any other split.
    """
    if split not in ("train", "test"):
        raise UnknownName("split of the digits", split, ["train", "test"])
    return _digits()[split]


def prepare_digits(raw: UInt8[np.ndarray, "n 8 8"]) -> Float[Tensor, "n 1 16 16"]:
    """Grey levels 0 to 16 → what the digits models receive: [0, 1], bilinear 8 → 16, normalised."""
    import torch
    import torch.nn.functional as F

    images = torch.from_numpy(np.asarray(raw, dtype=np.float32) / 16)[:, None]
    images = F.interpolate(images, size=DIGITS_SIZE, mode="bilinear", align_corners=False)
    return (images - DIGITS_MEAN) / DIGITS_STD


def _digits_file() -> Path:
    """The file that ``sklearn.datasets.load_digits`` reads; to import that package takes longer than all the rest."""
    spec = importlib.util.find_spec("sklearn")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(place) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            return path
    raise MissingResource("scikit-learn's digits are not on this machine; install scikit-learn again")


@cache
def _digits() -> dict[str, Digits]:
    import torch

    table = np.loadtxt(_digits_file(), delimiter=",")
    labels = table[:, -1].astype(np.int64)
    raw = table[:, :-1].reshape(-1, 8, 8).astype(np.uint8)
    is_test = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        is_test[np.flatnonzero(labels == digit)[_TEST_EVERY - 1 :: _TEST_EVERY]] = True
    splits = {}
    for split, chosen in (("train", np.flatnonzero(~is_test)), ("test", np.flatnonzero(is_test))):
        splits[split] = Digits(
            images=prepare_digits(raw[chosen]),
            raw=raw[chosen],
            labels=torch.from_numpy(labels[chosen]),
            ids=[f"digits/{split}/{number}" for number in chosen],
        )
    return splits
