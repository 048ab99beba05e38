"""What a person waits for in the saved page, in a real browser: hovering, another head or layer, the first picture.

Times are taken in the page itself. A frame counts with what its scripts take in it; a key from its press to the end of
the frame that draws what it asked for.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.apps.explorer.browser import chromium
from tests.apps.explorer.pooled import pooled_text
from workbench.apps.explorer import Explorer
from workbench.apps.explorer.bundle import POOLED
from workbench.apps.explorer.page import page_html
from workbench.figures.export.chrome import find_chrome

FRAMES, KEYS, CHANGES = 120, 60, 1000
TOKENS, HEADS = 4096, 8  # of a long text

_HOVER = """async frames => {
  const target = document.querySelector(".aw-image") ?? document.querySelector(".aw-text");
  const tokens = [...document.querySelectorAll(".aw-text .aw-token")];
  const times = [];
  for (let i = 0; i < frames; i++) {
    const over = tokens.length ? tokens[(i * 37) % Math.min(400, tokens.length)] : target;
    const box = over.getBoundingClientRect();
    const [across, down] = tokens.length ? [0.5, 0.5] : [((i * 37) % 97) / 97, ((i * 53) % 89) / 89];
    const at = { clientX: box.left + across * box.width, clientY: box.top + down * box.height };
    over.dispatchEvent(new PointerEvent("pointermove", { ...at, pointerType: "mouse", bubbles: true }));
    times.push(await new Promise(done => requestAnimationFrame(begin => done(performance.now() - begin))));
  }
  return times;
}"""
_PRESS = """async ([keys, count]) => {
  const times = [];
  for (let i = 0; i < count; i++) {
    const begin = performance.now();
    document.dispatchEvent(new KeyboardEvent("keydown", { key: keys[i % keys.length], bubbles: true }));
    await new Promise(done => requestAnimationFrame(done));
    times.push(performance.now() - begin);
  }
  return times;
}"""


def _open(browser: Any, file: Path, rate: int = 1) -> tuple[Any, Any, float]:
    """A page, a session to its tools, and the milliseconds to its first picture."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    tools = page.context.new_cdp_session(page)
    tools.send("Emulation.setCPUThrottlingRate", {"rate": rate})
    page.goto(file.as_uri(), wait_until="commit")
    first = page.wait_for_function(
        "() => document.querySelector('.aw-headline')?.textContent && performance.now()"
    )
    return page, tools, first.json_value()


def _heap(tools: Any) -> tuple[float, float]:
    """MB of a page's objects, the browser's own included, and of code compiled for it, after garbage is collected."""
    chunks: list[str] = []
    tools.on("HeapProfiler.addHeapSnapshotChunk", keep := lambda event: chunks.append(event["chunk"]))
    tools.send("HeapProfiler.collectGarbage")
    tools.send("HeapProfiler.takeHeapSnapshot", {"reportProgress": False})
    tools.remove_listener("HeapProfiler.addHeapSnapshotChunk", keep)
    found = json.loads("".join(chunks))
    meta, nodes = found["snapshot"]["meta"], found["nodes"]
    fields, kinds = meta["node_fields"], meta["node_types"][0]
    types, sizes = (nodes[fields.index(name) :: len(fields)] for name in ("type", "self_size"))
    code = sum(size for kind, size in zip(types, sizes, strict=True) if kinds[kind] == "code")
    return (sum(sizes) - code) / 1e6, code / 1e6


def _row(name: str, times: list[float], aim: str, detail: str) -> dict[str, str]:
    return {
        "benchmark": f"page: {name}",
        "ratio": f"{statistics.median(times):.1f} ms",
        "aim": aim,
        "detail": f"{detail}; slowest {max(times):.0f} ms",
    }


def run() -> list[dict[str, str]]:
    """Medians in one Chromium; no rows where there is none."""
    if find_chrome() is None:
        return []
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        large = Explorer("timm:vit_base_patch16_224", pretrained=False)
        assert large.location.layer >= 0  # the model is loaded and its layers are known
        started = time.perf_counter()
        large.save_html(Path(scratch) / "large.html", limit_mb=100)
        saving = time.perf_counter() - started
        digits = Explorer(n=2).save_html(Path(scratch) / "digits.html")
        size = digits.stat().st_size / 1e6
        page, tools, first = _open(browser, digits)
        page.evaluate(_HOVER, 20)
        hover = page.evaluate(_HOVER, FRAMES)
        head = page.evaluate(_PRESS, [["ArrowRight", "ArrowLeft"], KEYS])
        layer = page.evaluate(_PRESS, [["ArrowUp", "ArrowDown"], KEYS])
        heap = []
        for done in range(1, 6):
            page.evaluate(
                _PRESS,
                [["ArrowUp", ".", "ArrowRight", "5", "ArrowDown", "7", "ArrowLeft", "1"], CHANGES // 5],
            )
            if done in (1, 5):
                heap.append(_heap(tools))
        page.close()
        page, tools, slow_first = _open(browser, digits, rate=4)
        slow = page.evaluate(_HOVER, FRAMES)
        page.close()
        text = Path(scratch) / "long.html"
        text.write_text(page_html(pooled_text(TOKENS, HEADS), "long"), encoding="utf-8")
        page, tools, long_first = _open(browser, text)
        page.evaluate(_HOVER, 20)
        long = page.evaluate(_HOVER, FRAMES)
        long_head = page.evaluate(_PRESS, [["ArrowRight", "ArrowLeft"], KEYS])
    (early, early_code), (late, late_code) = heap
    four = "4 layers × 3 heads, 65 tokens"
    pooled = f"{TOKENS} tokens, pooled to {POOLED} × {POOLED}, {HEADS} heads"
    return [
        _row("a frame while hovering", hover, "≤ 16 ms", f"{four}, {FRAMES} frames"),
        _row(
            "the same, the processor four times slower", slow, "", f"first picture after {slow_first:.0f} ms"
        ),
        _row("another head", head, "≤ 50 ms", f"{four}, key to drawn frame"),
        _row("another layer", layer, "≤ 100 ms", f"{four}, key to drawn frame"),
        {
            "benchmark": "page: saving 12 layers × 12 heads",
            "ratio": f"{saving:.1f} s",
            "aim": "≤ 15 s",
            "detail": "ViT-B with random weights, 197 tokens: metrics, null distributions, spectra, q and k",
        },
        {
            "benchmark": "page: first picture of a saved page",
            "ratio": f"{first:.0f} ms",
            "aim": "",
            "detail": f"{size:.1f} MB from a disk",
        },
        {
            "benchmark": f"page: memory after {CHANGES} changes / after {CHANGES // 5}",
            "ratio": f"{late / early:.2f}",
            "aim": "≤ 1.1",
            "detail": f"{early:.2f} to {late:.2f} MB of objects; besides, the page's own code as the browser "
            f"compiles it the more it is used, {early_code:.2f} to {late_code:.2f} MB",
        },
        _row(
            "a frame while hovering, long text",
            long,
            "≤ 16 ms",
            f"{pooled}, first picture {long_first:.0f} ms",
        ),
        _row("another head, long text", long_head, "≤ 50 ms", pooled),
    ]


if __name__ == "__main__":
    for row in run():
        print(row)
