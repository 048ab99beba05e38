"""What is compared of a captured call, and what of two captures."""

import itertools
from types import SimpleNamespace

import pytest
import torch
import transformers

from workbench.captures import capture
from workbench.captures.capture_differences import _aligned, _relative_difference
from workbench.captures.families.swin import Windows
from workbench.captures.layer_records import Call
from workbench.captures.recomputation import (
    NonFiniteValues,
    _summed,
    attention_output,
    attention_weights,
    call_weights,
    check_call,
    scores_of,
    softmax_of,
)
from workbench.captures.routes import _combined_mask
from workbench.core.errors import IncompleteCapture, InputError

INPUTS, HEADS, TOKENS, DIM = 3, 2, 10, 4


def call():
    q, k, v = torch.randn(3, INPUTS, HEADS, TOKENS, DIM, generator=torch.Generator().manual_seed(0))
    made = Call(q, k, v, 0.5, None, torch.zeros(0))
    made.head_out = attention_output(call_weights(made), v, "token")
    return made


@pytest.mark.parametrize("groups", [HEADS, 1])
def test_autocast_changes_no_weights(groups):
    made = call()
    k, v = made.k[:, :groups], made.v[:, :groups]
    attn = attention_weights(made.q, k, made.scale)
    output, scores = attention_output(attn, v), scores_of(made.q, k, made.scale)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(attention_weights(made.q, k, made.scale), attn)
        assert torch.equal(scores_of(made.q, k, made.scale), scores)
        assert torch.equal(attention_output(attn, v), output)
        assert (made.q @ made.k.mT).dtype == torch.bfloat16  # of the model, still


def test_a_query_that_is_nan_is_named_where_the_kernel_writes_zeros():
    made = call()
    made.q[1, 1, 3, 2] = float("nan")
    made.head_out[1, 1, 3] = 0
    for attn in (None, call_weights(made)):
        with pytest.raises(NonFiniteValues, match=r"q has 1 values .* input 1, head 1, token 3"):
            check_call(made, attn, "attn")


@pytest.mark.parametrize(
    "place", [(0, 0), (0, TOKENS - 1), (INPUTS - 1, 0), (INPUTS - 1, 6), (INPUTS - 1, TOKENS - 1)]
)
def test_without_weights_the_first_and_the_last_input_are_compared_from_end_to_end(place):
    right = call()
    check_call(right, None, "attn")
    right.head_out[place[0], :, place[1]] += 0.5
    with pytest.raises(IncompleteCapture):
        check_call(right, None, "attn")


def test_the_size_of_a_difference_is_that_of_the_first():
    x, y = torch.tensor([4.0, -8.0, 0.0]), torch.tensor([4.0, -8.0, 2.0])
    assert _relative_difference((x, y)) == 0.25
    assert _relative_difference((-x, -y)) == 0.25
    assert _relative_difference((torch.zeros(2), torch.ones(2))) == float("inf")


def test_windows_of_an_image_that_is_no_square_are_counted_row_by_row():
    """Two images of 2 × 3 windows: the fifth window of the second lies in row 1, column 1."""
    block = SimpleNamespace(
        args=(torch.zeros(2, 4, 6, 5),), module=SimpleNamespace(window_size=(2, 2), shift_size=(0, 1))
    )
    block.module.shift_size = (0, 1)
    windows = Call(*[torch.zeros(12, 1, 4, 3)] * 3, 1.0, None, torch.zeros(12, 1, 4, 3))
    visit = SimpleNamespace(parents=[block], calls=[windows])
    (read,) = Windows().read(visit)
    assert read.origin.image.tolist() == [0] * 6 + [1] * 6
    assert read.origin.row.tolist() == [0, 0, 0, 1, 1, 1] * 2
    assert read.origin.column.tolist() == [0, 1, 2] * 4
    assert (read.origin.size, read.origin.shift, read.origin.grid) == ((2, 2), (0, 1), (2, 3))


def test_a_mask_that_is_longer_than_the_keys_is_cut_to_the_first_of_them():
    """A cache of fixed length brings a mask for keys that are not there yet."""
    query, key = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 5, 4)
    mask = torch.arange(24.0).view(1, 1, 3, 8)
    found = _combined_mask("eager", torch.nn.Identity(), query, key, mask, None)
    assert torch.equal(found, mask[..., :5])
    biased = _combined_mask("eager", torch.nn.Identity(), query, key, mask[..., :5], torch.ones(1, 2, 3, 5))
    assert torch.equal(biased, (mask[..., :5] + 1).expand(1, 2, 3, 5))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_bool_mask_does_what_the_implementation_makes_of_it(implementation):
    """Eager functions of transformers add it, kernels hide where it is false."""
    sizes = {"hidden_size": 12, "intermediate_size": 10, "num_hidden_layers": 1, "num_key_value_heads": 1}
    config = transformers.Qwen2Config(
        vocab_size=11, num_attention_heads=3, attn_implementation=implementation, **sizes
    )
    model = transformers.Qwen2Model(config).eval()
    allowed = torch.ones(5, 5).tril().bool()[None, None].expand(2, 1, 5, 5)
    batch = {"input_ids": torch.arange(10).reshape(2, 5), "attention_mask": allowed}
    (record,) = capture(model, batch)
    scores = scores_of(record.q, record.k, record.scale)
    masked = scores + allowed.float() if implementation == "eager" else scores.where(allowed, -torch.inf)
    torch.testing.assert_close(record.attn, masked.softmax(-1))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_scores_of_grouped_queries_are_their_loop(groups):
    """Of 4 query heads over 4, 2 or 1 keys' heads, each next one reads the next group's."""
    source = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 4, 3, DIM, generator=source), torch.randn(2, 4 // groups, 5, DIM, generator=source)
    found = scores_of(q, k, 0.7)
    for b, h, i, j in itertools.product(range(2), range(4), range(3), range(5)):
        assert found[b, h, i, j] == pytest.approx(0.7 * float(q[b, h, i] @ k[b, h // groups, j]), abs=1e-5)
    torch.testing.assert_close(softmax_of(found, None), attention_weights(q, k, 0.7))


def test_masks_are_compared_over_axes_of_one_and_other_sizes_are_named():
    mask = torch.arange(30.0).reshape(2, 1, 5, 3)
    first, second = _aligned(mask, mask.expand(2, 7, 5, 3) + 1, "mask", 3)
    assert first.shape == second.shape == (2, 7, 5, 3)
    assert torch.equal(second - first, torch.ones(2, 7, 5, 3).double())
    with pytest.raises(
        InputError, match=r"layer 3, mask: the key axis is 3 in the first capture, 4 in the second"
    ):
        _aligned(mask, torch.ones(2, 1, 5, 4), "mask", 3)


def test_signed_sums_of_rows_are_alike_however_an_output_lies_in_memory():
    beside = torch.randn(2, 7, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    output = beside.transpose(1, 2)  # heads beside one another, as kernels leave them
    signs = torch.tensor([[1.0, -1, 1, 1, -1, -1, 1]], dtype=torch.float64)
    expected = sum(sign * output[:, :, token] for token, sign in enumerate(signs[0]))[:, :, None]
    for laid in (output, output.contiguous()):
        torch.testing.assert_close(_summed(signs, laid), expected)
