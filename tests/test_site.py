"""The documentation site: it builds without a warning, is complete, and asks no other host for anything."""

from __future__ import annotations

import functools
import gzip
import json
import os
import pkgutil
import re
import subprocess
import sys
import threading
import zlib
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import nbformat
import pytest

from tests.pages import ROOT
from workbench import analyses
from workbench.core.paths import bundled_notebooks
from workbench.figures.export.chrome import find_chrome, missing_chrome
from workbench.papers.published import PAPERS, stated_claims

pytest.importorskip("mkdocs", reason="the site's packages are installed by `make docs`")

from mkdocs.exceptions import PluginError

from docs.hooks import notebooks, offline, papers

SHOWN = (
    "index.html",
    "examples/index.html",
    "notebooks/gram_spectra/index.html",
    "papers/teo2024/index.html",
    "cli/index.html",
)


def _built():
    """The site that `make docs` has built without a warning, where nothing tracked has changed since; or None."""
    complete = ROOT / "site" / ".complete"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode != 0 or not complete.is_file():
        return None
    changed = [
        (ROOT / name).stat().st_mtime for name in tracked.stdout.split("\0") if (ROOT / name).is_file()
    ]
    return complete.parent if complete.stat().st_mtime > max(changed) else None


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if built := _built():
        return built
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr
    return out


def test_every_page_is_there_and_none_fetches_from_another_host(site):
    pages = list(site.rglob("*.html"))
    assert set(bundled_notebooks()) <= {page.parent.name for page in pages}
    # `docs/hooks/offline.py` fails the build for any page that is written in Markdown
    others = [page for page in pages if page.name != "index.html"]
    assert site / "404.html" in others
    assert {
        page: found
        for page in [site / "index.html", *others]
        if (found := offline.outside_addresses(page.read_text(encoding="utf-8")))
    } == {}
    assert not (site / "hooks").exists()


LOADED = re.compile(r'<(?:script|img|link rel="(?:stylesheet|icon)")[^>]*? (?:src|href)="([^"#?:]+)"[^>]*>')


def _transferred(path):
    """Bytes of a file as a host sends it, which compresses text."""
    content = path.read_bytes()
    return len(content if path.suffix in (".png", ".webp") else gzip.compress(content))


def test_a_page_loads_at_most_one_and_a_half_megabytes_before_a_click(site):
    """Images and frames that are loaded when a reader comes near them are apart."""
    transferred = functools.cache(_transferred)
    search = [site / "search" / "search_index.json", *(site / "assets/javascripts/workers").glob("*.js")]
    assert len(search) == 2
    sizes = {}
    for page in site.rglob("index.html"):
        loaded = LOADED.finditer(page.read_text(encoding="utf-8"))
        files = {(page.parent / tag[1]).resolve() for tag in loaded if 'loading="lazy"' not in tag[0]}
        assert len(files) > 3, page
        sizes[page] = sum(map(transferred, [page, *files, *search]))
    assert {page.parent.name: size for page, size in sizes.items() if size > 1_500_000} == {}
    assert max(sizes.values()) > 300_000


def test_what_language_models_are_told_leads_to_pages_that_are_there(site):
    links = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text(encoding="utf-8"))
    assert len(links) > 8
    assert [link for link in links if not (site / link / "index.html").is_file()] == []


@pytest.mark.parametrize(
    "words",
    ["attention rollout", "logit lens", "induction head", "attention sink", "linear CKA", "oversmoothing"],
)
def test_the_search_index_has_the_words_of_the_field(site, words):
    path = site / "search" / "search_index.json"
    assert path.stat().st_size < 900_000  # every page loads it
    index = json.loads(path.read_text(encoding="utf-8"))
    pages = {
        part["location"].partition("#")[0] for part in index["docs"] if words.lower() in part["text"].lower()
    }
    assert pages - {"skill/"}


def test_a_browser_asks_the_site_alone(site):
    if find_chrome() is None:
        pytest.skip(f"looks at pages: {missing_chrome()}")
    sync = pytest.importorskip("playwright.sync_api", reason="drives the browser")
    handler = functools.partial(_Quiet, directory=str(site))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home = f"http://127.0.0.1:{server.server_port}/"
    asked, wrong = [], []
    try:
        with sync.sync_playwright() as driver:
            arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
            browser = driver.chromium.launch(
                executable_path=str(find_chrome()), args=arguments, timeout=120_000
            )
            page = browser.new_page()
            page.set_default_timeout(120_000)
            page.on("request", lambda request: asked.append(request.url))
            page.on("pageerror", lambda error: wrong.append(str(error)))
            for address in SHOWN:
                page.goto(home + address, wait_until="networkidle")
            page.click("input[name=query]")
            page.keyboard.type("eigenvector", delay=20)
            page.wait_for_selector(".md-search-result__item", state="attached")
            browser.close()
    finally:
        server.shutdown()
        server.server_close()
    assert any("search_index" in address for address in asked)
    assert [address for address in asked if not address.startswith((home, "data:", "blob:"))] == []
    assert wrong == []


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    ("html", "fetched"),
    [
        ('<script src="https://a.example/x.js"></script>', ["https://a.example/x.js"]),
        ('<link rel="stylesheet" href="//b.example/f.css">', ["//b.example/f.css"]),
        ('<img srcset="small.png 1x, https://c.example/y.png 2x">', ["https://c.example/y.png"]),
        ("<style>@import url('https://d.example/z.css');</style>", ["https://d.example/z.css"]),
        ('<p style="background: url(https://e.example/g.png)">', ["https://e.example/g.png"]),
        ('<a href="https://f.example">a link</a> <script src="../own.js"></script>', []),
        ("<p>url(https://g.example) in a sentence</p>", []),
    ],
)
def test_what_a_browser_would_fetch_from_elsewhere(html, fetched):
    assert offline.outside_addresses(html) == fetched


def test_the_reference_has_every_public_name(site):
    import workbench
    from workbench import figures

    written = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    documented = {
        line.split()[0] for line in zlib.decompress(written).decode().splitlines() if " py:" in line
    }
    names = [
        *(getattr(workbench, name) for name in workbench.__all__),
        *(getattr(figures, name) for name in figures.__all__),
    ]
    wanted = {f"{each.__module__}.{each.__qualname__}" for each in names if hasattr(each, "__qualname__")}
    wanted |= {f"workbench.analyses.{module.name}" for module in pkgutil.iter_modules(analyses.__path__)}
    assert len(wanted) > 100
    assert sorted(wanted - documented) == []


@pytest.mark.parametrize("paper", PAPERS)
def test_a_paper_s_page_holds_every_claim_and_no_verdict_that_is_written_by_hand(site, paper):
    stated = stated_claims(paper)
    table = papers.claims(paper)
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    heads = [line for line in rows if line.startswith(("| interpretation |", "| --- |"))]
    assert len(rows) - len(heads) == len(stated)
    assert [claim for claim in stated["claim"] if f"### {claim}\n" not in table] == []
    text = (ROOT / "docs" / "papers" / f"{paper}.md").read_text(encoding="utf-8")
    marked = [mark[1] for mark in papers.MARKED.finditer(text)]
    assert [part for part in ("claims", "verdicts", "numbers") if f"{part} {paper}" not in marked] == []
    assert "<!-- coverage -->" in text
    assert re.search(r"\b(undecided|not tested at this scale)\b", papers.MARKED.sub("", text)) is None
    built = (site / "papers" / paper / "index.html").read_text(encoding="utf-8")
    assert f"workbench claims --paper {paper}" in built
    assert "<!-- coverage -->" not in built
    assert built.count("<th>verdict</th>") == sum(
        part.startswith(("verdicts ", "stated ")) for part in marked
    )


def executed(tmp_path, name="gram_spectra", **changed):
    """A copy of a notebook as a render leaves it: its first cell of code has printed something."""
    held = nbformat.read(bundled_notebooks()[name], as_version=4)
    code = [cell for cell in held.cells if cell.cell_type == "code"]
    code[1].outputs = [
        nbformat.v4.new_output("stream", name="stdout", text="head 0 | says\n"),
        nbformat.v4.new_output("stream", name="stderr", text="a warning of no interest"),
        nbformat.v4.new_output(
            "execute_result",
            {
                "text/html": '<style>td {}</style><table border="1" class="dataframe">\n\n<tr><td>7</td></tr></table>'
            },
        ),
    ]
    place = held.cells.index(code[0]) + 1
    injected = nbformat.v4.new_code_cell(
        'n = 3\nout = "/home/me"', metadata={"tags": ["injected-parameters"], "papermill": {"a": 1}}
    )
    held.cells.insert(place, injected)
    held.metadata["papermill"] = {"output_path": "/home/me"}
    for cell in code[1:2]:
        cell.source += changed.get("more", "")
    nbformat.write(held, tmp_path / f"{name}.ipynb")
    return tmp_path / f"{name}.ipynb"


def test_a_notebook_s_page_shows_what_its_cells_gave_and_the_copy_names_no_place_here(tmp_path):
    source = bundled_notebooks()["gram_spectra"]
    run = notebooks._as_run(source, executed(tmp_path))
    assert "/home/me" not in nbformat.writes(run)
    drawn = {tmp_path / "gram_spectra.png": {"alt": "a", "caption": "c", "width_px": 300, "height_px": 200}}
    page = notebooks._page(source, drawn, run)
    assert "```text\nhead 0 | says\n```" in page
    assert '<div class="output" markdown="0">\n<table>\n<tr><td>7</td></tr></table>\n</div>' in page
    assert "no interest" not in page
    assert (
        page.index('"gram_spectra"')
        < page.index("![a](figures/gram_spectra.webp)")
        < page.index("## What it says")
    )
    assert "Not run when" not in page
    assert "(run/gram_spectra.ipynb)" in page
    assert notebooks._as_run(source, executed(tmp_path, more="\nprint(1)")) is None  # of an older source
    assert "(run/" not in notebooks._page(source, drawn)


def test_links_that_need_a_public_repository_are_there_with_its_address_alone():
    path = bundled_notebooks()["gram_spectra"]
    opened = notebooks._ways_to_open(path, False, "https://github.com/me/workbench")
    assert (
        "https://colab.research.google.com/github/me/workbench/blob/main/notebooks/gram_spectra.ipynb"
        in opened
    )
    kaggle = "https://www.kaggle.com/kernels/welcome?src=https://github.com/me/workbench/blob/main/notebooks/"
    assert f"{kaggle}gram_spectra.ipynb" in opened
    assert "https://vscode.dev/github/me/workbench/blob/main/notebooks/gram_spectra.ipynb" in opened
    for absent in ("", "https://codeberg.org/me/workbench"):
        opened = notebooks._ways_to_open(path, False, absent)
        assert "https" not in opened
        assert ".venv/bin/jupyter lab notebooks/gram_spectra.ipynb" in opened
        assert "(stored/gram_spectra.ipynb)" in opened


def test_every_notebook_has_a_picture_in_the_table(site):
    pictures = ROOT / "docs" / "notebooks" / "pictures"
    assert {path.stem for path in pictures.iterdir()} == set(bundled_notebooks())
    assert sum(path.stat().st_size for path in pictures.iterdir()) < 1_000_000
    table = (site / "notebooks" / "index.html").read_text(encoding="utf-8")
    assert [name for name in bundled_notebooks() if f'src="pictures/{name}.png"' not in table] == []


def test_formulas_of_notebooks_are_mathematics_without_a_script(site):
    shown = notebooks._with_formulas("of $x_i$ and\n\n$$\\Big\\lVert x \\Big\\rVert$$\n\nfor 3 $ or `$x$`")
    assert shown.count("<math") == 2
    assert shown.endswith("for 3 $ or `$x$`")
    left = {
        name: found
        for name in bundled_notebooks()
        if (
            found := re.findall(
                r"\$\$|\\[a-zA-Z]+\{",
                (site / "notebooks" / name / "index.html").read_text(encoding="utf-8").split("<code")[0],
            )
        )
    }
    assert left == {}


def test_a_notebook_s_page_shows_what_wasdrawn_by_notebook(tmp_path):
    (tmp_path / "gram.png").write_bytes(b"")
    about = {
        "notebook": {"name": "gram_spectra"},
        "figure": {
            "alt": "Lines [falling].",
            "caption": "Spectra of 3 inputs.",
            "width_px": 312,
            "height_px": 200,
        },
    }
    (tmp_path / "gram.json").write_text(json.dumps(about))
    (tmp_path / "stray.png").write_bytes(b"")
    drawn = notebooks.drawn_by_notebook(tmp_path)
    assert {name: [image.name for image in held] for name, held in drawn.items()} == {
        "gram_spectra": ["gram.png"]
    }
    page = notebooks._page(bundled_notebooks()["gram_spectra"], drawn["gram_spectra"])
    assert (
        "![Lines falling.](figures/gram.webp){ width=468 height=300 loading=lazy }\n\n*gram.* Spectra of 3 inputs."
        in page
    )
    assert "workbench explore" not in page
    (tmp_path / "gram.json").write_text(json.dumps(about | {"models": [{"spec": "bundled:digits-vit"}]}))
    opens = notebooks.drawn_by_notebook(tmp_path)["gram_spectra"]
    assert "`workbench explore figures/gram.json`." in notebooks._page(
        bundled_notebooks()["gram_spectra"], opens
    )
    assert "```sh\nworkbench render gram_spectra\n```" in page
    assert "make figures" in notebooks._page(bundled_notebooks()["gram_spectra"], {})


def test_a_page_that_would_fetch_from_elsewhere_fails_the_build():
    page = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))
    assert offline.on_post_page("<p>own</p>", page) == "<p>own</p>"
    with pytest.raises(PluginError, match=r"index\.md would fetch https://a\.example/x\.js"):
        offline.on_post_page('<script src="https://a.example/x.js"></script>', page)
