"""Every mapping of tensors is a batch, whatever its class calls its methods and attributes."""

from __future__ import annotations

from collections import UserDict, namedtuple
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest
import torch

import workbench
from tests.captures.families import seeded
from tests.captures.test_generation import GPT, causal, prompts
from workbench.captures import capture, capture_generation
from workbench.core.errors import InputError


class _Named(dict[str, Any]):
    """A mapping whose attributes are those of named inputs, and mean something else."""

    batch = tokens = batches = spec = n = seed = property(lambda self: pytest.fail("not of the batch"))


def _encoding(tensors: Mapping[str, Any]) -> Any:
    from transformers import BatchEncoding

    return BatchEncoding(dict(tensors))


def _output(tensors: Mapping[str, Any]) -> Any:
    from transformers.utils import ModelOutput

    return ModelOutput(tensors)


KINDS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "BatchEncoding": _encoding,
    "ModelOutput": _output,
    "UserDict": UserDict,
    "mapping proxy": MappingProxyType,
    "dict with attributes": _Named,
}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def wrapped(request: pytest.FixtureRequest) -> Any:
    return request.param(prompts())


def test_a_capture_is_that_of_the_dict(wrapped):
    model, layers = causal("gpt2", GPT), []
    plain, other = capture(model, prompts()), capture(model, wrapped)
    capture(model, wrapped, each=lambda record, tokens: layers.append((record.q, tokens.labels)))
    for number, record in enumerate(plain):
        assert torch.equal(other[number].q, record.q)
        assert torch.equal(layers[number][0], record.q)
    assert other.tokens.labels == plain.tokens.labels == layers[0][1]


def test_generated_tokens_are_those_of_the_dict(wrapped):
    model = causal("gpt2", GPT)
    plain, other = (capture_generation(model, batch, max_new_tokens=2) for batch in (prompts(), wrapped))
    assert torch.equal(other.generated.sequences, plain.generated.sequences)


def test_an_analysis_and_a_watch_give_the_numbers_of_the_dict(wrapped, tmp_path):
    model = causal("gpt2", GPT)
    plain, other = (workbench.analyze("attention-map", model=model, inputs=i) for i in (prompts(), wrapped))
    assert other["value"].equals(plain["value"])
    workbench.watch(model, wrapped, out=tmp_path, analyses=["attention-map"]).step(0)
    assert set(workbench.read_watch(tmp_path, "attention-map")["input"].dropna()) == {"0", "1"}


def test_a_named_tuple_gives_the_arguments_in_order():
    pair = namedtuple("Pair", "batch tokens")
    layer = seeded(lambda: torch.nn.TransformerDecoderLayer(16, 2, 32, batch_first=True).eval())()
    tensors = torch.ones(2, 5, 16), torch.ones(2, 3, 16)
    assert torch.equal(capture(layer, pair(*tensors))[0].q, capture(layer, tensors)[0].q)


def test_a_mapping_without_tensors_is_refused_by_an_analysis():
    with pytest.raises(InputError, match="a mapping of tensors with the inputs along axis 0; got list"):
        workbench.analyze("attention-map", model=causal("gpt2", GPT), inputs=_encoding({"input_ids": [3, 4]}))
