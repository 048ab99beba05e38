"""The one-to-one matching of vectors with the largest sum of cosines."""

from __future__ import annotations

import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment
from torch import Tensor

MANY = 192  # rows and columns from which prices pay for themselves
TEMPERATURE = 0.01  # of the prices; any value gives the same matching, in more or less time
STEPS = 8
LARGEST = 1e30  # column weight, so that none is infinite: nobody wants some columns


def best_matches(cosines: Float[Tensor, "row column"]) -> Float[Tensor, " pair"]:
    """The cosines of the matching with the largest sum, exactly, by row (or by column where those are fewer)."""
    known = cosines.cpu()
    ranked = known + column_prices(known) if min(known.shape) >= MANY else known
    # ranked may break ties, never change the sum; what comes back are the cosines themselves
    rows, columns = linear_sum_assignment(ranked.numpy(), maximize=True)
    return known[torch.from_numpy(rows), torch.from_numpy(columns)].to(cosines.device)


def column_prices(cosines: Float[Tensor, "row column"]) -> Float[Tensor, " column"]:
    """What to add to each column so that fewer rows want the same one: a few steps of Sinkhorn's balancing.

    In a square matrix every column is taken once, so a constant per column moves every matching's sum by the same
    amount and leaves the best one best; the search for it, of shortest augmenting paths, gets up to twice as fast.
    Columns that stay free in a rectangular matrix would make this untrue: there the prices are 0.
    """
    if cosines.shape[0] != cosines.shape[1]:
        return cosines.new_zeros(cosines.shape[1])
    # between 0 and 1, and 1 somewhere in each row; single precision is plenty for prices
    kernel = ((cosines - cosines.amax(1, keepdim=True)).float() / TEMPERATURE).exp_()
    column = kernel.new_ones(cosines.shape[1])
    for _ in range(STEPS):
        row = (kernel @ column).reciprocal_().clamp_(1 / LARGEST, LARGEST)
        column = (row @ kernel).reciprocal_().clamp_(1 / LARGEST, LARGEST)
    return TEMPERATURE * column.log().to(cosines)
