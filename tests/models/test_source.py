"""Sizes that a model under construction may have."""

import pytest
import torch

from workbench.core.errors import InputError
from workbench.models.source import Bounded, bounded_by_weights


def test_weights_in_a_folder_bound_a_model_by_sixteen_numbers_a_byte_and_room_for_buffers(tmp_path):
    for name, size in (("a.safetensors", 3_000), ("b.bin", 500), ("config.json", 70_000)):
        (tmp_path / name).write_bytes(bytes(size))
    bound = bounded_by_weights(tmp_path, "it")
    assert bound.most == 16 * 3_500 + 2**24
    assert "its weights are 3,500 bytes" in bound.why


@pytest.mark.parametrize(
    ("make", "numbers"),
    [
        (lambda: torch.ones((30, 50)), 1_500),
        (lambda: torch.ones(30, 50), 1_500),
        (lambda: torch.zeros(size=(30, 50, 2)), 3_000),
        (lambda: torch.arange(20, 2_000), 2_000),
        (lambda: torch.linspace(0, 1, 1_700), 1_700 * 2**10),  # a number for each layer to come
        (lambda: torch.full((2, 3), 1.0), 2**10),  # a small tensor takes as much with the module around it
    ],
)
def test_every_tensor_that_is_made_counts_by_its_size(make, numbers):
    with Bounded("it", 10**9, "take less") as bound:
        make()
    assert bound.count == numbers
    with Bounded("it", numbers, "take less"):
        make()
    with (
        pytest.raises(InputError, match=r"asks for more than [\d,]+ numbers; take less"),
        Bounded("it", numbers - 1, "take less"),
    ):
        make()
