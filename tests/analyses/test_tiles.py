"""Attention in tiles: a naive loop as oracle for every mask and reduction, and scores at the edge of numbers."""

import math

import pytest
import torch

from workbench.analyses import reductions as taken
from workbench.analyses.attention_map import head_maps
from workbench.analyses.tiles import REDUCTIONS, Mask, Reduction, reduce_tiles
from workbench.core.errors import InputError, UnknownName

BATCH, HEADS, KV_HEADS, QUERIES, KEYS, DIM, VALUE_DIM = 2, 6, 3, 7, 11, 5, 4
SCALE = 0.37
EXACT = {"rtol": 1e-10, "atol": 1e-14}


def operands(queries=QUERIES, keys=KEYS, dtype=torch.float64, seed=0):
    source = torch.manual_seed(seed)
    shapes = (BATCH, HEADS, queries, DIM), (BATCH, KV_HEADS, keys, DIM)
    return [torch.randn(shape, dtype=torch.float64, generator=source).mul(2).to(dtype) for shape in shapes]


NORMAL = torch.randn(BATCH, HEADS, QUERIES, KEYS, dtype=torch.float64, generator=torch.manual_seed(3))
BIAS = NORMAL.masked_fill(NORMAL > 1, -math.inf)
SOME = torch.rand(BATCH, 1, 1, KEYS, generator=torch.manual_seed(4)) < 0.6


def allowed(sees):
    """What is added to every score, by a rule for numbers of queries and keys."""
    rows = [[0.0 if sees(i, j) else -math.inf for j in range(KEYS)] for i in range(QUERIES)]
    return torch.tensor(rows, dtype=torch.float64).expand(BATCH, HEADS, -1, -1)


MASKS = {
    "none": (None, allowed(lambda i, j: True)),
    "causal": (Mask(causal=True), allowed(lambda i, j: j <= i)),
    "causal, later": (Mask(causal=True, offset=4), allowed(lambda i, j: j <= i + 4)),
    "causal, earlier": (Mask(causal=True, offset=-2), allowed(lambda i, j: j <= i - 2)),
    "window": (Mask(window=3), allowed(lambda i, j: abs(i - j) < 3)),
    "causal window": (Mask(causal=True, window=3), allowed(lambda i, j: 0 <= i - j < 3)),
    "keys": (SOME, torch.where(SOME, 0.0, -math.inf).double().expand(-1, HEADS, QUERIES, -1)),
    "bias": (BIAS, BIAS),
    "function": (lambda query, key: (query + key) % 3 > 0, allowed(lambda i, j: (i + j) % 3 > 0)),
    "bias and causal": (Mask(tensor=BIAS, causal=True), BIAS + allowed(lambda i, j: j <= i)),
}


def naive(q, k, added):
    """Attention entry by entry, rows that see nothing being 0."""
    attn = torch.zeros(BATCH, HEADS, q.shape[2], k.shape[2], dtype=torch.float64)
    for b in range(BATCH):
        for h in range(HEADS):
            shared = k[b, h // (HEADS // KV_HEADS)].tolist()
            for i, query in enumerate(q[b, h].tolist()):
                plus = added[b, h, i].tolist()
                scores = [
                    SCALE * math.fsum(a * b for a, b in zip(query, key, strict=True)) + more
                    for key, more in zip(shared, plus, strict=True)
                ]
                largest = max(scores)
                if largest > -math.inf:
                    weights = [math.exp(score - largest) for score in scores]
                    attn[b, h, i] = torch.tensor(weights, dtype=torch.float64) / math.fsum(weights)
    return attn


@pytest.mark.parametrize("name", MASKS)
def test_every_reduction_is_what_a_loop_computes(name):
    (q, k), (mask, added) = operands(), MASKS[name]
    attn = naive(q, k, added)
    v = torch.randn(BATCH, KV_HEADS, KEYS, VALUE_DIM, dtype=torch.float64)
    here, there = torch.rand(QUERIES, 2, dtype=torch.float64), torch.rand(KEYS, 2, dtype=torch.float64)
    there[3] = math.nan
    places = {"next": lambda b, rows: (torch.tensor([*rows]), torch.tensor([*rows]) + 1)}
    for memory in (1, 2000, 10**6):  # a row of a group of heads at a time, some, all
        found = reduce_tiles(
            q,
            k,
            "entropy",
            "squares",
            "overlap",
            "received",
            "diversity",
            taken.RowDistance(here, there),
            taken.OnPatterns(places),
            taken.TopKeys(3),
            taken.HeadOutput(v),
            taken.Pooled(4),
            taken.ChosenRows([5, 2]),
            taken.ChosenColumns([10, 0]),
            taken.HeadPairs(samples=QUERIES),
            scale=SCALE,
            mask=mask,
            memory=memory,
        )
        seen = added > -math.inf
        count = seen.sum(-1).double()

        def same(actual, expected):
            torch.testing.assert_close(actual, expected, **EXACT)

        same(found.count, count)
        same(found.total, seen.any(-1).double())
        same(found["entropy"], torch.special.entr(attn).sum(-1))
        same(found["squares"], attn.square().sum(-1))
        same(found["overlap"], torch.minimum(attn, 1 / count.clamp_min(1)[..., None]).sum(-1))
        same(found["received"].attention, attn.sum(-2))
        same(found["received"].uniform, (seen / count.clamp_min(1)[..., None]).sum(-2))
        far = torch.cdist(here, there).nan_to_num(0.0)
        mass = (attn * ~there[:, 0].isnan()).sum(-1)
        same(
            found["distance"].attention.nan_to_num(-1.0),
            torch.where(mass > 0, (attn * far).sum(-1) / mass, torch.tensor(-1.0)).double(),
        )
        placed = seen & ~there[:, 0].isnan() & ~here.isnan().any(-1, keepdim=True)
        uniform = (placed * far).sum(-1) / placed.sum(-1)
        same(found["distance"].uniform.nan_to_num(-1.0), uniform.nan_to_num(-1.0).double())
        following = torch.eye(QUERIES, KEYS).roll(1, 1).bool()
        same(found["patterns"]["next"].weight, (attn * following).sum(-1))
        same(found["patterns"]["next"].keys, (seen & following).sum(-1).double())
        same(found["top"].weights, attn.topk(3).values)
        held = found["top"].weights > 0
        same(attn.gather(-1, found["top"].keys.clamp_min(0))[held], found["top"].weights[held])
        assert (found["top"].keys[~held] == -1).all()
        group = HEADS // KV_HEADS
        same(found["output"], attn @ v.repeat_interleave(group, 1))
        assert found["pooled"].mean.shape[-2:] == (4, 4)
        owner, owner_of_key = (torch.arange(count) * 4 // count for count in (QUERIES, KEYS))
        for row in range(4):
            for column in range(4):
                cell = attn[:, :, owner == row][..., owner_of_key == column]
                same(found["pooled"].mean[..., row, column], cell.mean((-1, -2)))
                same(found["pooled"].maximum[..., row, column], cell.amax((-1, -2)))
        same(found["rows"], attn[:, :, [5, 2]])
        same(found["columns"], attn[..., [10, 0]])
        roots = attn.sqrt().transpose(1, 2)
        same(found["pairs"].mean, (roots @ roots.mT).mean(1))
        torch.testing.assert_close(found["pairs"].error, torch.zeros(BATCH, HEADS, HEADS).double())
        whole = (attn.sum(-1) > 0).all(1)
        joint = torch.special.entr(attn.mean(1)).sum(-1) - torch.special.entr(attn).sum(-1).mean(1)
        torch.testing.assert_close(
            found["diversity"][whole], joint[whole] / math.log(HEADS), rtol=1e-9, atol=1e-12
        )
        assert found["diversity"][~whole].isnan().all()


def test_a_coarse_map_of_some_keys_is_that_of_these_columns():
    q, k = operands()
    attn = naive(q, k, MASKS["none"][1])
    for memory in (1, 10**6):
        found = reduce_tiles(q, k, taken.Pooled(3, range(4, 9)), scale=SCALE, memory=memory)["pooled"]
        few = reduce_tiles(q, k, taken.Pooled(99, range(4, 9)), scale=SCALE, memory=memory)["pooled"]
        owner = torch.arange(5) * 3 // 5
        for column in range(3):
            cell = attn[..., 4:9][..., owner == column]
            torch.testing.assert_close(
                found.mean[:, :, 0, column], cell[:, :, : -(-QUERIES // 3)].mean((-1, -2)), **EXACT
            )
        torch.testing.assert_close(few.mean, attn[..., 4:9], **EXACT)  # a cell of each pair
        torch.testing.assert_close(few.maximum, few.mean, **EXACT)
    with pytest.raises(InputError, match=f"no key 11: numbers are 0 to {KEYS - 1}"):
        reduce_tiles(q, k, taken.Pooled(3, range(4, 12)), scale=SCALE)


def test_padding_that_a_mask_does_not_hide_counts_as_nothing():
    q, k = operands()
    real = torch.arange(KEYS) < torch.tensor([[8], [KEYS]])
    attn = naive(q, k, MASKS["none"][1]) * real[:, None, None]
    found = reduce_tiles(q, k, "entropy", "received", scale=SCALE, keys=real)
    torch.testing.assert_close(found.total, attn.sum(-1), **EXACT)
    torch.testing.assert_close(found["entropy"], torch.special.entr(attn).sum(-1), **EXACT)
    torch.testing.assert_close(found["received"].attention, attn.sum(-2), **EXACT)
    assert found.count[0].unique().tolist() == [8]


def test_a_sample_of_queries_estimates_how_alike_heads_are_within_its_error():
    q, k = operands(queries=97)
    whole = reduce_tiles(q, k, taken.HeadPairs(samples=97), scale=SCALE)["pairs"]
    off = []
    for seed in range(20):
        part = reduce_tiles(q, k, taken.HeadPairs(samples=40, seed=seed), scale=SCALE)["pairs"]
        apart = ~torch.eye(HEADS, dtype=torch.bool)
        off.append(((part.mean - whole.mean) / part.error)[:, apart])
    assert torch.stack(off).square().mean().sqrt().item() == pytest.approx(1, abs=0.35)


def adversarial(kind):
    """Operands of 64 tokens whose float32 numbers are those of bfloat16, so that only our own rounding counts."""
    q, k = (part.bfloat16().float() for part in operands(64, 64))
    if kind == "one giant logit":
        k[:, :, 17] = 0
        q[..., 0] = 8.0
        k[:, :, 17, 0] = 64.0
    if kind == "all equal":
        k[:] = k[:, :, :1]
    if kind == "keys × 100":
        k *= 128  # exact
    return q, k


@pytest.mark.parametrize(
    "kind", ["one giant logit", "all equal", "keys × 100", "rows that see nothing", "bfloat16"]
)
def test_float32_tiles_agree_with_float64_maps(kind):
    q, k = adversarial(kind)
    mask = torch.ones(64, 64, dtype=torch.bool).tril()
    if kind == "rows that see nothing":
        mask[20:30] = False
    given = (q.bfloat16(), k.bfloat16()) if kind == "bfloat16" else (q, k)
    found = reduce_tiles(*given, "entropy", "squares", "received", "overlap", scale=0.5, mask=mask)
    scores = q.double() @ k.double().repeat_interleave(HEADS // KV_HEADS, 1).mT * 0.5
    attn = scores.masked_fill(~mask, -math.inf).softmax(-1).nan_to_num(0.0)
    # scores themselves are rounded: by 2^-24 of their size, which moves a weight by as much
    loose = 1e-6 * max(1.0, scores.abs().max().item() / 10)
    for name, expected in {
        "entropy": torch.special.entr(attn).sum(-1),
        "squares": attn.square().sum(-1),
    }.items():
        torch.testing.assert_close(found[name], expected, rtol=loose, atol=1e-9, msg=f"{kind}: {name}")
    torch.testing.assert_close(found["received"].attention, attn.sum(-2), rtol=loose, atol=1e-8)
    whole, maps = found.total > 0, head_maps(attn, visible=mask)
    torch.testing.assert_close(found["entropy"].sum(-1) / whole.sum(-1), maps.entropy, rtol=loose, atol=1e-9)


def test_sums_at_2048_tokens_are_right_to_a_millionth():
    source = torch.manual_seed(5)
    q, k = (torch.randn(1, 1, 2048, 64, generator=source) for _ in range(2))
    line = torch.arange(2048.0)[:, None]
    found = reduce_tiles(
        q,
        k,
        "entropy",
        "squares",
        "overlap",
        "received",
        taken.RowDistance(line, line),
        mask=Mask(causal=True),
    )
    scores = (q.double() @ k.double().mT / 8).masked_fill(~torch.ones(2048, 2048).bool().tril(), -math.inf)
    attn = scores.softmax(-1)
    expected = {
        "entropy": torch.special.entr(attn).sum(-1).mean(),
        "squares": attn.square().sum(-1).mean(),
        "distance": (attn * (line - line.mT).abs()).sum(-1).mean(),
        "overlap": torch.minimum(attn, 1 / (line + 1)).sum(-1).mean(),
    }
    for name, value in expected.items():
        rows = found[name].attention if name == "distance" else found[name]
        torch.testing.assert_close(rows.mean(), value, rtol=1e-6, atol=0, msg=name)
    torch.testing.assert_close(found["received"].attention, attn.sum(-2), rtol=1e-6, atol=0)
    torch.testing.assert_close(found.log_normaliser, scores.logsumexp(-1), rtol=1e-6, atol=1e-6)


def test_scores_that_are_no_numbers_are_named_by_their_tile_or_counted():
    q, k = operands()
    q[1, 4, 2, 0], k[0, 1, 6, 3] = math.nan, math.inf
    with pytest.raises(
        InputError, match=r"NaN or infinite at input 0, head 2, queries \d to \d, keys 6 to 6"
    ):
        reduce_tiles(q, k, "entropy")
    found = reduce_tiles(q, k, "entropy", "received", mask=Mask(causal=True), nonfinite="keep")
    assert found.broken[1].nonzero().tolist() == [[4, 2]]
    assert found.places[-1] == (1, 4, (2, 2), (0, 2))
    assert found["received"].attention.isfinite().all()
    # a key of infinity is a score of ±∞ or NaN: of −∞ it has no weight, and breaks nothing
    assert set(found.broken[0].nonzero()[:, 0].tolist()) <= {2, 3}
    assert found["entropy"].isfinite().all()


def test_a_reduction_joins_by_being_defined_and_others_are_refused():
    class Largest(Reduction):
        name = "largest weight"

        def start(self, shape):
            self.values = shape.rows()

        def add(self, tile):
            self.values[tile.slices] = tile.weights.amax(-1).double()

        def result(self):
            return self.values

    q, k = operands()
    try:
        found = reduce_tiles(q, k, "largest weight", taken.TopKeys(1))
        torch.testing.assert_close(found["largest weight"], found["top"].weights[..., 0])
    finally:
        del REDUCTIONS["largest weight"]
    with pytest.raises(UnknownName, match="entropy"):
        reduce_tiles(q, k, "entropi")
    with pytest.raises(InputError, match=r"give HeadOutput"):
        reduce_tiles(q, k, "output")


def test_operands_that_do_not_fit_are_refused():
    q, k = operands()
    for given, words in (
        ((q, k[:, :2]), "multiple of 4"),
        ((q[:, :5], k), "multiple"),
        ((q[0], k[0]), "batch"),
    ):
        if words == "multiple of 4":  # two heads of keys do go with six of queries
            reduce_tiles(*given, "entropy")
            continue
        with pytest.raises(InputError, match=words):
            reduce_tiles(*given, "entropy")
    with pytest.raises(InputError, match=r"mask of shape \(7, 5\) does not fit"):
        reduce_tiles(q, k, mask=torch.ones(QUERIES, 5, dtype=torch.bool))
    with pytest.raises(InputError, match="window is at least 1"):
        reduce_tiles(q, k, mask=Mask(window=0))
    with pytest.raises(InputError, match="numbers does not fit 6 heads"):
        reduce_tiles(q, k, scale=torch.ones(5))
    with pytest.raises(InputError, match="there is no query 7"):
        reduce_tiles(q, k, taken.ChosenRows([7]))


def test_the_standard_error_of_pairs_is_that_of_a_sample_without_replacement():
    total, samples, seed = 31, 12, 3
    q, k = operands(queries=total)
    attn = (SCALE * q.double() @ k.double().repeat_interleave(HEADS // k.shape[1], 1).mT).softmax(-1)
    chosen = torch.randperm(total, generator=torch.Generator().manual_seed(seed))[:samples]
    roots = attn[:, :, chosen].sqrt()
    alike = torch.einsum("bhqk,bgqk->bhgq", roots, roots)
    error = (alike.var(-1) / samples * (1 - samples / total)).sqrt()
    found = reduce_tiles(q, k, taken.HeadPairs(samples, seed), scale=SCALE)["pairs"]
    apart = ~torch.eye(HEADS, dtype=torch.bool)
    torch.testing.assert_close(found.mean, alike.mean(-1), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found.error[:, apart], error[:, apart], rtol=1e-3, atol=1e-7)
