"""Hold the page to the rules of axe-core, saved and with a kernel, at four sizes, in both themes, in every tab.

    python -m tests.apps.explorer.access AXE.min.js

`make access` runs it. axe-core is a script that looks at the page in a browser; it is no dependency of the tests, since
it comes from npm.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.apps.explorer.browser import HOST, chromium, traits
from workbench.apps.explorer import Explorer

SIZES = ((1440, 900), (1920, 1080), (1024, 768), (390, 844))
GRAVE = ("serious", "critical")
RULES = """async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  return violations.flatMap(({ id, impact, help, nodes }) =>
    nodes.map(node => ({ id, impact, help, target: node.target.join(" "), why: node.failureSummary })));
}"""
BOXES = {"?": "help", "e": "export"}


def violations(script: str, pages: dict[str, Callable[[Any], None]]) -> dict[tuple[str, str], str]:
    """By rule and element what axe-core finds, and where it was found first; ``pages`` opens each by its name."""
    found: dict[tuple[str, str], str] = {}
    with chromium() as browser:
        for name, shown in pages.items():
            for theme in ("light", "dark"):
                page = browser.new_context(bypass_csp=True, color_scheme=theme).new_page()
                shown(page)
                page.wait_for_selector(".aw-headline")
                page.evaluate(script)

                def look(where: str, name: str = name, theme: str = theme, page: Any = page) -> None:
                    for one in page.evaluate(RULES):
                        said = f"{one['impact']}: {one['help']}\n    {one['why']}"
                        found.setdefault(
                            (one["id"], one["target"]), f"{said}\n    first at {name}, {theme}, {where}"
                        )

                for width, height in SIZES:
                    page.set_viewport_size({"width": width, "height": height})
                    for key in "12345678m" if width == 1440 else "1":
                        page.keyboard.press(key)
                        page.wait_for_timeout(80)
                        look(f"{width} × {height}, key {key}")
                for key, box in BOXES.items():
                    page.keyboard.press(key)
                    look(box)
                    page.keyboard.press("Escape")
                page.locator(".aw-pin").click()
                page.wait_for_selector(".aw-compare")
                look("compare")
                if page.get_by_role("button", name="Open", exact=True).count():
                    page.keyboard.press("7")
                    for way in page.locator(".aw-evidence .aw-choice button").all():
                        way.click()  # a way to switch a head off
                    look("switch a head off")
                    page.get_by_role("button", name="Open", exact=True).click()
                    look("open")
    return found


def _live(page: Any) -> None:
    """A widget with all that a kernel adds: other inputs, layers that were left out, a text that the model wrote."""
    explorer = Explorer("bundled:prose-softmax", n=2)
    widget = explorer.page(layers=[1, 3], ablations=False)
    widget.generate(3)
    widget.umap = True
    page.goto("about:blank")
    content = base64.b64encode(widget.content).decode()
    page.set_content("<!doctype html><html lang='en'><title>live</title><body></body></html>")
    page.evaluate(HOST, [widget._esm, widget._css, traits(widget), content])
    page.wait_for_selector(".aw-grid")
    page.locator(".aw-grid").focus()


def main(axe: str) -> int:
    """Print what was found; the number of serious findings is the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        files = {
            "images": Explorer(n=2).save_html(Path(folder) / "images.html", indices=[0, 1]),
            "text": Explorer("bundled:prose-softmax", n=1).save_html(Path(folder) / "text.html", generate=3),
        }
        pages = {name: lambda page, file=file: page.goto(file.as_uri()) for name, file in files.items()}
        found = violations(Path(axe).read_text(encoding="utf-8"), {**pages, "live": _live})
    for (rule, target), said in sorted(found.items()):
        print(f"{rule} at {target}\n    {said}")
    grave = sum(said.startswith(GRAVE) for said in found.values())
    print(f"{len(found)} violations, {grave} of them serious")
    return min(grave, 100)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
