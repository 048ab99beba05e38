"""``inputs(spec, model)``: images or texts as a batch the model accepts, with labels for its tokens."""

from __future__ import annotations

import hashlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor, nn

from workbench.captures.labelled_tokens import TokenInfo
from workbench.captures.token_labels import other_streams, readable_token, token_info, with_images
from workbench.core.errors import InputError, UnknownName
from workbench.core.notebook_html import card, fold, shape, shortened, table, thumbnail
from workbench.data.pools import Pool, Sample, Unreadable, listed_inputs, open_pool, printable

if TYPE_CHECKING:
    from workbench.models.loading import LoadedModel
    from workbench.models.source import ImageFormat

_DEFAULT_N = 25
ALL = "all"
"""As ``n``: every input there is."""
DEFAULT_MAX_LENGTH = 128  # tokens; the protocol of saritas2025
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
QUESTION = "What does this picture show?"
"""Text of an image without a caption."""
SHOWN = 8  # images or texts, where inputs show themselves in a notebook
_ORDERS = ("random", "file")
"""Order of the inputs of a source: drawn with the seed, or as they lie there."""
PREPROCESSING = ("model", "saritas2025")
"""Preprocessing of images: that of the model, or that of saritas2025 for all models."""


class NoImages(InputError):
    """Texts, where something is done to images."""


@dataclass(repr=False)
class Inputs:
    """Chosen inputs, ready for one model; slices and ``batches`` are Inputs too."""

    spec: str
    n: int
    seed: int
    preprocessing: str
    ids: list[str]
    """One stable name per input: ``digits/test/17``, ``photos/astronaut``, ``prose/01-natural-history:3``."""
    batch: Tensor | dict[str, Tensor]
    """The model's inputs, on its device, in its floating type; texts are padded to the longest of the set."""
    tokens: TokenInfo
    images: list[UInt8[np.ndarray, "height width 3"]] | None = None
    """The images as people see them: the model's size and crop, without the normalisation."""
    others: list[list[UInt8[np.ndarray, "height width 3"]]] = field(default_factory=list)
    """Further images of each input, in the same way; empty where every input has one."""
    texts: list[str] | None = None
    targets: list[int] | None = None
    """Class per image, where the source has classes."""
    classes: tuple[str, ...] | None = None
    """Names of the class folders, numbered by ``targets``; `class_indices` finds a model's outputs."""
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """(id, reason) of images that could not be read."""
    notes: list[str] = field(default_factory=list)
    """Notes for the reader: how many texts were cut, how many images skipped."""
    cut: tuple[int, int] | None = None
    """Of texts: how many were cut, and at how many tokens."""
    lengths: list[int] = field(default_factory=list)
    """Number of tokens of each text before it is cut."""
    windows: list[int] = field(default_factory=list)
    """Window of each text, from 0: consecutive parts of at most ``cut[1]`` tokens."""
    digests: list[bytes] = field(default_factory=list)
    normalization: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """Mean and standard deviation per channel that images were normalised by."""
    order: str = "random"
    rows: dict[str, list[int]] = field(default_factory=dict)
    """Number of rows per input, for tensors whose rows are not inputs, such as the patches of all images."""

    @property
    def sha256(self) -> str:
        """Hash over ids and raw contents in order; it does not depend on the model or the preprocessing."""
        return hashlib.sha256(b"".join(self.digests)).hexdigest()

    @property
    def identity(self) -> dict[str, Any]:
        """Record of the inputs for provenance."""
        return (
            {
                "spec": self.spec,
                "n": self.n,
                "seed": self.seed,
                "preprocessing": self.preprocessing,
                "sha256": self.sha256,
            }
            | ({} if self.order == "random" else {"order": self.order})
            | self._window
        )

    @property
    def _window(self) -> dict[str, int]:
        return {"window": max(self.windows)} if any(self.windows) else {}

    @property
    def _chosen(self) -> str:
        return f"seed {self.seed}" if self.order == "random" else "in their order"

    def __repr__(self) -> str:
        what = "texts" if self.images is None else "images" if self.texts is None else "images with texts"
        notes = f"; {'; '.join(self.notes)}" if self.notes else ""
        return f"<Inputs {self.spec}: {len(self)} {what}, {self._chosen}, {self.tokens.summary}{notes}>"

    def _repr_html_(self) -> str:
        tensors = self.batch if isinstance(self.batch, Mapping) else {"batch": self.batch}
        facts = {
            "chosen": f"{len(self)}, {self._chosen}",
            "tokens": self.tokens.summary,
            "preprocessing": self.preprocessing if self.texts is None else None,
            **{name: f"{shape(tensor)} on {tensor.device}" for name, tensor in tensors.items()},
            "notes": "; ".join(self.notes),
        }
        samples = zip(self.ids[:SHOWN], (self.images or self.texts or [])[:SHOWN], strict=False)
        if self.images is not None:
            parts = [thumbnail(image, name) for name, image in samples]
        else:
            parts = [table((), [(name, shortened(str(text))) for name, text in samples])]
        return card(
            f"Inputs {self.spec}", facts, *parts, fold("names", table((), zip(self.ids, strict=True)))
        )

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, chosen: slice) -> Inputs:
        if not isinstance(chosen, slice):
            raise InputError(
                f"inputs are cut with slices, got {chosen!r}; write inputs[{chosen}:{chosen} + 1] for one"
            )
        if isinstance(self.batch, Mapping):
            batch: Any = {name: self._cut(name, tensor, chosen) for name, tensor in self.batch.items()}
        else:
            batch = self.batch[chosen]
        ids, lengths, cut = self.ids[chosen], self.lengths[chosen], self.cut
        if cut is not None:
            cut = _count_longer(lengths, cut[1]), cut[1]
        before = _cut_notes(self.cut, len(self))
        return replace(
            self,
            n=len(ids),
            ids=ids,
            batch=batch,
            lengths=lengths,
            windows=self.windows[chosen],
            cut=cut,
            notes=[note for note in self.notes if note not in before] + _cut_notes(cut, len(ids)),
            tokens=self.tokens[chosen],
            images=None if self.images is None else self.images[chosen],
            others=self.others[chosen],
            texts=None if self.texts is None else self.texts[chosen],
            targets=None if self.targets is None else self.targets[chosen],
            digests=self.digests[chosen],
            rows={name: counts[chosen] for name, counts in self.rows.items()},
        )

    def _cut(self, name: str, tensor: Tensor, chosen: slice) -> Tensor:
        """Select the rows of the chosen inputs."""
        if name not in self.rows:
            return tensor[chosen]
        parts = tensor.split(self.rows[name])[chosen]
        return torch.cat(parts) if parts else tensor[:0]

    def perturbed(
        self, change: Callable[[str, Float[np.ndarray, "height width channel"]], np.ndarray]
    ) -> Inputs:
        """Apply ``change(id, image)`` to every image; it takes and returns values from 0 to 1.

        Raises NoImages for texts.
        """
        if self.normalization is None:
            raise NoImages(f"{self.spec}: texts have no pixels that could be changed; give images")
        mean, std = (_per_channel(values) for values in self.normalization)
        tensor = next(iter(self.batch.values())) if isinstance(self.batch, Mapping) else self.batch
        plain = (tensor.cpu().float() * std + mean).clamp(0, 1).permute(0, 2, 3, 1).numpy()
        changed = np.stack([change(name, image) for name, image in zip(self.ids, plain, strict=True)])
        prepared = (torch.from_numpy(changed).permute(0, 3, 1, 2) - mean) / std
        batch: Any = prepared.to(device=tensor.device, dtype=tensor.dtype)
        if isinstance(self.batch, Mapping):
            batch = {**self.batch, next(iter(self.batch)): batch}
        return replace(self, batch=batch, images=_for_people(prepared, *self.normalization))

    def batches(self, size: int) -> Iterator[Inputs]:
        """Yield consecutive Inputs of at most `size` inputs each."""
        if not isinstance(size, int) or size < 1:
            raise InputError(f"a batch holds at least one input, got batch size {size!r}")
        for start in range(0, len(self), size):
            yield self[start : start + size]


def inputs(
    spec: str | list[Any] | tuple[Any, ...],
    model: LoadedModel,
    n: int | str | None = None,
    seed: int = 0,
    preprocessing: str = "model",
    max_length: int | None = None,
    order: str | None = None,
    window: int = 0,
) -> Inputs:
    """Make texts or images a batch for `model`: those of a list, or `n` of a source, drawn at random.

        model = workbench.load("bundled:prose-lm")
        batch = workbench.inputs(["a prompt", "another"], model)

    A list holds texts, or images as paths, arrays (height, width[, 3]) or PIL images; a model of both takes images, or
    pairs of an image, or a list of images, and its text. All of them are taken in their order.

    A source is ``bundled:digits`` (test split), ``bundled:digits-train``, ``bundled:photos``,
    ``bundled:prose``, ``images:FOLDER``, ``imagenet:FOLDER`` (class folders, or a folder with them in
    ``val``), ``text:FILE`` (each line that is not blank), ``upload:HASH`` (a file
    given to the explorer), ``wikitext-103`` (raw, test split, lines of more than 30 characters), or a list in JSON:
    ``text:["a prompt", "another"]``, ``images:["cat.png"]``. The same `seed` gives the same inputs, and the first ten
    of 25 are the ten that n = 10 gives. `n` is 25 by default, or fewer where the source has fewer;
    "all" takes all. `order` is ``"random"``, or ``"file"``: the first `n` as they lie there (the default of a list).

    Images, ``preprocessing="model"``: the model's own resizing, crop and normalisation. ``"saritas2025"`` (the
    protocol of that paper): resized straight to the model's input size (bilinear, antialiased) and normalised
    by ImageNet's mean and standard deviation, whatever the model was trained with. A model trained with
    ``workbench train`` gets its recorded preprocessing in both. Grey images become three equal channels, and colours
    grey, as the model needs.

    A model of images with texts (CLIP, LLaVA) gets an image with the text in the file of the same name
    (``cat.txt`` for ``cat.png``), or else with a question, through its own processor. The decoder of an
    encoder–decoder (T5, BART) gets the same text as its encoder, shifted right after its start token.

    Texts are cut at `max_length` tokens, special ones included: by default 128, or the model's limit where
    that is less; how many were cut is in ``notes``. `window` 1 takes the next `max_length` tokens, and so on;
    a text with fewer windows gives its last one. ``windows`` lists the window of each text.

    Raises InputError if more is asked than there is (`n`, `window`) or than the model takes (`max_length`), for
    images given to a text model and the reverse, for an empty folder, and if no image can be read; single
    unreadable images are skipped, with a warning, and listed in ``skipped``.
    """
    if preprocessing not in PREPROCESSING:
        raise UnknownName("preprocessing", str(preprocessing), PREPROCESSING)
    _check_integer("seed", seed, 0)
    _check_integer("window", window, 0)
    if isinstance(spec, list | tuple):
        spec, pool = listed_inputs(spec, getattr(model, "modality", None))
    else:
        pool = open_pool(spec)
    _check_modality(spec, pool, model)
    order = _order_of(pool, order)
    samples, skipped = _choose(pool, n, int(seed), order)
    chosen_inputs = _prepared(spec, model, samples, int(seed), preprocessing, max_length, window)
    chosen_inputs.order = order
    chosen_inputs.classes = pool.classes
    if skipped:
        chosen_inputs.skipped = skipped
        chosen_inputs.notes.insert(0, skipped_note(skipped))
        warnings.warn(f"{spec}: {chosen_inputs.notes[0]}", stacklevel=2)
    return chosen_inputs


def _prepared(
    spec: str,
    model: LoadedModel,
    samples: list[Sample],
    seed: int,
    preprocessing: str,
    max_length: int | None = None,
    window: int = 0,
) -> Inputs:
    """Prepare samples as a batch for the model."""
    prepared = Inputs(
        spec=printable(spec.strip()),
        n=len(samples),
        seed=seed,
        preprocessing=preprocessing,
        ids=[sample.id for sample in samples],
        batch={},
        tokens=TokenInfo([], [], None, torch.zeros(0, 0, dtype=torch.bool)),
        digests=[sample.digest() for sample in samples],
    )
    if window and model.modality != "text":
        raise InputError(f"window {window} was asked for; only a model of texts takes windows")
    targets = [sample.target for sample in samples if sample.target is not None]
    prepared.targets = targets if len(targets) == len(samples) else None
    if model.modality != "image-text" and any(sample.others for sample in samples):
        raise InputError(
            f"{model.spec} takes one image per input; several, as a list, are for a model of images with texts"
        )
    if model.modality == "image":
        _add_images(prepared, model, [np.asarray(sample.content) for sample in samples])
    elif model.modality == "image-text":
        _add_pairs(prepared, model, samples)
    else:
        _add_texts(prepared, model, [str(sample.content) for sample in samples], max_length, window)
    return prepared


def skipped_note(skipped: Sequence[Sequence[str]]) -> str:
    """Count and name the images that could not be read, from pairs of id and reason."""
    named = "; ".join(f"{name}: {reason}" for name, reason in skipped[:5])
    more = f"; and {len(skipped) - 5} more" if len(skipped) > 5 else ""
    return f"unreadable images skipped: {len(skipped)} ({named}{more})"


class ListedInputs:
    """Inputs by their positions in a pool, read and prepared a batch at a time, in little memory for any number.

    Batches are cut at multiples of ``batch`` from the first position on, and a text is padded to the longest of its
    batch. So the result of an input depends only on the list and its position there. Images that cannot be read
    are left out of their batch, and named in ``skipped``; ``digests`` grow while batches are read.

    Raises `InputError` for images given to a text model and the reverse.
    """

    def __init__(
        self, spec: str, pool: Pool, model: LoadedModel, places: Sequence[int], batch: int, *,
        seed: int = 0, preprocessing: str = "model",
    ) -> None:  # fmt: skip
        _check_modality(spec, pool, model)
        self.spec, self.pool, self.model = spec, pool, model
        self.places, self.batch = places, batch
        self.seed, self.preprocessing = seed, preprocessing
        self.skipped: list[tuple[str, str]] = []
        self.digests: list[bytes] = []
        self.cut: tuple[int, int] | None = None
        """Of texts: how many were cut, and at how many tokens."""
        self.notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.places)

    @property
    def identity(self) -> dict[str, Any]:
        """Record of the inputs for provenance, with the hash of the inputs read so far."""
        digest = hashlib.sha256(b"".join(self.digests)).hexdigest()
        return {
            "spec": self.spec,
            "n": len(self.digests),
            "seed": self.seed,
            "preprocessing": self.preprocessing,
            "sha256": digest,
        }

    def batches(self, size: int) -> Iterator[Inputs]:
        """Yield batches in order; a smaller ``size`` cuts each into pieces that keep the padding of the batch."""
        for start in range(0, len(self.places), self.batch):
            samples = []
            for position in self.places[start : start + self.batch]:
                try:
                    samples.append(self.pool.read(position))
                except Unreadable as error:
                    self.skipped.append((self.pool.ids[position], str(error)))
            if not samples:
                continue
            shard = _prepared(self.spec, self.model, samples, self.seed, self.preprocessing)
            self.digests += shard.digests
            if shard.cut is not None:
                self.cut = shard.cut[0] + (self.cut[0] if self.cut else 0), shard.cut[1]
            yield from shard.batches(min(size, self.batch))


def _check_modality(spec: str, pool: Pool, model: LoadedModel) -> None:
    """Raise `InputError` unless the model takes the modality of the pool."""
    if not hasattr(model, "modality"):
        raise InputError(
            f"inputs are made for a model from workbench.load, not for a {type(model).__name__}; wrap your module "
            "(workbench.wrap(module, like=SPEC)), or give workbench.capture your batch"
        )
    if model.modality not in ("image", "text", "image-text"):
        raise InputError(
            f"{model.spec} ({model.family}) takes neither images nor texts, nor both together; give workbench.capture "
            "a dict of tensors"
        )
    check_takes(model.spec, model.modality, spec, pool)


def check_takes(model: str, modality: str, spec: str, pool: Pool) -> None:
    """Raise `InputError` unless a model of this modality takes the inputs of the pool."""
    if pool.modality != modality.removesuffix("-text"):
        takes, gives = ("texts", "images") if modality == "text" else ("images", "texts")
        offer = "bundled:prose, text:FILE" if modality == "text" else "bundled:photos, images:FOLDER"
        raise InputError(f"{model} takes {takes}, and {spec} gives {gives}; try {offer}")


def _check_integer(name: str, value: Any, least: int) -> None:
    if name == "n" and (value is None or value == ALL):
        return
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{name} is a whole number from {least} up, got {value!r}")


def chosen_count(n: int | str | None, there: int, where: str, default: int = _DEFAULT_N) -> int:
    """Return the number of inputs that ``n`` requests of ``there``: 25 by default, or all where there are fewer.

    Raises `InputError` where there are fewer than requested.
    """
    _check_integer("n", n, 1)
    if n is None or n == ALL:
        return there if n else min(default, there)
    if int(n) > there:
        raise InputError(
            f"n={n}: the number of inputs in {where} is {there}; give n of at most {there}, or {ALL!r} (in a render: "
            f"-p n {there})"
        )
    return int(n)


def pool_count(n: int | str | None, pool: Pool) -> int:
    """Return the number of inputs that ``n`` requests of a pool; by default all of a list."""
    return chosen_count(n, len(pool), pool.where, len(pool) if pool.listed else _DEFAULT_N)


def _order_of(pool: Pool, order: str | None) -> str:
    """Return the order of a pool's inputs; raise UnknownName for an unknown order."""
    if order is not None and order not in _ORDERS:
        raise UnknownName("order", str(order), _ORDERS)
    return order or ("file" if pool.listed else "random")


def pool_positions(pool: Pool, seed: int, order: str | None = None) -> list[int]:
    """Return the positions of all inputs of a pool in their order; n inputs are the first n."""
    if _order_of(pool, order) == "file":
        return [*range(len(pool))]
    return np.random.default_rng(seed).permutation(len(pool)).tolist()


def _choose(
    pool: Pool, n: int | str | None, seed: int, order: str
) -> tuple[list[Sample], list[tuple[str, str]]]:
    """Read the first `n` readable samples of an order; also return the skipped ones."""
    wanted = pool_count(n, pool)
    samples: list[Sample] = []
    skipped: list[tuple[str, str]] = []
    for position in pool_positions(pool, seed, order):
        if len(samples) == wanted:
            break
        try:
            samples.append(pool.read(position))
        except Unreadable as error:
            skipped.append((pool.ids[position], str(error)))
    if not samples:
        named = "; ".join(f"{name}: {reason}" for name, reason in skipped[:5])
        raise InputError(f"none of the {len(skipped)} images in {pool.where} can be read ({named})")
    return samples, skipped


# Images ---------------------------------------------------------------------------------------------------


def _add_images(target: Inputs, model: LoadedModel, images: list[np.ndarray]) -> None:
    expected = model.image
    if expected is None:
        raise InputError(f"{model.spec} states no size of images; give workbench.capture a batch of tensors")
    if expected.channels not in (1, 3):
        raise InputError(
            f"{model.spec} takes {expected.channels} channels; images have 1 (grey) or 3 (colour)"
        )
    if target.preprocessing == "model" and not expected.recorded:
        if expected.preprocess is None:
            raise InputError(
                f"{model.spec} states no preprocessing; save its image processor beside the weights, or "
                "take preprocessing='saritas2025', which resizes to the model's size and normalises as for ImageNet"
            )
        transform = expected.preprocess
        prepared = torch.stack([transform(_as_pillow(image, expected.channels)) for image in images])
        mean, std = expected.mean, expected.std
    else:
        plain = torch.stack([_resize(image, expected) for image in images])
        imagenet = expected.channels == 3 and not expected.recorded
        mean, std = (IMAGENET_MEAN, IMAGENET_STD) if imagenet else (expected.mean, expected.std)
        prepared = (plain - _per_channel(mean)) / _per_channel(std)
    target.images = _for_people(prepared, mean, std)
    target.normalization = mean, std
    batch = prepared.to(device=model.device, dtype=model.dtype)
    # Models of transformers take their images by name.
    by_name = getattr(model.module, "main_input_name", None) == "pixel_values"
    target.batch = {"pixel_values": batch} if by_name else batch
    target.tokens = token_info(model, target.batch)


def _resize(image: np.ndarray, expected: ImageFormat) -> Float[Tensor, "channel height width"]:
    """Resize directly to the model's size, bilinear with antialiasing, values in [0, 1]."""
    from torchvision.transforms import functional as transforms

    height, width = expected.size
    if (
        image.dtype == np.uint8
    ):  # through Pillow, as the scripts of saritas2025 do it: eight bits again after resizing
        small = _as_pillow(image, expected.channels).resize((width, height), Image.Resampling.BILINEAR)
        return transforms.pil_to_tensor(small).float() * (1 / 255)
    tensor = torch.from_numpy(image)
    tensor = tensor[None] if tensor.ndim == 2 else tensor.permute(2, 0, 1)
    if tensor.shape[0] != expected.channels:
        tensor = tensor.mean(0, keepdim=True).expand(expected.channels, -1, -1)
    return transforms.resize(tensor, [height, width], antialias=True)


def _as_pillow(image: np.ndarray, channels: int) -> Image.Image:
    eight_bit = image if image.dtype == np.uint8 else np.round(image * 255).astype(np.uint8)
    return Image.fromarray(eight_bit).convert("RGB" if channels == 3 else "L")


def _for_people(
    prepared: Float[Tensor, "n channel height width"], mean: tuple[float, ...], std: tuple[float, ...]
) -> list[UInt8[np.ndarray, "height width 3"]]:
    plain = prepared * _per_channel(std) + _per_channel(mean)
    eight_bit = (plain.clamp(0, 1) * 255).round().to(torch.uint8)
    return list(eight_bit.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).contiguous().numpy())


def _per_channel(values: tuple[float, ...]) -> Float[Tensor, "channel 1 1"]:
    return torch.tensor(values).view(-1, 1, 1)


# Images with texts ------------------------------------------------------------------------------------------


def _add_pairs(target: Inputs, model: LoadedModel, samples: list[Sample]) -> None:
    """Add images with texts, through the model's own processor; without a caption the text is a question."""
    if target.preprocessing != "model":
        raise InputError(f"{model.spec} takes images with texts, which only its own processor prepares")
    processor = model.processor
    images = [
        [_as_pillow(np.asarray(image), 3) for image in (sample.content, *sample.others)] for sample in samples
    ]
    flat_images, counts = [image for row in images for image in row], [len(row) for row in images]
    target.texts = [sample.caption or QUESTION for sample in samples]
    towers = not hasattr(processor, "image_token")
    if towers and len(flat_images) > len(samples):
        raise InputError(f"{model.spec} compares an image with a text: it takes one image per input")
    texts = target.texts
    if not towers:
        texts = [_with_image_token(processor, *each) for each in zip(texts, counts, strict=True)]
    limit = {"truncation": True, "max_length": _text_limit(model)} if towers and _text_limit(model) else {}
    try:
        prepared = flat_images if towers else images
        encoded = processor(text=texts, images=prepared, padding=True, return_tensors="pt", **limit)
    except (ValueError, TypeError, IndexError, KeyError, ImportError, RuntimeError) as error:
        raise InputError(
            f"{model.spec}: its processor does not take an image with a text: {error}"
        ) from error
    accepted = inspect.signature(model.module.forward).parameters
    batch = {
        name: tensor.to(model.device, model.dtype if tensor.is_floating_point() else None)
        for name, tensor in encoded.items()
        if name in accepted and isinstance(tensor, Tensor)
    }
    if isinstance(sizes := batch.get("image_grid_thw"), Tensor):
        patches = [int(part.sum()) for part in sizes.prod(-1).split(counts)]
        target.rows = {"pixel_values": patches, "image_grid_thw": counts}
    elif len(batch["pixel_values"]) == len(flat_images) > len(samples):
        target.rows = {"pixel_values": counts}
    target.batch = batch
    seen = iter(_seen(batch["pixel_values"], flat_images, processor.image_processor))
    rows = [[next(seen) for _ in range(count)] for count in counts]
    target.images = [first for first, *_ in rows]
    target.others = [others for _, *others in rows] if max(counts) > 1 else []
    ids = batch["input_ids"]
    _check_vocabulary(model, ids)
    mask = batch.get("attention_mask", torch.ones_like(ids))
    words = _word_tokens(processor.tokenizer, ids, mask)
    target.tokens = with_images(words, model.module, batch)
    target.tokens.streams = other_streams(model.module, batch, target.tokens)


def _with_image_token(processor: Any, text: str, count: int = 1) -> str:
    """Insert a token for each image before a text, by the model's template if any."""
    if getattr(processor, "chat_template", None):
        content = [*[{"type": "image"}] * count, {"type": "text", "text": text}]
        return processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True
        )
    return " ".join([*[processor.image_token] * count, text])


def _text_limit(model: LoadedModel) -> int | None:
    """Return the number of tokens that a model with a text tower takes."""
    config: Any = model.module.config
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def _seen(
    pixels: Tensor, pictures: list[Image.Image], processor: Any
) -> list[UInt8[np.ndarray, "height width 3"]]:
    """Return each image as the model sees it; the image itself if it is cut into parts or packed."""
    if pixels.ndim != 4 or pixels.shape[1] != 3 or len(pixels) != len(pictures):
        return [np.asarray(picture) for picture in pictures]
    mean, std = (
        getattr(processor, name, None) or plain
        for name, plain in (("image_mean", (0.0,)), ("image_std", (1.0,)))
    )
    return _for_people(pixels.cpu().float(), tuple(mean), tuple(std))


# Texts ------------------------------------------------------------------------------------------------------


def _count_longer(lengths: Sequence[int], length: int) -> int:
    """Count the texts with more tokens than ``length``."""
    return sum(size > length for size in lengths)


def _cut_notes(cut: tuple[int, int] | None, texts: int) -> list[str]:
    """Return the note about texts that were cut, if any were."""
    if cut is None or not cut[0]:
        return []
    return [f"{cut[0]} of {texts} texts were longer than {cut[1]} tokens and were cut"]


def _add_texts(
    target: Inputs, model: LoadedModel, texts: list[str], max_length: int | None, window: int = 0
) -> None:
    tokenizer = model.tokenizer
    stated = getattr(tokenizer, "model_max_length", None)
    limits = [limit for limit in (model.max_length, stated) if limit is not None]
    limit = min(limits, default=None)
    if max_length is None:
        length = min(DEFAULT_MAX_LENGTH, limit or DEFAULT_MAX_LENGTH)
    else:
        special = tokenizer.num_special_tokens_to_add()
        _check_integer("max_length", max_length, special + 1)
        if limit is not None and max_length > limit:
            raise InputError(
                f"max_length {max_length} was asked for, and {model.spec} takes at most {limit} tokens"
            )
        length = int(max_length)
    target.lengths = [len(ids) for ids in tokenizer(texts, truncation=False, verbose=False)["input_ids"]]
    target.cut = _count_longer(target.lengths, length), length
    target.notes += _cut_notes(target.cut, len(texts))
    if window:
        encoded, target.windows = _windows(tokenizer, texts, length, window)
    else:
        target.windows = [0] * len(texts)
        encoded = tokenizer(
            texts,
            padding=True,
            truncation=True,
            max_length=length,
            return_tensors="pt",
            return_special_tokens_mask=True,
        )
    added = encoded.pop("special_tokens_mask")
    _check_vocabulary(model, encoded["input_ids"])
    accepted = inspect.signature(model.module.forward).parameters
    target.batch = {name: tensor.to(model.device) for name, tensor in encoded.items() if name in accepted}
    target.texts = texts
    target.tokens = _word_tokens(tokenizer, encoded["input_ids"], encoded["attention_mask"], added)
    if getattr(getattr(model.module, "config", None), "is_encoder_decoder", False):
        written = _shifted_right(model, encoded | {"special": added})
        target.batch["decoder_input_ids"] = written["input_ids"].to(model.device)
        target.batch["decoder_attention_mask"] = written["attention_mask"].to(model.device)
        target.tokens.streams["decoder"] = _word_tokens(tokenizer, *written.values())


def _windows(tokenizer: Any, texts: list[str], length: int, window: int) -> tuple[Any, list[int]]:
    """Encode one window of each text, and return the number of that window too."""
    if not tokenizer.is_fast:
        raise InputError(f"window {window} was asked for; {type(tokenizer).__name__} gives only window 0")
    every = tokenizer(
        texts,
        truncation=True,
        max_length=length,
        return_overflowing_tokens=True,
        return_special_tokens_mask=True,
    )
    sources = every.pop("overflow_to_sample_mapping")
    windows = [min(window, sources.count(text) - 1) for text in range(len(texts))]
    if window > max(windows):
        raise InputError(
            f"window {window} was asked for; the longest text has {max(windows) + 1} of {length} tokens, from 0"
        )
    rows = [sources.index(text) + part for text, part in enumerate(windows)]
    chosen = {name: [values[row] for row in rows] for name, values in every.items()}
    return tokenizer.pad(chosen, return_tensors="pt", verbose=False), windows


def _shifted_right(model: LoadedModel, encoded: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the decoder's input: its start token, then the text without its last token."""
    config = model.module.config
    candidates = (
        getattr(config, name, None) for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id")
    )
    start = next((number for number in candidates if number is not None), 0)
    return {
        name: torch.cat([torch.full_like(encoded[name][:, :1], first), encoded[name][:, :-1]], dim=1)
        for name, first in (("input_ids", start), ("attention_mask", 1), ("special", 1))
    }


def _check_vocabulary(model: LoadedModel, ids: Tensor) -> None:
    """Raise `InputError` for tokens that the model has no embeddings for."""
    size, highest = _vocabulary(model.module), int(ids.max())
    if size is not None and highest >= size:
        raise InputError(
            f"{model.spec}: its tokenizer gives token {highest}, and the model knows {size} "
            f"(0 to {size - 1}); the tokenizer belongs to another model"
        )


def _vocabulary(module: Any) -> int | None:
    """Return the number of token embeddings of the model; None if unknown."""
    get = getattr(module, "get_input_embeddings", None)
    try:
        embeddings = get() if callable(get) else None
    except NotImplementedError:  # of two towers
        return getattr(module.config.get_text_config(), "vocab_size", None)
    return embeddings.num_embeddings if isinstance(embeddings, nn.Embedding) else None


def _word_tokens(tokenizer: Any, ids: Tensor, attention: Tensor, added: Tensor | None = None) -> TokenInfo:
    """Label tokens as people read them; kinds: class (represents the whole text), special, word, padding.

    Special are those that the tokenizer ``added``, and those typed into the text ("[SEP]"); an unknown or a masked word
    is a word.
    """
    words = (tokenizer.unk_token_id, tokenizer.mask_token_id)
    marks = [number for number in tokenizer.all_special_ids if number not in words]
    special = torch.isin(ids, torch.tensor(marks, dtype=ids.dtype, device=ids.device))
    if added is not None:
        special |= added.bool().to(ids.device)
    labels, kinds = [], []
    for row, real, marked in zip(ids.tolist(), attention.tolist(), special.tolist(), strict=True):
        pieces = tokenizer.convert_ids_to_tokens(row)
        labels.append(
            [readable_token(tokenizer, piece, number) for piece, number in zip(pieces, row, strict=True)]
        )
        kinds.append(
            [
                "padding"
                if not keep
                else "word"
                if not mark
                else "class"
                if number == tokenizer.cls_token_id and position == row.index(number)
                else "special"
                for position, (number, keep, mark) in enumerate(zip(row, real, marked, strict=True))
            ]
        )
    return TokenInfo(labels, kinds, None, attention.bool())
