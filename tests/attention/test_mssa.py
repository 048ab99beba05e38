import pytest
import torch

from workbench.attention.mssa import SubspaceAttention, subspace_attention
from workbench.attention.softmax import SoftmaxAttention

BATCH, HEADS, TOKENS, WIDTH = 2, 3, 7, 5


def loops(w, scale):
    """A token at a time: every other token of the head, weighted by exp(scale w·w)."""
    output = torch.zeros_like(w)
    for b in range(BATCH):
        for h in range(HEADS):
            for i in range(TOKENS):
                weights = (scale * (w[b, h] @ w[b, h, i])).exp()
                output[b, h, i] = (weights[:, None] * w[b, h]).sum(0) / weights.sum()
    return output


@pytest.mark.parametrize("scale", [None, 0.3])
def test_equals_the_loop(scale):
    w = torch.randn(BATCH, HEADS, TOKENS, WIDTH, dtype=torch.float64, generator=torch.manual_seed(0))
    wanted = loops(w, WIDTH**-0.5 if scale is None else scale)
    torch.testing.assert_close(subspace_attention(w, scale=scale), wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("causal", [False, True])
def test_is_softmax_attention_with_one_shared_projection(causal):
    dim = HEADS * WIDTH
    shared = SubspaceAttention(dim, HEADS, causal=causal)
    softmax = SoftmaxAttention(dim, HEADS, causal=causal)
    softmax.load_state_dict(
        {
            "qkv.weight": shared.qkv.weight.repeat(3, 1),
            "qkv.bias": shared.qkv.bias.repeat(3),
            "proj.weight": shared.proj.weight,
            "proj.bias": shared.proj.bias,
        }
    )
    x = torch.randn(BATCH, TOKENS, dim, generator=torch.manual_seed(1))
    mask = torch.arange(TOKENS).expand(BATCH, -1) < torch.tensor([[TOKENS], [4]])
    torch.testing.assert_close(shared(x, mask), softmax(x, mask))
    torch.testing.assert_close(shared(x), softmax(x))


def test_observed_sites_give_the_output_again():
    layer = SubspaceAttention(HEADS * WIDTH, HEADS, causal=True)
    x = torch.randn(BATCH, TOKENS, HEADS * WIDTH, generator=torch.manual_seed(2))
    output, sites = layer.attend(x, observe=True)
    scores = sites["scale"] * sites["q"] @ sites["k"].mT
    attn = scores.masked_fill(~sites["mask"], -torch.inf).softmax(-1)
    torch.testing.assert_close(attn @ sites["v"], output)
