"""The analysis `token-similarity` through `analyze`: its sites, tokens left out, rates, and constant memory."""

import math

import numpy as np
import pytest
import torch

from tests.captures.families import FAMILIES
from tests.runs.test_analyze import LAYERS, bert, gpt2, images, same, texts, vit
from tests.runs.test_analyze import TOKENS as VIT_TOKENS
from workbench.analyses.token_similarity import (
    effective_token_rank,
    growth_rate,
    isotropic_null,
    permuted_null,
    token_cosine_similarity,
    without_mean_token,
)
from workbench.captures import capture
from workbench.core.errors import InputError
from workbench.core.intervals import mean_interval
from workbench.core.null_distributions import derived_seed, generator
from workbench.runs.analyze import analyze

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
    tokens, width, null_samples = 6, 11, 20_000
    gaussian = torch.randn(null_samples, tokens, width, generator=torch.manual_seed(3), dtype=torch.float64)
    sample = token_cosine_similarity(gaussian)
    null = isotropic_null(torch.tensor([0.0, 0.3], dtype=torch.float64), tokens, width)
    deviation = math.sqrt(2 / (tokens * (tokens - 1) * width))
    assert sample.mean().item() == pytest.approx(0.0, abs=4 * deviation / math.sqrt(null_samples))
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


def test_without_the_mean_token_equal_lengths_give_the_same_cosine_whatever_they_are(hidden):
    centred = without_mean_token(hidden)
    torch.testing.assert_close(centred.sum(-2), torch.zeros(BATCH, WIDTH).double(), rtol=0, atol=1e-12)
    assert token_cosine_similarity(centred).tolist() == pytest.approx(
        [pair_loop(tokens) for tokens in centred]
    )
    # on a circle around any centre all tokens end up as long as one another
    angle = torch.arange(6, dtype=torch.float64) * math.pi / 3
    circle = torch.stack([angle.cos(), angle.sin()], -1) + 40
    assert token_cosine_similarity(circle).item() > 0.99
    assert token_cosine_similarity(without_mean_token(circle)).item() == pytest.approx(-1 / 5)


def test_the_mean_token_is_that_of_the_real_tokens(hidden):
    mask = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    mask[1, 4:] = False
    padded = hidden.clone()
    padded[1, 4:] = math.nan
    found = without_mean_token(padded, mask)
    torch.testing.assert_close(found[1, :4], without_mean_token(hidden[1, :4]))
    assert found[1, 4:].eq(0).all()
    rank = effective_token_rank(padded, mask)
    torch.testing.assert_close(rank[1], effective_token_rank(hidden[1, :4]))


def test_effective_rank_of_tokens():
    assert effective_token_rank(torch.eye(WIDTH)).item() == pytest.approx(WIDTH)
    line = torch.arange(1.0, TOKENS)[:, None] * torch.ones(WIDTH)
    assert effective_token_rank(line).item() == pytest.approx(1)
    assert effective_token_rank(torch.zeros(3, 4)).item() == 0
    # singular values 3, 1: shares 3/4 and 1/4
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert effective_token_rank(torch.diag(torch.tensor([3.0, -1.0]))).item() == pytest.approx(
        math.exp(entropy)
    )
    with pytest.raises(InputError, match="at least 2 are needed"):
        effective_token_rank(torch.ones(1, 5))


def test_a_rate_that_was_planted_is_found_and_a_line_is_fitted_to_the_rest():
    layers = torch.tensor([0, 1, 3, 7])
    rates = torch.tensor([0.2, 0.0, -0.05], dtype=torch.float64)
    cosines = 1 - 0.4 * torch.exp(-rates[:, None] * layers)
    torch.testing.assert_close(growth_rate(cosines, layers), rates, rtol=0, atol=1e-14)
    noisy = torch.tensor([0.1, 0.3, 0.2, 0.6], dtype=torch.float64)
    slope = np.polyfit(layers.numpy(), np.log(1 - noisy.numpy()), 1)[0]
    assert growth_rate(noisy, layers).item() == pytest.approx(-slope)
    assert growth_rate(torch.tensor([0.5, 1.0]), torch.arange(2)).isnan()
    with pytest.raises(InputError, match="at least two layers"):
        growth_rate(torch.tensor([0.5]), torch.arange(1))


EVERYTHING = {
    "sites": "all",
    "special_tokens": "both",
    "mean_token": "both",
    "effective_rank": True,
    "rate": "fit",
}
KINDS = ["metric", "candidate", "axis", "standardize"]


def test_what_is_measured_by_default_is_what_it_was():
    frame = analyze("token-similarity", model=vit(), inputs=images())
    assert len(frame) == LAYERS * 5
    assert set(frame["metric"]) == {"token_cosine"}
    assert set(frame["candidate"]) == {"resid_post"}


@pytest.mark.parametrize("site", ["input", "resid_mid", "resid_post"])
def test_every_site_in_every_variant_is_that_of_the_captured_tokens(site):
    model = vit()
    frame = analyze("token-similarity", model=model, inputs=images(), **EVERYTHING)
    states = capture(model, images(), sites=(site,))[1]
    states = getattr(states, site)
    own = frame[(frame["candidate"] == site) & (frame["layer"] == 1)]
    for axis, tokens in (("", states), ("without special tokens", states[:, 1:])):
        for how, kept in (("", tokens), ("without mean", without_mean_token(tokens))):
            rows = own[(own["axis"].fillna("") == axis) & (own["standardize"].fillna("") == how)]
            for metric, measure in (
                ("token_cosine", token_cosine_similarity), ("effective_rank", effective_token_rank),
            ):  # fmt: skip
                values = rows.loc[rows["metric"] == metric, "value"]
                np.testing.assert_allclose(values, measure(kept), rtol=1e-4, atol=1e-6)
    # directions at random say nothing of tokens that add up to 0
    centred = own["standardize"].notna()
    assert own.loc[centred, "null"].isna().all()
    assert (own.loc[~centred & (own["metric"] == "token_cosine"), "null"] == "isotropic").all()


def test_chance_counts_the_tokens_that_are_left():
    frame = analyze("token-similarity", model=vit(), inputs=images(), special_tokens="remove")
    ratio = frame["value"] / frame["z"]
    np.testing.assert_allclose(ratio, (2 / ((VIT_TOKENS - 1) * (VIT_TOKENS - 2) * 8)) ** 0.5)


def test_prefix_tokens_of_a_text_are_known_by_its_tokens_and_padding_stays_out():
    frame = analyze("token-similarity", model=bert(), inputs=texts((9, 4)), **EVERYTHING)
    alone = analyze(
        "token-similarity",
        model=bert(),
        inputs={k: v[1:, :4] for k, v in texts((9, 4)).items()},
        **EVERYTHING,
    )
    found = frame[frame["input"] == "1"]
    np.testing.assert_allclose(found["value"], alone["value"], rtol=1e-4, atol=1e-6)
    loose = found[found["axis"].notna()][
        "value"
    ].to_numpy()  # no token of this batch is named as a special one
    np.testing.assert_array_equal(loose, found[found["axis"].isna()]["value"])


def test_the_rate_of_an_input_is_fitted_to_its_own_cosines():
    frame = analyze("token-similarity", model=vit(), inputs=images(), **EVERYTHING)
    rates = frame[frame["metric"] == "token_cosine_rate"]
    assert rates["layer"].isna().all()
    assert len(rates) == 5 * 3 * 2  # inputs, sites, with and without special tokens
    one = frame[
        (frame["metric"] == "token_cosine") & (frame["candidate"] == "resid_post") & frame["axis"].isna()
    ]
    curve = one[one["standardize"].isna() & (one["input"] == "3")].sort_values("layer")["value"]
    rate = rates[(rates["input"] == "3") & (rates["candidate"] == "resid_post") & rates["axis"].isna()][
        "value"
    ]
    assert rate.item() == pytest.approx(
        growth_rate(torch.tensor(curve.to_numpy()), torch.arange(LAYERS)).item()
    )
    with pytest.raises(InputError, match="at least two layers; choose more with layers="):
        analyze("token-similarity", model=vit(), inputs=images(), rate="fit", layers=1)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_without_rows_per_input_come_their_moments_whatever_the_batches(size):
    model = vit()
    rows = analyze("token-similarity", model=model, inputs=images(), **EVERYTHING)
    frame = analyze(
        "token-similarity", model=model, inputs=images(), per_input=False, batch_size=size, **EVERYTHING
    )
    assert frame["input"].isna().all()
    keys = [*KINDS, "layer"]
    wide = frame.pivot_table(index=keys, columns="statistic", values="value", dropna=False).dropna(how="all")
    for key, own in rows.groupby(keys, dropna=False):
        at = wide.loc[key]
        mean, low, high, *_ = mean_interval(own["value"])
        np.testing.assert_allclose(at[["mean", "low", "high"]], [mean, low, high], rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(at["std"], own["value"].std(ddof=1), rtol=2e-3, atol=1e-6)
    assert len(wide) == len(rows.groupby(keys, dropna=False))
    null = frame[(frame["statistic"] == "mean") & (frame["null"] == "isotropic")]
    assert null["null_mean"].eq(0).all()


def test_bad_input_is_named_with_its_site():
    model = vit()
    with pytest.raises(InputError, match="sites must be 'resid_post', 'input', 'resid_mid' or 'all'"):
        analyze("token-similarity", model=model, inputs=images(), sites="q")
    one = {"input_ids": torch.tensor([[5]])}
    with pytest.raises(InputError, match="a single token, which has no pairs"):
        analyze("token-similarity", model=gpt2(), inputs=one)
    short = {"input_ids": torch.tensor([[5, 6, 7]]), "attention_mask": torch.tensor([[1, 0, 0]])}
    with pytest.raises(InputError, match="layer 0, resid_post: the mask leaves 1 token"):
        analyze("token-similarity", model=bert(), inputs=short)


@pytest.mark.parametrize("name", ["swin", "xcit", "cait", "albert", "longformer"])
def test_families_of_other_shapes_have_their_sites_too(name):
    family = FAMILIES[name]
    frame = analyze("token-similarity", model=family.build(), inputs=family.batch(), sites="all")
    assert set(frame["candidate"]) == {"input", "resid_mid", "resid_post"}
    whole = analyze("token-similarity", model=family.build(), inputs=family.batch())
    same(frame[frame["candidate"] == "resid_post"].reset_index(drop=True), whole)
