"""Sentences on a view, each written once: for the page, a saved figure and a notebook.

A bundle carries them (docs/bundle.md), and the page fills in the gaps.
"""

from typing import Literal

Name = Literal[
    "from", "to", "norms", "spectrum", "singular", "above", "membership", "compare", "usual", "effect", "products",
    "plane", "umap", "link", "striking", "stability",
]  # fmt: skip
SENTENCES: dict[Name, str] = {
    "from": "from {query}, the most attention goes to {key}: {share}, {times}\u00a0× uniform attention",
    "to": "to {key}, the most attention comes from {query}: {share} of that query's attention; mean over all queries "
    "{mean}",
    "norms": "of the {operands}, that of {token} is longest ({largest}); line: median, {median}",
    "spectrum": "{rank} of {count} eigenvalues hold 90 % of their sum",
    "singular": "{rank} of {count} singular values hold 90 % of their squared sum",
    "above": "{count} above the null range",
    "membership": "{most} of {count} {tokens} belong to head {head} more than to any other head; mean membership "
    "{share} (uniform: {uniform})",
    "compare": "{tokens}, {share} of {weights} {moves} different tokens in {first} than in {second}",
    "usual": "{heads}: {share} (median)",
    "effect": "without {what}, {outcome} goes from {before} to {after} ({change} points): divergence {divergence} "
    "nats, rank {rank} of {count} (median {kind}: {median})",
    "products": "{side} {asked}, {other} {token}: the logit is {sum} nats above that of the mean {other}; feature "
    "{feature} adds most, {lead} nats",
    "plane": "the plane holds {share} of the variance of queries and keys: {across} across, {up} up",
    "umap": "UMAP of {keys} keys and {queries}",
    "link": "{query} gives {share} of its attention to {key}, {times}\u00a0× uniform attention (p = {p} among this "
    "head's other pairs)",
    "stability": "above its null level, by share of {inputs}: {patterns}",
    "striking": "the most striking head: its score of the pattern “{pattern}” is {times}\u00a0× its null level, the "
    "largest multiple among scores clearly above theirs",
}

OPERANDS = {"q": "queries", "k": "keys", "v": "values"}


def filled(name: Name, **gaps: str) -> str:
    """Return a sentence of `SENTENCES` with its gaps filled, to stand within another."""
    return SENTENCES[name].format(**gaps)


def sentence(name: Name, **gaps: str) -> str:
    """Return a sentence of `SENTENCES` with its gaps filled, with a capital and a full stop."""
    words = filled(name, **gaps)
    return words[0].upper() + words[1:] + "."
