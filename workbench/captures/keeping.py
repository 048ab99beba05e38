"""Keeping tensors of a running model: no more memory than was asked for, and never a value changed later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor


class Keeper:
    """Keeps tensors without copying them where that is safe.

    A view is copied where it would keep alive a larger storage than what is kept of it, or where the storage
    belongs to ``owned`` tensors (parameters, buffers, the batch), which may change after the run. A kept
    tensor that the model overwrites in place shows in ``changed``; with ``copy`` everything is copied at
    once.
    """

    def __init__(self, owned: Iterable[Tensor], copy: bool = False) -> None:
        self.owned = {_address(tensor) for tensor in owned}
        self.copy = copy
        self._kept: list[tuple[Tensor, int]] = []

    def keep(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The same tensors, safe to hold on to; views that together fill their storage share it."""
        distinct: dict[int, set[tuple[object, ...]]] = {}
        needed: dict[int, int] = {}
        for tensor in tensors.values():
            address, view = _address(tensor), _view(tensor)
            if view not in distinct.setdefault(address, set()):
                distinct[address].add(view)
                needed[address] = needed.get(address, 0) + _footprint(tensor)
        kept = {}
        for name, tensor in tensors.items():
            address = _address(tensor)
            if self.copy or address in self.owned or tensor.untyped_storage().nbytes() > needed[address]:
                kept[name] = _compact(tensor)
            else:
                kept[name] = tensor
                self.note(tensor)
        return kept

    def note(self, tensor: Tensor) -> None:
        """Remember this tensor's version."""
        self._kept.append((tensor, tensor._version))

    def hold(self, tensor: Tensor) -> Tensor:
        """A tensor needed for a while only: noted, or copied in copy mode."""
        if self.copy:
            return _compact(tensor)
        self.note(tensor)
        return tensor

    def changed(self) -> bool:
        """Whether a noted tensor was overwritten since."""
        return any(tensor._version != version for tensor, version in self._kept)

    def forget(self) -> None:
        """Drop the notes (and with them the tensors)."""
        self._kept.clear()


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _view(tensor: Tensor) -> tuple[object, ...]:
    return (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _dense(tensor: Tensor) -> Tensor:
    """The tensor with expanded axes cut back to the one slice they repeat."""
    index = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())
    return tensor[index] if index else tensor


def _footprint(tensor: Tensor) -> int:
    return _dense(tensor).numel() * tensor.element_size()


def _compact(tensor: Tensor) -> Tensor:
    return _dense(tensor).clone(memory_format=torch.contiguous_format).expand(tensor.shape)


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor in nested dicts, tuples and lists."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [tensor for item in value.values() for tensor in tensors_in(item)]
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []
