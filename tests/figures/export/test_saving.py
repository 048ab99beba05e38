"""save_figure: what it writes, refuses, and does without Chrome."""

import copy
import errno
import json
import os
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import plotly.io
import pytest
from PIL import Image
from pypdf import PdfReader
from scipy import stats

import workbench
from tests.browser import needs_chrome
from workbench.core.errors import InputError, MissingResource, UnknownName
from workbench.core.files import sha256_file
from workbench.figures import attention_heatmap_figure, multipanel, plot
from workbench.figures.export import check_formats, save_figure
from workbench.frames.provenance import read_provenance
from workbench.frames.results import make_frame

DATA_FILES = {"f.csv", "f.tex", "f.json", "f.figure.json", "f.figure.tex"}


def frame():
    values = np.linalg.eigvalsh(np.cov(np.random.default_rng(0).normal(size=(4, 9))))[None]
    return make_frame(values, "eigenvalue", {"layer": [0], "rank": range(1, 5)}, model="bundled:none")


def save(out, **changes):
    data = frame()
    fig = go.Figure(go.Scatter(x=data["rank"].astype(int), y=data["value"]))
    fig.update_layout(xaxis_title="Rank", yaxis_title="Eigenvalue")
    arguments = {
        "fig": fig, "name": "f", "data": data, "caption": "Four eigenvalues.", "alt": "A rising line.",
        "parameters": {"n": 9}, "out": out, **changes,
    }  # fmt: skip
    return save_figure(**arguments)


@pytest.fixture
def no_chrome(monkeypatch, tmp_path):
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "absent"))


@needs_chrome
def test_every_file_is_written_and_carries_the_same_provenance(tmp_path):
    shown = save(tmp_path / "a folder")
    files = {path.name for path in (tmp_path / "a folder").iterdir()}
    assert files == DATA_FILES | {"f.pdf", "f.svg", "f.png", "f.html", "plotly.min.js"}
    held = read_provenance(tmp_path / "a folder" / "f.json")
    for suffix in ("png", "svg", "pdf", "html", "csv", "tex"):
        assert read_provenance(tmp_path / "a folder" / f"f.{suffix}") == held
    assert held["data"]["sha256"] == sha256_file(tmp_path / "a folder" / "f.csv")
    assert held["figure"]["sha256"] == sha256_file(tmp_path / "a folder" / "f.figure.json")
    assert shown.layout.width == 312


@needs_chrome
def test_a_notebook_keeps_the_svg_of_what_it_shows(tmp_path, monkeypatch):
    """Beside plotly's own output, which static viewers leave blank; a figure without an SVG has that alone."""
    published = []
    kernel = SimpleNamespace(display_pub=SimpleNamespace(publish=published.append))
    monkeypatch.setattr("IPython.get_ipython", lambda: kernel)
    monkeypatch.setattr(plotly.io.renderers, "default", "plotly_mimetype")
    shown = save(tmp_path, formats=["png", "svg"])
    shown._ipython_display_()
    (bundle,) = published
    assert bundle["image/svg+xml"] == (tmp_path / "f.svg").read_text()
    assert 'width="312"' in bundle["image/svg+xml"][:300]
    assert bundle["application/vnd.plotly.v1+json"]["data"][0]["type"] == "scatter"
    assert "image/png" not in bundle  # JupyterLab would show it in the place of the figure
    assert copy.deepcopy(shown) == shown
    (tmp_path / "f.svg").unlink()
    monkeypatch.setattr(plotly.io, "show", lambda fig, *args, **kwargs: published.append(fig))
    shown.show()
    assert published[1:] == [shown]


@needs_chrome
def test_letters_are_eight_points_on_a_page_of_three_and_a_quarter_inches(tmp_path):
    save(tmp_path, formats=["pdf", "png"])
    page = PdfReader(tmp_path / "f.pdf").pages[0]
    assert float(page.mediabox.width) == pytest.approx(3.25 * 72, abs=0.5)
    sizes = set()

    def note_size(text, matrix, text_matrix, font, size):
        if text.strip():  # scale of the page's matrix, whichever way the text is turned
            sizes.add(size * abs(matrix[0] * matrix[3] - matrix[1] * matrix[2]) ** 0.5)

    page.extract_text(visitor_text=note_size)
    assert min(sizes) == pytest.approx(8, abs=0.1)
    assert max(sizes) == pytest.approx(9, abs=0.1)
    with Image.open(tmp_path / "f.png") as image:
        dpi = image.info["dpi"][0]
        assert dpi >= 300
        assert image.width / dpi == pytest.approx(3.25, abs=0.01)


def test_without_chrome_all_else_is_written_and_a_warning_says_what_to_do(tmp_path, no_chrome):
    with pytest.warns(UserWarning, match="make chrome"):
        save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == DATA_FILES | {"f.html", "plotly.min.js"}


def test_in_a_render_printing_is_left_to_the_render(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_DEFER_EXPORT", str(tmp_path / "queue"))
    monkeypatch.setenv("WORKBENCH_OUT", str(tmp_path / "figures"))
    monkeypatch.setenv("WORKBENCH_FORMATS", "svg,pdf")
    save(None)
    (line,) = (tmp_path / "queue").read_text().splitlines()
    assert json.loads(line) == {"path": str(tmp_path / "figures" / "f.json"), "formats": ["pdf", "svg"]}
    assert {path.name for path in (tmp_path / "figures").iterdir()} == DATA_FILES


def test_the_table_states_its_interval_and_no_marks_of_the_figure(tmp_path):
    values = np.random.default_rng(1).uniform(1, 2, size=(5, 2, 3))  # input, layer, head
    axes = {"input": [*"abcde"], "layer": [0, 1], "head": [0, 1, 2]}
    data = make_frame(values, "attention_entropy", axes, model="bundled:none")
    save_figure(plot(data), "f", data=data, caption="Entropy by layer.", formats=[], out=tmp_path)
    assert "Bands: 95 \\% CI over inputs" in (tmp_path / "f.figure.tex").read_text()
    table = (tmp_path / "f.tex").read_text()
    assert r"\caption{Entropy by layer. Brackets: 95 \% confidence interval over inputs.}" in table
    for layer in (0, 1):
        means = values[:, layer].mean(-1)
        ends = stats.ttest_1samp(means, 0).confidence_interval()
        assert f"{means.mean():.2f} [{ends.low:.2f}, {ends.high:.2f}]" in table


def test_the_same_figure_is_the_same_files(tmp_path):
    for out in ("one", "two"):
        save(tmp_path / out, formats=["html"])
    for name in ("f.csv", "f.tex", "f.figure.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_an_older_static_image_does_not_outlive_its_figure(tmp_path):
    save(tmp_path, formats=["html"])
    (tmp_path / "f.pdf").write_bytes(b"old")
    save(tmp_path, formats=["html"])
    assert not (tmp_path / "f.pdf").exists()
    assert not [*tmp_path.glob("*kept*")]
    save(tmp_path, formats=["html"], caption="Other words.")
    save(tmp_path, formats=[])
    assert not (tmp_path / "f.html").exists()


def test_another_format_of_the_same_figure_stays(tmp_path):
    save(tmp_path, formats=["html"])
    page = (tmp_path / "f.html").read_bytes()
    save(tmp_path, formats=[])
    assert (tmp_path / "f.html").read_bytes() == page


def test_a_figure_of_a_capture_names_its_model_and_random_weights(tmp_path):
    model = workbench.load("timm:vit_tiny_patch16_224?depth=1@random")
    capture = workbench.capture(model, workbench.inputs("bundled:photos", model, n=1))
    fig = attention_heatmap_figure(capture)
    for name, figure in {"one": fig, "two": multipanel([fig], columns=1)}.items():
        save_figure(figure, name, out=tmp_path, formats=[])
        held = read_provenance(tmp_path / f"{name}.json")
        assert [part["checkpoint"] for part in held["models"]] == ["random"]
        assert [part["spec"] for part in held["inputs"]] == ["bundled:photos"]
        assert held["figure"]["caption"] == f"{name}. Random weights: vit_tiny_patch16_224."
    save_figure(fig, "three", out=tmp_path, formats=[], caption="An untrained model.")
    assert read_provenance(tmp_path / "three.json")["figure"]["caption"] == "An untrained model."


def test_a_file_that_somebody_else_wrote_is_kept_under_another_name(tmp_path):
    (tmp_path / "f.png").write_bytes(b"mine")
    (tmp_path / "f.kept.csv").write_bytes(b"older")
    (tmp_path / "f.csv").write_bytes(b"my,numbers")
    with pytest.warns(UserWarning, match=r"f\.png was not written by the workbench: it is f\.kept\.png now"):
        save(tmp_path, formats=["html"])
    kept = {path.name: path.read_bytes() for path in tmp_path.glob("*kept*")}
    assert kept == {"f.kept.png": b"mine", "f.kept.csv": b"older", "f.kept1.csv": b"my,numbers"}


def test_the_csv_gives_the_numbers_back_exactly(tmp_path):
    save(tmp_path, formats=[])
    assert (pd.read_csv(tmp_path / "f.csv")["value"] == frame()["value"]).all()


@pytest.mark.parametrize(
    ("width", "environment", "options"),
    [("column", "figure", ""), ("neurips", "figure", ""), ("page", "figure*", ""), ("icml", "figure*", ""),
     ("icml-column", "figure", ""), ("slides", "figure", r"[width=\textwidth]")],
)  # fmt: skip
def test_a_latex_figure_stands_beside_it_with_caption_and_label(tmp_path, width, environment, options):
    save(tmp_path, width=width, caption="50 % of σ_1 & more.", formats=[])
    lines = (tmp_path / "f.figure.tex").read_text().splitlines()[1:]
    assert lines == [
        rf"\begin{{{environment}}}",
        r"\centering",
        rf"\includegraphics{options}{{f}}",
        r"\caption{50 \% of \ensuremath{\sigma}\_1 \& more.}",
        r"\label{fig:f}",
        rf"\end{{{environment}}}",
    ]


def test_the_finding_is_bold_in_every_format_and_plain_in_the_provenance(tmp_path):
    save(tmp_path, caption="**σ_1 holds 50% in digits-vit.** Spectra by layer.", formats=["html"])
    figure = json.loads((tmp_path / "f.json").read_text())["figure"]
    assert figure["finding"] == "σ_1 holds 50 % in digits-vit."
    assert figure["caption"].startswith("σ_1 holds 50 % in digits-vit. Spectra by layer.")
    assert (
        r"\caption{\textbf{\ensuremath{\sigma}\_1 holds 50 \% in digits-vit.} Spectra"
        in (tmp_path / "f.figure.tex").read_text()
    )
    assert "<figcaption><b>σ_1 holds 50 % in digits-vit.</b> Spectra" in (tmp_path / "f.html").read_text()
    save(tmp_path, name="plain", formats=[])
    assert json.loads((tmp_path / "plain.json").read_text())["figure"]["finding"] is None


def test_the_page_loads_nothing_from_elsewhere(tmp_path):
    save(tmp_path, formats=["html"], alt='a "quoted" <alt>')
    page = (tmp_path / "f.html").read_text()
    assert 'src="plotly.min.js"' in page
    assert 'src="http' not in page
    assert "&quot;quoted&quot; &lt;alt&gt;" in page


@pytest.mark.parametrize(
    "name", ["../f", "a/b", "a\\b", "", ".", "..", "f.json", "index", "report", "x" * 101, 3]
)
def test_a_name_may_not_leave_its_folder(tmp_path, name):
    with pytest.raises(InputError):
        save(tmp_path / "figures", name=name)
    assert not (tmp_path / "figures").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"fig": go.Figure()},
        {"fig": {"data": []}},
        {"data": pd.DataFrame()},
        {"data": [1, 2]},
        {"caption": " "},
        {"alt": ""},
        {"width": "wide"},
        {"records": ["absent.csv"]},
    ],
)
def test_half_a_figure_is_refused_before_anything_is_written(tmp_path, changes):
    with pytest.raises(InputError):
        save(tmp_path / "figures", **changes)
    assert not (tmp_path / "figures").exists()


def test_a_figure_and_a_name_are_enough(tmp_path):
    """The data are the points drawn, the title is the caption, and the caption what is read aloud."""
    fig = go.Figure(go.Scatter(x=["a", "b"], y=[1.0, 2.5], name="<b>line</b>"))
    fig.add_trace(go.Heatmap(z=[[1, 2, 3], [4, 5, 6]], y=["first", "second"]))
    fig.update_layout(title="What <i>is</i><br>drawn")
    save_figure(fig, "f", out=tmp_path, formats=[])
    assert (tmp_path / "f.csv").read_text().splitlines() == [
        "trace,x,y,z", "line,a,1.0,", "line,b,2.5,",
        "1,0,first,1.0", "1,1,first,2.0", "1,2,first,3.0", "1,0,second,4.0", "1,1,second,5.0", "1,2,second,6.0",
    ]  # fmt: skip
    held = read_provenance(tmp_path / "f.json")
    assert (held["figure"]["caption"], held["figure"]["alt"]) == ("What is drawn", "What is drawn")
    fig.update_layout(title=None)
    save_figure(fig, "two_lines", out=tmp_path, formats=[])
    assert read_provenance(tmp_path / "two_lines.json")["figure"]["caption"] == "two lines"


def test_a_figure_of_an_image_alone_needs_its_numbers(tmp_path):
    with pytest.raises(InputError, match="data="):
        save_figure(go.Figure(go.Image(z=[[[1, 2, 3], [4, 5, 6]]])), "f", out=tmp_path, formats=[])


def test_one_format_may_be_given_by_its_name():
    assert check_formats("svg") == ["svg"]
    assert check_formats(("svg", "pdf")) == ["pdf", "svg"]


def test_an_unknown_format_offers_the_nearest(tmp_path):
    with pytest.raises(UnknownName, match="'svg'"):
        save(tmp_path, formats=["svgz"])


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(MissingResource, match="file"):
        save(tmp_path / "file", formats=["html"])


def test_a_full_disk_is_an_error_that_names_the_place_and_leaves_no_half_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(MissingResource, match=f"{tmp_path}.*No space left"):
        save(tmp_path, formats=["html"])
    assert not list(tmp_path.iterdir())


@needs_chrome
@pytest.mark.parametrize(
    "trace",
    [
        go.Scatter3d(x=[1, 2, 3], y=[1, 2, 3], z=[1, 2, 3]),
        go.Scattergl(x=[1, 2, 3], y=[1, 3, 2], mode="markers"),
        go.Table(header={"values": ["<b>a</b>", "b"]}, cells={"values": [[1, 2], [3, 4]]}),
    ],
)
def test_figures_of_others_are_not_called_blank(trace, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        save_figure(go.Figure(trace), "f", out=tmp_path)
    assert {path.suffix for path in tmp_path.glob("f.*")} >= {".pdf", ".svg", ".png"}
    if trace.type == "table":
        assert pd.read_csv(tmp_path / "f.csv").to_dict("list") == {"trace": [0, 0], "a": [1, 2], "b": [3, 4]}


def test_the_data_of_cells_with_equal_labels_keep_every_cell(tmp_path):
    fig = go.Figure(go.Heatmap(z=[[1, 2], [3, 4]], x=["the", "the"], y=["a", "b"]))
    save_figure(fig, "f", out=tmp_path, formats=["html"])
    held = pd.read_csv(tmp_path / "f.csv")
    assert [*zip(held["x"], held["y"], held["z"], strict=True)] == [
        ("the", "a", 1), ("the", "a", 2), ("the", "b", 3), ("the", "b", 4),
    ]  # fmt: skip


def test_the_index_of_grouped_rows_is_a_column_of_the_data(tmp_path):
    rows = pd.DataFrame({"layer": [0, 0, 1], "head": [0, 1, 0], "value": [1.0, 3.0, 5.0]})
    rows.attrs["records"] = ()
    fig = go.Figure(go.Scatter(x=[0, 1], y=[2, 5]))
    save_figure(fig, "f", data=rows.groupby("layer")[["value"]].mean(), out=tmp_path, formats=["html"])
    assert pd.read_csv(tmp_path / "f.csv").to_dict("list") == {"layer": [0, 1], "value": [2.0, 5.0]}
    save_figure(fig, "f", data=rows.groupby(["layer", "head"]).mean(), out=tmp_path, formats=["html"])
    assert [*pd.read_csv(tmp_path / "f.csv")] == ["layer", "head", "value"]
    save_figure(fig, "f", data=rows.set_index("layer", drop=False), out=tmp_path, formats=["html"])
    assert [*pd.read_csv(tmp_path / "f.csv")] == ["layer", "head", "value"]
