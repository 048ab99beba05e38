"""What a person waits for in the explorer, in a real browser: from a key on a slider to the new figure on the screen.

JupyterLab, its kernel and Chromium run on this machine; a figure counts as there in the first frame that a page paints
after the plot holds other numbers.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import psutil

from tests.apps.explorer.browser import (
    MAIN,
    MAP,
    Server,
    chromium,
    lab_server,
    labelled,
    open_lab,
    run_cells,
    slider,
    wait_for_figure,
    watched,
)
from workbench.figures.export.chrome import find_chrome

CHANGES = 500
CACHED = 40
LAYERS = 4  # of the bundled model that the explorer opens on

# Waits in the page itself: a question from outside would cost as much as what is measured.
_WATCH = """
const numbers = () => {
  const plot = document.querySelector(PLOT);
  return plot && plot.data ? JSON.stringify(plot.data.map(trace => trace.z)) : null;
};
window.benchmark = { times: [] };
window.addEventListener("keydown", event => {
  if (!event.key.startsWith("Arrow")) return;
  const started = performance.now(), before = numbers();
  window.benchmark.waiting = true;
  const look = () => {
    if (numbers() === before) { requestAnimationFrame(look); return; }
    requestAnimationFrame(() => {
      window.benchmark.times.push(performance.now() - started);
      window.benchmark.waiting = false;
    });
  };
  requestAnimationFrame(look);
}, true);
"""


def _change(page: Any, key: str) -> float:
    """Milliseconds from a key to the new figure."""
    page.keyboard.press(key)
    page.wait_for_function("() => window.benchmark.waiting === false")
    return page.evaluate("window.benchmark.times.at(-1)")


def _sweep(page: Any, key: str) -> list[float]:
    """Through all layers, from one end to the other: what each change took."""
    slider(page, "layer").focus()
    return [_change(page, key) for _ in range(LAYERS - 1)]


def _memory(page: Any, kernel: psutil.Process) -> tuple[float, float]:
    """MB of the kernel's process and of the page's scripts, after both let go what they can."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    heap = session.send("Runtime.getHeapUsage")["usedSize"]
    session.detach()
    return kernel.memory_info().rss / 1e6, heap / 1e6


def _kernel(server: psutil.Process) -> psutil.Process:
    """The process that computes: forked by the server's fork server where there is one, else the server's child."""
    names = ("multiprocessing.forkserver", "workbench.apps.rendering.kernels")
    below = server.children(recursive=True)
    return [child for child in below if any(name in " ".join(child.cmdline()) for name in names)][-1]


def _first_figure(page: Any, server: Server) -> float:
    """Seconds from running the cell to the first figure."""
    open_lab(page, server)
    started = page.evaluate("performance.now()")
    run_cells(page, server.folder / "explorer.ipynb", until="Explorer(")
    wait_for_figure(page)
    return (page.evaluate("performance.now()") - started) / 1000


def _cold() -> float:
    """The first figure in a JupyterLab that somebody started otherwise."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        chromium() as browser,
        lab_server(Path(scratch), warm=False) as server,
        watched(browser, Path(scratch)) as seen,
    ):
        return _first_figure(seen.page, server)


def run() -> list[dict[str, str]]:
    """Medians in one JupyterLab; no rows where there is no Chrome."""
    if find_chrome() is None:
        return []
    cold = _cold()
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        folder = Path(scratch)
        with lab_server(folder) as server, watched(browser, folder) as seen:
            page = seen.page
            first = _first_figure(page, server)
            page.wait_for_selector(f"{MAP} .main-svg")
            page.evaluate(f"() => {{ {_WATCH.replace('PLOT', repr(MAIN))} }}")
            new = _sweep(page, "ArrowLeft")
            inputs = labelled(page, "input")
            for number, name in enumerate(inputs.locator("option").all_inner_texts()[1:4]):
                inputs.select_option(name)
                page.wait_for_function(
                    "name => document.querySelector('.workbench-message').innerText.includes(name)", arg=name
                )
                new += _sweep(page, "ArrowLeft" if number % 2 else "ArrowRight")
            slider(page, "layer").focus()
            cached = [_change(page, "ArrowLeft" if n % 2 == 0 else "ArrowRight") for n in range(CACHED)]
            kernel = _kernel(psutil.Process(server.process.pid))
            memory = []
            for number in range(CHANGES):
                if number % (CHANGES // 5) == 0:
                    memory.append(_memory(page, kernel))
                _change(page, "ArrowLeft" if number % 2 == 0 else "ArrowRight")
            memory.append(_memory(page, kernel))
    (kernel_early, heap_early), (kernel_late, heap_late) = memory[1], memory[-1]
    return [
        {
            "benchmark": "explorer: first figure after running the cell",
            "ratio": f"{first:.1f} s",
            "aim": "≤ 3 s",
            "detail": "JupyterLab from `workbench explore`: the kernel is forked with its imports done",
        },
        {
            "benchmark": "explorer: the same in a JupyterLab started otherwise",
            "ratio": f"{cold:.1f} s",
            "aim": "",
            "detail": "the kernel is started, nothing is imported",
        },
        {
            "benchmark": "explorer: another layer, captured before",
            "ratio": f"{statistics.median(cached):.0f} ms",
            "aim": "≤ 150 ms",
            "detail": f"key to painted figure, {len(cached)} changes, slowest {max(cached):.0f} ms",
        },
        {
            "benchmark": "explorer: another layer, not yet captured",
            "ratio": f"{statistics.median(new):.0f} ms",
            "aim": "≤ 1000 ms",
            "detail": f"bundled model, {len(new)} changes, slowest {max(new):.0f} ms",
        },
        {
            "benchmark": f"explorer: memory after {CHANGES} changes / after {CHANGES // 5}",
            "ratio": f"{kernel_late / kernel_early:.2f} kernel, {heap_late / heap_early:.2f} page",
            "aim": "≤ 1.1",
            "detail": f"kernel {kernel_early:.0f} to {kernel_late:.0f} MB, page {heap_early:.0f} to {heap_late:.0f} MB",
        },
    ]


if __name__ == "__main__":
    for row in run():
        print(row)
