"""The controls around an explorer: what a person moves, what follows, and what is said when it cannot."""

from __future__ import annotations

import html
import json
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import ipywidgets as widgets
import plotly.graph_objects as go

from workbench.apps.explorer import code
from workbench.apps.explorer.address import Address, plain_address
from workbench.apps.explorer.canvas import Canvas
from workbench.apps.explorer.jobs import Report, Worker
from workbench.apps.explorer.keyboard import BOX_CLASS, Copy, Keys
from workbench.apps.explorer.material import models_to_choose, where
from workbench.apps.explorer.measures import MEASURES
from workbench.apps.explorer.uploads import keep_image, keep_text
from workbench.apps.explorer.views import VIEWS, overview, view, without_attention
from workbench.core.errors import InputError, WorkbenchError
from workbench.figures.theme import find_theme

if TYPE_CHECKING:
    from workbench.apps.explorer.explorer import Explorer

ALL = -1  # a dropdown shows a value of None as if nothing were chosen
MOST_PINS = 6
MAIN_CLASS, MAP_CLASS = "workbench-view", "workbench-overview"
_INPUTS = {
    "image": ("bundled:digits", "bundled:photos"),
    "text": ("bundled:prose",),
    "image-text": ("bundled:photos", "bundled:digits"),
}
_RANDOM = " (random weights)"
# advice that no field here can follow
_ADVICE = re.compile(r"pass pretrained=False for (the architecture with random weights|random ones)")
_ARROWS = {
    "ArrowUp": ("layer", -1),
    "ArrowDown": ("layer", 1),
    "ArrowLeft": ("head", -1),
    "ArrowRight": ("head", 1),
}
_STYLE = """<style>
.{box} {{ padding: 6px; font-family: Arial, "Liberation Sans", Helvetica, sans-serif; }}
.{box} .widget-label {{ font-weight: 600; }}
.{box}.talk, .{box}.talk .widget-label, .{box}.talk .widget-html-content, .{box}.talk .widget-readout,
 .{box}.talk button, .{box}.talk input, .{box}.talk select
  {{ font-size: 20px; }}
.{box} .workbench-message {{ min-height: 2.6em; line-height: 1.3; white-space: pre-line; }}
.{box} .workbench-error {{ color: #8a1c1c; font-weight: 600; }}
[data-jp-theme-light="false"] .{box} .workbench-error {{ color: #ff9a90; }}
.{box} .workbench-badge {{ background: #8a4b00; color: #fff; border-radius: 4px; padding: 1px 7px; font-weight: 600; }}
.{box}.talk .workbench-views > :last-child {{ order: -1; }}
@media (max-width: 720px) {{
  .{box} > .workbench-later {{ order: 1; }}
  .{box} .workbench-views > :last-child {{ order: -1; }}
}}
</style>"""


class Seen(NamedTuple):
    """What one change leads to: where we are, what is drawn there, and what can be taken away."""

    place: Address
    heads: int
    layers: list[int]
    figure: go.Figure | None
    text: str
    """The interpretation, or why there is no figure."""
    script: str


class Pin(NamedTuple):
    """A view that is kept."""

    place: Address
    card: widgets.Widget
    canvas: Canvas


class Panel:
    """Widgets around an `Explorer`: ``box`` holds them all.

    A change of a control is work for the `Worker`: the explorer moves and draws in a thread, and the browser gets the
    result. Changes that arrive meanwhile are joined to it, so none is lost. What goes wrong is said in place, and the
    last good view stays.
    """

    def __init__(self, explorer: Explorer, theme: str | None = None) -> None:
        self.explorer, self.theme = explorer, find_theme(theme).name
        self.worker = Worker()
        self.pins: list[Pin] = []
        self._place: Address | None = None
        self._asked: dict[str, Any] = {}
        self._missing = ""
        """The model whose weights could not be had."""
        self._following = False
        self._make_controls()
        self._make_canvases()
        self._make_drawer()
        self._arrange()
        self._go({})

    def follow(self) -> None:
        """Show where the explorer stands now."""
        self._go({})

    # ------------------------------------------------------------------------------------------------ building

    def _make_controls(self) -> None:
        width, name = ("400px", "90px") if self.theme == "talk" else ("270px", "56px")
        wide = {"layout": widgets.Layout(width=width), "style": {"description_width": name}}
        asked = self.explorer.asked
        self.model = widgets.Combobox(
            value=asked.model, options=_models_here(), description="model", continuous_update=False,
            placeholder="timm:NAME, hf:FOLDER, file:CHECKPOINT; then Enter", ensure_option=False, **wide,
        )  # fmt: skip
        self.inputs = widgets.Combobox(
            value=asked.inputs or "", options=list(dict.fromkeys(sum(_INPUTS.values(), ()))), description="inputs",
            continuous_update=False, placeholder="images:FOLDER, text:FILE; then Enter", **wide,
        )  # fmt: skip
        self.index = widgets.Dropdown(options=[("…", 0)], description="input", **wide)
        self.layer = widgets.SelectionSlider(options=[0], description="layer", **wide)
        self.head = widgets.SelectionSlider(options=[0], description="head", **wide)
        self.token = widgets.Dropdown(options=[("all queries", ALL)], value=ALL, description="token", **wide)
        self.upload = widgets.FileUpload(
            accept="image/*", description="Upload an image", layout=widgets.Layout(width="150px"),
            tooltip="An image of yours, for a model of images; it stays on this machine",
        )  # fmt: skip
        self.text = widgets.Textarea(
            placeholder="Type or paste a text, one a line, for a model of texts",
            layout=widgets.Layout(width="100%", height="70px"),
        )
        self.use_text = _button("Use this text", "Look at this text")
        self.metric = widgets.Dropdown(
            options=[(measure.label, name) for name, measure in MEASURES.items()], value=asked.metric,
            description="colour", **wide,
        )  # fmt: skip
        self.view = widgets.ToggleButtons(
            options=[(shown.title, name) for name, shown in VIEWS.items()], value=asked.view,
            tooltips=[shown.hint for shown in VIEWS.values()], style={"button_width": "auto"},
        )  # fmt: skip
        for control, follow in (
            (self.model, lambda value: {"model": value.removesuffix(_RANDOM)}),
            (self.inputs, lambda value: {"inputs": value or None}),
            (self.index, lambda value: {"index": value}),
            (self.layer, lambda value: {"layer": value}),
            (self.head, lambda value: {"head": value}),
            (self.token, lambda value: {"token": None if value == ALL else value}),
            (self.metric, lambda value: {"metric": value}),
            (self.view, lambda value: {"view": value}),
        ):
            control.observe(
                lambda change, follow=follow: self._moved_by(follow(change["new"])), names="value"
            )
        self.badge = widgets.HTML()
        self.take_random = _button(
            "Take random weights", "The architecture of this model, its weights drawn at random"
        )
        self.take_random.layout.display = "none"
        self.take_random.on_click(lambda _: self._go({"model": self._missing, "pretrained": False}))
        self.upload.observe(lambda change: self._upload(change["new"]), names="value")
        self.use_text.on_click(lambda _: self._try(lambda: self._go({"inputs": keep_text(self.text.value)})))
        self.keys = Keys(
            [*_ARROWS, "p"], label="Attention explorer: arrows change layer and head, p pins the view"
        )
        self.keys.on_key(self._press)
        self.keys.on_shown(lambda: _tell_again(self.box))

    def _make_canvases(self) -> None:
        self.message = widgets.HTML()
        self.message.add_class("workbench-message")
        self.message.layout.flex = "1 1 400px"
        self.bar = widgets.FloatProgress(min=0, max=1, layout=widgets.Layout(width="180px"))
        self.cancel = _button("Cancel", "Stop what is being loaded or computed; what was shown stays")
        self.cancel.on_click(lambda _: self._cancel())
        self.working = widgets.HTML()
        self.busy = widgets.HBox([self.bar, self.cancel, self.working])
        self.busy.layout.visibility = "hidden"
        self.map = Canvas("column", self.theme)
        self.main = Canvas("page", self.theme)
        self.map.box.add_class(MAP_CLASS)
        self.main.box.add_class(MAIN_CLASS)
        self.map.on_click(
            lambda cell: self._moved_by({"layer": cell[0], **({} if cell[1] is None else {"head": cell[1]})})
        )
        # a cell of the matrix is a (query, key) pair; a cell of a map is its token
        self.main.on_click(
            lambda token: self._moved_by({"token": token[0] if isinstance(token, list) else token})
        )
        # a long one would make its column wide, and push the view beneath it
        self.map_note = widgets.HTML(layout=widgets.Layout(max_width=f"{self.map.wide}px"))

    def _make_drawer(self) -> None:
        """Pins, and what is taken away."""
        self.pin = _button("Pin this view", "Keep this view below, to compare with or come back to (key p)")
        self.pin.on_click(lambda _: self._pin())
        self.pinned = widgets.HBox(layout=widgets.Layout(flex_flow="row wrap"))
        self.name = widgets.Text(value="explorer", description="name", layout=widgets.Layout(width="240px"))
        self.save = _button("Save figure", "PDF, SVG, PNG, HTML, the data and provenance")
        self.save.on_click(lambda _: self._save())
        self.code = widgets.Textarea(layout=widgets.Layout(width="100%", height="150px"), disabled=True)
        self.copy_code = Copy(
            label="Copy as code", tooltip="The lines that make this very view with the library"
        )
        self.copy_command = Copy(
            label="Copy as command", tooltip="The command that draws and saves this view"
        )
        self.copy_address = Copy(label="Copy address", tooltip="A small dict that opens this view again")
        self.saved = widgets.Text(
            placeholder="Paste an address; then Enter",
            continuous_update=False,
            layout=widgets.Layout(width="300px"),
        )
        self.saved.observe(lambda change: self._open(change["new"]), names="value")

    def _arrange(self) -> None:
        wrap = widgets.Layout(flex_flow="row wrap", align_items="flex-start")
        own = widgets.Accordion(
            [widgets.VBox([self.upload, self.text, self.use_text])],
            titles=("An image or text of your own",),
        )
        own.layout.width = "auto"
        take = widgets.Accordion(
            [
                widgets.VBox(
                    [
                        widgets.HBox([self.name, self.save], layout=wrap),
                        widgets.HBox(
                            [self.copy_code, self.copy_command, self.copy_address, self.saved], layout=wrap
                        ),
                        self.code,
                    ]
                )
            ],
            titles=("Export: figure, code, command, address",),
        )
        chosen = widgets.HBox([self.model, self.badge, self.inputs, self.index], layout=wrap)
        pins = widgets.HBox([self.pin, self.pinned], layout=wrap)
        views = widgets.HBox(
            [
                widgets.VBox([self.metric, self.map.box, self.map_note]),
                widgets.VBox([self.view, self.main.box]),
            ],
            layout=wrap,
        )
        views.add_class("workbench-views")
        for later in (chosen, own, pins, take):  # on a phone: what is looked at comes first
            later.add_class("workbench-later")
        self.box = widgets.VBox(
            [
                widgets.HTML(_STYLE.format(box=BOX_CLASS)),
                self.keys,
                chosen,
                widgets.HBox([self.layer, self.head, self.token], layout=wrap),
                own,
                widgets.HBox([self.message, self.take_random, self.busy], layout=wrap),
                views,
                pins,
                take,
            ]
        )
        self.box.add_class(BOX_CLASS)
        if self.theme == "talk":
            self.box.add_class("talk")

    # ------------------------------------------------------------------------------------------------- moving

    def _moved_by(self, changes: dict[str, Any]) -> None:
        """A control moved; not while the controls themselves are brought in line."""
        if not self._following:
            self._go(changes)

    def _press(self, key: str) -> None:
        if key == "p":
            self._pin()
            return
        control, step = _ARROWS[key]
        slider = {"layer": self.layer, "head": self.head}[control]
        place = slider.options.index(slider.value) + step
        if 0 <= place < len(slider.options):
            slider.value = slider.options[place]

    def _go(self, changes: dict[str, Any]) -> None:
        """Change the address and draw it; what is still under way is asked for again with it."""
        if (
            changes.get("view") == "compare"
            and self.pins
            and (self._place is None or self._place.against is None)
        ):
            changes = {**changes, "against": self.pins[-1].place.to_dict()}
        self._asked |= changes
        asked = dict(self._asked)
        self.worker.start(lambda report: self._look(asked, report), self._show, self._failed, self._tell)

    def _look(self, changes: dict[str, Any], report: Report) -> Seen:
        """In the worker's thread: move, draw, read."""
        explorer = self.explorer
        material = explorer.material
        with material.reporting(report):
            place = explorer.after(changes)
            outline = material.outline(place)
            heads = next(layer.heads for layer in outline if layer.index == place.layer)
            shown = view(place.view)
            report("drawing")
            try:
                figure = shown.draw(place, material)
                text = f"{where(place, material)}. {shown.read(place, material)}"
                text += without_attention(place, material)
                script = code.script(shown.lines(place, material))
            except InputError as error:  # a view that does not apply here; the address is good all the same
                figure, text, script = None, str(error), ""
            return Seen(place, heads, [layer.index for layer in outline], figure, text, script)

    def _show(self, seen: Seen) -> None:
        self._asked = {}
        self.take_random.layout.display = "none"
        self._idle()
        before, self._place = self._place, seen.place
        self.explorer.take(seen.place)
        self._follow(seen)
        if seen.figure is None:
            self.main.clear()
        else:
            self.main.show(seen.figure)
        self._say(seen.text, wrong=False)
        self._describe(MAIN_CLASS, f"{VIEWS[seen.place.view].title}. {seen.text}")
        self.code.value = self.copy_code.text = seen.script
        self.copy_command.text = code.command(seen.place)
        self.copy_address.text = json.dumps(seen.place.to_dict())
        # Drawn afterwards, since it reads every layer: the view itself does not wait for it.
        if before is None or _mapped(seen.place) != _mapped(before):
            self.worker.start(
                lambda report: self._survey(seen.place, report), self._colour, self._failed, self._tell
            )

    def _survey(self, place: Address, report: Report) -> tuple[go.Figure | None, str]:
        with self.explorer.material.reporting(report):
            try:
                return overview(place, self.explorer.material), ""
            except InputError as error:
                return None, str(error)

    def _colour(self, found: tuple[go.Figure | None, str]) -> None:
        self._idle()
        figure, note = found
        self.map_note.value = html.escape(note)
        self._describe(
            MAP_CLASS,
            note or f"{MEASURES[self.metric.value].label} of every layer and head, as colours of a grid.",
        )
        if figure is None:
            self.map.clear()
        else:
            self.map.show(figure)

    def _follow(self, seen: Seen) -> None:
        """Bring every control in line with where we are."""
        place, material = seen.place, self.explorer.material
        chosen = material.inputs(place)
        tokens = chosen.tokens
        real = tokens.mask[place.index].nonzero()[:, 0].tolist()
        labels = tokens.labels[place.index]
        untrained = material.model(place).has_random_weights
        self.badge.value = "<span class='workbench-badge'>random weights</span>" if untrained else ""
        self._following = True
        try:
            self.model.value = place.model
            self.inputs.options = _INPUTS[material.model(place).modality]
            self.inputs.value = place.inputs or ""
            _set(self.index, [(name, number) for number, name in enumerate(chosen.ids)], place.index)
            _set(self.layer, seen.layers, place.layer)
            _set(self.head, list(range(max(seen.heads, 1))), place.head)
            _set(
                self.token, [("all queries", ALL), *((f"{i} · {labels[i]}", i) for i in real)],
                ALL if place.token is None else place.token,
            )  # fmt: skip
            self.metric.value, self.view.value = place.metric, place.view
        finally:
            self._following = False

    # ------------------------------------------------------------------------------------------------- saying

    def _tell(self, text: str, share: float | None) -> None:
        self.busy.layout.visibility = "visible"
        self.working.value = html.escape(text)
        self.bar.value = share or 0
        self.bar.bar_style = "info" if share is None else ""

    def _idle(self) -> None:
        self.busy.layout.visibility = "hidden"
        self.working.value, self.bar.value = "", 0

    def _failed(self, error: Exception) -> None:
        """Say what went wrong and put the controls back to the last good view."""
        asked, self._asked = self._asked, {}
        self._idle()
        self.take_random.layout.display = "none"
        if isinstance(error, WorkbenchError):
            said = str(error)
            if _ADVICE.search(said):
                self._missing = asked.get("model", self.explorer.asked.model)
                self.take_random.layout.display = "inline-flex"
            self._say(_ADVICE.sub("take random weights (the button here)", said), wrong=True)
        else:
            logging.getLogger("workbench").error("the explorer met an error it does not know", exc_info=error)
            self._say(
                f"{type(error).__name__}: {error}\nThis is a fault of the workbench; its log has the details.",
                wrong=True,
            )
        self._restore()

    def _restore(self) -> None:
        if self._place is None:
            return
        outline = self.explorer.material.outline(self._place)
        heads = next(layer.heads for layer in outline if layer.index == self._place.layer)
        self._follow(Seen(self._place, heads, [layer.index for layer in outline], None, "", ""))

    def _cancel(self) -> None:
        if self.worker.cancel():
            self._asked = {}
            self._idle()
            self._say("Cancelled; the view before stays.", wrong=False)
            self._restore()

    def _describe(self, figure: str, words: str) -> None:
        """What a screen reader says of a figure."""
        self.keys.alternatives = {**self.keys.alternatives, figure: words}

    def _say(self, text: str, wrong: bool) -> None:
        kind = "workbench-error' role='alert" if wrong else "workbench-said-so' role='status"
        self.message.value = f"<div class='{kind}'>{html.escape(text)}</div>"

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except WorkbenchError as error:
            self._failed(error)

    # ------------------------------------------------------------------------------------------ own, pins, taking

    def _upload(self, files: Any) -> None:
        if files and not self._following:
            file = files[0]
            self._try(lambda: self._go({"inputs": keep_image(file["name"], bytes(file["content"]))}))
            self._following = True  # an upload of the same file again must be seen as one
            self.upload.value = ()
            self._following = False

    def _pin(self) -> None:
        if self._place is None or self.main.widget is None:
            self._say("There is nothing to pin yet.", wrong=True)
            return
        place = self._place
        if any(place.moved(against=None) == pin.place for pin in self.pins):
            return
        kept = Canvas("column", self.theme, height=0.7)
        kept.show(go.Figure(self.main.widget))
        back = _button("Back to it", "Look at this again")
        beside = _button("Compare", "Set this beside what is looked at now")
        away = _button("Remove", "Forget this pin")
        card = widgets.VBox(
            [
                widgets.HTML(html.escape(place.describe())), kept.box,
                widgets.HBox([back, beside, away]),
            ]
        )  # fmt: skip
        back.on_click(lambda _: self._go(place.to_dict()))
        beside.on_click(
            lambda _: self._go({"view": "compare", "against": place.moved(against=None).to_dict()})
        )
        away.on_click(lambda _: self._unpin(card))
        self.pins.append(Pin(place.moved(against=None), card, kept))
        for pin in self.pins[:-MOST_PINS]:
            self._unpin(pin.card)
        self._show_pins()

    def _unpin(self, card: widgets.Widget) -> None:
        for pin in self.pins:
            if pin.card is card:
                pin.canvas.close()
                card.close()
        self.pins = [pin for pin in self.pins if pin.card is not card]
        self._show_pins()

    def _show_pins(self) -> None:
        self.pinned.children = tuple(pin.card for pin in self.pins)

    def _open(self, text: str) -> None:
        if text.strip():
            self._try(lambda: self._go(Address.from_dict(plain_address(text)).to_dict()))

    def _save(self) -> None:
        if self._place is None:
            self._say("There is nothing to save yet.", wrong=True)
            return
        name = self.name.value

        def work(report: Report) -> str:
            report("saving")
            with self.explorer.material.reporting(report):
                self.explorer.save(name)
            return name

        self.worker.start(work, self._saved, self._failed, self._tell)

    def _saved(self, name: str) -> None:
        self._idle()
        folder = Path(os.environ.get("WORKBENCH_OUT") or "figures").resolve()
        self._say(f"Saved {name} (PDF, SVG, PNG, HTML, data and provenance) in {folder}", wrong=False)


def _tell_again(box: widgets.Widget) -> None:
    """Send the page the state of every widget in a box, but of figures, which the canvas minds.

    A page that opens asks once for all states, and then fetches the scripts of the widgets. What they are told until
    those have run it drops without a word (voila's page, and JupyterLab's after a reload): a figure that was drawn in
    the meantime would stay hidden for good.
    """
    if isinstance(box, go.FigureWidget):
        return
    # a slider that hears of its place together with its options sets itself there before it has them: at the first
    places = {"index"} & set(box.keys)
    box.send_state(set(box.keys) - places)
    if places:
        box.send_state(places)
    for part in (*getattr(box, "children", ()), getattr(box, "layout", None), getattr(box, "style", None)):
        if isinstance(part, widgets.Widget):
            _tell_again(part)


def _mapped(place: Address) -> Address:
    """What of an address the overview depends on."""
    return place.moved(token=None, view="attention", against=None)


def _button(text: str, hint: str) -> widgets.Button:
    return widgets.Button(description=text, tooltip=hint, layout=widgets.Layout(width="auto"))


def _set(control: Any, options: list[Any], value: Any) -> None:
    """Options and value of a list; the same options are not sent again."""
    if tuple(control.options) != tuple(options):
        control.options = options
    if control.value != value:
        control.value = value


def _models_here() -> list[str]:
    """Names whose weights are on this machine; last, and marked, those that have random ones."""
    found = models_to_choose()
    return [one["name"] for one in found if one["group"] == "here"] + [
        one["name"] + _RANDOM for one in found if one["group"] == "random"
    ]
