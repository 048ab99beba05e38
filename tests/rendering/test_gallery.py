"""The gallery page, from what lies in a folder."""

import json

import pandas as pd
import plotly.graph_objects as go
import pytest

from workbench.exporting import save_figure
from workbench.rendering.gallery import read_report, write_gallery


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv("WORKBENCH_NOTEBOOK", raising=False)
    data = pd.DataFrame({"x": [1, 2]})
    for name in ("first", "second"):
        save_figure(
            go.Figure(go.Scatter(y=data["x"])), name, data=data, caption=f"Caption of <{name}>.", alt='A "line".',
            parameters={"model": "bundled:digits-vit", "layers": [0, 3]}, out=tmp_path, formats=["html"],
        )  # fmt: skip
    return tmp_path


def test_it_lists_every_figure_with_caption_parameters_and_the_files_that_exist(folder):
    page = write_gallery(folder).read_text()
    assert page.count("<article") == 2
    assert "Caption of &lt;first&gt;." in page
    assert "<dt>layers</dt><dd>[0, 3]</dd>" in page
    for name in ("second.html", "second.csv", "second.tex", "second.json"):
        assert f'href="{name}"' in page
    assert "second.pdf" not in page


def test_without_pictures_it_links_the_interactive_page_and_says_why(folder):
    page = write_gallery(folder).read_text()
    assert "<img" not in page
    assert "make chrome" in page
    (folder / "first.png").write_bytes(b"")
    page = write_gallery(folder).read_text()
    assert '<img src="first.png" alt="A &#34;line&#34;."' in page


def test_files_that_are_no_figures_are_passed_over(folder):
    (folder / "notes.json").write_text("[1]")
    (folder / "broken.json").write_text("{")
    assert write_gallery(folder).read_text().count("<article") == 2


def test_failures_of_the_last_render_are_shown(folder):
    entry = {
        "name": "third",
        "status": "failed",
        "cell": 4,
        "error": "ValueError",
        "message": "<no>",
        "exports": {},
    }
    lost = {"name": "first", "status": "done", "exports": {"first.pdf": "the PDF is blank"}}
    (folder / "report.json").write_text(
        json.dumps({"schema": 1, "notebooks": {"third": entry, "first": lost}})
    )
    page = write_gallery(folder).read_text()
    assert "third failed" in page
    assert "ValueError: &lt;no&gt;" in page
    assert "the PDF is blank" in page


def test_a_report_cut_short_counts_as_none(folder):
    (folder / "report.json").write_text('{"notebooks": {')
    assert read_report(folder) == {}
    write_gallery(folder)


def test_an_empty_folder_has_a_page_too(tmp_path):
    assert "workbench render" in write_gallery(tmp_path).read_text()
