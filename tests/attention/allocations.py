"""How large the tensors are that a computation makes, forward and backward."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Largest(TorchDispatchMode):
    """Keeps the largest number of elements any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.elements = max([self.elements, *sizes])
        return result


def largest_tensor(compute: Callable[[], Tensor]) -> int:
    """Elements of the largest tensor made by ``compute()`` and by the backward pass from its sum."""
    with _Largest() as seen:
        compute().sum().backward()
    return seen.elements
