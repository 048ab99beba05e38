"""How large the tensors are that a computation makes, forward and backward."""

from collections.abc import Callable

from torch import Tensor

from workbench.studies.training.cost_measures import Allocations


def largest_tensor(compute: Callable[[], Tensor]) -> int:
    """Elements of the largest tensor made by ``compute()`` and by the backward pass from its sum."""
    with Allocations() as seen:
        compute().sum().backward()
    return seen.largest
