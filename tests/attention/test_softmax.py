import pytest
import torch
import torch.nn.functional as F
from timm.layers import Attention

from tests.attention.modules import (
    BATCH,
    HEADS,
    TOKENS,
    assert_causal,
    assert_observing_changes_nothing,
    assert_padding_is_ignored,
    heads,
    perturb,
    randn,
)
from workbench.attention import attention_module
from workbench.attention.softmax import softmax_attention
from workbench.core.errors import InputError


def naive(q, k, v, scale, allowed):
    """One query at a time."""
    output = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                keys = [j for j in range(k.shape[2]) if allowed(b, h, i, j)]
                if keys:
                    weights = torch.stack([(scale * (q[b, h, i] @ k[b, h, j])).exp() for j in keys])
                    output[b, h, i] = sum(
                        w * v[b, h, j] for w, j in zip(weights / weights.sum(), keys, strict=True)
                    )
    return output


def test_equals_the_library_kernel():
    q, k, v = heads(1), heads(2), heads(3, width=4)
    assert torch.equal(softmax_attention(q, k, v), F.scaled_dot_product_attention(q, k, v))
    assert torch.equal(
        softmax_attention(q, k, v, scale=0.3, causal=True),
        F.scaled_dot_product_attention(q, k, v, scale=0.3, is_causal=True),
    )


def test_masks_of_both_forms_and_a_query_that_may_attend_to_nothing():
    q, k, v = heads(1), heads(2), heads(3, width=4)
    real = torch.rand(BATCH, TOKENS, generator=torch.Generator().manual_seed(4)) > 0.4
    expected = naive(q, k, v, 0.3, lambda b, h, i, j: real[b, j])
    torch.testing.assert_close(softmax_attention(q, k, v, scale=0.3, mask=real), expected, rtol=0, atol=1e-14)
    pairs = torch.rand(BATCH, HEADS, TOKENS, TOKENS, generator=torch.Generator().manual_seed(5)) > 0.5
    pairs[1, 2, 3] = False
    expected = naive(q, k, v, 0.3, lambda b, h, i, j: pairs[b, h, i, j] and j <= i)
    output = softmax_attention(q, k, v, scale=0.3, mask=pairs, causal=True)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-14)
    assert torch.equal(output[1, 2, 3], torch.zeros(4, dtype=torch.float64))


def test_a_mask_that_does_not_fit_is_refused_with_both_shapes():
    q = heads(1)
    with pytest.raises(InputError, match=r"shape \(3, 7\).*\(2, 7\)"):
        softmax_attention(q, q, q, mask=torch.ones(3, 7, dtype=torch.bool))
    with pytest.raises(InputError, match=r"must be bool.*float32"):
        softmax_attention(q, q, q, mask=torch.ones(2, 7))


def test_whole_numbers_are_no_operands_and_one_batch_serves_many():
    with pytest.raises(InputError, match=r"k holds torch\.int64"):
        softmax_attention(
            torch.randn(2, 3, 5, 4), torch.ones(2, 3, 5, 4, dtype=torch.long), torch.randn(2, 3, 5, 4)
        )
    q, k, v = torch.randn(2, 3, 5, 4), torch.randn(1, 3, 7, 4), torch.randn(1, 3, 7, 6)
    torch.testing.assert_close(softmax_attention(q, k, v)[1:], softmax_attention(q[1:], k, v))


def test_the_module_is_timms_with_the_same_weights():
    timms = Attention(HEADS * 5, num_heads=HEADS, qkv_bias=True).double()
    ours = attention_module("softmax", HEADS * 5, HEADS).double()
    ours.load_state_dict(timms.state_dict())
    x = randn(BATCH, TOKENS, HEADS * 5)
    assert torch.equal(ours(x), timms(x))


def test_symmetric_attention_has_one_projection_fewer():
    plain, symmetric = (attention_module(name, 15, 3) for name in ("softmax", "softmax-sym"))
    size = {m: sum(p.numel() for p in m.parameters()) for m in (plain, symmetric)}
    assert size[plain] - size[symmetric] == 15 * 15 + 15
    _, inside = symmetric.attend(randn(BATCH, TOKENS, 15, dtype=torch.float32), observe=True)
    assert inside["q"] is inside["k"]


@pytest.mark.parametrize("name", ["softmax", "softmax-sym"])
def test_tokens_see_what_they_may(name):
    assert_causal(perturb(attention_module(name, 15, 3, causal=True)))
    assert_padding_is_ignored(perturb(attention_module(name, 15, 3)))
    assert_observing_changes_nothing(perturb(attention_module(name, 15, 3)))


def test_a_module_that_is_not_causal_says_so():
    with pytest.raises(InputError, match="causal=True"):
        attention_module("softmax", 15, 3)(torch.zeros(1, 2, 15), is_causal=True)


def test_heads_must_divide_the_width():
    with pytest.raises(InputError, match="num_heads 4 does not divide dim 15"):
        attention_module("softmax", 15, 4)
