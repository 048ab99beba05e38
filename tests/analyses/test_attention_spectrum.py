"""Attention as kernel SVD: planted spectra, NumPy as oracle, and what e-scores and r-scores are."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.linalg
import timm
import torch

import workbench
from tests.runs.test_analyze import bert, gpt2, grouped_llama, images, same, texts, vit
from workbench.analyses.attention_matrix import MetricValues, with_null
from workbench.analyses.attention_spectrum import (
    SINGULAR_VALUE,
    kernel_svd,
    laplacian_eigenvalues,
    relative_values,
    singular_alignment,
    singular_values,
)
from workbench.analyses.gram_spectrum import effective_rank, rank_holding
from workbench.analyses.layer import Layer
from workbench.analyses.linalg import head_bases, inside_share, left_out, span_angles
from workbench.attention import replace_attention
from workbench.attention.primal import ksvd_loss, primal_kernel, primal_scores
from workbench.captures import Capture, LayerRecord, TokenInfo, attention_output, attention_weights
from workbench.core.errors import InputError
from workbench.runs.analyze import ANALYSES, analyze

BATCH, HEADS, TOKENS, DIM = 2, 3, 11, 4


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.manual_seed(seed))


def attention(seed=0, tokens=TOKENS):
    return (3 * randn(BATCH, HEADS, tokens, tokens, seed=seed)).softmax(-1)


def planted(values, seed=0):
    """Matrices of every head with these singular values, and their singular vectors."""
    left, right = (
        torch.linalg.qr(randn(BATCH, HEADS, TOKENS, len(values), seed=seed + side)).Q for side in (0, 1)
    )
    return left * torch.tensor(values, dtype=torch.float64) @ right.mT, left, right


def blocks(sizes):
    """Attention of rank len(sizes): every token attends evenly to the tokens of its own block."""
    return torch.block_diag(*[torch.full((size, size), 1 / size, dtype=torch.float64) for size in sizes])


def test_singular_values_are_numpy_s_matrix_by_matrix():
    kernel = attention()
    found = singular_values(kernel)
    assert found.shape == (BATCH, HEADS, TOKENS)
    for place in itertools.product(range(BATCH), range(HEADS)):
        expected = np.linalg.svd(kernel[place].numpy(), compute_uv=False)
        np.testing.assert_allclose(found[place], expected, rtol=1e-12, atol=1e-14)


def test_a_planted_spectrum_comes_back_with_its_ranks():
    values = [8.0, 4.0, 2.0, 1.0, 0.5]
    kernel, left, right = planted(values)
    found = singular_values(kernel)
    torch.testing.assert_close(found[..., :5], torch.tensor(values, dtype=torch.float64).expand(2, 3, 5))
    assert found[..., 5:].abs().max() < 1e-14
    torch.testing.assert_close(relative_values(found)[..., 1], torch.full((2, 3), 0.5, dtype=torch.float64))
    shares = np.array(values) / sum(values)
    expected = math.exp(-(shares * np.log(shares)).sum())
    assert effective_rank(found)[1, 2].item() == pytest.approx(expected)
    assert rank_holding(found.square(), 0.9).unique().item() == 2  # 80 of 85.25 is enough, 64 is not
    svd = kernel_svd(kernel, 7)
    torch.testing.assert_close(svd.left[..., :5] @ svd.left[..., :5].mT, left @ left.mT)
    torch.testing.assert_close(svd.right[..., :5] @ svd.right[..., :5].mT, right @ right.mT)
    assert not svd.left[..., 5:].any()  # directions that K has not got
    assert not svd.values[..., 5:].any()


def test_attention_within_blocks_has_as_many_singular_values_as_blocks():
    kernel = blocks((2, 3, 6))
    found = singular_values(kernel)
    assert found[:3].tolist() == pytest.approx([1, 1, 1])
    assert found[3:].max() < 1e-15
    assert effective_rank(found).item() == pytest.approx(3)
    assert singular_values(torch.full((7, 7), 1 / 7)).tolist() == pytest.approx([1, *[0] * 6], abs=1e-7)


@pytest.mark.parametrize("causal", [False, True])
def test_e_scores_are_the_output_of_attention_whose_values_are_the_right_singular_vectors(causal):
    kernel = attention()
    if causal:
        kernel = kernel.tril() / kernel.tril().sum(-1, keepdim=True)
    svd = kernel_svd(kernel, DIM)
    torch.testing.assert_close(svd.e_scores, attention_output(kernel, svd.right))
    torch.testing.assert_close(svd.r_scores, attention_output(kernel.mT, svd.left))
    # both hold the same variances
    torch.testing.assert_close(svd.e_scores.norm(dim=-2), svd.r_scores.norm(dim=-2))


def test_a_symmetric_kernel_leaves_nothing_out_and_a_turned_one_everything():
    root = randn(TOKENS, DIM + 2)
    svd = kernel_svd(root @ root.T, DIM)
    assert left_out(svd.r_scores, svd.left).item() < 1e-13
    # queries look at one half of the tokens from the other half: no r-score is where an e-score is
    kernel = torch.zeros(TOKENS, TOKENS, dtype=torch.float64)
    kernel[:5, 5:] = randn(5, TOKENS - 5)
    svd = kernel_svd(kernel, DIM)
    assert left_out(svd.r_scores, svd.left).item() == pytest.approx(1)


def test_what_is_left_out_is_the_residual_of_the_best_linear_map():
    svd = kernel_svd(attention(), DIM)
    found = left_out(svd.r_scores, svd.left)
    for place in itertools.product(range(BATCH), range(HEADS)):
        e, r = svd.e_scores[place].numpy(), svd.r_scores[place].numpy()
        rest = r - e @ np.linalg.lstsq(e, r, rcond=None)[0]
        assert found[place].item() == pytest.approx((rest**2).sum() / (r**2).sum())
    torch.testing.assert_close(inside_share(svd.r_scores, svd.left), 1 - found)


def test_random_directions_leave_out_what_their_number_says():
    svd = kernel_svd(attention(tokens=23), DIM)
    noise = torch.linalg.qr(randn(400, BATCH, HEADS, 23, DIM, seed=5)).Q
    assert left_out(svd.r_scores, noise).mean().item() == pytest.approx(1 - DIM / 23, abs=5e-3)


def test_angles_are_scipy_s_and_those_of_the_right_singular_vectors_themselves_are_zero():
    svd = kernel_svd(attention(), DIM)
    v = randn(BATCH, HEADS, TOKENS, DIM, seed=3)
    found = span_angles(head_bases(v), svd.right)
    for place in itertools.product(range(BATCH), range(HEADS)):
        expected = scipy.linalg.subspace_angles(v[place].numpy(), svd.right[place].numpy())[::-1]
        np.testing.assert_allclose(found[place], expected, rtol=1e-8)
    mixed = svd.right @ randn(DIM, DIM, seed=4)  # another basis of the same span
    assert span_angles(head_bases(mixed), svd.right).max() < 1e-6
    torch.testing.assert_close(inside_share(mixed, svd.right), torch.ones(BATCH, HEADS, dtype=torch.float64))


def test_a_span_of_fewer_dimensions_has_fewer_angles():
    svd = kernel_svd(attention(), DIM)
    v = randn(BATCH, HEADS, TOKENS, 2) @ randn(2, DIM, seed=1)  # rank 2
    found = span_angles(head_bases(v), svd.right)
    assert (~found.isnan()).sum(-1).unique().item() == 2


def test_what_is_no_matrix_of_tokens_is_refused():
    with pytest.raises(InputError, match=r"1 query has one singular value"):
        singular_values(torch.ones(3, 1, 7))
    with pytest.raises(InputError, match=r"1 key has one"):
        kernel_svd(torch.ones(7, 1), 2)
    with pytest.raises(InputError, match="directions must be at least 1; got 0"):
        kernel_svd(torch.ones(7, 7), 0)
    bad = torch.ones(7, 7)
    bad[0, 5] = bad[6, 1] = math.nan
    with pytest.raises(InputError, match=r"2 NaN or infinite .* query 0, key 5"):
        singular_values(bad)
    with pytest.raises(InputError, match="missing axis query"):
        singular_values(torch.ones(7))
    for empty in (singular_values, lambda kernel: kernel_svd(kernel, 2)):
        with pytest.raises(InputError, match=r"\(0, 3, 7, 7\); there is no matrix in it"):
            empty(torch.ones(0, 3, 7, 7))


MODEL_HEADS, MODEL_DIM, MODEL_TOKENS = 2, 4, 17
PRIMAL = "bundled:digits-primal"


def spectra(frame, metric="singular_value"):
    rows = frame[(frame["metric"] == metric) & frame["head"].notna()]
    return rows.pivot_table(index=["input", "layer", "head"], columns="rank", values="value", dropna=False)


def rows(**arguments):
    return analyze("attention-spectrum", per_head=True, **({"null_samples": 0} | arguments))


def test_spectra_are_those_of_the_captured_attention():
    model = vit()
    found = spectra(rows(model=model, inputs=images()))
    captured = workbench.capture(model, images(), sites=["attn"])
    for number, layer, head in ((0, 0, 0), (4, 2, 1)):
        expected = np.linalg.svd(captured[layer].attn[number, head].double().numpy(), compute_uv=False)
        assert len(expected) == MODEL_TOKENS
        np.testing.assert_allclose(found.loc[str(number), layer, head], expected, atol=1e-6)
    cut = rows(model=model, inputs=images(), max_rank=3)
    assert cut["rank"].max() == 3
    ranks = cut[cut["metric"] == "effective_rank"]["value"]  # of all singular values, not of the first three
    assert (
        ranks.tolist()
        == rows(model=model, inputs=images()).query("metric == 'effective_rank'")["value"].tolist()
    )


def test_shares_of_ranks_are_of_the_tokens_and_variances_add_up():
    frame = rows(model=vit(), inputs=images())
    rank, share = (
        frame[frame["metric"] == metric]["value"].to_numpy() for metric in ("rank_90", "rank_90_share")
    )
    np.testing.assert_allclose(share, rank / MODEL_TOKENS)
    variance = spectra(frame, "explained_variance")
    np.testing.assert_allclose(variance[MODEL_TOKENS], 1)
    reached = (variance.to_numpy() >= 0.9).argmax(1) + 1
    assert reached.tolist() == spectra(frame.assign(rank=1), "rank_90")[1].tolist()
    np.testing.assert_allclose(spectra(frame, "singular_value_relative")[1], 1)


@pytest.mark.parametrize("make", [bert, gpt2])
def test_padding_is_no_part_of_the_matrix(make):
    model, batch = make(), texts()
    whole = spectra(rows(model=model, inputs=batch))
    for number, length in enumerate((9, 4, 7)):
        alone = spectra(
            rows(model=model, inputs={name: part[[number], :length] for name, part in batch.items()})
        )
        found = whole.loc[str(number)].dropna(axis=1)
        assert list(found.columns) == list(range(1, length + 1))
        np.testing.assert_allclose(found, alone.loc["0"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("make", "batch"), [(vit, images), (bert, texts)])
def test_neither_rows_nor_chance_depend_on_the_batches(make, batch):
    options = {"model": make(), "inputs": batch(), "null_samples": 3}
    whole = rows(**options)
    same(rows(batch_size=2, **options), whole)
    assert whole.loc[whole["metric"] == "singular_value", "null"].unique().tolist() == ["gaussian"]


def test_chance_is_random_queries_and_keys_of_the_same_size_under_the_same_mask():
    model, batch = gpt2(), {name: part[:1] for name, part in texts((9,)).items()}
    frame = rows(model=model, inputs=batch, null_samples=40)
    record = workbench.capture(model, batch, sites=["q", "k", "scale", "mask"])[1]
    size_q, size_k = (part[0, 2].double().square().mean().sqrt() for part in (record.q, record.k))
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(2, 400, 1, *record.q.shape[2:], dtype=torch.float64, generator=generator)
    drawn = attention_weights(noise[0] * size_q, noise[1] * size_k, record.scale, record.mask)
    expected = singular_values(drawn).mean((0, 1))
    found = frame[(frame["metric"] == "singular_value") & (frame["layer"] == 1) & (frame["head"] == 2)]
    np.testing.assert_allclose(found["null_mean"], expected, rtol=0.1)
    assert np.triu(drawn[0, 0].numpy(), 1).max() == 0  # causal


def test_values_made_of_right_singular_vectors_are_found_and_leave_out_what_the_e_scores_do(tmp_path):
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, MODEL_HEADS, MODEL_TOKENS, MODEL_DIM, dtype=torch.float64, generator=generator)
    attn = attention_weights(q, k, 1.0)
    v = kernel_svd(attn, MODEL_DIM).right @ torch.randn(
        MODEL_DIM, MODEL_DIM, dtype=torch.float64, generator=generator
    )
    path = tmp_path / "qkv.npz"
    np.savez(path, q=q, k=k, v=v, scale=1.0)
    means = analyze("attention-spectrum", qkv=path)
    overall = means[means["input"].isna() & means["layer"].isna()].set_index("metric")
    shares = overall.loc["right_singular_share"].set_index("null")
    assert shares.loc["permutation", "value"] == pytest.approx(1)
    assert shares.loc["gaussian", "null_mean"] == pytest.approx(MODEL_DIM / MODEL_TOKENS, rel=0.2)
    outside = overall.loc["r_score_share"].set_index("candidate")
    # the output A V is then a mixture of the e-scores
    assert outside.loc["head_out", "value"] == pytest.approx(outside.loc["e_scores", "value"])
    svd = kernel_svd(attn, MODEL_DIM)
    assert outside.loc["head_out", "value"] == pytest.approx(left_out(svd.r_scores, svd.left).mean().item())
    assert outside["null_mean"].mean() == pytest.approx(1 - MODEL_DIM / MODEL_TOKENS, rel=0.1)


@pytest.mark.parametrize("variant", ["primal", "primal-independent"])
def test_of_primal_attention_it_is_the_induced_kernel(variant):
    model = vit()
    replace_attention(model, variant, [1], low_rank=3)
    frame = rows(model=model, inputs=images(), null_samples=2)
    record = workbench.capture(model, images(), sites=["input"])[1]
    kernel = model.get_submodule(record.path).kernel(record.input)
    found = spectra(frame).xs(1, level="layer")
    for number, head in ((0, 1), (3, 0)):
        expected = np.linalg.svd(kernel[number, head].detach().double().numpy(), compute_uv=False)
        np.testing.assert_allclose(found.loc[str(number), head], expected, rtol=1e-4, atol=1e-5 * expected[0])
    # of rank head_dim, which even random queries and keys do not exceed
    assert (found[MODEL_DIM + 1] < 1e-12 * found[1]).all()
    of_layer = frame[frame["layer"] == 1]
    assert of_layer.loc[of_layer["metric"] == "effective_rank", "null_high"].max() < MODEL_DIM
    assert not of_layer["metric"].str.startswith("right_singular").any()  # it has no values
    assert frame[frame["layer"] == 0]["metric"].str.startswith("right_singular").any()
    assert set(of_layer["candidate"].dropna()) == {"e_scores", "head_out"}


def test_the_causal_kernel_of_padded_texts_is_that_of_each_text():
    model = workbench.load("bundled:prose-primal-causal")
    batch = workbench.inputs("bundled:prose", model, n=3)
    frame = rows(model=model, inputs=batch, layers=3)
    record = workbench.capture(model, batch, sites=["input"], layers=[3])[3]
    kernel = model.module.get_submodule(record.path).kernel(record.input)
    found = spectra(frame).loc[batch.ids[1], 3, 0]
    expected = np.linalg.svd(kernel[1, 0].detach().double().numpy(), compute_uv=False)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * expected[0])


def test_grouped_queries_have_a_matrix_each_and_share_their_values():
    batch = {name: part[:, :7] for name, part in texts((9, 8)).items()}
    frame = rows(model=grouped_llama(), inputs=batch)
    assert frame["head"].max() == 5
    whole = frame[(frame["metric"] == "right_singular_share") & (frame["layer"] == 0)]
    chosen = rows(model=grouped_llama(), inputs=batch, heads="1,4", layers=0)
    part = chosen[chosen["metric"] == "right_singular_share"]
    assert part["value"].tolist() == whole[whole["head"].isin([1, 4])]["value"].tolist()


def test_every_window_has_a_spectrum_of_its_own():
    torch.manual_seed(0)
    model = timm.models.swin_transformer.SwinTransformer(
        img_size=32, patch_size=4, window_size=4, embed_dim=8, depths=(2, 1), num_heads=(2, 4), num_classes=3
    ).eval()
    batch = images(2, size=32)
    frame = rows(model=model, inputs=batch, null_samples=2)
    record = workbench.capture(model, batch, sites=["attn"])[1]
    chosen = record.origin.image == 1
    expected = singular_values(record.attn[chosen][:, 1]).mean(0)
    np.testing.assert_allclose(spectra(frame).loc["1", 1, 1].dropna(), expected, rtol=1e-4, atol=1e-6)
    assert set(frame.loc[frame["metric"] == "effective_rank", "statistic"]) == {"mean"}


def test_attention_that_is_no_softmax_of_q_and_k_is_taken_as_captured_without_a_null_distribution():
    model = vit()
    replace_attention(model, "twicing", [2])  # 2A − A²
    frame = rows(model=model, inputs=images(), null_samples=2)
    captured = workbench.capture(model, images(), sites=["attn"])[2].attn[1, 0]
    np.testing.assert_allclose(spectra(frame).loc["1", 2, 0], singular_values(captured), atol=1e-7)
    at = frame["metric"] == "effective_rank"
    assert frame[at & (frame["layer"] == 2)]["null_mean"].isna().all()
    assert frame[at & (frame["layer"] == 1)]["null_mean"].notna().all()
    assert any("have no null distribution" in note for note in frame.attrs["notes"])


def test_what_has_no_matrix_of_tokens_is_left_out_with_the_reason():
    torch.manual_seed(0)
    xcit = timm.models.xcit.Xcit(
        img_size=32, patch_size=8, embed_dim=12, depth=2, num_heads=3, cls_attn_layers=1, num_classes=4
    ).eval()
    with pytest.raises(InputError, match=r"channel to channel.*attends from 1 queries to 17 keys"):
        rows(model=xcit, inputs=images(2, size=32))
    tssa = vit()
    replace_attention(tssa, "tssa")
    with pytest.raises(InputError, match="without attention from token to token"):
        rows(model=tssa, inputs=images(2))


def test_a_sequence_of_one_token_has_no_spectrum():
    one = {name: part[:1, :1] for name, part in texts((2,)).items()}
    with pytest.raises(InputError, match=r"layer 0: a kernel matrix of 1 query has one singular value"):
        rows(model=bert(), inputs=one)
    with pytest.raises(InputError, match=r"layer 0: a kernel matrix of 1 query has one"):
        rows(model=bert(), inputs=texts((5, 1)))


def test_no_more_tokens_than_features_is_said():
    frame = rows(model=bert(), inputs=texts((4, 3)))
    assert any("every score lies inside" in note for note in frame.attrs["notes"])
    assert frame[frame["metric"] == "r_score_share"]["value"].max() < 1e-12


def test_a_file_without_the_input_has_no_primal_kernel(tmp_path):
    model = workbench.load(PRIMAL)
    digits = workbench.inputs("bundled:digits", model, n=1)
    record = workbench.capture(model, digits, layers=[3])[3]
    layer = Layer(record, ["0"], None, 0, model=None)
    analysis = ANALYSES["attention-spectrum"]
    with pytest.raises(InputError, match="give model and inputs"):
        next(analysis.measure(layer, analysis.asked({})))


def test_primal_kernels_of_the_bundled_model_fall_faster_than_chance():
    frame = analyze(
        "attention-spectrum", model=PRIMAL, inputs="bundled:digits", n=3, layers=3, null_samples=3
    )
    overall = frame[frame["input"].isna() & frame["layer"].isna() & (frame["metric"] == "effective_rank")]
    assert overall["value"].item() < overall["null_low"].item()
    assert math.isfinite(overall["z"].item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_rounding_of_the_type_that_came_is_no_direction(dtype):
    """A matrix of rank 2, rounded: beyond two the singular values are rounding, 0 and without vectors."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(n, 2, generator=generator, dtype=torch.float64) for n in (9, 7))
    found = kernel_svd((a @ b.T).to(dtype), 4)
    assert (found.values > 0).tolist() == [True, True, False, False]
    small = torch.diag(
        torch.tensor([1.0, 1e-9, 0], dtype=torch.float64)
    )  # no rounding of float64, one of float32
    kept = (kernel_svd(small.to(dtype), 3).values > 0).tolist()
    assert kept == [True, dtype == torch.float64, False]


def test_random_queries_and_keys_are_drawn_apart():
    """The same noise for both would have every query attend to itself most."""
    group = SimpleNamespace(seeds=torch.tensor([[3, 4]]))
    operands = torch.ones(1, 2, 5, 3), torch.ones(1, 2, 5, 3)
    seen = []

    def measure(q, k):
        seen.append((q, k))
        return [MetricValues(SINGULAR_VALUE, q.mean((-2, -1)))]

    with_null([MetricValues(SINGULAR_VALUE, torch.zeros(1, 2))], measure, operands, 2, group)
    drawn = [part for pair in seen for part in pair]
    assert len(drawn) == 4
    assert all(not torch.allclose(one, other) for n, one in enumerate(drawn) for other in drawn[:n])


def test_alignment_is_the_best_matching_by_a_search_and_sees_what_a_span_does_not():
    generator = torch.manual_seed(8)
    kernel = torch.randn(2, 3, 6, 7, dtype=torch.float64, generator=generator)
    vectors = torch.randn(2, 3, 7, 4, dtype=torch.float64, generator=generator)
    svd = kernel_svd(kernel, 4)
    found = singular_alignment(vectors, svd.right)
    for place in np.ndindex(2, 3):
        columns, right = vectors[place].T, svd.right[place].T
        cosines = [[float(abs(a @ b) / a.norm()) for b in right] for a in columns]
        best = max(
            sum(cosines[row][column] for row, column in enumerate(order)) / 4
            for order in itertools.permutations(range(4))
        )
        assert found[place].item() == pytest.approx(best, rel=1e-12)
    exact = singular_alignment(-svd.r_scores.flip(-1), svd.right)
    torch.testing.assert_close(exact, torch.ones_like(exact))
    turn = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64, generator=generator)).Q
    assert (singular_alignment(svd.right @ turn, svd.right) < 0.9).all()
    torch.testing.assert_close(inside_share(svd.right @ turn, svd.right), torch.ones_like(exact))
    assert singular_alignment(vectors * torch.tensor([1, 1, 0, 1]), svd.right).isnan().all()


@pytest.mark.parametrize("seed", range(3))
def test_the_ksvd_objective_vanishes_without_singular_vectors(seed):
    """saritas2025 App. D says that solving (7) forces them; any weights with a positive trace have J = 0 for some Λ."""
    generator = torch.manual_seed(seed)
    q, k = torch.randn(2, 1, 1, 9, 5, dtype=torch.float64, generator=generator)
    weights = torch.linalg.qr(torch.randn(5, 3, dtype=torch.float64, generator=generator)).Q[None]
    e, r = primal_scores(q, k, weights, weights)
    ones = torch.ones(3, dtype=torch.float64)
    trace = weights.square().sum()
    energy = ksvd_loss(e, r, weights, weights, ones) + trace
    assert ksvd_loss(e, r, weights, weights, ones * trace / energy).abs().item() < 1e-12
    svd = kernel_svd(primal_kernel(q, k), 3)
    assert singular_alignment(r, svd.right).item() < 0.95


def test_the_laplacian_is_that_of_a_loop_and_its_gap_is_0_for_parts():
    weights = attention()
    found = laplacian_eigenvalues(weights)
    for place in np.ndindex(*weights.shape[:-2]):
        matrix = weights[place].double().numpy()
        size = len(matrix)
        graph = [[(matrix[i, j] + matrix[j, i]) / 2 for j in range(size)] for i in range(size)]
        degrees = [sum(row) for row in graph]
        laplacian = [
            [(i == j) - graph[i][j] / math.sqrt(degrees[i] * degrees[j]) for j in range(size)]
            for i in range(size)
        ]
        np.testing.assert_allclose(found[place], np.linalg.eigvalsh(laplacian), atol=1e-9)
        assert found[place][0].item() == pytest.approx(0, abs=1e-9)
        assert found[place][1] > 0.01
    parts = torch.block_diag(torch.full((2, 2), 0.5), torch.full((3, 3), 1 / 3))
    expected = [0, 0, 1, 1, 1]
    np.testing.assert_allclose(laplacian_eigenvalues(parts), expected, atol=1e-9)
    with pytest.raises(InputError, match="none of them negative"):
        laplacian_eigenvalues(-parts)


def test_the_spectral_gap_is_measured_beside_random_queries_and_keys():
    given = {"model": vit(), "inputs": images(2), "layers": [1]}
    frame = rows(laplacian=True, null_samples=2, **given)
    gaps = frame[frame["metric"] == "spectral_gap"]
    assert gaps["null_mean"].notna().all()
    second = frame[(frame["metric"] == "laplacian_eigenvalue") & (frame["rank"] == 2)]
    np.testing.assert_allclose(gaps["value"], second["value"])
    assert any("spectral gap of attention" in sentence for sentence in workbench.findings(frame))
    assert "spectral_gap" not in set(rows(**given)["metric"])


@pytest.mark.parametrize(("tokens", "inside"), [(4, True), (5, True), (6, False)])
def test_outputs_of_no_more_tokens_than_features_hold_every_score(tokens, inside):
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, tokens, 5, generator=generator).double()
    attn = (q @ k.mT / 2).softmax(-1)
    record = LayerRecord(0, "", q=q, k=k, v=v, attn=attn, head_out=attn @ v, scale=0.5)
    kinds = [["token"] * tokens] * 2
    labels = TokenInfo([["t"] * tokens] * 2, kinds, None, torch.ones(2, tokens, dtype=torch.bool))
    kept = Capture([record], ("q", "k", "v", "attn", "head_out"), tokens=labels)
    notes = analyze("attention-spectrum", qkv=kept, null_samples=0).attrs["notes"]
    assert any("have no more tokens than the 5 features" in note for note in notes) == inside
