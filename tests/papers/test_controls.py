"""Controls of the verdicts: what is planted holds in every test of its claim, and noise in none."""

import pandas as pd
import pytest
import torch

from workbench.analyses.kernel_pca import kpca_values, principal_axes
from workbench.captures import Capture, LayerRecord
from workbench.data.pools import DIGITS_MEAN, DIGITS_STD
from workbench.models.architectures import build
from workbench.models.checkpoints import write_checkpoint
from workbench.papers.claims import judged
from workbench.papers.published import claim_options, stated_claims
from workbench.papers.verdicts import EQUIVALENT, FAILS, HOLDS
from workbench.runs.analyze import analyze, check_request

INPUTS, TOKENS, WIDTH = 16, 20, 4
SCALE = WIDTH**-0.5


def _queries_and_keys(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, INPUTS, 1, TOKENS, WIDTH, generator=generator, dtype=torch.float64)


def _noise(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(INPUTS, 1, TOKENS, WIDTH, generator=generator, dtype=torch.float64)


def _kernel_pca_values(k):
    """The values V̇ that kernel PCA predicts for these keys, head by head."""
    found = [kpca_values(principal_axes(keys[0], SCALE, WIDTH)) for keys in k]
    return torch.stack([one.values * one.log_factor.exp() for one in found])[:, None]


def _verdicts(q, k, v, analyses):
    """The verdict on every claim that these analyses measure on one model, by label."""
    capture = Capture([LayerRecord(0, "", q=q, k=k, v=v, scale=SCALE)], ("q", "k", "v"))
    stated = stated_claims()
    stated = stated[stated["analysis"].isin(analyses) & stated["over"].isin(["inputs", "every input"])]
    stated = stated[(stated["paper"] == "teo2024") | stated["claim"].str.contains("negligible")]
    stated = stated[~stated["measure"].str.contains("as_implemented")]
    frames, found = {}, {}
    for claim in stated.to_dict("records"):
        options = {
            key: {"true": True, "0": 0}.get(word, word)
            for key, word in claim_options(claim["options"]).items()
        }
        asked = check_request(claim["analysis"], {"null_samples": 8, **options})
        key = (claim["analysis"], claim["options"])
        if key not in frames:
            frames[key] = analyze(claim["analysis"], qkv=capture, **asked)
        found[claim["label"]] = judged(claim, [frames[key]])
    return pd.DataFrame(found).T


@pytest.fixture(scope="module")
def of_kernel_pca():
    """Verdicts on a head whose values are those of kernel PCA, and on one whose values are noise."""
    q, k = _queries_and_keys()
    about_values = ["value-similarity", "eigenvector-test", "projection-error"]
    planted, noise = (_verdicts(q, k, v, about_values) for v in (_kernel_pca_values(k), _noise()))
    return planted["verdict"], noise["verdict"]


# teo2024's claims of the values, each under its interpretation
OF_VALUES = (
    "V equals the predicted V̇: share of heads equal entry by entry",
    "V equals V̇ up to rotation and scale: linear CKA",
    "V equals V̇ column by column, in any order: mean cosine",
    "V holds the keys' principal axes: share of V in the span of V̇",
    "V is nearer V̇ than noise is: linear CKA",
    "Eigenvectors follow from V: inconsistency of (I − 1_N)X = G⁻¹V",
    "Entries of γ are equal for â from V: mean |difference| over |γ|",
    "Entries of γ are equal for â from V: standard deviation over |γ|",
    "Entries of γ are equal for â from V: mean relative difference",
    "Vectors from V are eigenvectors of K̃: eigen-residual",
    "Vectors from V lie in the top eigenspace: share, beside noise",
)


@pytest.mark.parametrize("label", OF_VALUES)
def test_values_of_kernel_pca_hold_and_noise_does_not(of_kernel_pca, label):
    planted, noise = of_kernel_pca
    assert planted[label] == HOLDS
    assert noise[label] in (FAILS, EQUIVALENT)


def test_outputs_that_are_the_projections_reconstruct_and_noise_does_not(of_kernel_pca):
    """Outputs h = P/μ, the coordinates of the best there is, come of values V̇ divided by the eigenvalues."""
    q, k = _queries_and_keys()
    axes = [principal_axes(keys[0], SCALE, WIDTH) for keys in k]
    lengths = torch.stack([one.eigenvalues * one.log_factor.exp() for one in axes])[:, None, None]
    planted = _verdicts(q, k, _kernel_pca_values(k) / lengths, ["projection-error"])["verdict"]
    _, noise = of_kernel_pca
    for label in (
        "Outputs remove the projection error: share of what can be removed",
        "Outputs reconstruct the queries: share of removable error removed",
        "Outputs reconstruct the queries: the same, beside noise",
    ):
        assert planted[label] == HOLDS
        assert noise[label] in (FAILS, EQUIVALENT)


def test_values_of_kernel_pca_are_not_negligibly_alike_and_noise_is(of_kernel_pca):
    planted, noise = of_kernel_pca
    negligible = [label for label in planted.index if label.startswith("V is no nearer V̇ than noise")]
    assert len(negligible) == 7
    assert (planted[negligible] == FAILS).all()
    assert not (noise[negligible] == FAILS).any()
    assert noise["V is no nearer V̇ than noise: share of V in the span of V̇"] == EQUIVALENT


def test_attention_of_low_rank_holds_and_that_of_noise_does_not():
    # of a single head ranks vary much: enough inputs that noise is seen to be noise
    noise = [torch.cat([8 * _queries_and_keys(seed)[side] for seed in range(3, 9)]) for side in (0, 1)]
    sign = torch.where(torch.arange(TOKENS) % 2 == 0, 1.0, -1.0).double()[:, None]
    low = (8 * sign).expand(*noise[0].shape)  # two kinds of tokens, each attending to its own
    stated = stated_claims("chen2023").query(
        "measure in ('rank_90_share', 'effective_rank') and over == 'inputs'"
    )
    assert len(stated) == 2
    for q, k in ((low, low), noise):
        attn = (SCALE * q @ k.mT).softmax(-1)
        record = LayerRecord(0, "", q=q, k=k, v=torch.cat([_noise()] * 6), attn=attn, scale=SCALE)
        capture = Capture([record], ("q", "k", "v", "attn"))
        frame = analyze("attention-spectrum", qkv=capture, null="both", null_samples=5)
        verdicts = {judged(claim, [frame])["verdict"] for claim in stated.to_dict("records")}
        assert verdicts == {HOLDS} if q is low else verdicts <= {FAILS, EQUIVALENT}


def test_memberships_that_are_the_ink_share_a_head_and_those_of_places_do_not(tmp_path):
    """A head that reads how bright a patch is, and one that reads how dark; and heads that read where it lies."""
    architecture = {
        "name": "vit", "img_size": 16, "patch_size": 2, "in_chans": 1, "num_classes": 10, "embed_dim": 4, "depth": 1,
        "num_heads": 2, "attention": "tssa", "attention_options": {"convention": "as_implemented"},
    }  # fmt: skip
    about = {
        "interpolation": "bilinear",
        "mean": [DIGITS_MEAN],
        "std": [DIGITS_STD],
        "resize": 16,
        "scale": 0.0625,
    }
    meta = {"architecture": architecture, "preprocessing": about, "task": "digits"}
    generator = torch.Generator().manual_seed(0)
    model = build(architecture).requires_grad_(False)
    patches, block = model.patch_embed.proj, model.blocks[0]
    for weights in (
        patches.weight,
        patches.bias,
        model.pos_embed,
        block.attn.qkv.weight,
        block.attn.qkv.bias,
    ):
        weights.zero_()
    block.attn.qkv.weight[[0, 2], [0, 1]] = 1.0  # a feature for each head
    stated = stated_claims("wu2025").query("analysis == 'membership' and kind == ''")
    (claim,) = stated.to_dict("records")
    found = {}
    for name in ("planted", "noise"):
        if name == "planted":  # mean brightness, and what is left to 1
            patches.weight[0], patches.weight[1] = DIGITS_STD / 4, -DIGITS_STD / 4
            patches.bias[:2] = torch.tensor([DIGITS_MEAN, 1 - DIGITS_MEAN])
        else:
            patches.weight.zero_()
            model.pos_embed[:] = torch.randn(model.pos_embed.shape, generator=generator)
        write_checkpoint(tmp_path / "epoch-000.safetensors", model, meta)
        spec = f"file:{tmp_path / 'epoch-000.safetensors'}"
        frame = analyze("membership", model=spec, inputs="bundled:digits", n=INPUTS, masks="ink", cache=False)
        found[name] = judged(claim, [frame])
    assert found["planted"]["verdict"] == HOLDS
    assert found["planted"]["low"] > 0.5
    assert found["noise"]["verdict"] in (FAILS, EQUIVALENT)


def test_tokens_that_draw_together_smooth_and_fresh_ones_do_not():
    """Through four layers what tells tokens apart is halved each time, or drawn anew."""
    generator = torch.Generator().manual_seed(0)
    (claim,) = stated_claims("abdullaev2025").query("analysis == 'token-similarity'").to_dict("records")
    shape, places = (INPUTS, TOKENS, 64), range(4)
    common = torch.randn(INPUTS, 1, 64, generator=generator)
    own = torch.randn(shape, generator=generator)
    states = {
        "planted": [common + own / 2**depth for depth in places],
        "noise": [torch.randn(shape, generator=generator) for _ in places],
    }
    verdicts = {}
    for name, layers in states.items():
        records = [LayerRecord(depth, "", resid_post=x) for depth, x in enumerate(layers)]
        frame = analyze("token-similarity", qkv=Capture(records, ("resid_post",)), rate="fit")
        verdicts[name] = judged(claim, [frame])["verdict"]
    assert verdicts == {"planted": HOLDS, "noise": EQUIVALENT}
