"""A picture of a view: Chrome opens the saved page there, and the page exports it as it does for a person."""

from __future__ import annotations

import base64
import re
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from workbench.core.errors import InputError, MissingResource
from workbench.figures.export import chrome

PARTS = ("head", "heads", "tab", "depth")
"""Parts of the page: the head view, the grid of heads, the chosen tab, the depth panel."""
SIZE = "1440x900"
_SECONDS = 120
_FRAME = 200  # px: more than the frame of a window
_VIRTUAL_MS = 10_000  # of the page's own time: fonts and frames


def view_parts(view: str) -> dict[str, str]:
    """Return the parts of a view such as "#layer=2&head=1&picture=heads", with the size and part of its picture.

    Raises `InputError` for a part of the page or a size that does not exist.
    """
    parts = {"size": SIZE, "picture": "head", **dict(parse_qsl(view.lstrip("#?")))}
    if parts["picture"] not in PARTS:
        raise InputError(f"picture={parts['picture']!r}: the page has {', '.join(PARTS)}")
    if not re.fullmatch(r"[1-9]\d{2,3}x[1-9]\d{2,3}", parts["size"]):
        raise InputError(f"size={parts['size']!r}: width and height of the page in pixels, such as {SIZE}")
    return parts


def inputs_of_view(parts: dict[str, str], index: int) -> list[int]:
    """Return the inputs that a view shows, its own first; its parts then count them from 0."""
    numbers = [parts.get("input", str(index))]
    pinned = parts.get("against", "").partition(".")
    numbers += [pinned[0]] if pinned[0] else []
    if not all(number.isdecimal() for number in numbers):
        raise InputError(f"input and against of a view start with the number of an input; got {numbers}")
    indices = [*dict.fromkeys(map(int, numbers))]
    parts["input"] = "0"
    if pinned[0]:
        parts["against"] = f"{indices.index(int(pinned[0]))}.{pinned[2]}"
    return indices


def draw_picture(html: str, parts: dict[str, str]) -> bytes:
    """Return the PNG of a part of a saved page; raise `MissingResource` without Chrome, or where it draws nothing."""
    path = chrome.find_chrome()
    if path is None:
        raise MissingResource(chrome.missing_chrome())
    width, height = parts["size"].split("x")
    with tempfile.TemporaryDirectory(dir=chrome.scratch_parent(path), ignore_cleanup_errors=True) as folder:
        page = Path(folder) / "page.html"
        page.write_text(html, encoding="utf-8")
        sandbox = [] if chrome.has_sandbox() else ["--no-sandbox"]
        options = [
            "--headless",
            "--disable-gpu",
            "--hide-scrollbars",
            "--dump-dom",
            f"--virtual-time-budget={_VIRTUAL_MS}",
        ]
        own = [f"--user-data-dir={folder}/profile", f"--window-size={width},{int(height) + _FRAME}"]
        command = [path, *options, *sandbox, *own, f"{page.as_uri()}#{urlencode(parts)}"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MissingResource(f"{path} did not draw the page ({error}); {chrome.HOW}") from error
    drawn = re.search(r'id="picture" src="data:image/png;base64,([^"]+)"', answer.stdout)
    if drawn is None:
        raise MissingResource(
            f"{path} drew no {parts['picture']}: the view has nothing there, or Chrome did not start"
            f"{chrome.without_sandbox()}"
        )
    return base64.b64decode(drawn.group(1))
