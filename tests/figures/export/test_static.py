"""Images: printed by one warm Chrome, and refused if they are not publication-ready."""

import io
import math
import re
import subprocess
import sys
import threading
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import plotly.graph_objects as go
import pytest
from PIL import Image
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from tests.browser import needs_chrome
from workbench.figures.export import ExportFault, ExportJob, WarmChrome, export_static
from workbench.figures.export.checks import take_measures
from workbench.figures.export.chrome import has_sandbox, without_sandbox
from workbench.figures.export.static import _check_svg, check_picture, png_scale

FIGURE = (
    go.Figure(go.Heatmap(z=[[1, 2], [3, 4]]))
    .update_layout(font_family="Arial, Liberation Sans")
    .to_plotly_json()
)


@pytest.fixture(scope="module")
def browser():
    with WarmChrome() as running:
        yield running


def job(folder, figure=FIGURE, name="f", **more):
    given = {
        "width": 312,
        "height": 200,
        "formats": ("pdf", "svg", "png"),
        "provenance": {"schema": 1, "figure": {}},
    }
    return ExportJob(figure=figure, stem=folder / name, **(given | more))


@needs_chrome
def test_one_browser_prints_many_figures(browser, tmp_path):
    results = export_static([job(tmp_path, name=f"f{index}") for index in range(2)], browser)
    assert [set(result.files) for result in results] == [{"pdf", "svg", "png"}] * 2
    assert not any(result.failures for result in results)
    assert len(list(tmp_path.iterdir())) == 6


@needs_chrome
def test_a_figure_is_drawn_once_for_all_its_formats_and_another_anew(browser):
    sizes = {"first": (312, 200), "wider": (400, 200)}
    other = go.Figure(FIGURE).update_traces(colorscale="Greys").to_plotly_json()

    def pixels(figure, size, *formats):
        *_, png = browser.images(figure, [*formats, "png"], *size)
        return np.asarray(Image.open(io.BytesIO(png)))

    alone = {name: pixels(FIGURE, size) for name, size in sizes.items()}
    for name, size in sizes.items():  # each after the other's, of which nothing may stay
        assert (pixels(FIGURE, size, "svg", "pdf") == alone[name]).all()
        assert (pixels(other, size, "pdf") != alone[name]).any()
    ids = [re.findall(rb'id="clip([0-9a-f]{6})', browser.image(FIGURE, "svg", 312, 200)) for _ in range(2)]
    assert ids[0] == ids[1] != []  # plotly draws them again for each drawing


@needs_chrome
@pytest.mark.skipif(not Path("/usr/share/fonts").is_dir(), reason="a system whose fonts fontconfig finds")
def test_words_are_as_wide_where_fonts_are_hinted(browser, tmp_path, monkeypatch):
    config = tmp_path / "fonts.conf"
    config.write_text(
        f"<fontconfig><dir>/usr/share/fonts</dir><cachedir>{tmp_path}</cachedir><match target='font'>"
        "<edit name='hinting'><bool>true</bool></edit><edit name='hintstyle'><const>hintfull</const></edit>"
        "</match></fontconfig>"
    )
    small = (
        go.Figure(FIGURE).update_layout(title="Whole pixels would be wide", font_size=9.6).to_plotly_json()
    )

    def widths(chrome):
        _, page = take_measures(chrome.image(small, "svg", 312, 200), 312, 200)
        return [math.dist(words.corners[:2], words.corners[2:4]) for words in page.words]

    monkeypatch.setenv("FONTCONFIG_FILE", str(config))
    with WarmChrome() as hinted:
        assert widths(hinted) == pytest.approx(widths(browser), abs=0.02)


@needs_chrome
def test_what_plotly_cannot_draw_leaves_no_file_and_does_not_stop_the_rest(browser, tmp_path):
    broken = {
        "data": [{"type": "scatter", "y": [1, 2]}],
        "layout": {"width": "wide", "xaxis": {"domain": "none"}},
    }
    empty = {"data": [], "layout": {"xaxis": {"visible": False}, "yaxis": {"visible": False}}}
    (tmp_path / "empty.png").write_bytes(b"an older image")
    jobs = [
        job(tmp_path, empty, "empty", formats=("png",)),
        job(tmp_path, broken, "odd", formats=("svg",)),
        job(tmp_path),
    ]
    blank, _, whole = export_static(jobs, browser)
    assert "blank" in blank.failures["png"]
    assert not (tmp_path / "empty.png").exists()
    assert set(whole.files) == {"pdf", "svg", "png"}


@needs_chrome
def test_checks_accept_what_chrome_makes_and_refuse_another_size(browser):
    for format in ("pdf", "svg", "png"):
        image = browser.image(FIGURE, format, 312, 200)
        check_picture(image, format, 312, 200)
        with pytest.raises(ExportFault, match="not"):
            check_picture(image, format, 320, 200)
        with pytest.raises(ExportFault):
            check_picture(image[: len(image) // 3], format, 312, 200)


@needs_chrome
def test_a_closed_browser_may_be_closed_again():
    with WarmChrome() as running:
        running.close()


def test_a_blank_png_is_refused():
    written = io.BytesIO()
    Image.new("RGB", (312 * png_scale(312), 200 * png_scale(312)), "white").save(written, "PNG")
    with pytest.raises(ExportFault, match="blank"):
        check_picture(written.getvalue(), "png", 312, 200)


def test_a_blank_svg_is_refused():
    with pytest.raises(ExportFault, match="blank"):
        check_picture(
            b'<svg xmlns="http://www.w3.org/2000/svg" width="312" height="200"><rect/></svg>', "svg", 312, 200
        )


def pdf(fonts=None, operators=b"", pages=1):
    writer = PdfWriter()
    for _ in range(pages):
        page = writer.add_blank_page(234, 150)
        stream = DecodedStreamObject()
        stream.set_data(operators)
        page[NameObject("/Contents")] = writer._add_object(stream)
        if fonts:
            page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    written = io.BytesIO()
    writer.write(written)
    return written.getvalue()


DRAWN = b"0 0 m 1 1 l S 0 0 m 1 1 l S 0 0 1 1 re f"


def test_a_blank_pdf_and_a_second_page_are_refused():
    with pytest.raises(ExportFault, match="blank"):
        check_picture(pdf(), "pdf", 312, 200)
    with pytest.raises(ExportFault, match="2 pages"):
        check_picture(pdf(operators=DRAWN, pages=2), "pdf", 312, 200)
    check_picture(pdf(operators=DRAWN), "pdf", 312, 200)


def test_a_font_that_is_only_named_is_refused():
    font = DictionaryObject(
        {NameObject("/Subtype"): NameObject("/Type1"), NameObject("/BaseFont"): NameObject("/Arial")}
    )
    fonts = DictionaryObject({NameObject("/F1"): font})
    with pytest.raises(ExportFault, match="/Arial"):
        check_picture(pdf(fonts, DRAWN), "pdf", 312, 200)


class Counting(BaseHTTPRequestHandler):
    """Counts who asks."""

    asked: ClassVar[list[str]] = []

    def do_GET(self):
        self.asked.append(self.path)
        self.send_error(404)

    def log_message(self, format, *arguments):
        """Nothing."""


@needs_chrome
def test_what_is_printed_asks_nobody(browser, tmp_path):
    """An image in a figure of somebody else's may name any address: it stays out, and is not asked for."""
    (tmp_path / "image.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>')
    with ThreadingHTTPServer(("127.0.0.1", 0), Counting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        places = [f"http://127.0.0.1:{server.server_address[1]}/seen.png", (tmp_path / "image.svg").as_uri()]
        images = [
            {"source": place, "sizex": 1, "sizey": 1, "xref": "paper", "yref": "paper"} for place in places
        ]
        figure = {"data": FIGURE["data"], "layout": {"images": images}}
        browser.images(figure, ["svg", "png"], 312, 200)
        server.shutdown()
    assert Counting.asked == []


@pytest.mark.parametrize(
    ("user", "said", "sandboxed"), [(0, "", False), (1000, "", True), (1000, "off", False)]
)
def test_chrome_has_a_sandbox_unless_root_starts_it(monkeypatch, user, said, sandboxed):
    monkeypatch.setattr("os.geteuid", lambda: user)
    monkeypatch.setenv("WORKBENCH_SANDBOX", said)
    assert has_sandbox() is sandboxed
    assert ("WORKBENCH_SANDBOX=off" in without_sandbox()) is sandboxed


def test_chrome_is_given_its_sandbox_and_a_folder_that_is_swept_where_it_was_killed(monkeypatch, tmp_path):
    import kaleido

    given = {}

    class Browser:
        def __init__(self, **options):
            given.update(options)

        async def open(self):
            assert given["page_generator"].read_text().count("Content-Security-Policy") == 1

        async def close(self):
            given["closed"] = True

    monkeypatch.setattr(kaleido, "Kaleido", Browser)
    monkeypatch.setattr("workbench.figures.export.chrome.has_sandbox", lambda: True)
    monkeypatch.setattr("workbench.figures.export.chrome.find_chrome", lambda: Path("/nowhere/chrome"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    (tmp_path / f".workbench-chrome-{ended.pid}-left").mkdir()
    with WarmChrome():
        assert given["enable_sandbox"] is True
        assert [path.name for path in tmp_path.iterdir()] == [Path(given["tmp_dir"]).name]
    assert given["closed"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("<path/><path/><text>a</text>", None),
        ("<g><image/></g>", None),
        ("<path/><text>a</text><rect/><rect/>", "blank"),
        ("", "blank"),
        ("<path>", "not whole"),
    ],
)
def test_an_svg_has_its_size_and_three_elements_or_an_image(body, fault):
    def check(width, height):
        content = f'<svg xmlns="http://www.w3.org/2000/svg" width="30" height="20">{body}</svg>'
        _check_svg(content.encode(), width, height)

    with pytest.raises(ExportFault, match=fault) if fault else nullcontext():
        check(30, 20)
    with pytest.raises(ExportFault):
        check(32, 20)
    with pytest.raises(ExportFault):
        check(30, 17)
