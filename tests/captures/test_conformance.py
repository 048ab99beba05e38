"""A sample of the conformance table, another with every version, and what the table is made with."""

from __future__ import annotations

import hashlib
from importlib.metadata import version

import pytest
import torch
from torch import nn

from conformance.below import watched_below
from conformance.changes import NO_EFFECT
from conformance.row import EXACT, GAP, WRONG, row
from conformance.table import read_rows

ROWS = read_rows()


def sample(library: str, count: int) -> list[str]:
    """Exact types that are quick, in the order of a hash of their name and of the version that is installed."""
    quick = [
        name
        for (of, name), found in ROWS.items()
        if of == library and found["status"] == EXACT and float(found["seconds"]) < 1.5
    ]
    installed = version(library)
    return sorted(quick, key=lambda name: hashlib.sha256(f"{installed} {name}".encode()).digest())[:count]


@pytest.mark.parametrize(
    ("library", "name"),
    [
        *(("transformers", name) for name in sample("transformers", 4)),
        *(("timm", name) for name in sample("timm", 2)),
    ],
)
def test_what_the_table_says_is_exact_is(library: str, name: str):
    found = row(library, name)
    assert (found.status, found.why) == (EXACT, ROWS[library, name]["why"])
    assert found.output == "the same"
    kept = ROWS[library, name]
    assert (found.head_out, found.refusal) == (kept["head_out"], kept["refusal"])
    assert (found.attn == "refused") == (kept["attn"] == "refused")
    assert found.attn != "changed"
    assert found.projections == kept["projections"]
    if kept["resid_mid"]:
        assert (found.resid_mid, str(found.resid_mid_layers)) == (kept["resid_mid"], kept["resid_mid_layers"])


def test_no_row_is_wrong_and_none_is_silent():
    red = [name for (_, name), found in ROWS.items() if found["status"] in (WRONG, GAP, "traceback")]
    assert red == []
    assert len(ROWS) >= 999


@pytest.mark.parametrize("site", ["head_out", "attn"])
def test_a_site_replaced_by_itself_gives_the_model_s_output(site: str):
    tried = [found for found in ROWS.values() if found["status"] == EXACT and found["attn"]]
    same = [found for found in tried if found[site] in ("the same", "rounded", NO_EFFECT)]
    whole = [found for found in same if found[f"{site}_layers"] == found["layers"]]
    assert len(tried) > 800
    assert len(whole) >= 0.95 * len(tried)
    assert [found["type"] for found in tried if found not in same and found[site] != "refused"] == []


def test_the_stream_after_attention_replaced_by_itself_gives_the_model_s_output():
    tried = [found for found in ROWS.values() if found["resid_mid"]]
    assert {found["resid_mid"] for found in tried} <= {"the same", "rounded", NO_EFFECT, "refused"}
    for found in tried:
        missing = int(found["layers"]) - int(found["resid_mid_layers"])
        assert bool(missing) == bool(found["resid_mid_refusal"]), found["type"]


class Retrieval(nn.Module):
    """Attention in plain operations, a gate that meets no data, and a softmax over a codebook of the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.code = nn.Parameter(torch.randn(7, 5))
        self.project = nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = ((x @ x.mT).softmax(-1) * 0.5).transpose(1, 2).contiguous().transpose(1, 2)
        x = x + weights @ x
        x = x * self.project(x).softmax(-1)
        return x + (x @ self.code.mT).softmax(-1) @ self.code


def test_only_softmaxes_that_meet_data_are_seen_below():
    model, x = Retrieval(), torch.randn(2, 3, 5)
    with watched_below(model) as below, torch.no_grad():
        model(x)
    assert len(below.weights) == 1
    torch.testing.assert_close(below.weights[0].value, (x @ x.mT).softmax(-1) * 0.5)


def test_kernels_are_seen_below():
    q, k, v = torch.randn(3, 2, 4, 6, 8).unbind(0)
    with watched_below(nn.Identity()) as below:
        nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    expected = (q @ k.mT * 8**-0.5).masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf).softmax(-1)
    torch.testing.assert_close(below.weights[0].value.reshape(expected.shape), expected)
