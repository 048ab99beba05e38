"""The page as a widget: the same modules in JupyterLab, VS Code, Colab and marimo, with a trait for all that is set."""

from __future__ import annotations

from typing import Any

import anywidget
import traitlets

from workbench.apps.explorer.bundle import Bundle
from workbench.apps.explorer.page import FRONT, script

_RENDER = """
const SET = [
  "input", "layer", "head", "tokens", "direction", "scale", "sort", "tab", "depth", "ablation", "against", "theme",
];

/** One view of the widget: what is set in the page goes to the kernel, and the other way. */
function render({ model, el }) {
  const bytes = model.get("content");
  const view = document.createElement("div");
  view.style.setProperty("--aw-height", `${model.get("height")}px`);
  view.dataset.lmSuppressShortcuts = "true"; // JupyterLab's own keys
  el.replaceChildren(view);
  const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
  const page = mount(view, bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength), {
    changed(state) {
      const moved = SET.filter((name) => !same(model.get(name), state[name]));
      for (const name of moved) model.set(name, state[name]);
      if (moved.length) model.save_changes();
    },
  });
  if (!page.state) return () => page.destroy();
  const given = () => {
    const asked = SET.filter((name) => model.get(name) !== null && !same(model.get(name), page.state[name]));
    if (asked.length) page.state.set(Object.fromEntries(asked.map((name) => [name, model.get(name)])));
  };
  given();
  const events = SET.map((name) => `change:${name}`);
  for (const event of events) model.on(event, given);
  return () => {
    for (const event of events) model.off(event, given);
    page.destroy();
  };
}

export default { render };
"""


TABS = ["matrix", "products", "plane", "norms", "spectra", "metrics", "effect"]


class PageWidget(anywidget.AnyWidget):
    """A bundle in a notebook.

        page = Explorer().page()
        page.layer = 3                        # the page moves
        page.observe(print, names="tokens")   # and tells where it is moved to

    Everything that a person sets is a trait: input, layer, head, tokens (the queries that are locked; empty for all),
    direction ("from", "to"), scale ("linear", "sqrt", "log"), sort (a metric), tab, depth, ablation (how a head is
    switched off), against (a view to compare with, as input.layer.head.tokens: "0.3.1.5+6", "0.3.1.all"), theme. What
    does not exist is put right by the page: a head beyond the last becomes the last.
    """

    _esm = script() + _RENDER
    _css = (FRONT / "style.css").read_text(encoding="utf-8")

    content = traitlets.Bytes(help="The bundle, as its file.").tag(sync=True)
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

    def __init__(self, bundle: Bundle, **settings: Any) -> None:
        super().__init__(content=bundle.to_bytes(), **settings)
        self.bundle: Bundle = bundle
