"""The analysis `token-similarity` through `analyze`: its sites, tokens left out, rates, and constant memory."""

import numpy as np
import pytest
import torch

from tests.captures.families import FAMILIES
from tests.runs.test_analyze import LAYERS, TOKENS, bert, gpt2, images, same, texts, vit
from workbench.analyses.token_similarity import (
    effective_token_rank,
    growth_rate,
    token_cosine_similarity,
    without_mean_token,
)
from workbench.captures import capture
from workbench.core.errors import InputError
from workbench.figures.levels import interval
from workbench.runs.analyze import analyze

EVERYTHING = {"sites": "all", "prefix": "both", "mean_token": "both", "effective_rank": True, "rate": "fit"}
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
    for axis, tokens in (("", states), ("without prefix", states[:, 1:])):
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
    frame = analyze("token-similarity", model=vit(), inputs=images(), prefix="remove")
    ratio = frame["value"] / frame["z"]
    np.testing.assert_allclose(ratio, (2 / ((TOKENS - 1) * (TOKENS - 2) * 8)) ** 0.5)


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
    loose = found[found["axis"].notna()]["value"].to_numpy()  # no token of this batch is named as a prefix
    np.testing.assert_array_equal(loose, found[found["axis"].isna()]["value"])


def test_the_rate_of_an_input_is_fitted_to_its_own_cosines():
    frame = analyze("token-similarity", model=vit(), inputs=images(), **EVERYTHING)
    rates = frame[frame["metric"] == "token_cosine_rate"]
    assert rates["layer"].isna().all()
    assert len(rates) == 5 * 3 * 2  # inputs, sites, with and without the prefix
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
        mean, low, high = interval(own["value"])
        np.testing.assert_allclose(at[["mean", "low", "high"]], [mean, low, high], rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(at["std"], own["value"].std(ddof=1), rtol=2e-3, atol=1e-6)
    assert len(wide) == len(rows.groupby(keys, dropna=False))
    chance = frame[(frame["statistic"] == "mean") & (frame["null"] == "isotropic")]
    assert chance["null_mean"].eq(0).all()


def test_bad_input_is_named_with_its_site():
    model = vit()
    with pytest.raises(InputError, match="sites must be 'resid_post', 'input', 'resid_mid' or 'all'"):
        analyze("token-similarity", model=model, inputs=images(), sites="q")
    one = {"input_ids": torch.tensor([[5]])}
    with pytest.raises(InputError, match="a single token, which has no pairs"):
        analyze("token-similarity", model=gpt2(), inputs=one)
    short = {"input_ids": torch.tensor([[5, 6, 7]]), "attention_mask": torch.tensor([[1, 0, 0]])}
    with pytest.raises(InputError, match="layer 0, hidden: the mask leaves 1 token"):
        analyze("token-similarity", model=bert(), inputs=short)


@pytest.mark.parametrize("name", ["swin", "xcit", "cait", "albert", "longformer"])
def test_families_of_other_shapes_have_their_sites_too(name):
    family = FAMILIES[name]
    frame = analyze("token-similarity", model=family.build(), inputs=family.batch(), sites="all")
    assert set(frame["candidate"]) == {"input", "resid_mid", "resid_post"}
    whole = analyze("token-similarity", model=family.build(), inputs=family.batch())
    same(frame[frame["candidate"] == "resid_post"].reset_index(drop=True), whole)
