"""The gallery page, from what lies in a folder."""

import json
import re
import shutil

import pandas as pd
import plotly.graph_objects as go
import pytest

from workbench.apps.rendering.gallery import FEATURED, QUESTIONS, write_gallery
from workbench.apps.rendering.notebooks import read_notebook
from workbench.apps.rendering.state import Outcome, read_report, write_report
from workbench.core.paths import bundled_notebooks
from workbench.figures.export import save_figure


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv("WORKBENCH_NOTEBOOK", raising=False)
    data = pd.DataFrame({"x": [1, 2]})
    for name in ("first", "second"):
        save_figure(
            go.Figure(go.Scatter(y=data["x"])), name, data=data, alt='A "line".',
            caption=f"**Finding of {name}.** Caption of <{name}>.",
            parameters={"model": "bundled:digits-vit", "layers": [0, 3]}, out=tmp_path, formats=["html"],
        )  # fmt: skip
    return tmp_path


@pytest.mark.parametrize(
    ("status", "line"),
    [
        ("done", "n: done in 1.5 s, 1 figure"),
        ("unchanged", "n: unchanged, 1 figure"),
        ("interrupted", "n: interrupted"),
        ("failed", "n: failed in cell [3]: ValueError: bad"),
    ],
)
def test_a_line_says_how_a_notebook_ended(status, line):
    outcome = Outcome(
        "n", status=status, seconds=1.54, figures={"a": ""}, cell=3, error="ValueError", message="bad\nmore"
    )
    assert str(outcome) == line


def test_it_lists_every_figure_with_caption_parameters_and_the_files_that_exist(folder):
    page = write_gallery(folder).index.read_text()
    assert page.count("<article") == 2
    assert "<figcaption>Caption of &lt;first&gt;.</figcaption>" in page
    assert re.findall(r"<h2 id=.*?>(.*?)</h2>", page) == ["Finding of first.", "Finding of second."]
    assert "<dt>layers</dt><dd>[0, 3]</dd>" in page
    for name in ("second.html", "second.csv", "second.tex", "second.json"):
        assert f'href="{name}"' in page
    assert "second.pdf" not in page


def test_small_images_lead_to_the_figures_and_are_found_by_words(folder):
    (folder / "first.png").write_bytes(b"")
    page = write_gallery(folder).index.read_text()
    assert '<img src="first.png" alt="" loading="lazy">' in page
    assert page.count('<li data-words="') == 2
    assert 'data-words="first finding of first. caption of &lt;first&gt;.' in page
    assert '<a href="#second">' in page
    for path in folder.glob("second.*"):
        path.unlink()
    alone = write_gallery(folder).index.read_text()  # one figure is shown at once
    assert "<nav" not in alone
    assert "<script" not in alone
    assert 'class="many"' not in alone


def test_figures_stand_under_the_question_of_their_notebook_and_open_in_the_explorer(folder):
    for name, notebook in (("first", "membership_maps"), ("second", "squared_norms")):
        path = folder / f"{name}.json"
        content = json.loads(path.read_text())
        content["notebook"] = {"name": notebook, "sha256": "0" * 64, "parameters": {}, "preset": None}
        content["models"] = [{"spec": "bundled:digits-vit"}] if name == "first" else []
        path.write_text(json.dumps(content))
    save_figure(
        go.Figure(go.Bar(y=[1])), "third", data=pd.DataFrame({"x": [1]}), out=folder, formats=["html"]
    )
    (folder / "first.explorer.html").write_text("a saved page")
    page = write_gallery(folder).index.read_text()
    groups = re.findall(r"<section>\n<h2>(.*?)</h2>(.*?)</section>", page, re.DOTALL)
    assert [group for group, _ in groups] == ["Is it kernel PCA?", "Who attends where?", "Other figures"]
    for (_, listed), name in zip(groups, ("second", "first", "third"), strict=True):
        assert re.findall(r'<a href="#(\w+)">', listed) == [name]
    assert '<small class="soft">first</small>' in groups[1][1]
    assert "caption of &lt;first&gt;. membership_maps who attends where? " in page
    following = re.findall(r'<article id="(\w+)".*?class="back".*?</nav>', page, re.DOTALL)
    assert following == ["second", "first", "third"]
    assert re.findall(r'<a href="#(\w+)">(?:← Previous|Next →)', page) == [
        "first",
        "second",
        "third",
        "first",
    ]
    assert re.findall(r"<code>workbench explore (\S+)</code>", page) == ["first.json"]
    assert '<a href="first.explorer.html">every head (saved page)</a>' in page


def test_every_notebook_answers_one_question_and_a_full_gallery_begins_with_featured_figures(folder):
    assert {read_notebook(path).question for path in bundled_notebooks().values()} == {*QUESTIONS}
    for number, name in enumerate([*FEATURED, *map(str, range(len(FEATURED) + 1))]):
        shutil.copy(folder / "first.json", folder / f"{name}.json")
        page = write_gallery(folder).index.read_text()
        assert ("<h2>Start here</h2>" in page) == (number + 3 > 2 * len(FEATURED))
    listed = re.findall(r'<li data-words=.*?<a href="#(\w+)">', page)
    assert listed[: len(FEATURED)] == [*FEATURED]
    assert len(listed) == page.count("<article") + len(FEATURED)


def test_a_file_name_is_no_address(folder):
    for path in folder.glob("first.*"):
        path.rename(folder / path.name.replace("first", "javascript:alert(1)"))
    page = write_gallery(folder).index.read_text()
    assert 'href="javascript%3Aalert%281%29.html"' in page
    assert 'href="javascript:' not in page


def test_without_static_images_it_links_the_interactive_page_and_says_why(folder):
    page = write_gallery(folder).index.read_text()
    assert "<img" not in page
    assert "make chrome" in page
    (folder / "first.png").write_bytes(b"")
    page = write_gallery(folder).index.read_text()
    assert '<img src="first.png" alt="A &#34;line&#34;."' in page


def test_files_that_are_no_figures_are_passed_over(folder):
    others = {
        "notes": "[1]",
        "broken": "{",
        "deep": "[" * 100_000,
        "other": '{"schema": 1, "figure": {}}',
        "settings": '{"schema": 1, "figure": "wide", "parameters": []}',
        "later": '{"schema": 99, "figure": {}}',
    }
    for name, text in others.items():
        (folder / f"{name}.json").write_text(text)
    index, named = write_gallery(folder)
    assert index.read_text().count("<article") == 2
    assert named == sorted(f"{name}.json" for name in others)


def test_failures_of_the_last_render_are_shown(folder):
    failed = Outcome("third", status="failed", cell=4, error="ValueError", message="<no>")
    lost = Outcome("first", status="done", exports={"first.pdf": "the PDF is blank"})
    write_report(folder, {"third": failed, "first": lost})
    page = write_gallery(folder).index.read_text()
    assert "third failed" in page
    assert "ValueError: &lt;no&gt;" in page
    assert "the PDF is blank" in page


@pytest.mark.parametrize(
    "text",
    ['{"notebooks": {', "[1]", '{"notebooks": {}}', '{"notebooks": ["one"]}', '{"notebooks": {"one": 1}}',
     '{"notebooks": {"one": {"status": "failed", "exports": 3}}}', '{"passed": 3}'],
)  # fmt: skip
def test_a_report_of_another_kind_is_left_alone_and_named(folder, text):
    (folder / "report.json").write_text(text)
    assert read_report(folder) is None
    index, others = write_gallery(folder)
    assert others == ["report.json"]
    assert index.read_text().count("<article") == 2
    assert (folder / "report.json").read_text() == text


def test_an_empty_folder_has_a_page_too(tmp_path):
    assert "workbench render" in write_gallery(tmp_path).index.read_text()
