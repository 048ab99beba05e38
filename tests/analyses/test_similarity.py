import math

import pytest
import torch

from workbench.analyses.chance import derived_seed, generator, null_of_draws
from workbench.analyses.similarity import isotropic_null, permuted_null, token_cosine_similarity
from workbench.errors import InputError

BATCH, TOKENS, WIDTH = 3, 7, 5


@pytest.fixture
def hidden():
    return torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.float64, generator=torch.manual_seed(0))


def pair_loop(tokens):
    """Mean of cos(x_i, x_j) over all pairs, one at a time."""
    pairs = [(i, j) for i in range(len(tokens)) for j in range(i)]
    cosines = [float(tokens[i] @ tokens[j] / (tokens[i].norm() * tokens[j].norm())) for i, j in pairs]
    return sum(cosines) / len(pairs)


def test_equals_the_loop_over_pairs(hidden):
    found = token_cosine_similarity(hidden)
    assert found.tolist() == pytest.approx([pair_loop(tokens) for tokens in hidden], rel=1e-12)


def test_known_values():
    x = torch.randn(1, WIDTH, generator=torch.manual_seed(0))
    assert token_cosine_similarity(x.expand(TOKENS, WIDTH)).item() == pytest.approx(1.0)
    assert token_cosine_similarity(torch.cat([x, -x])).item() == pytest.approx(-1.0)
    assert token_cosine_similarity(torch.eye(WIDTH)).item() == pytest.approx(0.0, abs=1e-15)
    # a regular simplex around the origin reaches the lower bound −1/(N−1)
    simplex = torch.eye(4, dtype=torch.float64) - 0.25
    assert token_cosine_similarity(simplex).item() == pytest.approx(-1 / 3)


def test_length_of_tokens_does_not_matter(hidden):
    scales = 10.0 ** torch.linspace(-200, 200, TOKENS, dtype=torch.float64)
    torch.testing.assert_close(
        token_cosine_similarity(hidden * scales[:, None]), token_cosine_similarity(hidden)
    )


def test_padding_is_left_out(hidden):
    mask = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    mask[1, 4:] = False
    padded = hidden.clone()
    padded[1, 4:] = math.nan
    found = token_cosine_similarity(padded, mask)
    torch.testing.assert_close(found[1], token_cosine_similarity(hidden[1, :4]), rtol=1e-13, atol=0)
    torch.testing.assert_close(found[0], token_cosine_similarity(hidden[0]), rtol=1e-13, atol=0)


def test_a_zero_token_has_cosine_zero_with_all(hidden):
    with_zero = torch.cat([hidden[0], torch.zeros(1, WIDTH)])
    pairs, more = TOKENS * (TOKENS - 1), (TOKENS + 1) * TOKENS
    expected = pair_loop(hidden[0]) * pairs / more
    assert token_cosine_similarity(with_zero).item() == pytest.approx(expected)
    assert token_cosine_similarity(torch.zeros(4, 3)).item() == 0


def test_no_matrix_of_pairs_is_built():
    # 200 000 tokens: their matrix of pairs would take 320 GB
    tokens = torch.ones(200_000, 3)
    assert token_cosine_similarity(tokens).item() == pytest.approx(1.0)


def test_isotropic_null_is_exact_in_mean_and_deviation_and_close_in_band():
    tokens, width, draws = 6, 11, 20_000
    gaussian = torch.randn(draws, tokens, width, generator=torch.manual_seed(3), dtype=torch.float64)
    sample = token_cosine_similarity(gaussian)
    null = isotropic_null(torch.tensor([0.0, 0.3], dtype=torch.float64), tokens, width)
    deviation = math.sqrt(2 / (tokens * (tokens - 1) * width))
    assert sample.mean().item() == pytest.approx(0.0, abs=4 * deviation / math.sqrt(draws))
    assert sample.std().item() == pytest.approx(deviation, rel=0.03)
    assert null.mean.tolist() == [0, 0]
    assert null.z.tolist() == pytest.approx([0, 0.3 / deviation])
    inside = ((sample > null.low[0]) & (sample < null.high[0])).double().mean()
    assert inside.item() == pytest.approx(0.95, abs=0.01)
    assert null.low[0] < 0 < null.high[0]


def test_z_of_gaussian_tokens_is_centred():
    gaussian = torch.randn(200, 13, 8, generator=torch.manual_seed(5), dtype=torch.float64)
    z = isotropic_null(token_cosine_similarity(gaussian), 13, 8).z
    assert abs(z.mean().item()) < 0.3
    assert z.std().item() == pytest.approx(1.0, abs=0.2)


def test_permuted_null_keeps_the_common_mean_and_breaks_the_clusters():
    clusters = torch.randn(2, WIDTH, generator=torch.manual_seed(1), dtype=torch.float64).repeat_interleave(
        20, 0
    )
    noise = 0.05 * torch.randn(40, WIDTH, generator=torch.manual_seed(2), dtype=torch.float64)
    tokens = clusters + noise + 3.0
    null = permuted_null(tokens, None, 20, generator(0, "a"))
    assert null.low <= null.mean <= null.high
    assert null.mean > 0.8  # every feature's mean is still there
    assert isotropic_null(token_cosine_similarity(tokens), 40, WIDTH).z > 10  # while random directions give 0
    again = permuted_null(tokens, None, 20, generator(0, "a"))
    assert torch.equal(torch.stack(null), torch.stack(again))
    other = permuted_null(tokens, None, 20, generator(0, "b"))
    assert not torch.equal(null.mean, other.mean)


def test_permuted_null_leaves_padding_out(hidden):
    mask = torch.tensor([True, True, False, True, True, True, False])
    padded = permuted_null(hidden[0], mask, 5, generator(0))
    alone = permuted_null(hidden[0][mask], None, 5, generator(0))
    torch.testing.assert_close(torch.stack(padded), torch.stack(alone), rtol=1e-9, atol=0)


def test_seeds_differ_by_place_and_not_by_machine():
    assert derived_seed(0, "digits/1", 3) == derived_seed(0, "digits/1", 3)
    places = [(0, "a", 1), (0, "a", 2), (0, "b", 1), (1, "a", 1), (0, "a1"), (0, "a", "1", "")]
    assert len({derived_seed(*place) for place in places}) == len(places)
    assert all(0 <= derived_seed(*place) < 2**63 for place in places)


def test_null_of_draws_by_hand():
    null = null_of_draws(torch.tensor([5.0]), torch.tensor([[1.0, 2.0, 3.0]]))
    assert null.mean.item() == 2
    assert null.z.item() == pytest.approx(3.0)
    assert (null.low.item(), null.high.item()) == pytest.approx((1.05, 2.95))
    assert null_of_draws(torch.tensor([5.0]), torch.ones(1, 3)).z.isnan().all()


def test_bad_hidden_states_are_named(hidden):
    with pytest.raises(InputError, match="missing axis token"):
        token_cosine_similarity(torch.ones(5))
    with pytest.raises(InputError, match="at least 2 are needed"):
        token_cosine_similarity(torch.ones(1, 5))
    hidden[2, 3, 1] = math.nan
    with pytest.raises(InputError, match="first is nan at batch 2, token 3, width 1"):
        token_cosine_similarity(hidden)
    with pytest.raises(InputError, match=r"mask of shape \(3, 6\)"):
        token_cosine_similarity(hidden, torch.ones(BATCH, 6, dtype=torch.bool))
