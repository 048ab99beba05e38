"""A real JupyterLab, the real page of the explorer, and a real Chromium that tells all that went wrong in it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from workbench.apps.explorer.launch import NOTEBOOK, lab_command, server_environment
from workbench.core import paths
from workbench.figures.export.chrome import find_chrome

ROOT = Path(__file__).parents[3]
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
START_S = 300  # a server or a first view that is not there by then will not come: a busy machine is slow
WAIT_MS = 60_000  # for anything after that
SIZE = {"width": 1280, "height": 900}
LOCAL = {"localhost", "127.0.0.1", "[::1]"}
PAGE_ADDRESS = r"http://localhost:\d+/\?token=\w+"
LAB_ADDRESS = r"http://localhost:\d+/lab\S*\?token=\w+"


@dataclass
class Server:
    """A running server: the address that opens it, the folder it works in, and where its figures go."""

    address: str
    folder: Path
    figures: Path
    process: subprocess.Popen[str]
    said: list[str] = field(repr=False)

    def stop(self, how: signal.Signals = signal.SIGINT) -> int:
        """Interrupt it as Ctrl-C does, or send another signal, and wait for its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(START_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@contextmanager
def serve(
    command: list[str], folder: Path, pattern: str, variables: dict[str, str] | None = None
) -> Iterator[Server]:
    """Run `command` in `folder` until the ``with`` ends, once it has printed an address that matches `pattern`.

    What the machine's user has set (a theme, open tabs) is kept away; `variables` is its environment besides.
    """
    own = {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "WORKBENCH_OUT": str(folder / "figures"),
        "WORKBENCH_CACHE": str(folder / "cache"),
        **{f"JUPYTER_{name}_DIR": str(folder / "jupyter") for name in ("CONFIG", "DATA", "RUNTIME")},
        **{f"JUPYTERLAB_{name}_DIR": str(folder / "lab") for name in ("SETTINGS", "WORKSPACES")},
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "HF_HUB_OFFLINE": "1",
    }
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **(variables or {}), **own},
        text=True,
        stdin=subprocess.DEVNULL,  # at a terminal Jupyter would ask whether the interrupt is meant
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    said: list[str] = []
    answered = threading.Event()

    def listen() -> None:
        for line in process.stdout or ():  # to the end: a full pipe would stop the server
            said.append(line)
            if re.search(pattern, line):
                answered.set()
        answered.set()

    threading.Thread(target=listen, daemon=True).start()
    answered.wait(START_S)
    found = next((match.group() for line in said if (match := re.search(pattern, line))), "")
    server = Server(found, folder, folder / "figures", process, said)
    try:
        if not found:
            raise RuntimeError(f"{' '.join(command)} gave no address")
        yield server
    except BaseException as error:
        error.add_note(f"the server's last words:\n{''.join(said[-20:])}")
        raise
    finally:
        server.stop(signal.SIGTERM)  # an interrupt is an exception, which a callback of Python's may swallow


@contextmanager
def page_server(folder: Path, *options: str) -> Iterator[Server]:
    """The explorer as a page of its own, as a person starts it."""
    command = [sys.executable, "-m", "workbench", "explore", "--app", "--no-browser", f"--port={free_port()}"]
    with serve([*command, *options], folder, PAGE_ADDRESS) as server:
        yield server


@contextmanager
def lab_server(folder: Path, warm: bool = True) -> Iterator[Server]:
    """JupyterLab as `workbench explore` starts it, on a copy of the explorer notebook, since Lab writes into it.

    Without `warm` it is a JupyterLab that somebody started otherwise: its kernels import for themselves.
    """
    copy = Path(shutil.copy(paths.notebooks_dir() / f"{NOTEBOOK}.ipynb", folder))
    quiet = folder / "lab" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    quiet.parent.mkdir(parents=True)
    quiet.write_text('{"fetchNews": "false"}')  # Lab would ask whether it may
    module = {} if warm else {"module": "jupyterlab"}
    command = lab_command(copy, free_port(), browser=False, **module)
    environment = server_environment() if warm else nullcontext({})
    with environment as variables, serve(command, folder, LAB_ADDRESS, variables) as server:
        yield server


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as held:
        held.bind(("localhost", 0))
        return held.getsockname()[1]


def wait_for_port(port: int) -> None:
    """Wait until somebody listens at a port of this machine."""
    until = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("localhost", port), timeout=START_S).close()
            return
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


@contextmanager
def chromium() -> Iterator[Any]:
    """The system's Chromium, headless."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_chrome(), args=ARGUMENTS, timeout=START_S * 1000
        )
        yield browser
        browser.close()


class Watched:
    """A page of a browser, and what it did that it should not: ask the world outside this machine, or fail.

    Attributes:
        page: Playwright's page.
        outside: addresses not on this machine that were asked for.
        wrong: errors of its scripts, and errors in its console.
    """

    def __init__(self, browser: Any, screenshots: Path, size: dict[str, int] | None = None) -> None:
        self.outside: list[str] = []
        self.wrong: list[str] = []
        self.screenshots = screenshots
        self.context = browser.new_context(viewport=size or SIZE)
        self.context.set_default_timeout(WAIT_MS)
        self.page = self.context.new_page()
        self.page.on("request", lambda request: self._asked(request.url))
        self.page.on("websocket", lambda socket: self._asked(socket.url))
        self.page.on("pageerror", lambda error: self._failed(f"page: {error}"))
        self.page.on("console", self._said)

    def _asked(self, address: str) -> None:
        parts = urlsplit(address)
        if parts.scheme not in {"data", "blob", "about"} and parts.hostname not in LOCAL:
            self.outside.append(address)

    def _said(self, message: Any) -> None:
        if message.type == "error":
            self._failed(f"console: {message.text} ({message.location.get('url')})")

    def _failed(self, words: str) -> None:
        self.wrong.append(words)

    @contextmanager
    def step(self, name: str) -> Iterator[Any]:
        """One step of a walk. Whatever goes wrong in it is an error, and leaves a screenshot of the page."""
        try:
            yield self.page
            assert self.outside == [], "the page asked for what is not on this machine"
            assert self.wrong == [], "the page reported errors"
        except BaseException as error:
            screenshot = self.screenshots / f"{name}.png"
            self.page.screenshot(path=screenshot)
            error.add_note(f"the page as it was: {screenshot}; its errors: {self.wrong}")
            raise


@contextmanager
def watched(browser: Any, screenshots: Path, size: dict[str, int] | None = None) -> Iterator[Watched]:
    """A page in a browser profile of its own."""
    found = Watched(browser, screenshots, size)
    try:
        yield found
    finally:
        found.context.close()


# ---------------------------------------------------------------------------------------------- in the explorer

BOX = ".aw-root"
HOST = """async ([esm, css, state, content]) => {
  document.head.append(Object.assign(document.createElement("style"), { textContent: css }));
  const heard = {};
  state.content = new DataView(Uint8Array.from(atob(content), letter => letter.charCodeAt(0)).buffer);
  window.model = {
    saved: 0,
    sent: [],
    send(content, callbacks, buffers) { this.sent.push([content, buffers.length]); },
    get: name => state[name],
    set(name, value) { state[name] = value; },
    save_changes() { this.saved += 1; },
    on(event, act) { (heard[event] ??= []).push(act); },
    off(event, act) { heard[event] = heard[event].filter(one => one !== act); },
    message(content, buffers) { for (const act of heard["msg:custom"] ?? []) act(content, buffers); },
    fromKernel(name, value) { state[name] = value; for (const act of heard[`change:${name}`] ?? []) act(); },
    listeners: () => Object.values(heard).reduce((sum, acts) => sum + acts.length, 0),
  };
  const module = await import(URL.createObjectURL(new Blob([esm], { type: "text/javascript" })));
  const el = document.body.appendChild(document.createElement("main"));
  window.away = module.default.render({ model, el });
}"""
"""A host as anywidget's contract for modules describes it: a model that is read, set and listened to."""


def traits(page: Any) -> dict[str, Any]:
    """What such a host knows of a widget, its content and what is ipywidgets' own aside."""
    own = {"content", "layout", "tabbable", "tooltip"}
    held = {name: one for name, one in page.trait_values(sync=True).items() if name[0] != "_"}
    return json.loads(json.dumps({name: one for name, one in held.items() if name not in own}))


def open_lab(page: Any, server: Server) -> None:
    """Open the notebook in JupyterLab and wait until its kernel waits for us."""
    page.goto(server.address)
    page.wait_for_selector(".jp-NotebookPanel .jp-Cell", timeout=START_S * 1000)
    page.wait_for_selector("#jp-main-statusbar >> text=| Idle", timeout=START_S * 1000)


def run_cells(page: Any, notebook: Path, until: str) -> None:
    """Run the notebook's cells from the first to the one whose code contains `until`."""
    cells = json.loads(notebook.read_text())["cells"]
    last = next(
        i for i, cell in enumerate(cells) if cell["cell_type"] == "code" and until in "".join(cell["source"])
    )
    page.click(".jp-Notebook .jp-Cell >> nth=0")
    for _ in range(last + 1):
        page.keyboard.press("Shift+Enter")


def wait_for_page(page: Any) -> None:
    """Wait for the first picture of the explorer."""
    page.wait_for_selector(f"{BOX} .aw-headline:not(:empty)", timeout=START_S * 1000)


def wait_until_says(page: Any, words: str) -> None:
    """Wait for the explorer to say `words`, in its headline or its notice."""
    page.wait_for_function(
        "words => [...document.querySelectorAll('.aw-headline, .aw-notice p')].some(e => e.innerText.includes(words))",
        arg=words,
    )


def press_button(page: Any, name: str) -> None:
    """Press the explorer's button of that name."""
    page.locator(BOX).get_by_role("button", name=name, exact=True).first.click()
