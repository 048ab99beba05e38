"""Data of the views: models, inputs, captured layers and frames, each made once and kept within bounds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from cachetools import LRUCache

from workbench.apps.explorer.address import Address
from workbench.apps.explorer.jobs import Report
from workbench.core.errors import InputError
from workbench.data.pools import DEFAULT_INPUTS

if TYPE_CHECKING:
    import pandas as pd

    from workbench.captures import Capture, LayerRecord, TokenInfo
    from workbench.data.batches import Inputs
    from workbench.models.loading import LoadedModel

LIMIT = 512 * 2**20  # bytes of captures and frames
MODELS = 3
SHORT = 512  # tokens
SITES = ("q", "k", "v", "attn", "head_out")


@dataclass(frozen=True)
class LayerOutline:
    """A layer without its tensors: what there is to look at."""

    index: int
    path: str
    kind: str
    """token, channel or none, as in `workbench.captures.LayerRecord`."""
    heads: int
    windowed: bool
    convention: str | None
    """By which formula the layer itself computes memberships, where it does."""
    head_dim: int = 0
    mixer: str = ""
    """The mixer of a layer without attention; empty for others."""


@dataclass
class Look:
    """One layer of one input, ready to be drawn."""

    record: LayerRecord
    tokens: TokenInfo
    image: Any
    """The model's image, (height, width, 3) in 8 bits, or None for a text."""
    name: str
    """Id of the input."""
    most_tokens: int = 0
    """How many tokens the input has in the stream that has most, where the layers are not all of the same tokens."""


def _weights(address: Address) -> tuple[Hashable, ...]:
    """Return the parts of an address that choose the weights."""
    return address.model, address.pretrained


class Material:
    """Loads, captures and analyses what an address asks for, once.

    Captures hold single layers; captures and frames together stay below ``limit`` bytes; those used last
    are kept. Safe to be used from several threads: models run one at a time.
    """

    def __init__(self, limit: int = LIMIT, device: str | None = None) -> None:
        self.device = device
        self._models: LRUCache = LRUCache(MODELS)
        self._cached: LRUCache = LRUCache(limit, getsizeof=_bytes)
        self._lists: dict[str, list[Any]] = {}
        self._held: dict[str, LoadedModel] = {}
        self._guard = threading.Lock()
        self._making: dict[Hashable, Any] = {}
        self._running = threading.Lock()
        self._here = threading.local()

    # ------------------------------------------------------------------------------------------------- loading

    def model(self, address: Address) -> LoadedModel:
        """Return the model; raise as `workbench.load` does."""
        if self.holds(address):
            return self._held[address.model]

        def make() -> LoadedModel:
            from workbench.models.loading import load

            self.report(f"loading {address.model}")
            return load(address.model, pretrained=address.pretrained, device=self.device)

        return self._once(self._models, _weights(address), make)

    def inputs(self, address: Address) -> Inputs:
        """Return all n inputs, or fewer if the source has fewer.

        Raises as `workbench.inputs` does, and `InputError` for a model that takes neither images nor texts.
        """
        spec = address.inputs or self.default_inputs(address)

        def make() -> Inputs:
            from workbench.data.batches import inputs
            from workbench.data.pools import open_pool

            loaded = self.model(address)
            self.report("reading your input" if spec.startswith(("upload:", "text:[")) else f"reading {spec}")
            listed = self._lists.get(spec)
            there = len(open_pool(spec) if listed is None else listed)
            order = order_of_spec(spec)
            n = min(address.n, there)
            return inputs(listed or spec, loaded, n=n, seed=address.seed, order=order, window=address.window)

        key = ("inputs", *_weights(address), spec, address.n, address.seed, address.window)
        return self._once(self._cached, key, make)

    def hold_model(self, model: LoadedModel) -> str:
        """Keep a loaded model, and return the name that addresses have for it."""
        title = model.name or model.spec
        name, number = title, 1
        while self._held.get(name, model) is not model:
            number += 1
            name = f"{title} {number}"
        self._held[name] = model
        return name

    def holds(self, address: Address) -> bool:
        """Return whether the model of an address was passed as a module, not loaded by its spec."""
        return address.model in self._held

    def list_inputs(self, items: Sequence[Any]) -> str:
        """Return the spec of a list of texts or images; arrays and PIL images are kept in memory."""
        from workbench.data.pools import listed_inputs

        spec, _ = listed_inputs(items)
        self._lists[spec] = [*items]
        return spec

    def default_inputs(self, address: Address) -> str:
        """Return the bundled inputs for the model's kind."""
        loaded = self.model(address)
        if loaded.modality not in DEFAULT_INPUTS:
            raise InputError(
                f"{address.model} takes neither images nor texts, nor both together, and the explorer shows those; "
                "hand your own dict of tensors to workbench.capture"
            )
        small = loaded.image is not None and loaded.image.channels == 1
        if loaded.modality == "image" and not small:
            return "bundled:photos"
        return DEFAULT_INPUTS[loaded.modality]

    def one(self, address: Address) -> Inputs:
        """Return the input of an address, as a batch of one."""
        chosen = self.inputs(address)
        if address.index >= len(chosen):
            raise InputError(
                f"there is no input {address.index}: {chosen.spec} gives {len(chosen)}, counted from 0"
            )
        return chosen[address.index : address.index + 1]

    # ----------------------------------------------------------------------------------------------- capturing

    def outline(self, address: Address) -> list[LayerOutline]:
        """Return every attention layer of the model, as one pass over the input shows them."""
        return [layer for layer in self.whole_outline(address) if not layer.mixer]

    def whole_outline(self, address: Address) -> list[LayerOutline]:
        """Return the layers of `outline`, and those that mix tokens without attention."""

        def make() -> list[LayerOutline]:
            from workbench.captures import capture

            loaded, batch = self.model(address), self.one(address)
            with self.alone("looking for layers"):
                seen = capture(loaded, batch, sites=("head_out",))
            return [
                LayerOutline(
                    record.index,
                    record.path,
                    record.kind,
                    heads=0 if record.head_out is None else record.head_out.shape[1],
                    windowed=record.origin is not None,
                    convention=getattr(loaded.module.get_submodule(record.path), "convention", None),
                    head_dim=0 if record.head_out is None else record.head_out.shape[-1],
                    mixer=record.mixer,
                )
                for record in seen
            ]

        # Inputs of one shape, and short texts, show the same layers.
        sample = self.one(address)
        tensors = sample.batch.values() if isinstance(sample.batch, dict) else [sample.batch]
        shapes = tuple(tensor.shape for tensor in tensors if tensor.is_floating_point())
        key = ("outline", *_weights(address), shapes, sample.tokens.count > SHORT)
        return self._once(self._cached, key, make)

    def look(self, address: Address) -> Look:
        """Return the layer and input of an address: its captured operands, tokens, and image."""
        batch = self.one(address)

        def make() -> Look:
            from workbench.captures import capture

            loaded = self.model(address)
            with self.alone(f"capturing layer {address.layer}"):
                seen = capture(loaded, batch, layers=[address.layer], sites=SITES)
            assert seen.tokens is not None  # inputs always come with their tokens
            image = batch.images[0] if batch.images else None
            record = seen[address.layer]
            most = max(tokens.count for tokens in (seen.tokens, *seen.tokens.streams.values()))
            return Look(record, seen.tokens.of(record), image, batch.ids[0], most)

        key = ("look", self._input_key(address), address.layer)
        return self._once(self._cached, key, make)

    def key_head(self, address: Address) -> int:
        """Return the head whose keys and values this head reads: itself, or that of its group."""
        keys = self.look(address).record.k
        heads = next(layer.heads for layer in self.outline(address) if layer.index == address.layer)
        return address.head if keys is None else address.head * keys.shape[1] // heads

    def frame(self, analysis: str, address: Address, **options: Any) -> pd.DataFrame:
        """Return the tidy frame of an analysis on this one input; of ``layers``, or of all."""
        batch = self.one(address)

        def make() -> pd.DataFrame:
            from workbench.runs.analyze import analyze

            loaded = self.model(address)
            with self.alone(f"{analysis} of {address.model}"):
                return analyze(
                    analysis, model=loaded, inputs=batch, seed=address.seed, progress=self.report.progress,
                    **options,
                )  # fmt: skip

        options_key = tuple(sorted((name, repr(value)) for name, value in options.items()))
        key = ("frame", analysis, self._input_key(address), options_key)
        return self._once(self._cached, key, make)

    def keep(self, address: Address, key: tuple[Hashable, ...], make: Callable[[], Any]) -> Any:
        """Return the cached value of a key of an address' model and input, made where it is missing."""
        return self._once(self._cached, (*key, self._input_key(address)), make)

    def has(self, address: Address, key: tuple[Hashable, ...]) -> bool:
        """Return whether a key is cached."""
        with self._guard:
            return (*key, self._input_key(address)) in self._cached

    def continued(self, address: Address, count: int) -> tuple[Inputs, Capture]:
        """Return the text of an address with its continuation by the model, and the capture of these steps.

        Where the text fills what the model reads, its first tokens alone are continued.
        """
        from workbench.apps.explorer.continuation import continued
        from workbench.data.batches import inputs

        sample = self.one(address)

        def make() -> tuple[Inputs, Capture]:
            loaded = self.model(address)
            most = loaded.max_length
            if sample.texts is not None and most is not None and len(sample.tokens.labels[0]) + count > most:
                if count > most - 2:
                    raise InputError(
                        f"{address.model} reads {most} tokens: it writes at most {most - 2}, after a prompt"
                    )
                if address.window:
                    raise InputError(
                        f"{address.model} reads {most} tokens, which window {address.window} fills; "
                        "continue window 0, or one with fewer tokens"
                    )
                chosen = inputs(
                    sample.spec,
                    loaded,
                    n=len(self.inputs(address)),
                    seed=address.seed,
                    max_length=most - count,
                    order=order_of_spec(sample.spec),
                )
                text_input = chosen[address.index : address.index + 1]
            else:
                text_input = sample
            with self.alone(f"writing {count} tokens"):
                return continued(loaded, text_input, count)

        return self.keep(address, ("continued", count), make)

    def memberships(self, address: Address) -> pd.DataFrame:
        """Return Π of the patches or words in the heads of the layer."""
        rows = self.frame("membership", address, per="token", layers=[address.layer])
        return rows[rows["kind"] == "patch"] if self.one(address).images else rows

    # ------------------------------------------------------------------------------------------------- keeping

    @contextmanager
    def reporting(self, report: Report) -> Generator[None]:
        """Report the work of this thread to ``report``, which may stop it."""
        before, self._here.report = self.report, report
        try:
            yield
        finally:
            self._here.report = before

    @property
    def report(self) -> Report:
        """Return the reporter of this thread."""
        return getattr(self._here, "report", None) or Report()

    @property
    def cached_bytes(self) -> int:
        """Return the bytes of cached captures and frames."""
        return int(self._cached.currsize)

    def _input_key(self, address: Address) -> tuple[Hashable, ...]:
        spec = address.inputs or self.default_inputs(address)
        return (*_weights(address), spec, address.n, address.seed, address.index, address.window)

    @contextmanager
    def alone(self, text: str) -> Generator[None]:
        """Run one model at a time: a capture changes its attention for its duration."""
        self.report(text)
        while not self._running.acquire(timeout=0.05):
            self.report.check()
        try:
            yield
        finally:
            self._running.release()

    def _once(self, cache: LRUCache, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the cached value of a key, or make it; a second thread waits for the first."""
        with self._guard:
            if key in cache:
                return cache[key]
            making = self._making.setdefault(key, threading.RLock())
        while not making.acquire(timeout=0.05):
            self.report.check()
        try:
            with self._guard:
                if key in cache:
                    return cache[key]
            value = make()
            with self._guard:
                if cache.getsizeof(value) <= cache.maxsize:  # what is larger than everything is not kept
                    cache[key] = value
            return value
        finally:
            making.release()
            with self._guard:
                self._making.pop(key, None)


def _bytes(value: Any) -> int:
    """Estimate the size of a cached value: its tensors, arrays and columns."""
    if isinstance(value, torch.Tensor):
        return value.untyped_storage().nbytes()
    if hasattr(value, "memory_usage"):
        return int(value.memory_usage(deep=True).sum())
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if isinstance(value, dict):
        return 64 + sum(_bytes(part) for part in value.values())
    if isinstance(value, (list, tuple)):
        return 64 + sum(_bytes(part) for part in value)
    if hasattr(value, "__dict__") and not isinstance(value, torch.nn.Module):
        return 256 + sum(_bytes(part) for part in vars(value).values())
    return 64


def order_of_spec(spec: str) -> str | None:
    """Return the order of inputs that a spec names: files of one's own by name, others as `workbench.inputs` does."""
    return "file" if spec.startswith(("images:", "text:", "upload:")) else None


def models_to_choose() -> list[dict[str, str]]:
    """List models of images or texts by name, and where their weights are.

    That is ``here``, ``random`` (none are published), ``hub`` or ``checkpoint``: the last one of each run below
    ``runs/`` in the current folder, as ``study train`` writes them.
    """
    from workbench.models.loading import NOT_INSTALLED, list_models

    groups = {"random": "random", "hub": "hub"}
    return [
        {
            "name": row["alias"] if row["weights"] in ("cached", "installed package") else row["spec"],
            "group": groups.get(row["weights"], "here"),
            "modality": row["modality"],
            "note": row["note"] or row["spec"],
        }
        for row in list_models()
        if row["modality"] in DEFAULT_INPUTS and row["weights"] != NOT_INSTALLED
    ] + [
        {
            "name": f"file:{last.as_posix()}",
            "group": "checkpoint",
            "modality": "",
            "note": f"the last of {count}",
        }
        for last, count in _last_checkpoints(Path("runs"))
    ]


def checkpoints_of(spec: str) -> dict[str, str]:
    """Return name and spec of every checkpoint of a model of the bundle or of a training run; nothing for others."""
    from workbench.models.loading import bundled_checkpoints

    base = spec.partition("@")[0]
    scheme, _, name = base.partition(":")
    if scheme == "bundled":
        return {checkpoint: f"{base}@{checkpoint}" for checkpoint in bundled_checkpoints(name)}
    if scheme == "file":
        return {path.stem: f"file:{path}" for path in sorted(Path(name).parent.glob("epoch-*.safetensors"))}
    return {}


def _last_checkpoints(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield the last checkpoint of every training run below a folder, and the number of its checkpoints."""
    for about in sorted(folder.rglob("model.json")):
        if files := sorted(about.parent.glob("epoch-*.safetensors")):
            yield files[-1], len(files)


def where(address: Address, material: Material) -> str:
    """Return the address in words: ``Layer 3, head 0, digits/test/17``; without a head where the view has all.

    Random weights are named, so that no view is mistaken for that of a trained model.
    """
    name = material.one(address).ids[0]
    if material.model(address).has_random_weights:
        name += ", random weights"
    head = "" if address.view in ("trajectory", "membership") else f"head {address.head}, "
    return f"layer {address.layer}, {head}{name}".capitalize()
