"""What the explorer says of a head in one sentence: the same words in the panel, in a saved page and in a notebook.

A bundle carries them (docs/bundle.md), and the page fills in the gaps.
"""

from typing import Literal

SENTENCES: dict[Literal["from", "to"], str] = {
    "from": "from {query}, most attention goes to {key}: {share}, {times}\u00a0× an even share",
    "to": "to {key}, most attention comes from {query}: {share} of that query's attention; mean over all queries, 0 "
    "where masked, {mean}",
}


def sentence(name: Literal["from", "to"], **gaps: str) -> str:
    """A sentence of `SENTENCES` with its gaps filled, as a sentence of its own."""
    said = SENTENCES[name].format(**gaps)
    return said[0].upper() + said[1:] + "."
