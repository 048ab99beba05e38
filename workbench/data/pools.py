"""Pools of raw inputs: images and texts, bundled or from the user, each with a stable id.

The digits are split once, the same way for training, for inputs and for evaluation.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from workbench.core import paths
from workbench.core.errors import InputError, MissingResource, UnknownName
from workbench.core.extras import require
from workbench.core.options import conforming, parsed
from workbench.models import hub

if TYPE_CHECKING:
    from jaxtyping import Float, Int, UInt8
    from torch import Tensor

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_PROTOCOL_LENGTH = 30  # characters; the protocol of saritas2025 takes lines longer than this
DIGITS_SIZE = 16
# Mean and standard deviation of the training images after scaling to [0, 1] and resizing, to four digits.
DIGITS_MEAN = 0.3049
DIGITS_STD = 0.3187
_TEST_EVERY = 4
WIKITEXT = ("Salesforce/wikitext", "wikitext-103-raw-v1/test-00000-of-00001.parquet")
WIKITEXT_REVISION = "b08601e04326c79dfdd32d625aee71d232d685c3"

# Photographs that travel inside the wheels of scikit-image and scikit-learn: taken by a camera, a telescope
# or a microscope, brick, grass and gravel among them. Left out: drawings and test charts (chessboard, color,
# horse, logo, phantom), scans of print (page, text), the second half of the stereo pair (motorcycle_right),
# and a detail of retina (microaneurysms). scikit-image's further images would have to be downloaded.
_PHOTOS = {
    "skimage": (
        "data",
        (
            "astronaut.png", "brick.png", "camera.png", "cell.png", "chelsea.png", "clock_motion.png",
            "coffee.png", "coins.png", "grass.png", "gravel.png", "hubble_deep_field.jpg", "ihc.png",
            "moon.png", "motorcycle_left.png", "retina.jpg", "rocket.jpg",
        ),
    ),
    "sklearn": ("datasets/images", ("china.jpg", "flower.jpg")),
}  # fmt: skip


class Unreadable(Exception):
    """One image cannot be read; it is skipped and named."""


@dataclass
class Sample:
    """One raw input: a text, or an image of (height, width) or (height, width, 3).

    Images are uint8, or float32 in [0, 1] where eight bits would round (the digits have 17 grey levels).
    """

    id: str
    content: str | np.ndarray
    target: int | None = None
    caption: str | None = None
    """Text from the file of the same name."""
    others: tuple[np.ndarray, ...] = ()
    """Further images of the same input."""

    def digest(self) -> bytes:
        """Return the sha256 over id and content."""
        if isinstance(self.content, str):
            raw = self.content.encode()
        else:
            raw = b"".join(
                f"{image.dtype.str} {image.shape}\n".encode() + np.ascontiguousarray(image).tobytes()
                for image in (self.content, *self.others)
            )
        text = b"" if self.caption is None else b"\0" + self.caption.encode()
        return hashlib.sha256(self.id.encode() + b"\0" + raw + text).digest()


@dataclass
class Pool:
    """All inputs of a source: ids in a fixed order, and a function that reads one by its position."""

    modality: str
    ids: Sequence[str]
    read: Callable[[int], Sample]
    where: str
    """In words, for messages."""
    classes: tuple[str, ...] | None = None
    """Names of the class folders, in the order that targets number them."""
    listed: bool = False
    """Whether the inputs were listed: by default all of them are taken, in their order."""

    def __len__(self) -> int:
        return len(self.ids)


def open_pool(spec: str) -> Pool:
    """Open the pool that an input spec names.

    Raises UnknownName for an unknown spec, InputError for a folder or file without usable content, and
    MissingResource for a data set that is neither cached nor available.
    """
    if not isinstance(spec, str) or not spec.strip():
        value = repr(spec) if isinstance(spec, str) else f"a {type(spec).__name__}"
        raise InputError(
            f"inputs are named by a text such as 'bundled:photos', or are a list of images or texts; got {value}"
        )
    spec = spec.strip()
    if spec == "wikitext-103":
        return _wikitext()
    scheme, _, name = spec.partition(":")
    if scheme == "bundled":
        if name not in BUNDLED:
            raise UnknownName("bundled inputs", name, BUNDLED)
        return BUNDLED[name]()
    if scheme not in _USER_POOLS:
        if Path(spec).expanduser().exists():
            raise InputError(
                f"{spec} exists; say what it holds: images:{spec}, imagenet:{spec} or text:{spec}"
            )
        raise UnknownName(
            "inputs", spec, INPUT_SPECS, f"a text goes into a list: [{spec!r}]" if " " in spec else ""
        )
    if not name:
        raise InputError(f"{spec!r} names nothing to read; write {scheme}:PATH")
    if scheme in ("text", "images") and name.startswith("["):
        return _listed_pool(scheme, _names_in(spec, name))
    return _USER_POOLS[scheme](Path(name).expanduser())


def _names_in(spec: str, listed: str) -> list[str]:
    """Read the list of a spec such as ``text:["a prompt", "another"]``."""
    try:
        return conforming(list[str], parsed(listed))
    except ValueError as error:
        raise InputError(
            f'{spec}: a list is written as in JSON, text:["a prompt", "another"] ({error})'
        ) from error


def listed_inputs(items: Sequence[Any], modality: str | None = None) -> tuple[str, Pool]:
    """Return the spec and the pool of listed inputs: texts, or images as paths, arrays or PIL images.

    A model of both takes images, or pairs of an image, or a list of images, and its text. Without a ``modality`` texts
    that end like a file of an image are paths. The spec names all inputs (``text:["a prompt"]``), unless an image has
    no path.

    Raises `InputError` for an empty list and for items of another kind.
    """
    items = [*items]
    if not items:
        raise InputError("the list of inputs is empty; give at least one text or image")
    if all(isinstance(item, str | Path) for item in items):
        paths_given = [str(item).lower().endswith(IMAGE_SUFFIXES) or isinstance(item, Path) for item in items]
        texts = modality == "text" or (modality is None and not all(paths_given))
        scheme, names = "text" if texts else "images", [str(item) for item in items]
        return f"{scheme}:{json.dumps(names, ensure_ascii=False)}", _listed_pool(scheme, names)
    if modality == "text":
        kind = next(type(item).__name__ for item in items if not isinstance(item, str))
        raise InputError(f"a list of texts holds strings; got one {kind}")
    return "images", _listed_pool("images", items)


def _listed_pool(scheme: str, items: Sequence[Any]) -> Pool:
    if not items:
        raise InputError(f"{scheme}:[] lists no inputs; give at least one")
    if scheme == "text":
        for number, text in enumerate(items, 1):
            if not text.strip():
                raise InputError(f"text {number} of {len(items)} is empty; leave it out")
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise InputError(f"text {number} of {len(items)} is not valid Unicode; give whole characters")
        samples = [Sample(f"text:{number}", text) for number, text in enumerate(items, 1)]
        return Pool("text", [sample.id for sample in samples], samples.__getitem__, "the list", listed=True)
    pairs = [item if isinstance(item, tuple) and len(item) == 2 else (item, None) for item in items]
    every = [image if isinstance(image, list) and image else [image] for image, _ in pairs]
    names = [Path(first) if isinstance(first, str | Path) else None for first, *_ in every]
    short = [printable(name.name) if name else f"image:{number}" for number, name in enumerate(names, 1)]
    if len({*short}) < len(short):
        short = [
            printable(str(name)) if name else file_name for name, file_name in zip(names, short, strict=True)
        ]

    def read(i: int) -> Sample:
        (_, caption), name, images = pairs[i], names[i], every[i]
        first, *others = (
            read_image(Path(image).expanduser())
            if isinstance(image, str | Path)
            else _given_image(image, short[i])
            for image in images
        )
        if name is not None and caption is None:
            caption = _caption(name.expanduser())
        return Sample(short[i], first, caption=caption, others=tuple(others))

    return Pool("image", short, read, "the list", listed=True)


def _given_image(image: Any, name: str) -> np.ndarray:
    """Return an array or PIL image as the pixels of a `Sample`."""
    if isinstance(image, Image.Image):
        try:
            return _pixels(image)
        except Unreadable as error:
            raise InputError(f"{name}: {error}") from error
    if not isinstance(image, np.ndarray):
        raise InputError(
            f"{name} is a {type(image).__name__}; an image is a path, a PIL image or an array (height, width[, 3])"
        )
    if image.ndim == 3 and image.shape[2] == 1:
        image = image[:, :, 0]
    if image.ndim == 3 and image.shape[2] == 4:
        image = image[:, :, :3]
    if image.size == 0 or image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] != 3):
        raise InputError(
            f"{name} has the shape {image.shape}; an image is (height, width) or (height, width, 3)"
            + "; transpose(1, 2, 0) puts the channels last"
            * (image.ndim == 3 and image.shape[0] in (1, 3, 4))
        )
    if image.dtype == np.uint8:
        return image
    if image.dtype.kind != "f" or not (image.min() >= 0 and image.max() <= 1):
        raise InputError(
            f"{name} holds {image.dtype} from {image.min()} to {image.max()}; pixels are uint8, or floats from 0 to 1"
        )
    return image.astype(np.float32)


def printable(name: str) -> str:
    """Return a file's name with bytes that are not UTF-8 written as ``\\xe9``."""
    return name.encode("utf-8", "backslashreplace").decode().replace("\\udc", "\\x")


# Bundled ----------------------------------------------------------------------------------------------------


class Digits(NamedTuple):
    """One split of the digits."""

    images: Float[Tensor, "n 1 16 16"]
    """The model's inputs: scaled to [0, 1], resized, normalised."""
    raw: UInt8[np.ndarray, "n 8 8"]
    """The images as scikit-learn holds them: grey levels 0 (paper) to 16 (ink)."""
    labels: Int[Tensor, " n"]
    """The digit drawn, 0 to 9."""
    ids: list[str]
    """``digits/SPLIT/NUMBER``, where the number is the image's position in scikit-learn's set."""

    def first(self, n: int | None) -> Digits:
        """Return the first `n` images of the split; all of them for None."""
        return Digits(self.images[:n], self.raw[:n], self.labels[:n], self.ids[:n])

    def sha256(self) -> str:
        """Return the hash of the grey levels, labels and ids, which identifies the split."""
        digest = hashlib.sha256(np.ascontiguousarray(self.raw).tobytes())
        digest.update(self.labels.numpy().astype("<i8").tobytes())
        digest.update("\n".join(self.ids).encode())
        return digest.hexdigest()


def digits_split(split: str) -> Digits:
    """Return scikit-learn's digits, ``"train"`` (1352 images) or ``"test"`` (445).

    Of each class, in the order of the set, every fourth image is a test image: the split is stratified and
    depends on no seed. The set is ordered by writer, so both splits hold images of the same people; accuracy
    on people never seen is lower. Raises UnknownName for any other split.
    """
    if split not in ("train", "test"):
        raise UnknownName("split of the digits", split, ["train", "test"])
    return _splits()[split]


def prepare_digits(raw: UInt8[np.ndarray, "n 8 8"]) -> Float[Tensor, "n 1 16 16"]:
    """Prepare grey levels 0 to 16 for the digits models: scale to [0, 1], resize 8 → 16 (bilinear), normalise."""
    import torch
    import torch.nn.functional as F

    images = torch.from_numpy(np.asarray(raw, dtype=np.float32) / 16)[:, None]
    images = F.interpolate(images, size=DIGITS_SIZE, mode="bilinear", align_corners=False)
    return (images - DIGITS_MEAN) / DIGITS_STD


def _package_files(package: str, names: Iterable[str]) -> list[Path]:
    """Find the files that an installed package has, without importing it, which would be slow."""
    spec = importlib.util.find_spec(package)
    files = [
        Path(folder) / name
        for folder in (spec.submodule_search_locations or () if spec else ())
        for name in names
    ]
    return [file for file in files if file.is_file()]


@cache
def _splits() -> dict[str, Digits]:
    import torch

    files = _package_files("sklearn", ["datasets/data/digits.csv.gz"])
    if not files:
        raise MissingResource("scikit-learn's digits are not on this machine; install scikit-learn again")
    table = np.loadtxt(files[0], delimiter=",")
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


def _digits(split: str = "test") -> Pool:
    digits = digits_split(split)

    def read(i: int) -> Sample:
        return Sample(digits.ids[i], digits.raw[i].astype(np.float32) / 16, int(digits.labels[i]))

    return Pool("image", digits.ids, read, f"the {split} split of the bundled digits")


def photo_files() -> dict[str, Path]:
    """Return name → file of the photographs on this machine; nothing is downloaded."""
    require("the set of photographs", "skimage")  # two of eighteen would be other inputs under the same name
    files = {
        file.stem: file
        for package, (folder, names) in _PHOTOS.items()
        for file in _package_files(package, [f"{folder}/{name}" for name in names])
    }
    return dict(sorted(files.items()))


def _photos() -> Pool:
    files = photo_files()
    if not files:
        raise MissingResource(
            "no photographs in the installed scikit-image and scikit-learn; install them again"
        )
    names, places = list(files), list(files.values())
    ids = [f"photos/{name}" for name in names]
    return Pool(
        "image",
        ids,
        lambda i: Sample(ids[i], read_image(places[i])),
        "scikit-image's and scikit-learn's photographs",
    )


def _prose() -> Pool:
    folder = paths.data_dir() / "prose"
    files = sorted(folder.glob("*.txt"))
    if not files:
        raise MissingResource(f"the bundled prose is not in {folder}; install the package again")
    lines = [(f"prose/{file.stem}", file) for file in files]
    samples = [sample for prefix, file in lines for sample in _read_lines(file, prefix)]
    return _text_pool(
        [sample for sample in samples if _in_protocol(str(sample.content))], "the bundled prose"
    )


def _in_protocol(text: str) -> bool:
    """Whether the protocol of saritas2025 takes a line: long enough, and no heading (``= Title =``)."""
    return len(text) > _PROTOCOL_LENGTH and not re.fullmatch(r"=.*=", text)


# From the user ----------------------------------------------------------------------------------------------


def _image_folder(path: Path) -> Pool:
    if path.is_file():
        folder, names = path.parent, [path.name]
    elif path.is_dir():
        folder, names = path, _image_files(path)
    else:
        raise InputError(f"there is no folder {path}")
    if not names:
        nested = any(_image_files(inner) for inner in path.iterdir() if inner.is_dir())
        hint = (
            f"; its subfolders have some: imagenet:{path} reads a folder of class folders" if nested else ""
        )
        raise InputError(f"no images in {path}: files ending in {', '.join(IMAGE_SUFFIXES)} are read{hint}")
    ids = [*map(printable, names)]
    return Pool(
        "image",
        ids,
        lambda i: Sample(ids[i], read_image(folder / names[i]), caption=_caption(folder / names[i])),
        printable(str(path)),
    )


def _imagenet(path: Path) -> Pool:
    if not path.is_dir():
        raise InputError(f"there is no folder {path}")
    root = path / "val" if (path / "val").is_dir() else path
    classes = sorted(folder for folder in root.iterdir() if folder.is_dir())
    files = [(target, name) for target, folder in enumerate(classes) for name in _image_files(folder)]
    if not files:
        raise InputError(
            f"no images in class folders of {root} ({len(classes)} subfolders): expected FOLDER/CLASS/IMAGE, "
            f"images ending in {', '.join(IMAGE_SUFFIXES)}; for a folder of images use images:{path}"
        )
    labels = [printable(folder.name) for folder in classes]
    ids = [f"{labels[target]}/{printable(name)}" for target, name in files]

    def read(i: int) -> Sample:
        target, name = files[i]
        return Sample(ids[i], read_image(classes[target] / name), target)

    return Pool("image", ids, read, f"{len(classes)} class folders of {printable(str(root))}", tuple(labels))


def _text_file(path: Path) -> Pool:
    if path.is_dir():
        inside = sorted(file.name for file in path.glob("*.txt"))
        raise InputError(
            f"{path} is a folder; name one file" + (f": {', '.join(inside[:5])}" if inside else "")
        )
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    samples = _read_lines(path, printable(path.name))
    if not samples:
        raise InputError(f"{printable(str(path))} has no text; each line that is not blank is one input")
    return _text_pool(samples, printable(str(path)))


def _wikitext() -> Pool:
    import pandas as pd
    from huggingface_hub import hf_hub_download

    repo, name = WIKITEXT
    path = hub.cached_file(repo, [name], "dataset", WIKITEXT_REVISION) or hub.cached_file(
        repo, [name], "dataset"
    )
    if path is None:
        problem = hub.obstacle()
        if problem is not None:
            raise hub.missing(
                "wikitext-103", f"{repo} ({name})", problem, kind="dataset", random_weights=False
            )
        path = hf_hub_download(repo, name, repo_type="dataset", revision=WIKITEXT_REVISION)
    lines = pd.read_parquet(path)["text"]
    # Headings are kept where they are long enough, as in the published protocol.
    samples = [
        Sample(f"wikitext-103/test/{i}", line.strip())
        for i, line in enumerate(lines)
        if len(line) > _PROTOCOL_LENGTH
    ]
    return _text_pool(samples, "the test split of WikiText-103")


BUNDLED: dict[str, Callable[[], Pool]] = {
    "digits": _digits,
    "digits-train": lambda: _digits("train"),
    "photos": _photos,
    "prose": _prose,
}
DEFAULT_INPUTS = {"image": "bundled:digits", "text": "bundled:prose", "image-text": "bundled:photos"}
"""Default inputs by modality; a model of photographs gets photographs."""


def uploads_folder() -> Path:
    """Return the folder of inputs given to the explorer, each in a subfolder named by the hash of its content."""
    return paths.cache_dir() / "explorer"


def _upload(name: Path) -> Pool:
    """Open an input that was given to the explorer; its name holds no path of this machine."""
    key = str(name)
    if not re.fullmatch(r"[0-9a-f]{16}", key):
        raise InputError(
            f"an upload is named by 16 digits of the hash of its content, as upload:0123456789abcdef; got {key!r}"
        )
    folder = uploads_folder() / key
    files = sorted(file for file in folder.glob("[!.]*")) if folder.is_dir() else []
    if not files:
        raise MissingResource(
            f"the input upload:{key} is not on this machine; give the same file, or the same text, to the explorer "
            "here: its content gives it the same name"
        )
    return (_text_file if files[0].suffix == ".txt" else _image_folder)(files[0])


_USER_POOLS: dict[str, Callable[[Path], Pool]] = {
    "images": _image_folder,
    "imagenet": _imagenet,
    "text": _text_file,
    "upload": _upload,
}
INPUT_SPECS = (
    *(f"bundled:{name}" for name in BUNDLED),
    "images:FOLDER",
    "imagenet:FOLDER",
    "text:FILE",
    "upload:HASH",
    "wikitext-103",
)


# Reading ----------------------------------------------------------------------------------------------------


def read_image(path: Path) -> np.ndarray:
    """Read an image as uint8, (height, width) if grey, else (height, width, 3); upright, first frame.

    Transparent parts are white.

    Raises Unreadable if it is damaged, cut short, or of no known format, and if the range of its pixels is unknown.
    """
    try:
        with Image.open(path) as opened:
            return _pixels(opened)
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        reason = str(error).replace(str(path), path.name).replace(repr(str(path)), path.name)
        raise Unreadable(reason or type(error).__name__) from error


def _pixels(opened: Image.Image) -> np.ndarray:
    image = ImageOps.exif_transpose(opened)
    if image.mode.startswith("I"):  # PIL would clip 16 bits to 255, and has signed ones as 32
        values = np.asarray(image)
        low, high = int(values.min()), int(values.max())
        if low < 0 or high > 0xFFFF:
            raise Unreadable(
                f"it holds whole numbers from {low} to {high}, and pixels of 16 bits are 0 to 65535"
            )
        return (values.astype(np.uint16) >> 8).astype(np.uint8)
    if image.mode == "F":
        raise Unreadable("it holds floating-point pixels, whose range is not known")
    grey = image.mode in ("L", "LA", "1")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return np.asarray(image.convert("L" if grey else "RGB"))


def _caption(image: Path) -> str | None:
    """Read the text of an image from the file of the same name."""
    path = image.with_suffix(".txt")
    try:
        return path.read_text(encoding="utf-8").strip() or None if path.is_file() else None
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(f"the text beside it, {path.name}, cannot be read: {error}") from error


def _image_files(folder: Path) -> list[str]:
    """List the files with an image's suffix; the listing separates files from folders without a call for each."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if _is_image(entry))


def _is_image(entry: os.DirEntry[str]) -> bool:
    suffix = os.path.splitext(entry.name)[1].lower()
    if suffix not in IMAGE_SUFFIXES or entry.name.startswith("."):
        return False
    try:
        return entry.is_file()
    except OSError:  # a link that leads to itself: whoever reads it names it
        return True


def _read_lines(path: Path, prefix: str) -> list[Sample]:
    """Return a sample per line that is not blank, named by its number as ``grep -n`` counts."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = file.read().split("\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}"
        ) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    texts = ((number, line.strip()) for number, line in enumerate(lines, 1))
    return [Sample(f"{prefix}:{number}", text) for number, text in texts if text]


def _text_pool(samples: list[Sample], where: str) -> Pool:
    return Pool("text", [sample.id for sample in samples], samples.__getitem__, where)
