"""What a value holds, as one hash: tensors, arrays and texts in nested containers."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


class Unhashable(TypeError):
    """A value whose content cannot be identified by its bytes: an object of unknown kind, a function."""


def content_sha256(value: Any, where: str = "it", other: Callable[[Any], Any] | None = None) -> str:
    """Hexadecimal SHA-256 over a value: numbers, texts, arrays, tensors, dataclasses, lists and dicts of these.

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
    elif _is_tensor(value):
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


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor's values in reading order; seen as bytes, because numpy has no bfloat16."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
