"""Requests that no capture can meet are refused in words, before the model runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.captures.families import FAMILIES
from workbench.captures import capture, capture_generation, capture_steps
from workbench.core.errors import InputError

MODEL, BATCH = FAMILIES["vit"].build(), FAMILIES["vit"].batch()
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("layers must be whole numbers.*got 3.0", {"layers": 3.0}),
    ("layers must be whole numbers.*got nan", {"layers": float("nan")}),
    ("layers must be whole numbers.*got True", {"layers": True}),
    ("layers must be whole numbers.*got <object", {"layers": object()}),
    ("each must be a function, or none; got 5", {"each": 5}),
    ("map_limit must be a whole number from 0 up, or none; got 'a'", {"map_limit": "a"}),
    ("map_limit must be a whole number from 0 up, or none; got -1", {"map_limit": -1}),
    ("check must be true or false; got 'no'", {"check": "no"}),
    ("explicit must be true or false, or none; got 1", {"explicit": 1}),
    ("grad must be true or false; got 2", {"grad": 2}),
]


@pytest.mark.parametrize(("message", "request_"), REQUESTS)
def test_a_capture_of_wrong_arguments(message, request_):
    with pytest.raises(InputError, match=message):
        capture(MODEL, BATCH, **request_)


@pytest.mark.parametrize("sites", [7, [7], None, True])
def test_sites_that_are_no_names(sites):
    for run in (capture, capture_generation):
        with pytest.raises(InputError, match=r"unknown site|sites must be text or a list"):
            run(MODEL, BATCH, sites=sites)
    with pytest.raises(InputError, match=r"unknown site|sites must be text or a list"):
        capture_steps(MODEL, lambda: MODEL(BATCH), sites=sites)


def test_steps_of_no_function():
    with pytest.raises(InputError, match="run must be a function; got 5"):
        capture_steps(MODEL, 5)
    with pytest.raises(InputError, match="each must be a function, or none; got 5"):
        capture_steps(MODEL, lambda: MODEL(BATCH), each=5)


def test_sites_may_be_any_iterable():
    for sites in ("q", ["q"], iter(["q"])):
        assert capture(MODEL, BATCH, sites=sites).sites == ("q",)


@pytest.mark.parametrize("weights", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("numbers", [torch.float32, torch.float64, torch.float16])
def test_a_batch_is_read_in_the_precision_of_the_weights(weights, numbers):
    model = FAMILIES["vit"].build().to(weights)
    batch = BATCH.to(numbers)
    captured = capture(model, batch)
    assert torch.equal(captured.result, model(batch.to(weights)))
    assert captured[0].q.dtype == weights


def test_weights_in_several_precisions_leave_the_batch_as_it_is():
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.project = nn.LayerNorm(6), nn.Linear(6, 4, dtype=torch.float64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.dtype == torch.float64
            q = self.project(x)
            return nn.functional.scaled_dot_product_attention(q, q, q)

    assert capture(Mixed(), torch.randn(2, 3, 5, 6, dtype=torch.float64))[0].q.dtype == torch.float64


def test_tensors_without_values_are_refused():
    empty = nn.TransformerEncoderLayer(8, 2, device="meta")
    for batch in (torch.randn(2, 3, 8), torch.randn(2, 3, 8, device="meta")):
        with pytest.raises(InputError, match="device 'meta'"):
            capture(empty, batch)
    with pytest.raises(InputError, match="the batch is on the device 'meta'"):
        capture(MODEL, BATCH.to("meta"))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_images_of_whole_numbers_are_refused_in_words(dtype):
    images = (BATCH * 0).to(dtype)
    words = rf"{dtype} \({BATCH.shape[0]}, 3, .*computes with floats; give workbench.inputs the images"
    with pytest.raises(InputError, match=words):
        capture(MODEL, images)
    model = nn.Sequential(nn.Embedding(7, 6), nn.Flatten(0, 1), nn.TransformerEncoderLayer(6, 2, 5))
    assert capture(model.eval(), torch.ones(2, 3, 5, dtype=dtype).long())[0].q.shape[-1] == 3
    with pytest.raises(IndexError):  # another fault than that of the type
        capture(model, torch.full((2, 3, 5), 9))


def test_lists_of_numbers_are_no_batch():
    gpt = FAMILIES["gpt2"].build()
    for batch in ({"input_ids": [[1, 2, 3]]}, [[1, 2], [3, 4]], {"input_ids": [1, 2]}):
        with pytest.raises(InputError, match="return_tensors='pt'"):
            capture(gpt, batch)
