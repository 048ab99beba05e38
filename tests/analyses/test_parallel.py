import torch

from workbench.analyses.parallel import map_heads


def test_results_come_in_order_and_threads_are_put_back():
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            stack, offsets = torch.arange(7.0)[:, None, None], 10 * torch.arange(7.0)
            inside: list[int] = []

            def add(matrix: torch.Tensor, offset: torch.Tensor, inside: list[int] = inside) -> float:
                inside.append(torch.get_num_threads())
                return float(matrix.sum() + offset)

            assert map_heads(add, stack, offsets) == [11.0 * i for i in range(7)]
            assert set(inside) == {1}
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_an_error_in_one_head_is_raised_and_threads_are_put_back():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        try:
            map_heads(torch.linalg.cholesky, -torch.eye(3).expand(4, 3, 3))
        except torch.linalg.LinAlgError:
            assert torch.get_num_threads() == 2
        else:
            raise AssertionError("a negative matrix has no Cholesky factor")
    finally:
        torch.set_num_threads(before)
