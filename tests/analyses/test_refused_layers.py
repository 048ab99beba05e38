"""Layers without numbers, of zero width or without tokens are refused before any analysis reads them."""

import pytest
import torch
from torch import nn

import workbench
from workbench.captures import Capture, LayerRecord
from workbench.core.errors import InputError

OF_OPERANDS = (
    "attention-map",
    "attention-patterns",
    "class-attention",
    "gram-spectrum",
    "softmax-sensitivity",
)


def captured(operands):
    q, k, v = operands
    return Capture([LayerRecord(0, "", q=q, k=k, v=v, scale=0.5)], ("q", "k", "v"))


@pytest.mark.parametrize("name", OF_OPERANDS)
@pytest.mark.parametrize(
    ("shape", "device", "message"),
    [
        (
            (3, 1, 2, 5, 0),
            "cpu",
            "q has shape (1, 2, 5, 0); expected (…, token, head_dim): axis head_dim is empty",
        ),
        ((3, 1, 2, 0, 4), "cpu", "axis token is empty"),
        ((3, 1, 2, 5, 4), "meta", "q is on the device 'meta', where tensors have no values"),
    ],
    ids=["zero width", "no tokens", "meta"],
)
def test_operands_without_content_are_refused(name, shape, device, message):
    with pytest.raises(InputError) as error:
        workbench.analyze(name, qkv=captured(torch.rand(shape, device=device)), progress=False)
    assert message in str(error.value)
    assert str(error.value).count("layer 0") == 1


def test_maps_without_keys_are_refused():
    attn = torch.rand(1, 2, 4, 0)
    with pytest.raises(InputError, match="axis key is empty"):
        workbench.analyze("attention-map", qkv=Capture([LayerRecord(0, "", attn=attn)], ("attn",)))


def test_a_model_on_meta_is_refused():
    with torch.device("meta"):
        model = nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    with pytest.raises(InputError, match="is on the device 'meta' and has no values"):
        workbench.analyze("attention-map", model, torch.rand(1, 5, 8))
