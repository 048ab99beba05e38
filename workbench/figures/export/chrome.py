"""Where Chrome is. Static figures (PDF, SVG, PNG) are printed by it; everything else works without."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from platformdirs import PlatformDirs

NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "chrome-headless-shell",
    "microsoft-edge",
)
_MAC = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
)
_SANDBOX = "WORKBENCH_SANDBOX"
HOW = "run `make chrome` to fetch one, or install Chromium (Debian, Ubuntu: apt-get install chromium fonts-liberation)"


def find_chrome() -> Path | None:
    """The Chrome to use: ``BROWSER_PATH``, one on the search path, a macOS application, or a fetched one.

    A ``BROWSER_PATH`` that names nothing executable finds nothing: what the user set is not passed over.
    """
    chosen = os.environ.get("BROWSER_PATH")
    if chosen:
        path = Path(chosen).expanduser()
        return path if _runs(path) else None
    if program := next(filter(None, map(shutil.which, NAMES)), None):
        return Path(program)
    places = [Path(name) for name in (*_MAC, *(str(Path.home()) + name for name in _MAC))]
    # what `make chrome` (plotly's own fetcher) puts into the user's data folder
    deps = Path(PlatformDirs("choreographer", "plotly").user_data_dir) / "deps"
    for pattern in ("chrome-*/chrome", "chrome-*/*.app/Contents/MacOS/*"):
        places += sorted(deps.glob(pattern))
    return next(filter(_runs, places), None)


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


@lru_cache(maxsize=4)
def chrome_version(path: Path) -> str | None:
    """What `path --version` says ("Chromium 140.0.1"), or None where it does not start."""
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"[A-Za-z].*?\d+(\.\d+)+", answer.stdout)
    return match.group() if match else answer.stdout.strip() or None


def scratch_parent(path: Path) -> Path:
    """Return the folder for Chrome's temporary files: a Chrome in a snap has a /tmp of its own."""
    return Path.home() if "snap" in path.parts else Path(tempfile.gettempdir())


def has_sandbox() -> bool:
    """Whether Chrome runs in its sandbox: unless root starts it, whom it refuses, or ``WORKBENCH_SANDBOX`` is "off"."""
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    return not root and os.environ.get(_SANDBOX, "").lower() not in ("0", "off", "no", "false")


def without_sandbox() -> str:
    """Return the remedy where a Chrome with its sandbox does not start; nothing where it has none."""
    if not has_sandbox():
        return ""
    return f"; where the system forbids its sandbox, as in many containers, {_SANDBOX}=off starts it without"


def missing_chrome() -> str:
    """Return why no Chrome was found and the remedy, in one line."""
    chosen = os.environ.get("BROWSER_PATH")
    if chosen:
        return f"BROWSER_PATH is {chosen!r}, which is no program; correct or unset it, or {HOW}"
    return f"no Chrome or Chromium found; {HOW}"
