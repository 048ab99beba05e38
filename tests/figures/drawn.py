"""What a figure of the grammar draws, apart from the entries of its key."""

from __future__ import annotations

import numpy as np

from workbench.figures.marks import RULE_LINE
from workbench.figures.theme import GREY, WIDTH


def thin(fig):
    """The lines of single inputs, all of a series in one trace."""
    return [
        trace
        for trace in fig.data
        if trace.line.width == WIDTH.single and trace.fill is None and trace.x[0] is not None
    ]


def lines(fig):
    """Estimates that are drawn: neither a null distribution or rule, which are grey, nor the key."""
    return [
        trace
        for trace in fig.data
        if "lines" in (trace.mode or "")
        and trace.fill is None
        and trace.line.color != GREY
        and trace.x[0] is not None
        and trace.line.width != WIDTH.single  # of a single input
    ]


def rules(fig):
    """Where the rules across rows stand, panel by panel."""
    drawn = [trace for trace in fig.data if trace.line.width == RULE_LINE["width"] and trace.x[0] is not None]
    return [trace.x[0] for trace in drawn if trace.x[0] == trace.x[1]]


def bands(fig, colour):
    return [trace for trace in fig.data if trace.fillcolor == colour and trace.x[0] is not None]


def key(fig):
    """Return the names of series, the words about marks in legend and caption, and those about arrows.

    Long names are broken in the legend; the ends of a null are in the caption.
    """
    legend = [(trace, trace.name.replace("<br>", " ")) for trace in fig.data if trace.showlegend]
    marks = [words.removesuffix(".").partition(": ") for words in fig.layout.meta["marks"]]
    ends = {glyph[6:-1]: words for glyph, _, words in marks if glyph.startswith("Grey (")}
    caption = [words for glyph, _, words in marks if not glyph.startswith("Grey (")]
    arrows = [name for trace, name in legend if trace.meta is None and "axis" in name]
    series = [name for trace, name in legend if trace.meta is None and "axis" not in name]
    heads = {name: name if name.startswith("null") else f"null: {name}" for name in ends}
    nulls = {heads[name]: f"{heads[name]} ({words})" for name, words in ends.items()}
    named = [nulls.pop(name, name) for trace, name in legend if trace.meta is not None]
    return [*series, *caption, *nulls.values(), *named, *arrows]


def said(fig):
    """Everything in words: titles and notes of the panels, and those of the colour bars."""
    scales = [fig.layout[name] for name in fig.layout if name.startswith("coloraxis")]
    words = [note.text for note in fig.layout.annotations] + [
        scale.colorbar.title.text or "" for scale in scales
    ]
    words += (fig.layout.meta or {}).get("marks", ())  # sentences of the caption
    return " ".join(words).replace("<br>", " ")


def ends(trace):
    """x, low and high of a band, which is one polygon, a null's closed by its first corner."""
    half = len(trace.x) // 2
    return list(trace.x[:half]), np.array(trace.y[half : 2 * half][::-1]), np.array(trace.y[:half])


def maps(fig):
    """Cells with numbers: an input beside them has cells without a colour."""
    return [trace for trace in fig.data if trace.type == "heatmap" and trace.coloraxis is not None]
