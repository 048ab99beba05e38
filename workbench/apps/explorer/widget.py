"""The page as a widget: the same modules in JupyterLab, VS Code, Colab and marimo, with a trait for all that is set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import anywidget
import traitlets
from cachetools import LRUCache

from workbench.apps.explorer.bundle import Bundle
from workbench.apps.explorer.page import FRONT, script
from workbench.apps.explorer.uploads import keep_image, keep_text
from workbench.core.errors import InputError, WorkbenchError

_RENDER = """
const SET = [
  "input", "layer", "head", "tokens", "direction", "scale", "sort", "tab", "depth", "ablation", "against", "theme",
];

const PATIENCE_MS = 15000;

/** One view of the widget: what is set in the page goes to the kernel, and the other way. */
function render({ model, el }) {
  const view = document.createElement("div");
  view.style.setProperty("--aw-height", `${model.get("height")}px`);
  view.dataset.lmSuppressShortcuts = "true"; // JupyterLab's own keys
  el.replaceChildren(view);
  const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
  let page = null;
  let waiting = null;
  const tell = (state) => {
    const moved = SET.filter((name) => !same(model.get(name), state[name]));
    for (const name of moved) model.set(name, state[name]);
    if (moved.length) model.save_changes();
  };
  const given = (left_out = []) => {
    if (!page.state) return;
    const names = SET.filter((name) => !left_out.includes(name));
    const asked = names.filter((name) => model.get(name) !== null && !same(model.get(name), page.state[name]));
    if (asked.length) page.state.set(Object.fromEntries(asked.map((name) => [name, model.get(name)])));
  };
  /** Another input of the explorer: the kernel makes its bundle. What is shown stays until it is there. */
  const choose = (index) => {
    const name = model.get("choices")[index];
    page.say(`Capturing ${name} …`, true);
    clearTimeout(waiting);
    const late = `The kernel does not answer: it is busy, or gone. What is shown stays; ${name} follows if it does.`;
    waiting = setTimeout(() => page.say(late, true), PATIENCE_MS);
    model.set("index", index);
    model.save_changes();
  };
  /** Another model, or other inputs: what was shown stays until the kernel has it. */
  const ask = (what, bytes) => {
    const name = what.model ?? what.image ?? what.inputs ?? "your text";
    page.say(`Opening ${name} …`, true);
    clearTimeout(waiting);
    const late = `The kernel does not answer: it is busy, or gone. What is shown stays; ${name} follows if it does.`;
    waiting = setTimeout(() => page.say(late, true), PATIENCE_MS);
    model.send({ open: what }, undefined, bytes ? [bytes] : []);
  };
  const show = () => {
    const bytes = model.get("content");
    page?.destroy();
    clearTimeout(waiting);
    page = mount(view, bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength), {
      changed: tell, choices: model.get("choices"), chosen: () => model.get("index"), choose,
      ...(model.get("models").length ? { models: model.get("models"), ask } : {}),
    });
  };
  const replaced = () => {
    show();
    given(["input", "tokens"]); // which are another input's
  };
  const troubled = () => {
    if (!model.get("trouble")) return;
    clearTimeout(waiting);
    page.say(model.get("trouble"), true);
    page.state?.tell(); // the choice goes back to what is shown
  };
  show();
  given();
  const moved = () => given();
  const heard = SET.map((name) => [`change:${name}`, moved]);
  heard.push(["change:content", replaced], ["change:trouble", troubled]);
  for (const [event, act] of heard) model.on(event, act);
  return () => {
    for (const [event, act] of heard) model.off(event, act);
    clearTimeout(waiting);
    page.destroy();
  };
}

export default { render };
"""


_TOLD = (WorkbenchError, RuntimeError, MemoryError, OSError)  # nobody sees a callback's traceback
TABS = ["matrix", "products", "plane", "norms", "spectra", "metrics", "effect", "membership"]


class Opened(NamedTuple):
    """Another model or other inputs, captured."""

    bundle: Bundle
    choices: list[str]
    index: int
    layer: int
    head: int


class PageWidget(anywidget.AnyWidget):
    """A bundle in a notebook.

        page = Explorer().page()
        page.layer = 3                        # the page moves
        page.observe(print, names="tokens")   # and tells where it is moved to

    Everything that a person sets is a trait: input, layer, head, tokens (the queries that are locked; empty for all),
    direction ("from", "to"), scale ("linear", "sqrt", "log"), sort (a metric), tab, depth, ablation (how a head is
    switched off), against (a view to compare with, as input.layer.head.tokens: "0.3.1.5+6", "0.3.1.all"), theme. What
    does not exist is put right by the page: a head beyond the last becomes the last.

    ``choices`` name all inputs of an explorer; ``page.index = 3``, or choosing it in the page, has the kernel capture
    that one, and the page shows it. "Open" in the page takes another model, other inputs, or a text or an image of the
    person's own; `move` does so in Python. Where that fails, ``trouble`` says why, the page too, and what was shown
    stays.
    """

    _esm = script() + _RENDER
    _css = (FRONT / "style.css").read_text(encoding="utf-8")

    content = traitlets.Bytes(help="The bundle, as its file.").tag(sync=True)
    choices = traitlets.List(traitlets.Unicode(), help="Inputs that the kernel can show.").tag(sync=True)
    index = traitlets.Int(0, help="Which of the choices is shown.").tag(sync=True)
    models = traitlets.List(traitlets.Dict(), help="Models to choose from, by group.").tag(sync=True)
    trouble = traitlets.Unicode("", help="Why the input that was asked for cannot be shown.").tag(sync=True)
    height = traitlets.Int(820, help="Of the page, in pixels.").tag(sync=True)
    input = traitlets.Int(0).tag(sync=True)
    layer = traitlets.Int(0).tag(sync=True)
    head = traitlets.Int(0).tag(sync=True)
    tokens = traitlets.List(traitlets.Int()).tag(sync=True)
    direction = traitlets.Enum(["from", "to"], "from").tag(sync=True)
    scale = traitlets.Enum(["linear", "sqrt", "log"], "sqrt").tag(sync=True)
    sort = traitlets.Unicode("").tag(sync=True)
    ablation = traitlets.Unicode("").tag(sync=True)
    against = traitlets.Unicode("").tag(sync=True)
    tab = traitlets.Enum(TABS, "matrix").tag(sync=True)
    depth = traitlets.Enum(["head", "mean", "rollout"], "head").tag(sync=True)
    theme = traitlets.Enum(["light", "dark"], None, allow_none=True).tag(sync=True)

    def __init__(
        self,
        bundle: Bundle,
        bundle_of: Callable[[int], Bundle] | None = None,
        opener: Callable[[Mapping[str, Any]], Opened] | None = None,
        **settings: Any,
    ) -> None:
        """``bundle_of`` gives the bundle of an input by its number among the ``choices``, ``opener`` that of others."""
        super().__init__(content=bundle.to_bytes(), **settings)
        self.bundle: Bundle = bundle
        self._bundle_of, self._opener = bundle_of, opener
        self._shown = self.index
        self._seen: LRUCache[int, Bundle] = LRUCache(8)
        self._seen[self.index] = bundle
        self.observe(self._show, names="index")
        self.on_msg(self._heard)

    def move(self, **changes: Any) -> None:
        """Show another model (``model=``) or other inputs (``inputs=``): parts of an address of the explorer.

        Raises what `Explorer.move` raises; then what was shown stays.
        """
        if self._opener is None:
            raise InputError("this page shows one bundle; Explorer(…).page() opens others")
        opened = self._opener(changes)
        self.trouble = ""
        self._seen.clear()
        self._seen[opened.index] = self.bundle = opened.bundle
        self._shown = opened.index
        with self.hold_trait_notifications():
            self.choices, self.index = opened.choices, opened.index
            self.layer, self.head, self.tokens, self.input, self.against = (
                opened.layer,
                opened.head,
                [],
                0,
                "",
            )
        self.content = opened.bundle.to_bytes()

    def _heard(self, _: Any, message: Any, buffers: Any) -> None:
        """What the page asks for: a model, inputs, a text, or an image with its bytes."""
        asked = message.get("open") if isinstance(message, Mapping) else None
        if not isinstance(asked, Mapping):
            return
        self.trouble = ""
        try:
            changes = {name: asked[name] for name in ("model", "inputs", "pretrained") if name in asked}
            if "text" in asked:
                changes["inputs"] = keep_text(str(asked["text"]))
            if "image" in asked:
                changes["inputs"] = keep_image(str(asked["image"]), bytes(buffers[0]) if buffers else b"")
            self.move(**changes)
        except _TOLD as error:
            self.trouble = str(error) or type(error).__name__

    def _show(self, change: Any) -> None:
        """Show the input that was asked for, or say why not and stay."""
        if change["new"] == self._shown:
            return
        self.trouble = ""
        try:
            if self._bundle_of is None or not 0 <= change["new"] < len(self.choices):
                raise InputError(
                    f"there is no input {change['new']}: this page has {len(self.choices)} to choose from"
                )
            bundle = self._seen.get(change["new"]) or self._bundle_of(change["new"])
        except _TOLD as error:
            self.index = self._shown
            self.trouble = str(error) or type(error).__name__
            return
        self._seen[change["new"]] = bundle
        self._shown, self.bundle = change["new"], bundle
        self.content = bundle.to_bytes()
