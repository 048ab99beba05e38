"""Controls of the verdicts: a planted effect must hold in every test of its claim, and noise in none.

Heads, blocks and a model are constructed so that each claim has a known verdict. docs/papers/verdicts.md describes
the controls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from workbench.analyses.kernel_pca import kpca_values, principal_axes
from workbench.captures import Capture, LayerRecord
from workbench.data.pools import DIGITS_MEAN, DIGITS_STD
from workbench.models.architectures import build
from workbench.models.checkpoints import write_checkpoint
from workbench.papers import verdicts
from workbench.papers.claims import judged
from workbench.papers.published import claim_options, stated_claims
from workbench.papers.verdicts import COLUMNS
from workbench.runs.analyze import analyze, check_request

INPUTS, TOKENS, WIDTH = 16, 20, 4
SCALE = WIDTH**-0.5
VALUES, OUTPUTS, RANK = "values of kernel PCA", "outputs that are the projections", "attention of low rank"
MEMBERSHIP, SMOOTHING = "memberships that follow the ink", "tokens that draw together"
NEGLIGIBLE = "V is no nearer V̇ than noise"
"""Start of the labels of claims that must fail for values of kernel PCA, and not for noise."""

Heads = Float[Tensor, "input head token head_dim"]


def controls() -> pd.DataFrame:
    """Return the verdict on every claim that has a control, for the planted effect and for noise.

    Columns: ``control``, ``case`` ("planted" or "noise") and `workbench.papers.verdicts.COLUMNS`. Noise represents the
    untrained weights of the planted case. Takes about ten seconds on one core.
    """
    cases: dict[str, pd.DataFrame] = {}
    for case in ("noise", "planted"):
        rows = [
            {"control": name, "case": case, **claim, **verdict}
            for name, control in CONTROLS.items()
            for claim, verdict in control(case == "planted")
        ]
        cases[case] = pd.DataFrame(rows).reindex(columns=["control", "case", *COLUMNS])
    keys = ["control", "paper", "claim", "interpretation"]
    noise = cases["noise"].set_index(keys)["verdict"]
    untrained = [noise.get(tuple(row)) for row in cases["planted"][keys].to_numpy()]
    cases["planted"]["untrained_verdict"] = untrained
    return verdicts.controlled(pd.concat([cases["planted"], cases["noise"]], ignore_index=True))


def gaussian(*shape: int, seed: int) -> Tensor:
    """Return Gaussian noise in float64, fixed by its seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@cache
def _predicted() -> tuple[Heads, Heads, Heads, Tensor]:
    """Return random queries and keys, the values V̇ that kernel PCA predicts for the keys, and its eigenvalues."""
    q, k = gaussian(2, INPUTS, 1, TOKENS, WIDTH, seed=0)
    axes = [principal_axes(keys[0], SCALE, WIDTH) for keys in k]
    values = [kpca_values(axis) for axis in axes]
    return (
        q,
        k,
        torch.stack([projected.values * projected.log_factor.exp() for projected in values])[:, None],
        torch.stack([axis.eigenvalues * axis.log_factor.exp() for axis in axes])[:, None, None],
    )


def _of_heads(v: Heads, *analyses: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Judge teo2024's claims about values, and saritas2025's that they resemble noise, on heads with these values."""
    q, k, _, _ = _predicted()
    capture = Capture([LayerRecord(0, "", q=q, k=k, v=v, scale=SCALE)], ("q", "k", "v"))
    stated = stated_claims()
    stated = stated[stated["analysis"].isin(analyses) & stated["over"].isin(["inputs", "every input"])]
    stated = stated[(stated["paper"] == "teo2024") | stated["label"].str.startswith(NEGLIGIBLE)]
    stated = stated[~stated["measure"].str.contains("as_implemented")]
    frames: dict[tuple[str, str], pd.DataFrame] = {}
    for claim in stated.to_dict("records"):
        key = (claim["analysis"], claim["options"])
        if key not in frames:
            frames[key] = analyze(claim["analysis"], qkv=capture, **_options(claim, null_samples=8))
        yield claim, judged(claim, [frames[key]])


def _options(claim: Mapping[str, Any], **defaults: Any) -> dict[str, Any]:
    """Return the options of a claim's analysis."""
    words = {"true": True, "0": 0}
    options = {key: words.get(word, word) for key, word in claim_options(claim["options"]).items()}
    return dict(check_request(claim["analysis"], {**defaults, **options}))


def _values(planted: bool) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Plant the values V̇ themselves."""
    values = _predicted()[2] if planted else gaussian(INPUTS, 1, TOKENS, WIDTH, seed=1)
    for claim, verdict in _of_heads(values, "value-similarity", "eigenvector-test", "projection-error"):
        if not _of_outputs(claim):
            yield claim, verdict


def _outputs(planted: bool) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Plant values V̇ divided by the eigenvalues, whose outputs h = P/μ are the best possible coordinates."""
    _, _, values, eigenvalues = _predicted()
    best = values / eigenvalues if planted else gaussian(INPUTS, 1, TOKENS, WIDTH, seed=1)
    for claim, verdict in _of_heads(best, "projection-error"):
        if _of_outputs(claim):
            yield claim, verdict


def _of_outputs(claim: dict[str, Any]) -> bool:
    return claim["label"].startswith("Outputs ")


def _rank(planted: bool) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Plant two kinds of tokens, each attending to its own kind."""
    # of a single head ranks vary much: enough inputs that noise is seen to be noise
    shape = (6 * INPUTS, 1, TOKENS, WIDTH)
    sign = torch.where(torch.arange(TOKENS) % 2 == 0, 1.0, -1.0).double()[:, None]
    q, k = [(8 * sign).expand(shape)] * 2 if planted else gaussian(2, *shape, seed=3)
    return low_rank_claims(q, k)


def low_rank_claims(q: Heads, k: Heads) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Judge chen2023's claims about the ranks of attention on these queries and keys."""
    scale = q.shape[-1] ** -0.5
    attn = (scale * q @ k.mT).softmax(-1)
    record = LayerRecord(0, "", q=q, k=k, v=gaussian(*q.shape, seed=1), attn=attn, scale=scale)
    frame = analyze(
        "attention-spectrum", qkv=Capture([record], ("q", "k", "v", "attn")), null="all", null_samples=5
    )
    stated = stated_claims("chen2023")
    stated = stated.query("measure in ('rank_90_share', 'effective_rank') and over == 'inputs'")
    for claim in stated.to_dict("records"):
        yield claim, judged(claim, [frame])


def write_membership_model(path: Path, planted: bool) -> None:
    """Write a model with a head for bright and a head for dark patches, or with heads that read positions."""
    architecture = {
        "name": "vit", "img_size": 16, "patch_size": 2, "in_chans": 1, "num_classes": 10, "embed_dim": 4, "depth": 1,
        "num_heads": 2, "attention": "tssa", "attention_options": {"convention": "as_implemented"},
    }  # fmt: skip
    about = {
        "interpolation": "bilinear",
        "mean": [DIGITS_MEAN],
        "std": [DIGITS_STD],
        "resize": 16,
        "scale": 1 / 16,
    }
    model = build(architecture).requires_grad_(False)
    weights = dict(model.named_parameters())
    attention, patches = "blocks.0.attn.qkv", "patch_embed.proj"
    for name in (
        f"{patches}.weight",
        f"{patches}.bias",
        "pos_embed",
        f"{attention}.weight",
        f"{attention}.bias",
    ):
        weights[name].zero_()
    weights[f"{attention}.weight"][[0, 2], [0, 1]] = 1.0  # a feature for each head
    if planted:  # mean brightness, and 1 minus it
        weights[f"{patches}.weight"][0], weights[f"{patches}.weight"][1] = DIGITS_STD / 4, -DIGITS_STD / 4
        weights[f"{patches}.bias"][:2] = torch.tensor([DIGITS_MEAN, 1 - DIGITS_MEAN])
    else:
        weights["pos_embed"][:] = gaussian(*weights["pos_embed"].shape, seed=0)
    write_checkpoint(path, model, {"architecture": architecture, "preprocessing": about, "task": "digits"})


def _membership(planted: bool) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Plant a head for bright and a head for dark patches; the noise case has heads that read positions."""
    (claim,) = stated_claims("wu2025").query("analysis == 'membership' and kind == ''").to_dict("records")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "epoch-000.safetensors"
        write_membership_model(path, planted)
        where: dict[str, Any] = {
            "model": f"file:{path}",
            "inputs": "bundled:digits",
            "n": INPUTS,
            "cache": False,
        }
        frame = analyze("membership", **where, **_options(claim))
    yield claim, judged(claim, [frame])


def _smoothing(planted: bool) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Plant token differences that are halved in each of four layers; the noise case draws them again."""
    shape, places = (INPUTS, TOKENS, 64), range(4)
    common, details = gaussian(INPUTS, 1, 64, seed=1), gaussian(*shape, seed=2)
    records = [
        LayerRecord(
            depth, "", resid_post=common + details / 2**depth if planted else gaussian(*shape, seed=3 + depth)
        )
        for depth in places
    ]
    (claim,) = stated_claims("abdullaev2025").query("analysis == 'token-similarity'").to_dict("records")
    frame = analyze("token-similarity", qkv=Capture(records, ("resid_post",)), **_options(claim))
    yield claim, judged(claim, [frame])


CONTROLS: dict[str, Callable[[bool], Iterator[tuple[dict[str, Any], dict[str, Any]]]]] = {
    VALUES: _values,
    OUTPUTS: _outputs,
    RANK: _rank,
    MEMBERSHIP: _membership,
    SMOOTHING: _smoothing,
}
