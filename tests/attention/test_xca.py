import pytest
import torch
from timm.models.xcit import XCA
from torch import nn

from tests.attention.allocations import largest_tensor
from workbench.attention.xca import CrossCovarianceAttention, cross_covariance_attention
from workbench.core.errors import InputError

BATCH, HEADS, TOKENS, WIDTH = 2, 3, 7, 5


@pytest.fixture
def qkv():
    generator = torch.manual_seed(0)
    return [
        torch.randn(BATCH, HEADS, TOKENS, WIDTH, dtype=torch.float64, generator=generator) for _ in range(3)
    ]


def test_equals_the_loop_over_channels(qkv):
    q, k, v = qkv
    temperature = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)[:, None, None]
    found = cross_covariance_attention(q, k, v, temperature)
    for b in range(BATCH):
        for h in range(HEADS):
            for i in range(WIDTH):
                cosines = [
                    torch.dot(q[b, h, :, i], k[b, h, :, j]) / (q[b, h, :, i].norm() * k[b, h, :, j].norm())
                    for j in range(WIDTH)
                ]
                weights = (temperature[h, 0, 0] * torch.stack(cosines)).softmax(0)
                wanted = sum(weights[j] * v[b, h, :, j] for j in range(WIDTH))
                torch.testing.assert_close(found[b, h, :, i], wanted)


@pytest.mark.parametrize("bias", [False, True])
def test_equals_timm(bias):
    dim = HEADS * WIDTH
    theirs = XCA(dim, HEADS, qkv_bias=bias)
    nn.init.uniform_(theirs.temperature, 0.5, 2.0)
    ours = CrossCovarianceAttention(dim, HEADS, qkv_bias=bias)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(BATCH, TOKENS, dim, generator=torch.manual_seed(1))
    for fused in (False, True):
        theirs.fused_attn = fused
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-6)


def test_the_size_of_queries_and_keys_does_not_matter(qkv):
    q, k, v = qkv
    torch.testing.assert_close(
        cross_covariance_attention(9 * q, 0.2 * k, v), cross_covariance_attention(q, k, v)
    )


def test_without_temperature_every_channel_is_the_mean_of_all(qkv):
    q, k, v = qkv
    mean = v.mean(-1, keepdim=True).expand_as(v)
    torch.testing.assert_close(cross_covariance_attention(q, k, v, 0.0), mean)


def test_padding_changes_no_real_token(qkv):
    mask = (torch.arange(TOKENS + 2) < TOKENS).expand(BATCH, -1)
    padded = [torch.cat([x, torch.full((BATCH, HEADS, 2, WIDTH), 1e6)], 2) for x in qkv]
    found = cross_covariance_attention(*padded, mask=mask)
    torch.testing.assert_close(found[:, :, :TOKENS], cross_covariance_attention(*qkv))


def test_no_pair_of_tokens_is_ever_formed():
    tokens, width = 97, 3
    q, k, v = (torch.randn(1, 2, tokens, width, requires_grad=True) for _ in range(3))
    assert largest_tensor(lambda: cross_covariance_attention(q, k, v)) <= 2 * tokens * width


def test_observed_sites_give_the_output_again():
    layer = CrossCovarianceAttention(HEADS * WIDTH, HEADS)
    nn.init.uniform_(layer.temperature, 0.5, 2.0)
    x = torch.randn(BATCH, TOKENS, HEADS * WIDTH, generator=torch.manual_seed(2))
    mask = torch.arange(TOKENS).expand(BATCH, -1) < torch.tensor([[TOKENS], [4]])
    output, sites = layer.attend(x, mask, observe=True)
    attn = (sites["scale"] * sites["q"].mT @ sites["k"]).softmax(-1)
    assert attn.shape == (BATCH, HEADS, WIDTH, WIDTH)
    torch.testing.assert_close((attn @ sites["v"].mT).mT, output)


def test_has_no_causal_form():
    with pytest.raises(InputError, match="no causal form"):
        CrossCovarianceAttention(HEADS * WIDTH, HEADS, causal=True)


def test_operands_of_several_shapes_are_refused():
    q, k, v = torch.randn(3, 2, 3, 7, 5)
    with pytest.raises(InputError, match=r"axis head_dim, got 5 and 4 in .* v \(2, 3, 7, 4\)"):
        cross_covariance_attention(q, k, v[..., :4])
    with pytest.raises(InputError, match="axis token"):
        cross_covariance_attention(q, k, v[:, :, :4])
