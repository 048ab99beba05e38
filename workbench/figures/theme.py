"""One look for every figure: `workbench-paper` for print, `workbench-talk` for slides.

A paper figure is exactly one column (3.25 in) or one page (6.75 in) wide and is *not* scaled afterwards, so
its 8–9 pt letters are 8–9 pt on paper. Plotly counts in pixels of 1/96 inch; a point is 4/3 of a pixel.

Colours stay apart for the common kinds of colour blindness and in grey: the first lines differ in lightness,
and every line differs from its neighbours in dash and marker as well.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio
from plotly.colors import hex_to_rgb, sample_colorscale, unlabel_rgb

from workbench.core.errors import InputError, UnknownName
from workbench.figures.figure_arguments import check_arguments
from workbench.figures.text_widths import line_count

_PIXELS_PER_INCH = 96
_COLUMN = 312  # 3.25 in
PAGE = 648  # 6.75 in
SLIDES = "slides"
_INCHES = {
    "neurips": 5.5, "iclr": 5.5, "jmlr": 6.0, "icml-column": 3.25, "icml": 6.75, "cvpr-column": 3.25, "cvpr": 6.875,
    "acl-column": 7.7 / 2.54, "acl": 16 / 2.54, "nature-column": 89 / 25.4, "nature": 183 / 25.4,
    "aaai-column": 3.3125, "aaai": 7.0, "acm-column": 241.147 / 72.27, "acm": 506.295 / 72.27,
    "usenix-column": 3.335, "usenix": 7.0, "tmlr": 6.5,
}  # fmt: skip
WIDTHS = {"column": _COLUMN, "page": PAGE} | {
    name: round(inches * _PIXELS_PER_INCH) for name, inches in _INCHES.items()
}
"""Widths of a printed figure in pixels, by venue: its text, or with "-column" one of its two columns."""

# Liberation Sans has the same metrics as Arial, so a figure made where Arial is absent has the same layout.
FONTS = "Arial, Liberation Sans, Helvetica, sans-serif"

# Times is narrower than Arial letter by letter, and so is Computer Modern: what is laid out for Arial has room for both
_TIMES = "Times New Roman, Liberation Serif, Nimbus Roman, Times, serif"
_VENUE_FONTS = dict.fromkeys(("neurips", "iclr", "icml", "cvpr", "acl", "aaai", "usenix"), _TIMES) | {
    "jmlr": "Latin Modern Roman, LM Roman 10, CMU Serif, Computer Modern, serif", "nature": FONTS,
    "acm": "Linux Libertine O, Linux Libertine, Libertinus Serif, serif",
}  # fmt: skip

# None is grey, and no band of one, which a null distribution is.
COLOURS = ("#004488", "#DDAA33", "#009988", "#44002B", "#77AADD", "#777733")
# Short enough that a line between two markers shows what it is; plotly's own "longdash" has one stroke there.
_STROKES = {
    "dash": (5, 3), "dot": (1.5, 2.5), "dashdot": (6, 2.5, 1.5, 2.5), "longdash": (8, 3),
    "longdashdot": (9, 2.5, 1.5, 2.5),
}  # fmt: skip
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
GREY = "#666666"
NULL_BAND = "rgba(120,120,120,0.22)"
NULL_EDGE = "#B0B0B0"
PALE = "#E6E6E6"  # lines of a grid, and cells without a significant difference
ALLOWED = "rgba(119,170,221,0.28)"  # where a claim holds

# On paper, in pixels of 1/96 in; slides have them larger.
WIDTH = SimpleNamespace(
    hair=0.5, edge=0.6, single=0.7, rule=0.8, fine=1, bar=1.2, outline=1.3, bold=1.5, frame=2, thick=3, halo=4
)  # fmt: skip
"""Widths of lines."""
SIZE = SimpleNamespace(
    dot=3.5, small=4, cross=4.5, dashed=5, row=5.5, tick=6, estimate=6.5, large=7, cell=8, ring=9, stroke=12
)  # fmt: skip
"""Sizes of markers."""


def marker_of(symbol: Any, size: float, colour: str, width: float = 0) -> dict[str, Any]:
    """Return a marker as `go.Scatter` takes it, with an outline of the same colour."""
    return {"symbol": symbol, "size": size, "color": colour, "line": {"width": width, "color": colour}}


# The one look of numbers that papers print, in every figure; no series is red.
RED = "#BB5566"
PUBLISHED = marker_of("x-thin-open", SIZE.tick, RED, WIDTH.bold)

SEQUENTIAL = "Cividis"
DEPTH = "Viridis"  # of lines: its hues differ more, where a band has room to be compared
# Blue to orange through near-white; both arms darken equally, so that magnitude survives in grey.
DIVERGING = [[0.0, "#00366E"], [0.25, "#5B8DB8"], [0.5, "#F5F5F2"], [0.75, "#D08A4A"], [1.0, "#7A3300"]]

PANEL_LETTER = "panel-letter"  # the annotation name by which a theme recognises a panel letter


@dataclass(frozen=True)
class Theme:
    """Sizes that a template alone cannot carry. Lengths in pixels (1/96 in)."""

    name: str
    widths: dict[str, int]
    font: float
    letter: float
    fixed_height: bool  # slides have one shape; a paper figure is as tall as it needs to be

    def pixels(self, width: str | float) -> int:
        """Return a width by its name, or in inches, in pixels; slides have one width."""
        if isinstance(width, str) or self.fixed_height:
            return self.widths[width if isinstance(width, str) else "page"]
        return round(width * _PIXELS_PER_INCH)

    @property
    def template(self) -> str:
        """Name under which plotly knows this theme."""
        return f"workbench-{self.name}"


THEMES = {
    "paper": Theme("paper", WIDTHS, font=8 / 0.75, letter=10 / 0.75, fixed_height=False),
    "talk": Theme("talk", dict.fromkeys([*WIDTHS, SLIDES], 1280), font=24, letter=30, fixed_height=True),
}


def _template(
    font: float, title: float, line: float, marker: float, margin: Mapping[str, float]
) -> go.layout.Template:
    """A template from its sizes in pixels."""
    thin = line / 2
    axis = {
        "showline": True,
        "linewidth": thin,
        "linecolor": "black",
        "ticks": "outside",
        "ticklen": font / 3,
        "tickwidth": thin,
        "tickcolor": "black",
        "showgrid": False,
        "zeroline": False,
        "automargin": True,
        "tickfont": {"size": font},
        "title": {"font": {"size": title}, "standoff": font / 2},
        # 10⁻⁶ reads better in print than 1μ, which plotly would choose
        "exponentformat": "power",
        "minexponent": 4,
    }
    bar = {
        "outlinewidth": 0,
        "thickness": font * 0.9,
        "ticks": "outside",
        "ticklen": font / 4,
        "tickwidth": thin,
        "tickfont": {"size": font},
        "title": {"font": {"size": font}, "side": "right"},
        "exponentformat": "power",
        "xpad": font / 2,
        "ypad": 0,
    }
    lines = [
        go.Scatter(
            line={"dash": dash, "width": line},
            marker={"symbol": "circle", "size": marker, "line": {"width": 0}},  # an outline would be grey
        )
        for dash in DASHES
    ]
    layout = go.Layout(
        font={"family": FONTS, "size": font, "color": "black"},
        title={"font": {"size": title}, "x": 0.5, "xanchor": "center"},
        colorway=COLOURS,
        colorscale={"sequential": SEQUENTIAL, "sequentialminus": SEQUENTIAL, "diverging": DIVERGING},
        coloraxis={"colorbar": bar},
        paper_bgcolor="white",
        plot_bgcolor="rgba(0,0,0,0)",
        xaxis=axis,
        yaxis=axis,
        margin=margin,
        legend={
            "font": {"size": font},
            "bgcolor": "rgba(255,255,255,0)",
            "borderwidth": 0,
            "tracegroupgap": 0,
            "itemsizing": "trace",
            "itemwidth": 30,
        },
        hovermode="closest",
        hoverlabel={"font": {"family": FONTS}},
        annotationdefaults={"arrowwidth": thin, "arrowhead": 0},
        shapedefaults={"line": {"width": thin}},
    )
    data = go.layout.template.Data(
        scatter=lines,
        heatmap=[go.Heatmap(colorscale=SEQUENTIAL, colorbar=bar)],
        histogram=[go.Histogram(marker={"line": {"color": "white", "width": thin}})],
        bar=[go.Bar(marker={"line": {"color": "white", "width": thin}})],
        box=[go.Box(line={"width": thin}, marker={"size": marker * 0.6})],
    )
    return go.layout.Template(layout=layout, data=data)


def register() -> None:
    """Make both templates known to plotly, without changing its default."""
    paper, talk = (
        {"l": 44, "r": 8, "t": 10, "b": 36, "pad": 0},
        {"l": 110, "r": 30, "t": 40, "b": 90, "pad": 0},
    )
    pio.templates["workbench-paper"] = _template(8 / 0.75, 9 / 0.75, line=1.5, marker=4.5, margin=paper)
    pio.templates["workbench-talk"] = _template(24, 28, line=4, marker=11, margin=talk)


register()


def find_theme(name: str | None = None) -> Theme:
    """The theme asked for by argument, else by ``WORKBENCH_THEME``, else the one for paper.

    Raises:
        UnknownName: no theme has that name.
    """
    chosen = name or os.environ.get("WORKBENCH_THEME") or "paper"
    if chosen not in THEMES:
        raise UnknownName("theme", chosen, THEMES)
    return THEMES[chosen]


def theme_of(width: str | float, name: str | None = None) -> Theme:
    """Return the theme of a figure of this width, a name or inches: that for slides at the width "slides".

    Raises:
        UnknownName: no width or theme has that name.
        InputError: a width that no page has.
    """
    look = THEMES["talk"] if width == SLIDES else find_theme(name)
    if isinstance(width, int | float) and not isinstance(width, bool):
        if not 1 <= width <= 20:
            raise InputError(f"width={width!r}; give inches from 1 to 20, or a name: {', '.join(WIDTHS)}")
    elif not isinstance(width, str) or width not in look.widths:
        raise UnknownName("width", width, [*WIDTHS, SLIDES])
    return look


def family_of(font: str, width: str | float) -> str:
    """Return the families of a font; the first on a machine is drawn. "venue" is the font of the width's venue.

    Raises:
        InputError: the width is that of no venue.
    """
    check_arguments(font=font)
    if font != "venue":
        return f"{font}, sans-serif"
    venue = str(width).removesuffix("-column")
    if venue not in _VENUE_FONTS:
        raise InputError(
            f"font='venue' with width={width!r}, which is no venue's; give a font's name, or a width for a venue: "
            f"{', '.join(name for name in WIDTHS if name.removesuffix('-column') in _VENUE_FONTS)}"
        )
    return _VENUE_FONTS[venue]


def width_of(fig: go.Figure) -> str | float:
    """Return the width that a figure was made for, by its name or in inches; "column" for one not of ours."""
    if fig.layout.width == THEMES["talk"].widths[SLIDES]:
        return SLIDES
    name = next((name for name, pixels in WIDTHS.items() if pixels == fig.layout.width), None)
    composed = fig.layout.margin.autoexpand is False and fig.layout.width
    return name or (fig.layout.width / _PIXELS_PER_INCH if composed else "column")


def apply_theme(
    fig: go.Figure, theme: str | None = None, width: str | float = "column", height: float | None = None
) -> go.Figure:
    """A copy of `fig` in a theme, at its final printed width.

    Args:
        fig: any plotly figure.
        theme: "paper" or "talk"; by default ``WORKBENCH_THEME``, else "paper".
        width: inches, "column" (3.25), "page" (6.75), or a venue's by its name (`WIDTHS`); slides, and the width
            "slides" in every theme, are always 1280 × 720 px.
        height: in pixels of 1/96 in; by default the figure's own, else a fixed ratio. Slides keep theirs.

    Raises:
        InputError: an unknown theme or width, or a height that no page could have.
    """
    look = theme_of(width, theme)
    check_arguments(figure=fig, height=height)
    pixels = look.pixels(width)
    if look.fixed_height:
        tall = pixels * 9 / 16
    else:
        tall = height or fig.layout.height or pixels * (0.72 if pixels < 400 else 0.42)
    # Built with its template at once: to copy the figure first would check the large template it came with again.
    size = {"width": pixels, "height": round(tall), "autosize": False}
    layout = {**fig.layout.to_plotly_json(), "template": look.template, **size}
    themed = go.Figure(data=fig.data, layout=layout, frames=fig.frames)
    font = look.font
    if look.fixed_height and fig.layout.margin.autoexpand is False and fig.layout.width and fig.layout.height:
        font = _enlarge(themed, fig, look)
    elif look.fixed_height:
        # Margins of a figure composed for paper are too small for a slide's letters; the template's hold here,
        # but for a larger one at the top, where titles of several lines and legends have no other room.
        letters = fig.layout.template.layout.font.size or THEMES["paper"].font
        above = (fig.layout.margin.t or 0) * look.font / letters
        if letters != look.font:  # else it was composed for slides, with all its margins
            themed.layout.margin = {"t": max(above, themed.layout.template.layout.margin.t)}
    if themed.layout.title.text:  # plotly centres it in the margin at the top, and cuts off the rest
        template = themed.layout.template.layout
        size = themed.layout.title.font.size or template.title.font.size
        room = 1.3 * size * line_count(themed.layout.title.text) + font
        themed.update_layout(margin_t=max(themed.layout.margin["t"] or template.margin.t, room))
    letters = font / THEMES["paper"].font
    for trace in themed.select_traces(selector={"type": "scatter"}):
        if trace.line.dash in _STROKES:
            trace.line.dash = ",".join(f"{letters * length:g}px" for length in _STROKES[trace.line.dash])
    for axis in (*themed.select_xaxes(), *themed.select_yaxes()):
        if axis.type == "log" and axis.tickmode != "array" and axis.tickfont.size is None:
            axis.tickfont.size = font / 1.25  # plotly writes powers of ten a quarter larger than asked
    bold = {"size": look.letter * font / look.font, "weight": "bold"}
    return themed.update_annotations(selector={"name": PANEL_LETTER}, font=bold)


def _enlarge(themed: go.Figure, fig: go.Figure, look: Theme) -> float:
    """Give a composed figure on a slide larger letters, as its own rooms allow: the size of these in pixels.

    `workbench.figures.composition.compose` leaves room for words between the panels and has no margins.
    """
    across, along = themed.layout.width / fig.layout.width, themed.layout.height / fig.layout.height
    letters = fig.layout.template.layout.font.size or THEMES["paper"].font
    factor = min(across, along, look.font / letters)
    font = letters * factor
    margin = fig.layout.margin
    sides = {"l": margin.l, "r": margin.r, "t": margin.t, "b": margin.b}
    room = {side: (sides[side] or 0) * (across if side in "lr" else along) for side in sides}
    shares = {"title": 9 / 8, "line": 1.5 / 8 * 0.75, "marker": 4.5 / 8 * 0.75}
    themed.layout.template = _template(
        font, **{name: font * share for name, share in shares.items()}, margin={**room, "pad": 0}
    )
    themed.layout.margin = {**room, "autoexpand": False}
    layout, axes = themed.layout, (*themed.select_xaxes(), *themed.select_yaxes())
    sized = [
        ([layout[name] for name in layout if name.startswith("legend")], "font.size"),
        (layout.annotations, "font.size xshift yshift"), (layout.shapes, "line.width"), (axes, "title.standoff"),
        (themed.select_traces(selector={"type": "scatter"}),
         "marker.size marker.line.width line.width error_x.thickness error_y.thickness"),
    ]  # fmt: skip
    for holder, name in (
        (holder, name) for holders, names in sized for holder in holders for name in names.split()
    ):
        if isinstance(holder[name], (int, float)):
            holder[name] *= factor
    return font


def depth_colours(count: int) -> list[str]:
    """`count` colours from shallow (dark) to deep (light), evenly spaced in lightness and each of another hue.

    The palest end of the scale is left out, since a pale line vanishes on white paper.
    """
    if count < 1:
        raise InputError(f"asked for {count} colours; give 1 or more")
    places = [0.75 * index / max(count - 1, 1) for index in range(count)]
    return sample_colorscale(DEPTH, places)


def depth_scale() -> list[list]:
    """The colour scale that `depth_colours` samples, for a colour bar beside such lines."""
    colours = depth_colours(12)
    return [[index / 11, colour] for index, colour in enumerate(colours)]


def plain_style(colour: str, dash: str = "solid", size: float | None = None) -> dict[str, Any]:
    """Return a line and round markers of a colour."""
    return {
        "line": {"color": colour, "dash": dash},
        "marker": {"color": colour, "symbol": "circle", "line": {"width": 0}}
        | ({"size": size} if size else {}),
    }


def series_style(index: int) -> dict:
    """Return line and marker of the `index`-th series: colour and dash change together."""
    slot = index % len(COLOURS)
    # A second round pairs every colour with another dash, so that 12 series are still distinguishable.
    dash = DASHES[(slot + index // len(COLOURS) * 2) % len(DASHES)]
    return {
        "line": {"color": COLOURS[slot], "dash": dash},
        "marker": {"color": COLOURS[slot], "symbol": "circle", "line": {"width": 0}},
    }


def translucent(colour: str, alpha: float) -> str:
    """`colour` ("#rrggbb" or "rgb(r, g, b)") as an rgba string, for bands behind lines."""
    if colour.startswith("#"):
        red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    else:
        red, green, blue = (round(float(part)) for part in colour[colour.index("(") + 1 : -1].split(",")[:3])
    return f"rgba({red},{green},{blue},{alpha:g})"


def readable(colour: str) -> str:
    """`colour` ("#rrggbb" or "rgb(r, g, b)") as letters have it: as dark as needed on white (WCAG's 4.5 to 1)."""
    parts = _parts(colour)
    share = 1.0
    while _luminance([share * part for part in parts]) > 0.18 and share > 0:
        share -= 0.05
    return "#" + "".join(f"{round(share * part):02x}" for part in parts)


def luminance(colour: str) -> float:
    """How light `colour` is, from 0 to 1 (WCAG): below 0.18 white letters are read on it."""
    return _luminance(_parts(colour))


def _parts(colour: str) -> Sequence[float]:
    return unlabel_rgb(colour) if colour.startswith("rgb") else hex_to_rgb(colour)


def _luminance(parts: Sequence[float]) -> float:
    linear = [(part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4) for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def letter_after(first: str, number: int) -> str:
    """Return the letter of a panel, counted from 0, written as that of the first: "(b)" after "(a)"."""
    return re.sub("[A-Za-z]", lambda match: chr(ord(match[0]) + number), first, count=1)


def panel_letter(letter: str, x: float, y: float) -> dict:
    """Annotation that marks a panel, at paper coordinates (x, y); theme sets its size."""
    corner = {"xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "top"}
    return {"text": f"<b>{letter}</b>", "name": PANEL_LETTER, "x": x, "y": y, "showarrow": False, **corner}


def even_choice(count: int, most: int) -> Sequence[int]:
    """At most `most` indices out of `count`, evenly spread, first and last included."""
    if count <= most:
        return range(count)
    return sorted({round(index * (count - 1) / max(most - 1, 1)) for index in range(most)})
