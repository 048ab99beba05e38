import pytest
import torch
from scipy.optimize import linear_sum_assignment

from workbench.analyses.linalg import MATCHED_MANY, best_matches, column_prices


def unit_rows(rows, width, seed=0):
    x = torch.randn(rows, width, dtype=torch.float64, generator=torch.manual_seed(seed))
    return x / x.norm(dim=1, keepdim=True)


def crowded():
    """Many rows want the same few columns."""
    center = unit_rows(1, 6, seed=3)
    x = center + 0.05 * unit_rows(MATCHED_MANY + 5, 6, seed=4)
    return x / x.norm(dim=1, keepdim=True)


CASES = {
    "random": lambda: unit_rows(MATCHED_MANY + 5, 6) @ unit_rows(MATCHED_MANY + 5, 6, seed=1).T,
    "crowded": lambda: unit_rows(MATCHED_MANY + 5, 6) @ crowded().T,
    "equal": lambda: torch.ones(MATCHED_MANY, MATCHED_MANY, dtype=torch.float64),
    "itself": lambda: crowded() @ crowded().T,
    "opposed": lambda: torch.eye(MATCHED_MANY, dtype=torch.float64) * 2 - 1,
    "unwanted columns": lambda: (
        torch.linspace(-1, 1, MATCHED_MANY).double().expand(MATCHED_MANY, MATCHED_MANY)
    ),
    "small": lambda: unit_rows(7, 3) @ unit_rows(7, 3, seed=1).T,
    "wide": lambda: unit_rows(MATCHED_MANY + 1, 6) @ unit_rows(MATCHED_MANY + 9, 6, seed=1).T,
    "tall": lambda: unit_rows(MATCHED_MANY + 9, 6) @ unit_rows(MATCHED_MANY + 1, 6, seed=1).T,
}


@pytest.mark.parametrize("case", CASES)
def test_the_sum_is_that_of_the_plain_assignment(case):
    cosines = CASES[case]()
    expected = cosines.numpy()[linear_sum_assignment(cosines.numpy(), maximize=True)].sum()
    found = best_matches(cosines)
    assert found.shape == (min(cosines.shape),)
    assert found.sum().item() == pytest.approx(expected, rel=1e-12)


def test_prices_are_finite_and_lower_for_columns_that_many_rows_want():
    cosines = CASES["crowded"]()
    cosines[:, 3] = 1.0
    prices = column_prices(cosines)
    assert prices.isfinite().all()
    assert prices.argmin() == 3
