"""Bytes and seconds are those that can be counted by hand."""

import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from workbench.studies.training import cost_measures
from workbench.studies.training.cost_measures import (
    Allocations,
    free_memory,
    in_turns,
    memory_measure,
)

FLOAT = 4  # bytes


def test_the_peak_is_what_lives_at_once():
    x = torch.randn(7, 11)
    with Allocations() as seen:
        y = x + 1
        y = y * 2  # the first is freed after the second is made
        z = y @ y.T
        del y
        z = z.sum()
    assert seen.peak == 2 * 7 * 11 * FLOAT
    assert seen.total == (7 * 11 * 2 + 7 * 7 + 1) * FLOAT
    assert seen.largest == 7 * 11
    assert z.ndim == 0


def test_views_and_changes_in_place_take_nothing():
    x = torch.randn(7, 11)
    with Allocations() as seen:
        x.T.reshape(11, 7)[2:].unsqueeze(0)
        x.add_(1)
        x.detach()
    assert seen.total == seen.peak == 0


def test_a_tensor_and_its_views_count_once_until_the_last_is_gone():
    with Allocations() as seen:
        half = torch.zeros(6, 5)[3:]
        torch.zeros(2)
        del half
        torch.zeros(3, 5)
    assert seen.peak == (6 * 5 + 2) * FLOAT


def test_the_backward_pass_is_seen():
    x = torch.randn(5, 3)
    weight = torch.randn(3, 13, requires_grad=True)

    def step():
        (x @ weight).sum().backward()
        weight.grad = None

    with Allocations() as seen:
        step()
    # the product, the sum and its gradient, and the gradient of the weight from a view of ones
    assert seen.total == (5 * 13 + 1 + 1 + 3 * 13) * FLOAT


def test_gradients_need_more_than_a_forward_pass():
    x, weight = torch.randn(64, 32), torch.randn(32, 32)

    def peak(layers, grad):
        own = weight.clone().requires_grad_(grad)
        with Allocations() as seen:
            h = x
            for _ in range(layers):
                h = torch.relu(h @ own)
            if grad:
                h.sum().backward()
        return seen.peak

    # a forward pass lets go of what it has used; a backward pass needs the output of every layer
    assert peak(9, False) == peak(3, False)
    assert peak(9, True) > 2 * peak(3, True)


def test_shapes_alone_will_do():
    with FakeTensorMode(), Allocations() as seen:
        q = torch.empty(1, 2, 1000, 16)
        F.softmax(q @ q.mT, -1)
    assert seen.largest == 2 * 1000 * 1000
    assert seen.total == (2 * 1000 * 16 + 2 * 2 * 1000 * 1000) * FLOAT


def test_functions_take_turns_and_the_first_round_is_left_out():
    calls = []
    times = in_turns([lambda: calls.append("a"), lambda: calls.append("b")], 3)
    assert [len(taken) for taken in times] == [3, 3]
    assert "".join(calls) == "baabbaab"
    assert all(second >= 0 for taken in times for second in taken)


def test_a_budget_ends_the_rounds_but_leaves_one():
    def slow():
        torch.randn(300, 300) @ torch.randn(300, 300)

    (taken,) = in_turns([slow], 1000, budget=1e-9)
    assert len(taken) == 1
    assert taken[0] > 0


def test_a_round_that_was_run_already_is_the_first():
    calls = []
    two = [lambda: calls.append("a"), lambda: calls.append("b")]
    times = in_turns(two, 2, first=[5.0, 7.0])
    assert "".join(calls) == "abba"
    assert [len(own) for own in times] == [2, 2]
    assert max(max(own) for own in times) < 5
    assert in_turns(two, 2, first=[5.0, 7.0], budget=12.0) == [[5.0], [7.0]]
    assert len(calls) == 4


def test_every_function_gets_the_time_that_passes_while_it_runs(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(cost_measures.time, "process_time", lambda: now[0])

    def work(seconds):
        now[0] += seconds

    assert in_turns([lambda: work(2), lambda: work(60)], 5) == [[2] * 5, [60] * 5]
    assert in_turns([lambda: work(2), lambda: work(60)], 5, budget=100) == [[2], [60]]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_kilobytes_of_proc_are_1024_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * os.sysconf("SC_PAGE_SIZE")
    assert cost_measures._resident("VmSize") == pytest.approx(size, rel=3e-4)


# In a process of its own, as the efficiency study measures: in one that has run hundreds of tests the system may take
# pages back meanwhile.
_GROWTH = """
import torch
from workbench.studies.training.cost_measures import memory_growth

def twice_in_a_row():
    for _ in range(2):
        torch.ones(64 * 2**20, dtype=torch.uint8)

print(*(memory_growth(twice_in_a_row) for _ in range(3)), memory_growth(lambda: None))
"""


def test_memory_grows_by_what_is_held_at_once_and_is_given_back():
    size = 64 * 2**20
    printed = subprocess.run(
        [sys.executable, "-c", _GROWTH], capture_output=True, text=True, check=True
    ).stdout
    *grown, nothing = map(float, printed.split())
    assert 0.75 * size < statistics.median(grown) < 1.5 * size
    assert nothing < size / 8
    assert "resident" in memory_measure()
    assert 0 < free_memory() < 2**50
