"""PDF, SVG and PNG from one warm Chrome, each checked before it counts."""

from __future__ import annotations

import asyncio
import atexit
import io
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.core.errors import MissingResource, WorkbenchError
from workbench.core.extras import require
from workbench.core.files import atomic_write
from workbench.core.leftovers import marker, sweep_leftovers
from workbench.figures.export import chrome
from workbench.figures.export.checks import (
    Page,
    font_flaw,
    page_flaws,
    page_scripts,
    take_measures,
    with_flaws,
)
from workbench.figures.theme import FONTS
from workbench.frames.provenance import embed

STATIC = ("pdf", "svg", "png")
PRINTING = ("kaleido", "pypdf")  # modules of the extra "figures"
_START_SECONDS = 90.0
_FILE_SECONDS = 90.0
_NO_NETWORK = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "script-src file: 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:\">"
)
"""Allow a drawn figure no address outside of it. An image in it may name any address."""
EXACT = "text { text-rendering: geometricPrecision }"
"""Without it, hinted fonts round the width of letters to pixels, and words leave their room."""
_FRESH = 40  # images after which a tab loads its page again: for every one it would take half of the time


def png_scale(width: int) -> int:
    """Pixels per px: 384 dots per inch on paper, where journals ask for 300; a slide fills a screen with half that."""
    return 4 if width <= 700 else 2


class ExportFault(WorkbenchError):
    """An image that Chrome did not make, or that is not publication-ready."""


@dataclass(frozen=True)
class ExportJob:
    """One figure to print: its plotly specification, where its files go (without suffix), and its size in px."""

    figure: Mapping[str, Any]
    stem: Path
    width: int
    height: int
    formats: tuple[str, ...]
    provenance: Mapping[str, Any]


@dataclass
class ExportResult:
    """The outcome of one job: files written, the seconds they took, and a reason for each format that failed.

    ``flaws`` are what the printed page shows to be wrong, a sentence each; None where nothing was printed.
    """

    stem: Path
    files: dict[str, Path] = field(default_factory=dict)
    seconds: float = 0.0
    failures: dict[str, str] = field(default_factory=dict)
    flaws: list[str] | None = None


class WarmChrome:
    """One running Chrome that prints figures, usable from any thread and inside a running event loop.

    Kaleido's own synchronous server waits for ever where Chrome dies at its start; here the start has a time
    limit and a failure is an exception. Use as a context manager.
    """

    def __init__(self) -> None:
        require("static export", *PRINTING)
        path = chrome.find_chrome()
        if path is None:
            raise MissingResource(chrome.missing_chrome())
        self._path = path
        parent = chrome.scratch_parent(path)
        sweep_leftovers(parent, "chrome")
        self._folder = Path(tempfile.mkdtemp(prefix=f".{marker('chrome')}-", dir=parent))
        """For its profile and the page that it draws in."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chrome", daemon=True)
        self._thread.start()
        self._browser: Any = None
        try:
            self._browser = self._wait(self._open(), _START_SECONDS)
        except BaseException as error:
            self._stop_loop()
            if isinstance(error, Exception):
                raise MissingResource(
                    f"{path} did not start: {_cause(error)}; {chrome.HOW}{chrome.without_sandbox()}"
                ) from error
            raise

    async def _open(self) -> Any:
        import kaleido

        page = kaleido.PageGenerator(mathjax=False)  # which would be fetched from a content-delivery address
        # Kaleido prints with margins of 0.1 in, for which Chrome shrinks the figure by 6 %: 8 pt would be 7.5 pt.
        page.header = page.header.replace("<title>", f"<style>@page {{ margin: 0 }} {EXACT}</style><title>")
        page.header = page.header.replace("<head>", f"<head>{_NO_NETWORK}")
        page.footer = page.footer.replace("</head>", f"<script>{page_scripts()}</script></head>")
        index = self._folder / "index.html"
        index.write_text(page.generate_index(), encoding="utf-8")
        places = {"page_generator": index, "path": str(self._path), "tmp_dir": str(self._folder)}
        browser = _printer()(n=1, timeout=_FILE_SECONDS, enable_sandbox=chrome.has_sandbox(), **places)
        await browser.open()
        return browser

    def _wait(self, work: Any, seconds: float) -> Any:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(seconds)
        except FutureTimeout as error:
            future.cancel()
            raise ExportFault(f"Chrome gave no answer within {seconds:g} s") from error

    def image(self, figure: Mapping[str, Any], format: str, width: int, height: int) -> bytes:
        """One figure as PDF, SVG or PNG bytes, unchecked. An SVG ends in what `take_measures` reads and takes away."""
        (content,) = self.images(figure, [format], width, height)
        if isinstance(content, ExportFault):
            raise content
        return content

    def images(
        self, figure: Mapping[str, Any], formats: Sequence[str], width: int, height: int
    ) -> list[bytes | ExportFault]:
        """One figure in several formats, unchecked; a fault replaces an image that failed."""

        async def draw(format: str) -> bytes | ExportFault:
            scale = png_scale(width) if format == "png" else 1
            options = {"format": format, "width": width, "height": height, "scale": scale}
            try:
                return await self._browser.calc_fig(figure, opts=options)
            except Exception as error:  # plotly.js, kaleido and choreographer raise types of their own
                return ExportFault(f"Chrome could not draw it: {_cause(error)}")

        async def draw_all() -> list[bytes | ExportFault]:
            return [await draw(format) for format in formats]  # in turn, in the tab that has drawn the figure

        return self._wait(draw_all(), (_FILE_SECONDS + 10) * len(formats))

    def close(self) -> None:
        """Stop Chrome; safe to call twice."""
        if self._browser is not None:
            browser, self._browser = self._browser, None
            try:
                self._wait(browser.close(), 20)
            except Exception as error:  # it is going away in any case: not to mask the caller's error
                print(f"warning: Chrome did not close cleanly: {_cause(error)}")
        self._stop_loop()

    def _stop_loop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> WarmChrome:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _printer() -> Any:
    """Kaleido whose tabs keep their page, and with it plotly.js, for several images."""
    import kaleido

    class Printer(kaleido.Kaleido):
        printed = 0

        async def _return_kaleido_tab(self, tab: Any) -> None:
            self.printed += 1
            # Handed back by an image that failed: what stopped it may still run in this tab.
            if sys.exception() is not None or self.printed % _FRESH == 0:
                await super()._return_kaleido_tab(tab)
            else:
                tab.js_logger.reset()
                await self.tabs_ready.put(tab)

    return Printer


def _cause(error: BaseException) -> str:
    """The error in one line."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


_shared: WarmChrome | None = None
_shared_lock = threading.Lock()


def shared_chrome() -> WarmChrome:
    """The Chrome that stays warm between interactive saves, until the interpreter ends."""
    global _shared  # one browser per process is the point
    with _shared_lock:
        if _shared is None:
            _shared = WarmChrome()
            atexit.register(_close_shared)
        return _shared


def _close_shared() -> None:
    """Stop the shared Chrome, if it runs."""
    global _shared
    with _shared_lock:
        if _shared is not None:
            _shared.close()
            _shared = None


def export_static(jobs: Iterable[ExportJob], browser: WarmChrome | None = None) -> list[ExportResult]:
    """Print figures with one warm Chrome; a file that fails its check is not written, and the reason is kept.

    Args:
        jobs: what to print. Formats other than PDF, SVG and PNG are passed over.
        browser: a running one; by default one is started for these jobs and stopped after them.

    Raises:
        MissingResource: no Chrome, one that does not start, or a folder that cannot be written.
    """
    jobs = list(jobs)
    if browser is None:
        with WarmChrome() as started:
            return [_export(job, started) for job in jobs]
    return [_export(job, browser) for job in jobs]


def _export(job: ExportJob, browser: WarmChrome) -> ExportResult:
    result = ExportResult(job.stem)
    formats = [format for format in job.formats if format in STATIC]
    drawn = (
        [*formats, "svg"] if formats and "svg" not in formats else formats
    )  # an SVG is what can be measured
    started = time.perf_counter()
    try:
        images = browser.images(job.figure, drawn, job.width, job.height)
    except ExportFault as fault:  # no answer at all
        images = [fault] * len(drawn)
    finished_images: dict[str, bytes] = {}
    page: Page | None = None
    fonts: list[str] = []
    for format, content in zip(drawn, images, strict=True):
        try:
            if isinstance(content, ExportFault):
                raise content
            if format == "svg":
                content, page = take_measures(content, job.width, job.height)
            if format in formats:
                fonts += check_picture(content, format, job.width, job.height)
                finished_images[format] = content
        except ExportFault as fault:
            if format in formats:
                result.failures[format] = str(fault)
                _place(job, format).unlink(missing_ok=True)  # an older image would pass for this one
    odd = font_flaw(job.figure.get("layout", {}).get("font", {}).get("family") or FONTS, fonts)
    if page is not None or odd:
        result.flaws = [*(page_flaws(page) if page is not None else []), *([odd] if odd else [])]
    provenance = job.provenance if result.flaws is None else with_flaws(job.provenance, result.flaws)
    for format, content in finished_images.items():
        finished = embed(content, format, provenance, dpi=96 * png_scale(job.width))
        result.files[format] = atomic_write(_place(job, format), finished)
    result.seconds = time.perf_counter() - started
    return result


def _place(job: ExportJob, format: str) -> Path:
    return job.stem.with_name(f"{job.stem.name}.{format}")


def check_picture(content: bytes, format: str, width: int, height: int) -> list[str]:
    """Names of a PDF's fonts. Raises `ExportFault` for a wrong size, a blank image, a font that is not embedded."""
    checks = {"pdf": _check_pdf, "svg": _check_svg, "png": _check_png}
    return checks[format](content, width, height) or []


def _check_png(content: bytes, width: int, height: int) -> None:
    """Pixels are size × `png_scale`, and not all of one colour."""
    import numpy as np
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content)) as image:
            pixels = np.asarray(image if image.mode in ("RGB", "RGBA") else image.convert("RGB"))
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise ExportFault(f"the PNG cannot be read back: {_cause(error)}") from error
    scale = png_scale(width)
    expected = (height * scale, width * scale)
    if any(abs(got - want) > scale for got, want in zip(pixels.shape[:2], expected, strict=True)):
        raise ExportFault(
            f"the PNG is {pixels.shape[1]} × {pixels.shape[0]} pixels, not {expected[1]} × {expected[0]}"
        )
    # 1/1000 of the area: less than one letter of a tick label per square inch
    sample = pixels[::4, ::4]  # every dot would take longer than to draw them
    inked = (sample != sample[0, 0]).any(axis=2).mean()
    if inked < 1e-3:
        raise ExportFault(f"the PNG is blank: {inked:.2%} of its pixels differ from the background")


def _check_svg(content: bytes, width: int, height: int) -> None:
    """Width and height are as asked, it is XML, and something is drawn beside the background."""
    from xml.etree import ElementTree

    try:
        root = ElementTree.fromstring(content)  # our own Chrome's output, not a stranger's file
    except ElementTree.ParseError as error:
        raise ExportFault(f"the SVG is not whole: {error}") from error
    size = (float(root.get("width") or 0), float(root.get("height") or 0))
    if max(abs(size[0] - width), abs(size[1] - height)) > 1:
        raise ExportFault(f"the SVG is {size[0]:g} × {size[1]:g} px, not {width} × {height}")
    tags = [element.tag.rsplit("}", 1)[-1] for element in root.iter()]
    if "image" not in tags and sum(tags.count(tag) for tag in ("path", "text", "image")) < 3:
        raise ExportFault("the SVG is blank: fewer than three drawn elements")


def _check_pdf(content: bytes, width: int, height: int) -> list[str]:
    """One page of the right size, with drawing operators, and a font file for every font: their names."""
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    try:
        pages = PdfReader(io.BytesIO(content)).pages
        count = len(pages)
        page = pages[0]
        stream = page.get_contents()
        operators = stream.get_data().split() if stream is not None else []  # an empty stream is falsy
        fonts = _fonts(page)
    except (PyPdfError, IndexError) as error:
        raise ExportFault(f"the PDF cannot be read back: {_cause(error)}") from error
    size = (float(page.mediabox.width), float(page.mediabox.height))
    if max(abs(size[0] - width * 0.75), abs(size[1] - height * 0.75)) > 1:
        raise ExportFault(
            f"the PDF page is {size[0]:g} × {size[1]:g} pt, not {width * 0.75:g} × {height * 0.75:g}"
        )
    if count != 1:
        raise ExportFault(f"the PDF has {count} pages, not one")
    if (
        b"Do" not in operators
        and sum(map(operators.count, (b"f", b"f*", b"S", b"B", b"Do", b"Tj", b"TJ", b"sh"))) < 3
    ):
        raise ExportFault("the PDF is blank: fewer than three things are painted on its page")
    missing = sorted(name for name, embedded in fonts.items() if not embedded)
    if missing:
        raise ExportFault(f"the PDF does not embed the fonts {', '.join(missing)}")
    return sorted(fonts)


def _fonts(page: Any) -> dict[str, bool]:
    """Base name of each font on a page, and whether its file is inside; forms within the page included."""
    embedded: dict[str, bool] = {}
    waiting, seen = [_held(page, "/Resources")], set()
    while waiting:
        resources = waiting.pop()
        if not resources or id(resources) in seen:
            continue
        seen.add(id(resources))
        for font in (entry.get_object() for entry in _held(resources, "/Font").values()):
            inner = (
                font["/DescendantFonts"].get_object()[0].get_object() if "/DescendantFonts" in font else font
            )
            files = {"/FontFile", "/FontFile2", "/FontFile3"} & {*_held(inner, "/FontDescriptor")}
            # A Type 3 font's glyphs are drawings inside the PDF itself.
            embedded[str(font.get("/BaseFont", "unnamed"))] = bool(files) or font.get("/Subtype") == "/Type3"
        waiting += [
            _held(entry.get_object(), "/Resources") for entry in _held(resources, "/XObject").values()
        ]
    return embedded


def _held(holder: Any, name: str) -> Any:
    """An entry of a PDF's dictionary, itself a dictionary; an empty one where it is absent."""
    entry = holder.get(name)
    return {} if entry is None else entry.get_object()


def load_figure(path: Path) -> dict[str, Any]:
    """A plotly specification from a NAME.figure.json."""
    return json.loads(path.read_text(encoding="utf-8"))
