import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from workbench.attention.bilateral import (
    SINUSOIDAL_STD,
    AlibiAttention,
    BilateralAttention,
    TwicingAttention,
    alibi_attention,
    alibi_logits,
    alibi_slopes,
    bilateral_attention,
    log_bilateral_filter,
    log_filter_constant,
    nonlocal_attention,
    position_logits,
    sinusoidal_positions,
    twicing_attention,
)
from workbench.core.errors import InputError

BATCH, HEADS, TOKENS, DIM = 2, 3, 7, 5
MODULES = {
    "bilateral": lambda **shared: BilateralAttention(HEADS * DIM, HEADS, num_tokens=TOKENS, **shared),
    "nonlocal": lambda **shared: BilateralAttention(HEADS * DIM, HEADS, h_p=math.inf, **shared),
    "alibi": lambda **shared: AlibiAttention(HEADS * DIM, HEADS, **shared),
    "twicing": lambda **shared: TwicingAttention(HEADS * DIM, HEADS, **shared),
}


@pytest.fixture
def qkv():
    torch.manual_seed(0)
    return torch.randn(3, BATCH, HEADS, TOKENS, DIM, dtype=torch.float64)


@pytest.fixture
def positions():
    torch.manual_seed(1)
    return torch.randn(2, HEADS, TOKENS, DIM, dtype=torch.float64)


@pytest.fixture
def x():
    torch.manual_seed(2)
    return torch.randn(BATCH, TOKENS, HEADS * DIM)


def close(actual, expected, tolerance=1e-12):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dim", [4, 10])
def test_softmax_attention_is_two_bilateral_filters_with_the_corrected_constant(dim):
    """Prop. III.2, with α_c = exp((2c² + d)/√d)."""
    torch.manual_seed(dim)
    norm = 1.7
    y = norm * F.normalize(torch.randn(TOKENS, dim, dtype=torch.float64), dim=1)
    p = sinusoidal_positions(TOKENS, dim)
    close(p.square().sum(1), torch.full((TOKENS,), dim / 2, dtype=torch.float64))
    h = math.sqrt(2 * math.sqrt(dim))
    itself = log_bilateral_filter(p, p, y, y, h_p=h, h_y=h)
    crossed = log_bilateral_filter(p, y, y, p, h_p=h, h_y=h)
    close((y + p) @ (y + p).T / math.sqrt(dim), log_filter_constant(norm, dim) + itself + crossed)
    printed = 2 * norm**2 + dim / 2
    assert abs(printed - log_filter_constant(norm, dim)) > 1


def test_sinusoidal_positions_follow_equation_5():
    p = sinusoidal_positions(4, 6, base=100.0)
    for i in range(4):
        for t in range(3):
            assert p[i, 2 * t].item() == pytest.approx(math.sin(i / 100 ** (2 * t / 6)))
            assert p[i, 2 * t + 1].item() == pytest.approx(math.cos(i / 100 ** (2 * t / 6)))
    with pytest.raises(InputError, match="must be even, got 5"):
        sinusoidal_positions(4, 5)


def test_bilateral_attention_is_the_naive_sum(qkv, positions):
    q, k, v = qkv
    (p_q, p_k), h_p, h_y = positions, 1.3, 0.8
    expected = torch.zeros_like(v)
    for b in range(BATCH):
        for h in range(HEADS):
            for i in range(TOKENS):
                weights = [
                    math.exp(p_q[h, i] @ p_k[h, j] / h_p**2 + q[b, h, i] @ k[b, h, j] / h_y**2)
                    for j in range(TOKENS)
                ]
                total = sum(w * v[b, h, j] for j, w in enumerate(weights))
                expected[b, h, i] = total / sum(weights)
    close(bilateral_attention(q, k, v, p_q, p_k, h_p=h_p, h_y=h_y), expected)


def test_on_a_sphere_bilateral_attention_is_the_bilateral_filter(qkv, positions):
    """K_BF depends on distances, K_BSA on products: with vectors of one length they differ by a constant."""
    y, p = F.normalize(qkv[0], dim=-1), F.normalize(positions[0], dim=-1)
    filtered = log_bilateral_filter(p, p, y, y, h_p=1.1, h_y=0.6).softmax(-1) @ qkv[2]
    close(bilateral_attention(y, y, qkv[2], p, p, h_p=1.1 / 2**0.5, h_y=0.6 / 2**0.5), filtered)


def test_without_positions_it_is_softmax_attention(qkv, positions):
    q, k, v = qkv
    softmax = F.scaled_dot_product_attention(q, k, v)
    close(bilateral_attention(q, k, v, *torch.zeros_like(positions)), softmax)
    close(bilateral_attention(q, k, v, *positions, h_p=math.inf), softmax)
    close(nonlocal_attention(q, k, v), softmax)
    close(alibi_attention(q, k, v, torch.zeros(HEADS, dtype=torch.float64)), softmax)


def test_a_growing_position_bandwidth_approaches_nonlocal_attention(qkv, positions):
    q, k, v = qkv
    limit = nonlocal_attention(q, k, v, h_y=0.9)
    errors = [
        (bilateral_attention(q, k, v, *positions, h_p=10.0**power, h_y=0.9) - limit).abs().max().item()
        for power in range(1, 5)
    ]
    # The logits change by 1/h_p², so ten times the bandwidth leaves a hundredth of the difference.
    assert all(after < before / 50 for before, after in itertools.pairwise(errors))
    assert errors[-1] < 1e-6


def test_bandwidths_may_differ_between_heads(qkv, positions):
    q, k, v = qkv
    h_p, h_y = (0.5 + torch.rand(2, HEADS, 1, 1, dtype=torch.float64)).unbind()
    together = bilateral_attention(q, k, v, *positions, h_p=h_p, h_y=h_y)
    for h in range(HEADS):
        one = (part[:, h : h + 1] for part in qkv)
        alone = bilateral_attention(*one, *positions[:, h : h + 1], h_p=h_p[h].item(), h_y=h_y[h].item())
        close(together[:, h : h + 1], alone)


@pytest.mark.parametrize("bandwidth", [0, -1.0])
def test_bandwidths_are_positive(qkv, positions, bandwidth):
    with pytest.raises(InputError, match="bandwidth must be positive"):
        bilateral_attention(*qkv, *positions, h_y=bandwidth)
    with pytest.raises(InputError, match="h_p must be positive"):
        BilateralAttention(6, 2, h_p=bandwidth, num_tokens=3)


def test_alibi_slopes_are_those_of_the_paper():
    """Press et al. 2022: for 8 heads 1/2, 1/4, … 1/256; for 3 heads those of 2 heads, then one in between."""
    close(alibi_slopes(8), torch.tensor([2.0**-h for h in range(1, 9)]))
    close(alibi_slopes(3), torch.tensor([2.0**-4, 2.0**-8, 2.0**-2]))
    close(alibi_slopes(1), torch.tensor([2.0**-8]))


def test_alibi_takes_slope_times_distance_from_the_logits(qkv):
    q, k, v = qkv
    slopes = alibi_slopes(HEADS).double()
    added = torch.tensor(
        [[[-m * abs(i - j) for j in range(TOKENS)] for i in range(TOKENS)] for m in slopes.tolist()],
        dtype=torch.float64,
    )
    close(alibi_logits(slopes, TOKENS), added)
    close(alibi_attention(q, k, v), (q @ k.mT / math.sqrt(DIM) + added).softmax(-1) @ v)


def test_twicing_is_2a_minus_a_squared(qkv):
    q, k, v = qkv
    attn = (0.7 * q @ k.mT).softmax(-1)
    close(twicing_attention(q, k, v, scale=0.7), (2 * attn - attn @ attn) @ v)
    constant = torch.ones_like(v) * v[:, :, :1]
    close(twicing_attention(q, k, constant), constant)


@pytest.mark.parametrize(
    "attend",
    [
        lambda q, k, v, p, mask: bilateral_attention(q, k, v, *p, mask=mask),
        lambda q, k, v, p, mask: nonlocal_attention(q, k, v, mask=mask),
        lambda q, k, v, p, mask: twicing_attention(q, k, v, mask=mask),
    ],
)
def test_masked_tokens_are_as_if_absent(attend, qkv, positions):
    q, k, v = qkv
    mask = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    mask[1, 4:] = False
    masked = attend(q, k, v, positions, mask)
    short = attend(q[1:, :, :4], k[1:, :, :4], v[1:, :, :4], positions[:, :, :4], None)
    close(masked[1:, :, :4], short)
    close(masked[:1], attend(q[:1], k[:1], v[:1], positions, None))


def test_no_position_logit_depends_on_the_input_or_its_length(positions):
    whole = position_logits(*positions, h_p=1.2)
    close(position_logits(*positions[:, :, :4], h_p=1.2), whole[:, :4, :4])


# Modules ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("causal", [False, True])
def test_what_a_module_shows_reproduces_its_output(name, causal, x):
    torch.manual_seed(3)
    module = MODULES[name](causal=causal)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, mean=0.4, std=0.3)  # nothing small enough to hide in the tolerance
    mask = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    mask[1, 5:] = False
    output, sites = module.attend(x, mask, observe=True)
    assert torch.equal(output, module.attend(x, mask)[0])
    attn = sites.get("attn")
    if attn is None:
        scores = sites["scale"] * sites["q"] @ sites["k"].mT
        seen = sites["mask"]
        scores = scores.masked_fill(~seen, -math.inf) if seen.dtype == torch.bool else scores + seen
        attn = scores.softmax(-1)
    close(attn @ sites["v"], output, 1e-5)
    close(attn.sum(-1), torch.ones(BATCH, HEADS, TOKENS), 1e-5)


@pytest.mark.parametrize("name", MODULES)
def test_a_causal_module_never_looks_ahead(name, x):
    torch.manual_seed(4)
    module = MODULES[name](causal=True)
    before = module(x, is_causal=True)
    changed = x.clone()
    changed[:, 4] += 1
    after = module(changed)
    assert torch.equal(after[:, :4], before[:, :4])
    assert not torch.equal(after[:, 4], before[:, 4])


@pytest.mark.parametrize("name", MODULES)
def test_gradients_reach_every_parameter(name, x):
    module = MODULES[name]()
    module(x).square().sum().backward()
    for parameter, weights in module.named_parameters():
        assert weights.grad is not None, parameter
        assert weights.grad.isfinite().all(), parameter
    learned = {key for key, _ in module.named_parameters()} - {
        "qkv.weight", "qkv.bias", "proj.weight", "proj.bias"
    }  # fmt: skip
    expected = {"bilateral": {"positions", "h_p", "h_y"}, "nonlocal": {"h_y"}}
    assert learned == expected.get(name, set())


def test_a_module_starts_at_the_usual_scale():
    module = MODULES["bilateral"]()
    close(module.h_y.item() ** -2, DIM**-0.5, 1e-6)
    close(module.h_p.item() ** -2, DIM**-0.5, 1e-6)
    fixed = BilateralAttention(6, 2, num_tokens=3, h_p=0.3, learn_bandwidths=False)
    assert not fixed.h_p.requires_grad
    assert fixed.h_p.item() == pytest.approx(0.3)


def test_content_and_positions_share_their_projections(x):
    """eq. 21: y_iᵀ W y_j and p_iᵀ W p_j with the same W = W_Qᵀ W_K; the bias belongs to the content."""
    module = MODULES["bilateral"]()
    torch.nn.init.normal_(module.positions)
    w_q, w_k = (w.unflatten(0, (HEADS, DIM)) for w in module.qkv.weight.chunk(3)[:2])
    expected = torch.einsum(
        "id,hed,hef,jf->hij", module.positions[0], w_q, w_k, module.positions[0]
    ) / math.sqrt(DIM)
    close(module.position_logits(TOKENS), expected, 1e-5)


def test_precomputed_is_not_precomputed(x):
    module = MODULES["bilateral"]().eval()
    torch.nn.init.normal_(module.positions)
    with torch.no_grad():
        direct = module(x)
        module.precompute()
        assert module.position_term is not None
        assert torch.equal(module(x), direct)
        short = module(x[:, :4])
        module.position_term += 1e3 * torch.rand(TOKENS, TOKENS)  # it really is what is used
        assert not torch.allclose(module(x), direct)
    close(module(x), direct, 1e-5)  # where gradients reach the weights it is not
    module.precompute()
    with torch.no_grad():
        close(module(x[:, :4]), short, 1e-6)
    assert "position_term" not in module.state_dict()


def test_a_precomputed_term_never_outlives_its_weights(x):
    module = MODULES["bilateral"]().eval()
    other = MODULES["bilateral"]().eval()
    module.precompute()
    module.load_state_dict(other.state_dict())
    with torch.no_grad():
        assert torch.equal(module(x), other(x))
    module.precompute()
    module.train()
    assert module.position_term is None


def test_a_sequence_beyond_the_positions_is_refused():
    module = MODULES["bilateral"]()
    with pytest.raises(InputError, match=r"num_tokens=7 tokens, but got 9"):
        module(torch.zeros(1, 9, HEADS * DIM))
    MODULES["alibi"](num_tokens=TOKENS)(torch.zeros(1, 9, HEADS * DIM))
    with pytest.raises(InputError, match="needs num_tokens"):
        BilateralAttention(6, 2)


def test_learned_positions_start_at_the_root_mean_square_of_sinusoidal_ones():
    table = sinusoidal_positions(50, 16)
    assert table.square().mean().sqrt().item() == pytest.approx(SINUSOIDAL_STD)
