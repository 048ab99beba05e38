"""Two small widgets that ipywidgets lacks: keys pressed anywhere in the explorer, and a button that copies a text.

Their scripts are part of this file, so that a page that shows them fetches nothing from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anywidget
import traitlets

BOX_CLASS = "workbench-explorer"

# JupyterLab listens at the document, before the event reaches any widget; the window alone comes earlier still.
_KEYS = """
const FIELDS = [
  "input:not([type=button]):not([type=checkbox]):not([type=file])", "textarea", "select",
  "[contenteditable]:not([contenteditable=false])",
  ...["combobox", "listbox", "menu", "radio", "slider", "spinbutton", "tab", "textbox"].map(role => `[role=${role}]`),
].join(", ");

function render({ model, el }) {
  let box = null, frame = null, waiting = false, added = null;
  el.style.display = "none";

  const press = event => {
    const target = event.composedPath()[0];
    if (!box.contains(target) || target.closest(FIELDS)) return;
    if (!model.get("shortcuts").includes(event.key) || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.shiftKey && event.key.length > 1) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.repeat && waiting) return;
    waiting = true;
    model.send({ key: event.key });
  };
  const answered = () => { waiting = false; };
  // A plot takes the click that would have moved the focus here.
  const point = event => setTimeout(() => {
    if (event.target.closest(FIELDS) || box.contains(document.activeElement)) return;
    box.focus({ preventScroll: true, focusVisible: false });
  });
  const describe = () => {
    box.setAttribute("aria-label", model.get("label"));
    box.setAttribute("aria-keyshortcuts", model.get("shortcuts").join(" "));
    for (const [name, words] of Object.entries(model.get("alternatives"))) {
      for (const part of box.getElementsByClassName(name)) {
        part.setAttribute("role", "figure");
        part.setAttribute("aria-label", words);
      }
    }
  };

  // ipywidgets writes a slider's description beside its handle, and does not tie them together.
  const name = () => {
    for (const slider of box.getElementsByClassName("widget-slider")) {
      const words = slider.getElementsByTagName("label")[0].textContent;
      for (const handle of slider.querySelectorAll("[role=slider]")) handle.setAttribute("aria-label", words);
    }
  };

  // The page takes a widget in some time after it was made.
  const attach = () => {
    box = el.closest(".BOX_CLASS");
    if (!box) { frame = requestAnimationFrame(attach); return; }
    box.tabIndex = 0;
    box.setAttribute("role", "group");
    describe();
    name();
    added = new MutationObserver(name);
    added.observe(box, { childList: true, subtree: true });
    box.addEventListener("pointerdown", point, true);
    window.addEventListener("keydown", press, true);
    model.on("change:shortcuts", describe);
    model.on("change:label change:alternatives", describe);
    model.on("change:pressed", answered);
    model.send({ shown: true });
  };
  attach();

  return () => {
    cancelAnimationFrame(frame);
    window.removeEventListener("keydown", press, true);
    model.off("change:shortcuts", describe);
    model.off("change:label change:alternatives", describe);
    model.off("change:pressed", answered);
    if (!box) return;
    added.disconnect();
    box.removeEventListener("pointerdown", point, true);
  };
}
export default { render };
""".replace("BOX_CLASS", BOX_CLASS)

_COPY = """
const SAID_MS = 2000;

async function copy(text) {
  if (window.isSecureContext && navigator.clipboard) {
    try { return await navigator.clipboard.writeText(text); } catch { /* not permitted: the old way may be */ }
  }
  const focused = document.activeElement, field = document.createElement("textarea");
  field.value = text;
  field.setAttribute("aria-hidden", "true");
  field.style.cssText = "position: fixed; opacity: 0";
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  if (focused) focused.focus({ preventScroll: true });
  if (!done) throw new Error("the browser does not let a page copy");
}

function render({ model, el }) {
  const button = document.createElement("button"), said = document.createElement("span");
  let timer = null;
  button.type = "button";
  button.className = "jupyter-widgets jupyter-button widget-button";
  said.className = "workbench-said";
  said.setAttribute("role", "status");
  const name = () => { button.textContent = model.get("label"); button.title = model.get("hint"); };
  const say = words => {
    said.textContent = words;
    clearTimeout(timer);
    timer = setTimeout(() => { said.textContent = ""; }, SAID_MS);
  };
  button.addEventListener("click", () => copy(model.get("text")).then(
    () => say("copied"), () => say("not copied: the browser forbids it")));
  name();
  model.on("change:label change:hint", name);
  el.append(button, said);
  return () => { clearTimeout(timer); model.off("change:label change:hint", name); };
}
export default { render };
"""


class Keys(anywidget.AnyWidget):
    """Keys pressed while the focus is in the explorer, wherever in it; takes no room on the page.

    Put it anywhere inside a box of the class ``workbench-explorer``: that box can then be focused, shows that it
    is, and a listed key pressed in it comes here and not to JupyterLab, which would move to another cell. A key
    that a field, a list or a slider needs for itself stays theirs, and so does one with Ctrl, Alt or Meta.
    Sliders of ipywidgets in the box are called by their descriptions, which they are not by themselves.
    No press is lost; of a key held down as many are sent as are answered, so that nothing runs on after it is let
    go.

    Attributes:
        shortcuts: the keys, named as the browser names them: "ArrowLeft", "p", "?".
        label: what a screen reader calls the box.
        alternatives: what it says of the figures in it: class of their box to words.
        pressed: the last key and how many came before it and with it: {"key": "ArrowLeft", "count": 3}.
    """

    _esm = _KEYS
    _css = f".{BOX_CLASS}:focus-visible {{ outline: 2px solid #0072b2; outline-offset: -2px; }}"
    shortcuts = traitlets.List(traitlets.Unicode()).tag(sync=True)  # `keys` is taken: a widget's synced names
    label = traitlets.Unicode("Explorer").tag(sync=True)
    alternatives = traitlets.Dict().tag(sync=True)
    pressed = traitlets.Dict().tag(sync=True)

    def __init__(self, keys: Sequence[str], **options: Any) -> None:
        super().__init__(shortcuts=list(keys), **options)
        self._shown: Callable[[], None] = lambda: None
        self.on_msg(lambda widget, content, buffers: self._receive(content))

    def on_key(self, callback: Callable[[str], None]) -> None:
        """Call `callback` with the name of every key pressed from now on."""
        self.observe(lambda change: callback(change["new"]["key"]), names="pressed")

    def on_shown(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever a page has put the box up: its widgets hear from then on what they are told."""
        self._shown = callback

    def _receive(self, content: dict[str, Any]) -> None:
        if content.get("shown"):
            self._shown()
        key = content.get("key")
        if key in self.shortcuts:
            self.pressed = {"key": key, "count": self.pressed.get("count", 0) + 1}


class Copy(anywidget.AnyWidget):
    """A button that puts `text` on the clipboard, and says so for two seconds.

    It works too where a page is not a secure context (a server's address without https), by the older way.
    """

    _esm = _COPY
    _css = ".workbench-said { margin-left: 0.5em; }"
    text = traitlets.Unicode().tag(sync=True)
    label = traitlets.Unicode("Copy").tag(sync=True)
    hint = traitlets.Unicode().tag(
        sync=True
    )  # not `tooltip`: with that alone ipywidgets fails to make the view

    def __init__(
        self, text: str = "", label: str = "Copy", tooltip: str = "Copy to the clipboard", **options: Any
    ) -> None:
        super().__init__(text=text, label=label, hint=tooltip, **options)
