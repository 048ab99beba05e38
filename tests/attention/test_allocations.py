import torch

from tests.attention.allocations import largest_tensor


def test_the_probe_sees_a_matrix_of_pairs_of_tokens():
    x = torch.randn(11, 3, requires_grad=True)
    assert largest_tensor(lambda: (x @ x.T).softmax(-1) @ x) == 11 * 11
