"""The form that every source of models returns: the module with its weights, and how to feed it.

Weights are read as safetensors or with ``weights_only=True``; code beside the weights is never run.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import pickle
import re
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch.overrides import TorchFunctionMode

from workbench.core.errors import InputError
from workbench.core.memory import free_memory

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor, nn
    from transformers import PreTrainedTokenizerBase

_WRAPPINGS = ("state_dict_ema", "model_ema", "state_dict", "model")


@dataclass
class ImageFormat:
    """Images for a model: (channels, *size), normalised by mean and std, one number per channel."""

    size: tuple[int, int]
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    preprocess: Callable[[Image], Tensor] | None = None
    """The model's own preprocessing of one image; None where the model states none."""
    recorded: bool = False
    """Trained here: resizing to `size`, mean and std are what it was trained with, and used in every mode."""


@dataclass
class Source:
    """A module with its weights, and how to feed it."""

    module: nn.Module
    family: str
    modality: str
    checkpoint: str | None = None
    image: ImageFormat | None = None
    max_length: int | None = None
    """Longest text in tokens; None for image models and for text models without a limit."""
    load_tokenizer: Callable[[], PreTrainedTokenizerBase] | None = None
    load_processor: Callable[[], Any] | None = None
    """Of models of images and texts: what makes a batch of both."""
    meta: dict[str, Any] | None = None
    """Metadata of a checkpoint trained here; None for others."""


def read_state(path: Path, wrappings: tuple[str, ...] = _WRAPPINGS) -> dict[str, Tensor]:
    """A state dict from a ``.safetensors``, ``.pt`` or ``.pth`` file, out of the first of its wrappings."""
    from safetensors.torch import load_file

    if path.suffix == ".safetensors":
        require_file(path)
        try:
            return _without_wrappers(load_file(path))
        except (SafetensorError, OSError) as error:
            raise InputError(
                f"{path} is not a readable safetensors file ({error}); it may be truncated"
            ) from error
    content = read_torch_file(path)
    wrapping_keys = [
        key for key in wrappings if isinstance(content, dict) and isinstance(content.get(key), dict)
    ]
    if wrapping_keys:
        if "ema" in wrapping_keys[0] and len(wrapping_keys) > 1:
            warnings.warn(
                f"{path}: the averaged weights are read ({wrapping_keys[0]}, not {wrapping_keys[1]})",
                stacklevel=2,
            )
        content = content[wrapping_keys[0]]
    if not isinstance(content, dict) or not any(
        isinstance(value, torch.Tensor) for value in content.values()
    ):
        raise InputError(
            f"{path} holds no weights: expected a state dict, or one under 'model' or 'state_dict'"
        )
    return _without_wrappers(
        {name: value for name, value in content.items() if isinstance(value, torch.Tensor)}
    )


def read_torch_file(path: str | Path) -> Any:
    """Content of a ``.pt`` or ``.pth`` file, read with ``weights_only=True``: tensors and plain containers.

    ``argparse.Namespace`` and the dict of Lightning's hyperparameters are allowed too, since many training scripts keep
    their arguments beside the weights; beside tensors, other objects are read as empty.
    Raises InputError if the file is missing, damaged, or holds anything else; nothing in it is
    executed.
    """
    path = Path(path).expanduser()
    require_file(path)
    try:
        return _tensors_of(path)
    except pickle.UnpicklingError as error:
        # torch's own message advises weights_only=False: the one thing not to do with an unknown file.
        named = re.search(r"GLOBAL (\S+)", str(error))
        refused = (
            f"it refers to {named[1]}" if named else "it holds objects besides tensors and plain containers"
        )
        raise InputError(
            f"{path} was not read: {refused}, and reading that could run code of whoever wrote the file. If "
            "you trust "
            "it, save its weights alone where it was made: safetensors.torch.save_file(model.state_dict(), "
            "FILE) or "
            "torch.save(model.state_dict(), FILE)"
        ) from error
    except Exception as error:  # its unpickler fails on damaged files in whatever way they are damaged
        raise InputError(
            f"{path} is not a torch checkpoint, or only a part of one ({type(error).__name__}); copy it again"
        ) from error


class _Skipped:
    """Stands for another class in a file of weights: its objects become empty dictionaries."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return OrderedDict()  # the reader fills no other class


class _SkippedArray:
    """Stands for arrays and scalars of numpy, whose state is a tuple."""

    def __init__(self, *_: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...


_MOST_CLASSES = 64
"""Of other objects in one file."""


def _tensors_of(path: Path) -> Any:
    """Read a torch file without running its code: objects of other classes are read as empty, beside tensors."""
    names: list[str] = []
    refusal: pickle.UnpicklingError | None = None
    for _ in range(_MOST_CLASSES):
        stand_ins = [(_SkippedArray if name.startswith("numpy") else _Skipped, name) for name in names]
        allowed: list[Any] = [argparse.Namespace, *stand_ins]
        try:
            with torch.serialization.safe_globals(allowed):
                content = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            refusal = refusal or error
            named = re.search(r"GLOBAL (\S+)", str(error))
            if named is None or named[1] in names:
                break
            names.append(named[1])
        else:
            if refusal is None or _holds_weights(content):
                return content
            break
    assert refusal is not None
    raise refusal


def _holds_weights(content: Any) -> bool:
    """Whether plain dictionaries lead to tensors."""
    states = [content, *content.values()] if isinstance(content, dict) else []
    return any(
        isinstance(value, torch.Tensor)
        for state in states
        if isinstance(state, dict)
        for value in state.values()
    )


_POINTER = b"version https://git-lfs.github.com/spec/"


def require_content(path: Path) -> None:
    """Raise `InputError` for a pointer of Git LFS, which stands for a file that was not fetched."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise InputError(
                f"{path} is a pointer of Git LFS, not the weights: fetch them with `git lfs pull`, or download the file"
            )


def require_file(path: Path) -> None:
    """Raise `InputError` unless there is a file, naming what lies in a folder of that name."""
    if path.is_dir():
        inside = sorted(
            item.name for item in path.iterdir() if item.suffix in (".safetensors", ".pt", ".pth")
        )
        hint = f"; it holds {', '.join(inside)}: name one of them" if inside else ""
        raise InputError(f"{path} is a folder, a checkpoint is one file{hint}")
    if not path.is_file():
        raise InputError(
            f"no checkpoint at {path}; give the path of a file, or a name that `workbench models` lists"
        )
    require_content(path)


_WRAPPERS = re.compile(
    r"^(module\.)+|(?:^|(?<=\.))(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)


def _without_wrappers(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove from names what torch adds around a parallel, compiled or sharded module."""
    return {re.sub(r"^(module\.)+", "", _WRAPPERS.sub("", name)): value for name, value in state.items()}


def fitting_state(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return the weights under the names of a model, without a prefix that they share, such as ``model.``.

    Of several prefixes the one with most names of the model counts, averaged weights (``ema``) before others. A warning
    names the prefix and the number of weights outside it.
    """
    counts: Counter[str] = Counter()
    for name in state:
        starts = [0, *(index + 1 for index, letter in enumerate(name) if letter == ".")]
        counts.update(name[:start] for start in starts if name[start:] in wanted)
    if not counts:
        return dict(state)
    prefix = max(counts, key=lambda candidate: (counts[candidate], "ema" in candidate, -len(candidate)))
    if not prefix:
        return dict(state)
    kept = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    others = f"; {len(state) - len(kept)} weights outside it are left out" if len(kept) < len(state) else ""
    warnings.warn(f"{path}: the prefix {prefix!r} was removed from {len(kept)} names{others}", stacklevel=2)
    return kept


WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf")
_MAKERS = (
    torch.empty,
    torch.zeros,
    torch.ones,
    torch.full,
    torch.rand,
    torch.randn,
    torch.arange,
    torch.linspace,
)
_LEAST = 2**10  # numbers that would take the memory of a small tensor, with the module around it


class Bounded(TorchFunctionMode):
    """Limit a model under construction to ``most`` numbers; a larger one raises `InputError` with the reason.

    A configuration of a few bytes could otherwise fill the memory.
    """

    def __init__(self, what: str, most: int, why: str) -> None:
        super().__init__()
        self.what, self.most, self.why, self.count = what, most, why, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _MAKERS:
            size = args or kwargs.get("size") or (kwargs.get("end", 0),)
            if func is torch.arange:
                size = [max(abs(end) for end in size if isinstance(end, (int, float)))]
            elif func is torch.linspace:
                size = [
                    kwargs["steps"] if "steps" in kwargs else args[2],
                    _LEAST,
                ]  # a number for each layer to come
            elif isinstance(size[0], (tuple, list)):
                size = size[0]
            self.count += max(math.prod(size), _LEAST)  # a million layers of width 1 fill the memory too
            if self.count > self.most:
                raise InputError(
                    f"{self.what}: its configuration asks for more than {self.count:,} numbers; {self.why}"
                )
        return func(*args, **kwargs)


_FILLING = (
    "uniform_",
    "normal_",
    "erfinv_",
    "mul_",
    "add_",
    "clamp_",
    "fill_",
    "zero_",
)


class Unfilled(TorchFunctionMode):
    """Building a model whose tensors hold no numbers, without the work of drawing these: for the device "meta"."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        scaled = func.__name__ == "mul" and not isinstance(args[1], torch.Tensor)
        if scaled or func.__name__ in _FILLING:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def bounded_by_weights(folder: str | Path, what: str) -> Bounded:
    """Building a model whose weights lie in a folder, and which may be larger than they are, but not many times.

    Weights packed below one bit have 16 numbers in a byte at most; buffers come beside them.
    """
    files = [path for path in Path(folder).iterdir() if path.suffix in WEIGHTS and path.is_file()]
    size = sum(path.stat().st_size for path in files)
    why = f"its weights are {size:,} bytes; take both from where the model was saved"
    return Bounded(what, 16 * size + 2**24, why)


def bounded_by_memory(what: str) -> Bounded:
    """Building a model with random weights, which may be as large as the memory that is free."""
    free = free_memory()
    why = f"{free / 2**30:.1f} GiB of memory are free, and a number takes 4 bytes; take a smaller model"
    return Bounded(what, free // 4, why)


_SEED: ContextVar[int] = ContextVar("seed", default=0)


@contextlib.contextmanager
def initialised_from(seed: int) -> Generator[None]:
    """Draw the random weights of models that are built inside from this seed."""
    token = _SEED.set(seed)
    try:
        yield
    finally:
        _SEED.reset(token)


@contextlib.contextmanager
def seeded() -> Generator[None]:
    """Draw random weights from the seed of `initialised_from` (0), and leave the caller's random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED.get())
        yield


def in_our_words(error: BaseException) -> str:
    """A library's message on one line, but for those that advise to run what a stranger wrote."""
    message = str(error)
    if "trust_remote_code" in message or "auto_map" in message:
        return (
            "its config.json asks for the Python code in its folder, which is never run: take a model whose class is "
            "in transformers, or build this model yourself and hand the module to workbench.capture"
        )
    if "weights_only" in message or isinstance(error, pickle.UnpicklingError):
        return (
            "its weights are a pickle that could run code, and are not read: save them as model.safetensors where they "
            "were made, with model.save_pretrained(FOLDER) or safetensors.torch.save_file(model.state_dict(), FILE)"
        )
    return first_lines(error) if message.strip() else type(error).__name__


def first_lines(error: BaseException) -> str:
    """The start of a library's message, on one line."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:300].rsplit(" ", 1)[0] + " …"
