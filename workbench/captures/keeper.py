"""Keep tensors of a running model, which may overwrite them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from workbench.captures.recomputation import dense


class Keeper:
    """Keep tensors without copying them where that is safe.

    A view is copied where it would keep alive a larger storage than what is kept of it, or where the storage
    belongs to ``owned`` tensors (parameters, buffers, the batch), which may change after the run. A kept
    tensor that the model overwrites in place shows in ``changed``; with ``copy`` everything is copied at
    once.
    """

    def __init__(self, owned: Iterable[Tensor], copy: bool = False) -> None:
        self.owned = {address(tensor) for tensor in owned}
        self.copy = copy
        self._kept: list[tuple[Tensor, int]] = []

    def keep(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the same tensors, safe to keep; views that together fill their storage share it."""
        distinct: dict[int, set[tuple[object, ...]]] = {}
        needed: dict[int, int] = {}
        for tensor in tensors.values():
            storage, view = address(tensor), _view(tensor)
            if view not in distinct.setdefault(storage, set()):
                distinct[storage].add(view)
                needed[storage] = needed.get(storage, 0) + _footprint(tensor)
        kept = {}
        for name, tensor in tensors.items():
            storage = address(tensor)
            shared = storage in self.owned or tensor.untyped_storage().nbytes() > needed[storage]
            if self.copy or shared or tensor.is_inference():  # those of inference mode have no versions
                kept[name] = _compact(tensor)
            else:
                kept[name] = tensor
                self.note(tensor)
        return kept

    def note(self, tensor: Tensor) -> None:
        """Remember this tensor's version."""
        self._kept.append((tensor, tensor._version))

    def keep_briefly(self, tensor: Tensor) -> Tensor:
        """Return a tensor that is needed for a while: noted, or copied in copy mode."""
        if self.copy or tensor.is_inference():
            return _compact(tensor)
        self.note(tensor)
        return tensor

    def changed(self) -> bool:
        """Return whether a noted tensor was overwritten since."""
        return any(tensor._version != version for tensor, version in self._kept)

    def forget(self) -> None:
        """Drop the notes (and with them the tensors)."""
        self._kept.clear()


def address(tensor: Tensor) -> int:
    """Return the address of a tensor's storage; 0 where it has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:  # tensors without a storage, as those of some quantisations
        return 0


def _view(tensor: Tensor) -> tuple[object, ...]:
    return (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _footprint(tensor: Tensor) -> int:
    return dense(tensor).numel() * tensor.element_size()


def _compact(tensor: Tensor) -> Tensor:
    if tensor.is_inference():
        with (
            torch.inference_mode(False),
            torch.no_grad(),
        ):  # an ordinary tensor, of a model that enters that mode
            return tensor.clone(memory_format=torch.contiguous_format)
    return dense(tensor).clone(memory_format=torch.contiguous_format).expand(tensor.shape)


def tensors_in(value: Any) -> list[Tensor]:
    """Return every tensor in nested dicts, tuples and lists."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [tensor for item in value.values() for tensor in tensors_in(item)]
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


def first_tensor(value: Any) -> Any:
    """Return the first tensor in nested dicts, tuples and lists; None where there is none."""
    return next(iter(tensors_in(value)), None)
