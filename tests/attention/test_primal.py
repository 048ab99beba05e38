import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.attention.allocations import largest_tensor
from workbench.attention.base import split_heads
from workbench.attention.primal import (
    PrimalAttention,
    ksvd_loss,
    ksvd_penalty,
    primal_kernel,
    primal_layers,
    primal_scores,
    sampled_tokens,
)
from workbench.core.errors import InputError, UnknownName

BATCH, HEADS, TOKENS, WIDTH, SAMPLES, RANK = 2, 3, 11, 7, 5, 4


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.manual_seed(seed))


@pytest.fixture
def q():
    return normal(BATCH, HEADS, TOKENS, WIDTH)


@pytest.fixture
def k():
    return normal(BATCH, HEADS, TOKENS, WIDTH, seed=1)


@pytest.fixture
def x():
    return normal(BATCH, HEADS, TOKENS, WIDTH, seed=2)


def weights(rows):
    return normal(HEADS, rows, RANK, seed=3), normal(HEADS, rows, RANK, seed=4)


@pytest.mark.parametrize("dependent", [True, False])
def test_scores_equal_the_loop_over_tokens(q, k, x, dependent):
    we, wr = weights(SAMPLES if dependent else WIDTH)
    e, r = primal_scores(q, k, we, wr, x=x if dependent else None)
    positions = [int(p) for p in (0, 2.5, 5, 7.5, 10)]
    for b in range(BATCH):
        for h in range(HEADS):
            f = torch.stack([x[b, h, p] for p in positions], 1) if dependent else torch.eye(WIDTH).double()
            for i in range(TOKENS):
                phi_q, phi_k = q[b, h, i] / q[b, h, i].norm(), k[b, h, i] / k[b, h, i].norm()
                torch.testing.assert_close(e[b, h, i], (f @ we[h]).T @ phi_q)
                torch.testing.assert_close(r[b, h, i], (f @ wr[h]).T @ phi_k)


def test_causal_scores_are_those_of_running_means(q, k):
    we, wr = weights(WIDTH)
    e, r = primal_scores(q, k, we, wr, causal=True)
    for i in range(TOKENS):
        mean_q, mean_k = q[:, :, : i + 1].mean(2), k[:, :, : i + 1].mean(2)
        one_e, one_r = primal_scores(mean_q[:, :, None], mean_k[:, :, None], we, wr)
        torch.testing.assert_close((e[:, :, i], r[:, :, i]), (one_e[:, :, 0], one_r[:, :, 0]))


def test_changing_a_token_never_changes_earlier_scores(q, k):
    we, wr = weights(WIDTH)
    before = torch.cat(primal_scores(q, k, we, wr, causal=True), -1)
    for token in range(TOKENS):
        changed_q, changed_k = q.clone(), k.clone()
        changed_q[:, :, token] += 1.0
        changed_k[:, :, token] -= 1.0
        after = torch.cat(primal_scores(changed_q, changed_k, we, wr, causal=True), -1)
        torch.testing.assert_close(after[:, :, :token], before[:, :, :token], rtol=0, atol=0)
        assert (after[:, :, token:] != before[:, :, token:]).any(-1).all()


@pytest.mark.parametrize(
    ("tokens", "count", "positions"),
    [
        (11, 5, [0, 2, 5, 7, 10]),
        (4, 4, [0, 1, 2, 3]),
        (3, 5, [0, 0, 1, 1, 2]),
        (6, 1, [0]),
        (1, 3, [0, 0, 0]),
    ],
)
def test_samples_are_evenly_spaced_and_truncated(tokens, count, positions):
    x = torch.arange(tokens).double()[None, None, :, None] + torch.tensor([0.0, 0.5])
    found = sampled_tokens(x, count)
    assert found.shape == (1, 1, 2, count)
    assert found[0, 0, 0].tolist() == positions
    linspace = torch.linspace(0, tokens - 1, count, dtype=torch.float64)
    assert linspace.long().tolist() == positions


def solution(q, k, x):
    """The singular vectors of each head's kernel matrix as weights (chen2023 eq. 7), for one input."""
    samples = torch.eye(WIDTH).double() if x is None else sampled_tokens(x, SAMPLES)
    phi_q, phi_k = ((t / t.norm(dim=-1, keepdim=True)) @ samples for t in (q, k))
    left, sigma, right = torch.linalg.svd(phi_q @ phi_k.mT)
    he, hr = left[..., :RANK], right[..., :RANK, :].mT
    return (phi_k.mT @ hr)[0], (phi_q.mT @ he)[0], sigma[0, :, :RANK], he, hr


@pytest.mark.parametrize("dependent", [True, False])
def test_lemma_4_2_the_objective_vanishes_at_the_singular_vectors(q, k, x, dependent):
    q, k, x = q[:1], k[:1], (x[:1] if dependent else None)
    we, wr, sigma, he, hr = solution(q, k, x)
    e, r = primal_scores(q, k, we, wr, x=x)
    torch.testing.assert_close(e, he * sigma[:, None])  # K H_r = H_e Σ
    torch.testing.assert_close(r, hr * sigma[:, None])  # Kᵀ H_e = H_r Σ
    zero = torch.zeros(1, HEADS, dtype=torch.float64)
    torch.testing.assert_close(ksvd_loss(e, r, we, wr, 1 / sigma), zero, rtol=0, atol=1e-12)
    authors = (TOKENS / sigma).sqrt()
    code = ksvd_loss(e, r, we, wr, authors, convention="as_implemented")
    torch.testing.assert_close(code, zero[0, 0], rtol=0, atol=1e-12)
    # and not with the Λ of the other convention
    assert ksvd_loss(e, r, we, wr, authors).abs().min() > 0.1
    assert ksvd_loss(e, r, we, wr, 1 / sigma, convention="as_implemented").abs() > 0.1


def test_the_objective_equals_its_sums(q, k):
    we, wr = weights(WIDTH)
    lam = normal(HEADS, RANK, seed=5).exp()
    e, r = primal_scores(q, k, we, wr)
    text = ksvd_loss(e, r, we, wr, lam)
    energies = []
    for b in range(BATCH):
        for h in range(HEADS):
            matrix = torch.diag(lam[h])
            energy = sum(0.5 * s[b, h, i] @ matrix @ s[b, h, i] for s in (e, r) for i in range(TOKENS))
            torch.testing.assert_close(text[b, h], energy - torch.trace(we[h].T @ wr[h]))
            energies += [
                0.5 * ((matrix @ e[b, h, i]).norm() ** 2 + (matrix @ r[b, h, i]).norm() ** 2)
                for i in range(TOKENS)
            ]
    trace = torch.trace(torch.stack([we[h].T @ wr[h] for h in range(HEADS)]).mean(0))
    code = ksvd_loss(e, r, we, wr, lam, convention="as_implemented")
    torch.testing.assert_close(code, torch.stack(energies).mean() - trace)
    torch.testing.assert_close(ksvd_penalty([text, 2 * text]), 5 * (text**2).mean())
    torch.testing.assert_close(ksvd_penalty([code, 2 * code], convention="as_implemented"), 2.5 * code**2)


@pytest.mark.parametrize("dependent", [True, False])
def test_scores_are_projections_of_the_induced_kernel(q, k, x, dependent):
    """With W_e = Fᵀ Φ_kᵀ h and W_r = Fᵀ Φ_qᵀ h for any h: e = K h and r = Kᵀ h (chen2023 Remark 3.3)."""
    q, k, x = q[:1], k[:1], (x[:1] if dependent else None)
    kernel = primal_kernel(q, k, x=x, samples=SAMPLES if dependent else None)
    h = normal(1, HEADS, TOKENS, RANK, seed=6)
    samples = torch.eye(WIDTH).double() if x is None else sampled_tokens(x, SAMPLES)
    phi_q, phi_k = ((t / t.norm(dim=-1, keepdim=True)) @ samples for t in (q, k))
    e, r = primal_scores(q, k, (phi_k.mT @ h)[0], (phi_q.mT @ h)[0], x=x)
    torch.testing.assert_close(e, kernel @ h)
    torch.testing.assert_close(r, kernel.mT @ h)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("form", ["dependent", "independent", "causal"])
def test_padding_changes_no_real_token(q, k, x, form, side):
    we, wr = weights(SAMPLES if form == "dependent" else WIDTH)
    lam = torch.full((RANK,), 0.7, dtype=torch.float64)

    def run(q, k, x, mask=None):
        x = x if form == "dependent" else None
        scores = primal_scores(q, k, we, wr, x=x, causal=form == "causal", mask=mask)
        kernel = primal_kernel(q, k, x=x, samples=SAMPLES, causal=form == "causal", mask=mask)
        losses = [
            ksvd_loss(*scores, we, wr, lam, mask=mask, convention=c)
            for c in ("as_published", "as_implemented")
        ]
        return *scores, kernel, *losses

    noise = normal(BATCH, HEADS, 3, WIDTH, seed=7)
    parts = [[noise, t] if side == "left" else [t, noise] for t in (q, k, x)]
    real = torch.arange(TOKENS + 3) >= 3 if side == "left" else torch.arange(TOKENS + 3) < TOKENS
    found = run(*(torch.cat(part, 2) for part in parts), real.expand(BATCH, -1))
    e, r, kernel, *losses = found
    wanted = run(q, k, x)
    torch.testing.assert_close((e[:, :, real], r[:, :, real]), wanted[:2])
    torch.testing.assert_close(kernel[:, :, real][..., real], wanted[2])
    assert kernel.count_nonzero() == wanted[2].count_nonzero()
    torch.testing.assert_close(tuple(losses), wanted[3:])


def test_an_input_of_padding_only_stays_finite(q, k, x):
    mask = torch.zeros(BATCH, TOKENS, dtype=torch.bool)
    for causal, samples, rows in ((False, x, SAMPLES), (True, None, WIDTH)):
        e, r = primal_scores(q, k, *weights(rows), x=samples, causal=causal, mask=mask)
        assert not e.any()
        assert not r.any()


@pytest.mark.parametrize("form", ["dependent", "independent", "causal"])
def test_no_pair_of_tokens_is_ever_formed(form):
    tokens, width, rank = 97, 3, 5
    q, k, x = (torch.randn(1, 2, tokens, width, requires_grad=True) for _ in range(3))
    we, wr = (torch.randn(2, 8 if form == "dependent" else width, rank) for _ in range(2))

    def compute():
        e, r = primal_scores(q, k, we, wr, x=x if form == "dependent" else None, causal=form == "causal")
        return ksvd_loss(e, r, we, wr, torch.ones(rank))

    assert largest_tensor(compute) <= 2 * tokens * rank


def test_wrong_arguments_say_what_would_do(q, k, x):
    with pytest.raises(InputError, match="later tokens to earlier"):
        primal_scores(q, k, *weights(SAMPLES), x=x, causal=True)
    with pytest.raises(InputError, match=r"\(head, head_dim, direction\) = \(…, 7, …\); got \(3, 5, 4\)"):
        primal_scores(q, k, *weights(SAMPLES))
    with pytest.raises(InputError, match="q and k must agree in axis token, got 11 and 10"):
        primal_scores(q, k[:, :, :-1], *weights(WIDTH))
    with pytest.raises(InputError, match="samples"):
        primal_kernel(q, k, x=x)
    with pytest.raises(UnknownName, match="convention 'as_implement'; did you mean 'as_implemented'"):
        ksvd_loss(q[..., :4], k[..., :4], *weights(WIDTH), torch.ones(4), convention="as_implement")
    with pytest.raises(InputError, match="no primal layer"):
        ksvd_penalty([])
    with pytest.raises(UnknownName, match="scores 'r'; choose from both, e"):
        PrimalAttention(HEADS * WIDTH, HEADS, scores="r")
    with pytest.raises(InputError, match="low_rank must be at least 1; got 0"):
        PrimalAttention(HEADS * WIDTH, HEADS, low_rank=0)


def test_the_defaults_are_the_paper_s_rank_of_96_and_ten_rows_of_the_data_for_each():
    assert PrimalAttention(HEADS * WIDTH, HEADS).we.shape == (HEADS, 960, 96)


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"num_tokens": TOKENS}, TOKENS),
        ({"num_tokens": 1000}, 10 * RANK),
        ({}, 10 * RANK),
        ({"independent": True}, WIDTH),
        ({"causal": True}, WIDTH),
    ],
)
def test_module_is_the_scores_between_two_maps(options, rows):
    dim = HEADS * WIDTH
    layer = PrimalAttention(dim, HEADS, low_rank=RANK, **options).double()
    assert layer.we.shape == layer.wr.shape == (HEADS, rows, RANK)
    for weight in (*layer.we, *layer.wr):  # orthogonal at the start
        torch.testing.assert_close(weight.T @ weight, torch.eye(RANK).double(), rtol=0, atol=1e-6)
    x = normal(BATCH, TOKENS, dim, seed=8)
    output, sites = layer.attend(x, observe=True)
    assert set(sites) == set(layer.sites)
    slices = split_heads(x, HEADS) if rows != WIDTH else None
    scores = primal_scores(*layer.project(x), layer.we, layer.wr, x=slices, causal="causal" in options)
    torch.testing.assert_close((sites["e_scores"], sites["r_scores"]), scores)
    torch.testing.assert_close(output, torch.cat(scores, -1) @ layer.mix.weight.T + layer.mix.bias)
    kernel = primal_kernel(*layer.project(x), x=slices, samples=rows, causal="causal" in options)
    torch.testing.assert_close(layer.kernel(x), kernel)
    lengths = 2 * dim * dim + 2 * dim + dim * dim + dim  # q and k, proj
    shared = 2 * HEADS * rows * RANK + HEADS * RANK + 2 * RANK * WIDTH + WIDTH
    assert sum(p.numel() for p in layer.parameters()) == lengths + shared


@pytest.mark.parametrize("independent", [False, True])
def test_without_r_scores_the_output_is_a_map_of_e_alone(independent):
    layer, both = (
        PrimalAttention(HEADS * WIDTH, HEADS, low_rank=RANK, independent=independent, scores=scores).double()
        for scores in ("e", "both")
    )
    assert layer.mix.weight.shape == (WIDTH, RANK)
    state = {**layer.state_dict(), "mix.weight": F.pad(layer.mix.weight, (0, RANK))}
    both.load_state_dict(state)  # r meets zeros
    x = normal(BATCH, TOKENS, HEADS * WIDTH, seed=8)
    output, sites = layer.attend(x, observe=True)
    torch.testing.assert_close(output, sites["e_scores"] @ layer.mix.weight.T + layer.mix.bias)
    torch.testing.assert_close(output, both.attend(x)[0])
    assert torch.equal(layer.objective, both.objective)  # the penalty keeps both


def test_shorter_inputs_and_causal_prefixes():
    dim = HEADS * WIDTH
    dependent = PrimalAttention(dim, HEADS, low_rank=RANK, num_tokens=TOKENS)
    causal = PrimalAttention(dim, HEADS, low_rank=RANK, causal=True)
    x = normal(BATCH, TOKENS, dim, seed=8).float()
    assert dependent(x[:, :2]).shape == (BATCH, 2, dim)
    torch.testing.assert_close(causal(x[:, :4], is_causal=True), causal(x)[:, :4])


@pytest.mark.parametrize("convention", ["as_published", "as_implemented"])
def test_training_the_penalty_alone_brings_the_objective_to_zero(convention):
    dim = HEADS * WIDTH
    torch.manual_seed(9)
    model = nn.Sequential(
        *(PrimalAttention(dim, HEADS, low_rank=RANK, convention=convention) for _ in range(2))
    )
    x = normal(BATCH, TOKENS, dim, seed=10).float()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    penalties = []
    for _ in range(150):
        model(x)
        penalty = ksvd_penalty([layer.objective for layer in primal_layers(model)], convention=convention)
        optimizer.zero_grad()
        penalty.backward()
        optimizer.step()
        penalties.append(penalty.item())
    assert penalties[0] > 0.1
    assert penalties[-1] < 1e-2 * penalties[0]
    assert all(layer.log_lam.exp().min() > 0 for layer in model)


def test_the_objective_neither_outlives_training_nor_stops_a_copy():
    layer = PrimalAttention(HEADS * WIDTH, HEADS, low_rank=RANK)
    x = normal(BATCH, TOKENS, HEADS * WIDTH, seed=11).float()
    layer(x)
    assert layer.objective.shape == (BATCH, HEADS)
    assert copy.deepcopy(layer).objective is None
    layer.eval()(x)
    assert layer.objective is None
    assert math.isclose(layer.log_lam.exp().mean().item(), 1.0)


def test_inputs_of_different_lengths_count_by_their_real_tokens(q, k):
    """The objective as implemented is a mean over all real tokens, and running means skip what is not real."""
    we, wr = weights(WIDTH)
    lam = torch.full((RANK,), 0.7, dtype=torch.float64)
    mask = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    mask[0, 4:], mask[1, 2] = False, False
    e, r = primal_scores(q, k, we, wr, causal=True, mask=mask)
    energy, tokens = 0.0, 0
    for b in range(BATCH):
        seen = [i for i in range(TOKENS) if mask[b, i]]
        for place, i in enumerate(seen):
            mean_q, mean_k = q[b, :, seen[: place + 1]].mean(1), k[b, :, seen[: place + 1]].mean(1)
            one_e, one_r = primal_scores(mean_q[None, :, None], mean_k[None, :, None], we, wr)
            torch.testing.assert_close((e[b, :, i], r[b, :, i]), (one_e[0, :, 0], one_r[0, :, 0]))
            energy += 0.5 * ((one_e.square() + one_r.square()) * 0.49).sum()
            tokens += HEADS
    found = ksvd_loss(e, r, we, wr, lam, mask=mask, convention="as_implemented")
    torch.testing.assert_close(found, energy / tokens - (we * wr).sum((-2, -1)).mean())


def test_weights_may_be_shared_by_all_heads(q, k):
    we, wr = weights(WIDTH)
    shared = primal_scores(q, k, we[:1], wr[:1])
    torch.testing.assert_close(shared, primal_scores(q, k, *(w[:1].expand(HEADS, -1, -1) for w in (we, wr))))
    with pytest.raises(InputError, match="q and we must agree in axis head, got 3 and 2"):
        primal_scores(q, k, we[:2], wr[:2])
