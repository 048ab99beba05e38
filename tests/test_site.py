"""The documentation site: it builds without a warning, is complete, and asks no other host for anything."""

from __future__ import annotations

import functools
import json
import os
import pkgutil
import re
import subprocess
import sys
import threading
import zlib
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.pages import ROOT
from workbench import analyses
from workbench.core.paths import bundled_notebooks
from workbench.figures.export.chrome import find_chrome, missing_chrome
from workbench.papers.published import PAPERS, stated_claims

pytest.importorskip("mkdocs", reason="the site's packages are installed by `make docs`")

from docs.hooks import notebooks, offline, papers

SHOWN = (
    "index.html",
    "examples/index.html",
    "notebooks/gram_spectra/index.html",
    "papers/teo2024/index.html",
    "cli/index.html",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
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
    assert {
        page: found
        for page in pages
        if (found := offline.outside_addresses(page.read_text(encoding="utf-8")))
    } == {}
    assert not (site / "hooks").exists()


def test_what_language_models_are_told_leads_to_pages_that_are_there(site):
    links = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text(encoding="utf-8"))
    assert len(links) > 8
    assert [link for link in links if not (site / link / "index.html").is_file()] == []


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
def test_a_paper_s_page_holds_every_claim_and_no_verdict(site, paper):
    stated = stated_claims(paper)
    table = papers.claims(paper)
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    heads = [line for line in rows if line.startswith(("| interpretation |", "| --- |"))]
    assert len(rows) - len(heads) == len(stated)
    assert [claim for claim in stated["claim"] if f"### {claim}\n" not in table] == []
    text = (ROOT / "docs" / "papers" / f"{paper}.md").read_text(encoding="utf-8")
    assert [mark for mark in ("claims", "numbers", "coverage") if f"<!-- {mark} -->" not in text] == []
    assert re.search(r"\b(undecided|not tested at this scale)\b", text) is None
    built = (site / "papers" / paper / "index.html").read_text(encoding="utf-8")
    assert f"workbench claims --paper {paper}" in built
    assert "<!-- claims" not in built


def test_a_notebook_s_page_shows_what_was_drawn(tmp_path):
    (tmp_path / "gram.png").write_bytes(b"")
    about = {
        "notebook": {"name": "gram_spectra"},
        "figure": {"alt": "Lines [falling].", "caption": "Spectra of 3 inputs."},
    }
    (tmp_path / "gram.json").write_text(json.dumps(about))
    (tmp_path / "stray.png").write_bytes(b"")
    drawn = notebooks._drawn(tmp_path)
    assert {name: [image.name for image in held] for name, held in drawn.items()} == {
        "gram_spectra": ["gram.png"]
    }
    page = notebooks._page(bundled_notebooks()["gram_spectra"], drawn["gram_spectra"])
    assert "![Lines falling.](figures/gram.png)\n\n*gram.* Spectra of 3 inputs." in page
    assert "```sh\nworkbench render gram_spectra\n```" in page
    assert "make figures" in notebooks._page(bundled_notebooks()["gram_spectra"], {})
