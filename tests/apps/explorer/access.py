"""Hold the saved page to the rules of axe-core, at four sizes, in both themes, in every tab; `make access` runs it.

    python -m tests.apps.explorer.access AXE.min.js

axe-core is a script that looks at the page in a browser; it is no dependency of the tests, since it comes from npm.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.apps.explorer.browser import chromium
from workbench.apps.explorer import Explorer

SIZES = ((1440, 900), (1920, 1080), (1024, 768), (390, 844))
GRAVE = ("serious", "critical")
RULES = """async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  return violations.flatMap(({ id, impact, help, nodes }) =>
    nodes.map(node => ({ id, impact, help, target: node.target.join(" "), why: node.failureSummary })));
}"""


def violations(script: str, pages: list[Path]) -> dict[tuple[str, str], str]:
    """By rule and element what axe-core finds, and where it was found first."""
    found: dict[tuple[str, str], str] = {}
    with chromium() as browser:
        for file in pages:
            for theme in ("light", "dark"):
                page = browser.new_context(bypass_csp=True, color_scheme=theme).new_page()
                page.goto(file.as_uri())
                page.wait_for_selector(".aw-headline")
                page.evaluate(script)
                for width, height in SIZES:
                    page.set_viewport_size({"width": width, "height": height})
                    for key in "12345678m" if width == 1440 else "1":
                        page.keyboard.press(key)
                        page.wait_for_timeout(80)
                        for one in page.evaluate(RULES):
                            said = f"{one['impact']}: {one['help']}\n    {one['why']}"
                            where = f"{file.stem}, {theme}, {width} × {height}, key {key}"
                            found.setdefault((one["id"], one["target"]), f"{said}\n    first at {where}")
                page.keyboard.press("?")
                for one in page.evaluate(RULES):
                    found.setdefault((one["id"], one["target"]), f"{one['impact']}: {one['help']} (help)")
    return found


def main(axe: str) -> int:
    """Print what was found; the number of serious findings is the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        pages = [
            Explorer(n=2).save_html(Path(folder) / "images.html", indices=[0, 1]),
            Explorer("bundled:prose-softmax", n=1).save_html(Path(folder) / "text.html"),
        ]
        found = violations(Path(axe).read_text(encoding="utf-8"), pages)
    for (rule, target), said in sorted(found.items()):
        print(f"{rule} at {target}\n    {said}")
    grave = sum(said.startswith(GRAVE) for said in found.values())
    print(f"{len(found)} violations, {grave} of them serious")
    return min(grave, 100)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
