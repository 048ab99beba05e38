"""Results on disk under a hash of everything that their numbers depend on: the same question is not computed again.

joblib's ``Memory`` does not fit: it keeps pickles, which run code when they are read, and it removes files by the time
of access, which most systems no longer record. A result is a Parquet file, written atomically.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import hashlib
import importlib.metadata
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from workbench.captures.family import class_path, declared_elsewhere
from workbench.core import paths
from workbench.core.errors import InputError
from workbench.core.files import sha256_bytes
from workbench.frames.provenance import versions
from workbench.frames.results import SCHEMA_VERSION, provenance_of, read_frame, shared, write_frame
from workbench.models.loading import tensor_bytes
from workbench.runs.unfinished import SUFFIX, Unfinished

if TYPE_CHECKING:
    import pandas as pd

    from workbench.runs.loop import Source

SIZE = 2 * 2**30
"""Largest size in bytes, unless ``WORKBENCH_CACHE_SIZE`` is set."""
STALE = 3600.0
"""Age in seconds of a half-written file that a killed process left."""
LIBRARIES = {"builtins", "torch", "timm", "transformers", "workbench"}
"""Packages whose code counts by its version (ours by its content); any other may change under the same name."""
_NUMBERS = ("scipy", "scikit-learn", "scikit-image", "torchvision", "pillow")
_OF_MODULES = set(vars(nn.Module())) - {"training"}
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


class Unhashable(TypeError):
    """A value whose content cannot be identified by its bytes: an object of unknown kind, a function."""


class CacheEntry:
    """The cached result of one run: `find` it, or `keep` it.

    Where the content of a model or an input cannot be hashed, nothing is kept and the result's notes give the reason.
    """

    def __init__(self, source: Source, ours: bool, question: Mapping[str, Any]) -> None:
        self.store, self.key, self.reason = Store(), None, None
        self.unfinished: Unfinished | None = None
        """The layers of the run so far; None where nothing is kept."""
        try:
            self.key = result_key(source, ours, question)
            self.unfinished = Unfinished(self.store.path(self.key))
        except Unhashable as error:
            self.reason = f"not cached: {error}"

    def find(self) -> pd.DataFrame | None:
        """Return the result as it was computed, or None."""
        return None if self.key is None else self.store.read(self.key)

    def keep(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Keep the frame for the next time, and return it."""
        if self.key is not None and self.unfinished is not None:
            self.reason = self.store.write(self.key, frame)
            self.unfinished.remove()
        if self.reason is not None:
            frame.attrs["notes"].append(self.reason)
        return frame


def result_key(source: Source, ours: bool, question: Mapping[str, Any]) -> str:
    """Return a hash of everything that the numbers of a result depend on.

    The question (analysis, options, seed, layers, …), the weights, structure and settings of the model, the inputs as
    the model receives them, our own source, versions of the libraries, and how torch is set. Raises `Unhashable` where
    one of them cannot be hashed.
    """
    if not ours:
        raise Unhashable("the analysis or its null is of another package, whose code may change")
    for name, value in question["options"].items():
        if isinstance(value, str) and Path(value).expanduser().exists():
            raise Unhashable(f"{name} is a file or folder, whose content may change")
    return content_sha256(
        {
            "schema": SCHEMA_VERSION,
            "source": source_sha256(),
            "versions": versions() | {name: importlib.metadata.version(name) for name in _NUMBERS},
            "torch": _settings(),
            "question": question,
            "model": source.model,
            "module": None if source.module is None else module_content(source.module),
            "inputs": source.inputs,
            "content": _hashed(source.content, "the input"),
        }
    )


def content_sha256(value: Any, where: str = "it", other: Callable[[Any], Any] | None = None) -> str:
    """Return the hexadecimal SHA-256 of numbers, texts, arrays, tensors, dataclasses, and lists and dicts of these.

    Equal values have equal hashes, in every process. A tensor counts with its type, shape and values, wherever it is;
    a dict with its order. ``other`` makes such values of anything else, or returns None. Raises `Unhashable` then,
    naming what it is and ``where``.
    """
    digest = hashlib.sha256()
    _add(digest, value, where, other)
    return digest.hexdigest()


def _add(digest: Any, value: Any, where: str, other: Callable[[Any], Any] | None) -> None:
    """Feed a value with its kind and its length, so that no two values give the same bytes."""
    if value is None or isinstance(value, bool | int | float | complex | str | Path):
        text = repr(value).encode()
        digest.update(f"{type(value).__name__} {len(text)}\n".encode() + text)
    elif isinstance(value, bytes):
        digest.update(f"bytes {len(value)}\n".encode() + value)
    elif isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise Unhashable(f"{where} is an array of Python objects")
        digest.update(f"array {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    elif isinstance(value, torch.Tensor) and value.layout is torch.strided:
        digest.update(f"tensor {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(tensor_bytes(value))
    elif isinstance(value, Mapping):
        digest.update(f"dict {len(value)}\n".encode())
        for key, item in value.items():
            _add(digest, key, f"a key of {where}", other)
            _add(digest, item, f"{where}[{key!r}]", other)
    elif isinstance(value, list | tuple):
        digest.update(f"list {len(value)}\n".encode())
        for number, item in enumerate(value):
            _add(digest, item, f"{where}[{number}]", other)
    elif isinstance(value, set | frozenset):
        _add(digest, sorted(content_sha256(item, where, other) for item in value), where, other)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        digest.update(f"{type(value).__module__}.{type(value).__qualname__}\n".encode())
        for field in dataclasses.fields(value):
            _add(digest, field.name, where, other)
            _add(digest, getattr(value, field.name), f"{where}.{field.name}", other)
    elif other is not None and (plain := other(value)) is not None:
        digest.update(b"other\n")
        _add(digest, plain, where, other)
    else:
        raise Unhashable(f"{where} is a {type(value).__name__}, whose content cannot be identified")


def module_content(module: nn.Module) -> list[Any]:
    """List everything that a model computes with: classes, weights, buffers, modes, settings, devices, by path.

    Raises `Unhashable` for classes of other packages than `LIBRARIES`, forward hooks, adapters that are not ours, and
    attributes whose content cannot be hashed.
    """
    if _global_forward_hooks or _global_forward_pre_hooks:
        raise Unhashable("every module has a forward hook, since torch has a global one")
    parts: list[Any] = []
    for path, child in module.named_modules():
        where = f"{path or 'the model'} ({type(child).__name__})"
        if type(child).__module__.partition(".")[0] not in LIBRARIES:
            raise Unhashable(f"{where} is your own code, which may change under the same name")
        if child._forward_hooks or child._forward_pre_hooks:
            raise Unhashable(f"{where} has a forward hook")
        owner = declared_elsewhere(type(child))
        if owner is not None:
            raise Unhashable(f"{where} is of a family that {owner} declares")
        tensors = {**child._parameters, **child._buffers}
        settings = {name: value for name, value in vars(child).items() if name not in _OF_MODULES}
        devices = sorted({_device(tensor.device) for tensor in tensors.values() if tensor is not None})
        parts.append([path, class_path(child), devices, tensors, _hashed(settings, where)])
    return parts


def _hashed(value: Any, where: str) -> str:
    return content_sha256(value, where, other=_of_libraries)


def _of_libraries(value: Any) -> Any:
    """An object of a library as plain values; None for an object of another kind."""
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
    if isinstance(value, enum.Enum):
        return [class_path(type(value)), value.name]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, type | FunctionType | BuiltinFunctionType) and value.__module__:
        name = f"{value.__module__}.{value.__qualname__}"
        in_library = value.__module__.partition(".")[0] in LIBRARIES
        same = getattr(sys.modules.get(value.__module__), value.__qualname__, None) is value
        return [name] if in_library and same else None
    if type(value).__module__.startswith("transformers.") and hasattr(value, "to_dict"):
        return [class_path(type(value)), value.to_dict(), getattr(value, "_attn_implementation", None)]
    return None


def _device(device: torch.device) -> str:
    return f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else str(device)


def _settings() -> list[Any]:
    """The settings of torch in this thread."""
    cuda = torch.backends.cuda.matmul
    return [
        torch.get_float32_matmul_precision(), str(torch.get_default_dtype()), torch.is_inference_mode_enabled(),
        cuda.allow_tf32, cuda.allow_fp16_reduced_precision_reduction, cuda.allow_bf16_reduced_precision_reduction,
        torch.backends.cudnn.allow_tf32, torch.are_deterministic_algorithms_enabled(),
        *([kind, torch.is_autocast_enabled(kind), str(torch.get_autocast_dtype(kind))] for kind in ("cpu", "cuda")),
    ]  # fmt: skip


@functools.cache
def source_sha256() -> str:
    """Return a hash of this package's own code, which changes more often than its version."""
    root = Path(__file__).parents[1]
    files = sorted(path for path in root.rglob("*.py") if "_bundled" not in path.parts)
    return content_sha256([[str(path.relative_to(root)), sha256_bytes(path.read_bytes())] for path in files])


class Store:
    """A folder of results by key, of at most ``limit`` bytes: the least recently used file is removed first."""

    def __init__(self, folder: Path | None = None, limit: int | None = None) -> None:
        self.folder = paths.cache_dir() / "results" if folder is None else folder
        self.limit = size_limit() if limit is None else limit

    def path(self, key: str) -> Path:
        """Return the path of a result; layers of an unfinished run are beside it."""
        return self.folder / key[:2] / f"{key}.parquet"

    def read(self, key: str) -> pd.DataFrame | None:
        """Return the result of a key; None where there is none or its file is damaged, which is removed."""
        path = self.path(key)
        if not path.is_file():
            return None
        try:
            frame = read_frame(path)
            (run,) = frame.attrs["provenance"]
            kept = run.pop("cache_key") == key
            frame.attrs = {"notes": list(run["notes"]), "provenance": shared(run)}
        except Exception:  # however it is damaged, it is computed again
            kept = False
        with contextlib.suppress(OSError):  # another process may have removed it
            os.utime(path) if kept else path.unlink()
        return frame if kept else None

    def write(self, key: str, frame: pd.DataFrame) -> str | None:
        """Keep a result and remove what is over the limit; return why it could not be kept."""
        try:
            (run,) = provenance_of(frame)
            stored = frame.copy()
            stored.attrs = {"provenance": [{**run, "cache_key": key}]}
            write_frame(stored, self.path(key))
            self.shrink()
        except Exception as error:  # a full disk must not cost the result
            return f"not cached: {error}"
        return None

    def shrink(self) -> None:
        """Remove half-written files of killed processes, and the least recently used ones until the others fit."""
        files = self._files()
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= self.limit:
                break
            path.unlink(missing_ok=True)
            total -= size

    def info(self) -> dict[str, Any]:
        """Return folder, number of results, bytes and limit."""
        files = self._files()
        return {
            "folder": str(self.folder),
            "results": sum(path.suffix == ".parquet" for *_, path in files),
            "bytes": sum(size for _, size, _ in files),
            "limit": self.limit,
        }

    def clear(self) -> int:
        """Remove all results and the layers of unfinished runs; return the number of results."""
        results = 0
        for *_, path in self._files():
            path.unlink(missing_ok=True)
            results += path.suffix == ".parquet"
        return results

    def _files(self) -> list[tuple[float, int, Path]]:
        """Time of the last use, bytes and path of all files, the least recently used first."""
        files = []
        for path in self.folder.glob("*/*"):
            hidden = path.name.startswith(".")
            if path.suffix not in (".parquet", SUFFIX) and not hidden:
                continue
            with contextlib.suppress(FileNotFoundError):  # removed by another process
                about = path.stat()
                if not hidden:
                    files.append((about.st_mtime, about.st_size, path))
                elif time.time() - about.st_mtime > STALE:
                    path.unlink()
        return sorted(files)


def size_limit() -> int:
    """Return the bytes that may be kept: ``WORKBENCH_CACHE_SIZE`` ("500 MB", "2 GiB", a number of bytes), or `SIZE`."""
    text = os.environ.get("WORKBENCH_CACHE_SIZE", "").strip()
    if not text:
        return SIZE
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?", text.upper())
    if match is None:
        raise InputError(f"WORKBENCH_CACHE_SIZE is a number of bytes, such as 500 MB or 2 GiB; got {text!r}")
    number, unit, binary = match.groups()
    return int(float(number) * (1024 if binary or not unit else 1000) ** _UNITS[unit])
