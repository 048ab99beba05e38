"""Saved figures as the panels of one: sizes, letters, numbers, captions and provenance."""

import json

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from click.testing import CliRunner

from tests.browser import needs_chrome
from workbench.apps.cli import cli
from workbench.core.errors import InputError
from workbench.figures import Band, Line, Plot, multipanel
from workbench.figures.export import combine, save_figure
from workbench.figures.theme import PANEL_LETTER, WIDTHS
from workbench.frames.provenance import read_provenance, sha256_file
from workbench.frames.results import make_frame


def saved(folder, name, width="column", caption=None, copies=1):
    axes = {"input": range(3), "layer": [0, 1]}
    frame = make_frame(np.ones((3, 2)) * [[1], [2], [3]], "attention_entropy", axes).assign(model="m")
    frame.attrs["provenance"] = [{"analysis": "attention-map", "model": {"spec": f"bundled:{name}"}}]
    fig = Plot(frame, x="layer").metric("attention_entropy").add(Line(), Band()).figure(width)
    if copies > 1:
        fig = multipanel([fig] * copies, columns=1, width=width)
    about = {"caption": caption or f"Caption of {name}.", "alt": f"Alt of {name}.", "width": width}
    save_figure(fig, name, data=frame, out=folder, formats=[], **about)
    return folder / f"{name}.figure.json"


def letters(fig):
    return [note.text for note in fig.layout.annotations if note.name == PANEL_LETTER]


@pytest.mark.parametrize(
    ("width", "page", "columns"),
    [("column", "page", 2), ("icml-column", "icml", 2), ("nature-column", "nature", 2), ("page", "page", 1)],
)
def test_panels_keep_their_size_on_the_page_of_their_venue(tmp_path, width, page, columns):
    first, second = saved(tmp_path, "first", width), saved(tmp_path, "second", width)
    fig = combine([first, second], tmp_path / "both.html")
    assert (fig.layout.width, letters(fig)) == (WIDTHS[page], ["<b>a</b>", "<b>b</b>"])
    heights = [json.loads(path.read_text())["layout"]["height"] for path in (first, second)]
    rows = max(heights) if columns == 2 else sum(heights)
    assert rows <= fig.layout.height <= rows + 16 * (3 - columns)
    assert len({axis.domain for axis in fig.select_xaxes()}) == columns


def test_it_has_the_numbers_captions_and_runs_of_all(tmp_path):
    parts = [
        saved(tmp_path, "first"),
        saved(tmp_path, "two", caption="(a) Upper. (b) Lower, as (a, b).", copies=2),
        saved(tmp_path, "last"),
    ]
    fig = combine([parts[0], tmp_path / "two.csv", parts[2]], tmp_path / "all.html")
    assert letters(fig) == [f"<b>{letter}</b>" for letter in "abcd"]
    held = read_provenance(tmp_path / "all.html")
    parts_of_caption = ["(a) Caption of first.", "(b) Upper. (c) Lower, as (b, ", "(d) Caption of last."]
    places = [held["figure"]["caption"].index(part) for part in parts_of_caption]
    assert places[0] == 0
    assert places == sorted(places)
    assert held["figure"]["caption"].count("Lines: mean over 3 inputs.") == 1  # which all three say
    assert held["figure"]["caption"].endswith("Bands: 95 % CI over inputs.")
    assert held["figure"]["alt"] == "Alt of first. Alt of two. Alt of last."
    assert [model["spec"] for model in held["models"]] == ["bundled:first", "bundled:two", "bundled:last"]
    assert [record["sha256"] for record in held["records"]] == [sha256_file(path) for path in parts]
    table = pd.read_csv(tmp_path / "all.csv")
    assert dict(table["panel"].value_counts()) == {"a": 6, "b": 6, "d": 6}


@needs_chrome
def test_it_is_printed_at_its_width_without_flaws(tmp_path):
    from PIL import Image

    paths = [saved(tmp_path, name) for name in ("first", "second")]
    combine(paths, tmp_path / "both.png")
    with Image.open(tmp_path / "both.png") as image:
        assert image.width == 4 * WIDTHS["page"]
    assert read_provenance(tmp_path / "both.png")["figure"]["flaws"] == []
    combine(paths, tmp_path / "both.svg")
    assert read_provenance(tmp_path / "both.json")["figure"]["flaws"] == []


def test_what_cannot_be_combined_is_refused(tmp_path):
    first, wide = saved(tmp_path, "first"), saved(tmp_path, "wide", "page")
    go.Figure(go.Pie(values=[1, 2])).write_json(tmp_path / "pie.figure.json")
    (tmp_path / "broken.figure.json").write_text("{]")
    for paths, out, why in (
        ([first], "x.pdf", "two panels or more; got 1"),
        ([first, wide], "x.gif", "written as pdf, svg, png, html"),
        ([first, wide], "first.pdf", "would replace one"),
        ([first, tmp_path / "none.figure.json"], "x.pdf", "no file at"),
        ([first, tmp_path / "broken.figure.json"], "x.pdf", "holds no plotly figure"),
        ([first, tmp_path / "pie.figure.json"], "x.pdf", "'pie'"),
    ):
        with pytest.raises(InputError, match=why):
            combine(paths, tmp_path / out)
    with pytest.raises(InputError, match="does not fit one of 2 columns"):
        combine([first, wide], tmp_path / "x.pdf", columns=2)
    assert not [*tmp_path.glob("x.*")]


def test_the_command_takes_a_width_in_inches(tmp_path):
    paths = [str(saved(tmp_path, name, 2.75)) for name in ("one", "two")]
    command = ["combine", *paths, "-o", str(tmp_path / "both.html"), "--width"]
    assert CliRunner().invoke(cli, [*command, "5.5"], catch_exceptions=False).exit_code == 0
    drawing = json.loads((tmp_path / "both.figure.json").read_text())
    assert drawing["layout"]["width"] == 528
    assert "choose from" in str(CliRunner().invoke(cli, [*command, "wide"]).exception)
    assert "inches from 1 to 20" in str(CliRunner().invoke(cli, [*command, "nan"]).exception)
