"""The training seeds: exploratory ones, and confirmatory ones fixed before any of them was trained.

docs/papers/verdicts.md defines their use; `workbench.papers.verdicts.evidence` applies it.
"""

from __future__ import annotations

CONFIRMED, EXPLORED = "confirmatory", "exploratory"
"""The two kinds of seed, as the column ``seed_kind`` of `workbench.studies.records.recorded` names them."""
SEEDS = (0, 1, 2)
"""Seeds of the bundled models; their results were seen, so they are exploratory."""
_COMPARED = {
    "digits": ("rpc-sym", "softmax-sym", "bilateral", "softmax-boost", "bilateral-boost", "vit", "primal", "tssa",
               "tost", "xcit", "tost-ista", "tost-text", "scaled-free", "scaled-alpha"),
    "photos": ("tost", "xcit", "vit", "tost-ista", "tost-text"),
    "prose": ("softmax", "softmax-sym", "rpc-sym", "bilateral-boost", "primal-causal", "tssa-causal", "tost"),
}  # fmt: skip
SEEN_DATA = ("chirp",)
"""Embedded data whose scores were seen before a claim about them was stated, so they are exploratory."""
CONFIRMATORY: dict[str, tuple[int, ...]] = {
    f"{task}-{name}": (1907, 1912, 1931, 1949, 1973)[: 5 if task == "digits" else 3]
    for task, names in _COMPARED.items()
    for name in names
}
"""Seeds of the models that claims compare."""
CONTINUED: dict[str, tuple[int, ...]] = {
    name: {"digits": (1987, 1996), "prose": (1949, 1973, 1987, 1996)}[name.partition("-")[0]]
    for name in CONFIRMATORY
    if not name.startswith("photos-")
}
"""Seeds of the second stage, fixed on 2026-11-27. A claim uses them when all are on record for all its models."""
CONFIRMATORY |= {
    f"digits-rpc-sym-{setting}": (1907, 1912, 1931)
    for setting in ("n5", "n6", "all", "implemented", "iterated")
}  # other settings of RPC-Attention, fixed on 2026-11-28, without a second stage
WITHOUT_POSITIONS = ("digits-no-positions", "digits-bilateral-no-positions")
CONFIRMATORY |= dict.fromkeys(WITHOUT_POSITIONS, (1907, 1912, 1931))
"""Seeds of the models without position encoding, fixed on 2026-11-28 before any was trained, without a second stage."""
_MECHANISMS = (
    "differential",
    "gated",
    "sigmoid",
    "softmax-learned-sink",
    "softmax-off-by-one",
    "softmax-qk-norm",
    "softpick",
)
SOFTMAX_ALTERNATIVES = (
    *(f"digits-{name}" for name in _MECHANISMS),
    *(f"prose-small-{name}" for name in ("softmax", "softmax-qk-clip", "forgetting", *_MECHANISMS)),
)
CONFIRMATORY |= dict.fromkeys(SOFTMAX_ALTERNATIVES, (1907, 1912, 1931))
"""Seeds of the alternatives to softmax, fixed on 2026-11-29 before any was trained, without a second stage."""
PILOT = 1853
"""Seed of the pilot runs, fixed on 2026-11-28 before the first of them; no comparison uses it."""
