"""The page as a widget: the same modules in JupyterLab, VS Code, Colab and marimo, with a trait for all that is set."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import anywidget
import numpy as np
import torch
import traitlets

from workbench.apps.explorer.evidence import umap_plane
from workbench.apps.explorer.jobs import Report, Worker
from workbench.apps.explorer.material import checkpoints_of
from workbench.apps.explorer.measures import measure, options_of
from workbench.apps.explorer.page import FRONT, cards_at, live_bundle, matrix_part, script, with_head_off
from workbench.apps.explorer.route import without_link
from workbench.apps.explorer.uploads import keep_image, keep_text
from workbench.core.errors import InputError, WorkbenchError
from workbench.core.threads import one_thread

if TYPE_CHECKING:
    from workbench.apps.explorer.address import Address
    from workbench.apps.explorer.bundle import Bundle
    from workbench.apps.explorer.cards import CardIndex
    from workbench.apps.explorer.material import Material

TABS = ["matrix", "products", "plane", "norms", "spectra", "metrics", "effect", "membership", "card"]
_LITTLE_WORK = 2e8
"""Parameters × tokens up to which one thread is faster than several."""
_GENERATED = 12
"""Tokens that a language model is asked to write where nobody says how many."""
_VIEW_OF_TAB = {"norms": "norms", "spectra": "spectrum", "membership": "membership"}
"""Tabs that are saved as their own view; the others save the head view."""
_TAB_OF_VIEW = {"norms": "norms", "spectrum": "spectra", "singular": "spectra", "membership": "membership"}
# advice that nothing in the page can follow
_ADVICE = re.compile(r"(; )?pass pretrained=False for (?:the architecture with random weights|random ones)")


class Opened(NamedTuple):
    """The captured content of a page."""

    address: Address
    bundle: Bundle
    choices: list[str]
    generate: int = 0
    """How many tokens the model has written besides."""


class _Host(Protocol):
    """The explorer behind a page: `workbench.Explorer`."""

    material: Material
    requested: Address

    def after(self, changes: Mapping[str, Any], address: Address | None = None) -> Address: ...
    def take(self, address: Address) -> None: ...
    def code_at(self, address: Address) -> str: ...
    def save_at(self, address: Address, name: str) -> object: ...


class PageWidget(anywidget.AnyWidget):
    """A bundle in a notebook, or an explorer, whose kernel captures what is looked at.

        page = Explorer().page()
        page.layer = 3                        # the page moves
        page.observe(print, names="tokens")   # and tells where it is moved to

    Everything that a person sets is a trait: input, layer, head, tokens (the queries that are locked; empty for all),
    direction ("from", "to"), scale ("linear", "sqrt", "log", "ratio": times uniform attention), sort (a metric), tab,
    depth, ablation (how a head is switched off), against (a view to compare with, as input.layer.head.tokens:
    "0.3.1.5+6", "0.3.1.all"), theme, talk
    (everything larger). The page corrects missing values: a head beyond the last becomes the last.

    ``choices`` name all inputs of an explorer; ``page.index = 3``, or choosing it in the page, has the kernel capture
    that one, and the page shows it. "Open" in the page takes another model, other inputs, or your own text or
    image; `move` does so in Python. Under an event loop, work runs in its own thread: ``busy`` names it, and the page
    can cancel it. If it fails, ``trouble`` gives the reason, in the page too, and the view stays.
    """

    _esm = script("widget")
    _css = (FRONT / "style.css").read_text(encoding="utf-8")

    content = traitlets.Bytes(help="The bundle, as its file; empty before the first.").tag(sync=True)
    choices = traitlets.List(traitlets.Unicode(), help="Inputs that the kernel can show.").tag(sync=True)
    index = traitlets.Int(0, help="Which of the choices is shown.").tag(sync=True)
    models = traitlets.List(traitlets.Dict(), help="Models to choose from, by group.").tag(sync=True)
    checkpoints = traitlets.List(traitlets.Unicode(), help="Checkpoints of the model, first to last.").tag(
        sync=True
    )
    umap = traitlets.Bool(False, help="Whether umap-learn is installed.").tag(sync=True)
    measures = traitlets.List(traitlets.Unicode(), help="Analyses that can be measured.").tag(sync=True)
    busy = traitlets.Unicode("", help="What the kernel does.").tag(sync=True)
    share = traitlets.Float(None, allow_none=True, help="How much of it is done.").tag(sync=True)
    trouble = traitlets.Unicode("", help="Why what was asked for cannot be shown.").tag(sync=True)
    missing = traitlets.Unicode("", help="A model whose trained weights are not to be had.").tag(sync=True)
    notice = traitlets.Unicode("", help="Result of the last action.").tag(sync=True)
    embedding = traitlets.Dict(help="Queries and keys of one head by UMAP.").tag(sync=True)
    lines = traitlets.Unicode("", help="Lines of Python that make the view.").tag(sync=True)
    height = traitlets.Int(820, help="Of the page, in pixels; 0: that of the window.").tag(sync=True)
    talk = traitlets.Bool(False, help="Everything larger, for a lecture hall.").tag(sync=True)
    input = traitlets.Int(0).tag(sync=True)
    layer = traitlets.Int(0).tag(sync=True)
    head = traitlets.Int(0).tag(sync=True)
    tokens = traitlets.List(traitlets.Int()).tag(sync=True)
    direction = traitlets.Enum(["from", "to"], "from").tag(sync=True)
    scale = traitlets.Enum(["linear", "sqrt", "log", "ratio"], "sqrt").tag(sync=True)
    sort = traitlets.Unicode("").tag(sync=True)
    ablation = traitlets.Unicode("").tag(sync=True)
    against = traitlets.Unicode("").tag(sync=True)
    tab = traitlets.Enum(TABS, "matrix").tag(sync=True)
    depth = traitlets.Enum(["head", "mean", "rollout", "tokens", "route"], "head").tag(sync=True)
    theme = traitlets.Enum(["light", "dark"], None, allow_none=True).tag(sync=True)

    def __init__(
        self,
        bundle: Bundle | None = None,
        explorer: _Host | None = None,
        layers: Sequence[int] | None = None,
        ablations: bool | None = None,
        analyses: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        """Show one ``bundle``, or an ``explorer``, which `move` or `start` captures."""
        super().__init__(content=b"" if bundle is None else bundle.to_bytes(), **settings)
        self.bundle: Bundle | None = bundle
        self.location: Address | None = None
        self.worker = Worker()
        self._explorer, self._layers, self._ablations = explorer, layers, ablations
        self._analyses: list[str] = [*analyses]
        self._asked: dict[str, Any] = {}
        self._following, self._opening = False, True
        self._generated = 0
        self._yields = self._stopped = False
        self._cards: tuple[tuple[Any, ...], tuple[CardIndex, dict[str, np.ndarray]]] | None = None
        self._addresses: dict[tuple[str, str], Address] = {}
        self._set = set(settings)
        self.observe(self._choose, names="index")
        self.observe(self._stand, names=["layer", "head", "tokens", "tab", "against"])
        self.on_msg(self._heard)

    # ------------------------------------------------------------------------------------------------- moving

    def move(self, **changes: Any) -> None:
        """Show another model (``model=``), other inputs (``inputs=``) or any other part of an address.

        Raises what `Explorer.move` raises; then what was shown stays.
        """
        self._put(self._capture(changes, Report()))

    def start(self, changes: Mapping[str, Any] | None = None) -> None:
        """Do the same in the background; the page shows errors."""
        self._asked |= changes or {}
        changes_asked = dict(self._asked)
        self._work(lambda report: self._capture(changes_asked, report, first=True), self._put)

    def generate(self, count: int = _GENERATED) -> None:
        """Have a language model continue the text by ``count`` tokens, and show the attention of each step."""
        self._free()
        if isinstance(count, bool) or not isinstance(count, int):
            raise InputError(f"tokens to write are a whole number; got {count!r}")
        more = self._generated + count
        self._work(lambda report: self._capture({}, report, first=True, generate=more), self._put)

    def switch_off(self, how: str = "zero") -> None:
        """Show what the model predicts without the head that is looked at, beside random heads.

        ``how``: "zero", "mean" (over this input's tokens), "batch" (over those of all inputs) or "uniform" (attention
        spread evenly).
        """
        address, bundle, explorer = self._free()
        generate = self._generated

        def work(report: Report) -> Bundle:
            with explorer.material.reporting(report):
                return with_head_off(bundle, address, explorer.material, how, generate)

        def done(switched: Bundle) -> None:
            self._put(Opened(address, switched, self.choices, generate))
            self.tab, self.ablation = "effect", how

        self._work(work, done)

    def switch_link_off(self, head: int, query: int, key: int) -> None:
        """Send the page the prediction without one link of the layer that is looked at, and without random links."""
        address, bundle, explorer = self._free()
        generate = self._generated
        link = {
            "id": bundle.header.inputs[0].id,
            "layer": address.layer,
            "head": head,
            "query": query,
            "key": key,
        }

        def work(report: Report) -> dict[str, Any]:
            with explorer.material.reporting(report):
                return without_link(address, explorer.material, (head, query, key), generate)

        self._work(work, lambda effect: self.send({"link": link | effect}))

    def make_cards(self, count: int = 20) -> None:
        """Make a card of each head over ``count`` inputs of the same source; pages of other inputs keep them."""
        address, bundle, explorer = self._free()
        generate = self._generated
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InputError(f"cards are made over a whole number of inputs from 1; got {count!r}")

        def work(report: Report) -> tuple[CardIndex, dict[str, np.ndarray]]:
            with explorer.material.reporting(report):
                return cards_at(
                    address, explorer.material, count, [card.index for card in bundle.header.layers]
                )

        def done(cards: tuple[CardIndex, dict[str, np.ndarray]]) -> None:
            self._cards = (address.model, address.pretrained, address.inputs), cards
            self._put(Opened(address, bundle, self.choices, generate))
            self.tab = "card"

        self._work(work, done)

    def embed(self) -> None:
        """Lay out queries and keys of the head that is looked at by UMAP, where umap-learn is installed."""
        address, bundle, _ = self._free()

        def work(report: Report) -> dict[str, Any]:
            report(f"UMAP of layer {address.layer}, head {address.head}")
            return embedding_of(bundle, address.layer, address.head, address.seed)

        def done(embedding: dict[str, Any]) -> None:
            self.embedding = embedding

        self._work(work, done)

    def look_closer(self, top: int, left: int, count: int) -> None:
        """Send the page a part of the matrix that it looks at, token by token or in smaller bins.

        Nothing where other work is under way: what the page shows is coarse, and right.
        """
        if self.worker.busy and not self._yields:
            return
        address, bundle, explorer = self._free()
        generate = self._generated
        part = {
            "id": bundle.header.inputs[0].id,
            "layer": address.layer,
            "head": address.head,
            "top": top,
            "left": left,
        }

        def work(report: Report) -> np.ndarray:
            with explorer.material.reporting(report):
                return matrix_part(address, explorer.material, top, left, count, generate)

        def done(matrix: np.ndarray) -> None:
            self.send({"part": {**part, "count": count, "side": len(matrix)}}, buffers=[matrix.tobytes()])

        self._work(work, done)

    def follow(self, address: Address) -> None:
        """Show the explorer's new address."""
        if self.bundle is None or self.location is None or _captured(address) != _captured(self.location):
            self.start(address.to_dict())
        elif address.layer not in [card.index for card in self.bundle.header.layers]:
            self.start({"layer": address.layer, "head": address.head, "token": address.token})
        else:
            self._put(Opened(address, self.bundle, self.choices, self._generated))

    def _host(self) -> _Host:
        if self._explorer is None:
            raise InputError("this page shows one bundle; Explorer(…).page() opens others")
        return self._explorer

    def _capture(
        self, changes: Mapping[str, Any], report: Report, first: bool = False, generate: int | None = None
    ) -> Opened:
        explorer = self._host()
        with explorer.material.reporting(report), one_thread() if self._is_small(changes) else nullcontext():
            address = explorer.after(changes, self.location)
            layers = self._layers if self.location is None or address.model == self.location.model else None
            layer_numbers = [layer.index for layer in explorer.material.whole_outline(address)]
            if layers is not None and not {
                address.layer,
                layer_numbers.index(address.layer) - len(layer_numbers),
            } & {*layers}:
                self._layers = layers = [*layers, address.layer]  # one that is asked for joins them
            analyses = self._analyses if self.location is None or address.model == self.location.model else []
            if generate is None:
                same = self.location is not None and _captured(address) == _captured(self.location)
                generate = self._generated if same else 0
            bundle = live_bundle(
                address, explorer.material, layers, self._ablations, analyses, generate, first
            )
            return Opened(address, bundle, explorer.material.inputs(address).ids, generate)

    def _is_small(self, changes: Mapping[str, Any]) -> bool:
        """Return whether another input of this model is so little work that several threads wait for each other."""
        if self.bundle is None or "model" in changes:
            return False
        header = self.bundle.header
        return header.model.parameters * len(header.inputs[0].labels) <= _LITTLE_WORK

    def _go_on(self) -> None:
        """Measure the missing numbers once no other work is running."""
        if self.worker.busy or self._stopped or self.bundle is None or not self.bundle.header.unmeasured:
            return
        generate = self._generated

        def done(opened: Opened) -> None:
            assert self.location is not None
            # where the page stands by now, and beside what went wrong meanwhile
            self._put(opened._replace(address=self.location), self.trouble, self.missing)

        self._work(lambda report: self._capture({}, report, generate=generate), done, measuring=True)

    def _put(self, opened: Opened, trouble: str = "", missing: str = "") -> None:
        """Show a capture, and move the explorer to its address."""
        address, bundle, choices, generated = opened
        source, cards = self._cards or (None, None)
        if (
            cards
            and source == (address.model, address.pretrained, address.inputs)
            and not bundle.header.cards
        ):
            bundle = bundle.with_cards(*cards)
        written, self._generated = self._generated, generated
        before, self.location, self._asked = self.location, address, {}
        fresh = bundle is not self.bundle
        if self._explorer is not None:
            self._explorer.take(address)
        if before is not None and before.model != address.model:
            self._analyses = []
        self._following = True
        try:
            with self.hold_sync(), self.hold_trait_notifications():  # the page hears of all at once
                self.busy, self.trouble, self.missing = "", trouble, missing
                self.choices, self.index = choices, address.index
                self.checkpoints = [*checkpoints_of(bundle.header.model.spec)]
                self.layer, self.head, self.input = address.layer, address.head, 0
                if before is None or address.token != before.token or _captured(before) != _captured(address):
                    self.tokens = [] if address.token is None else [address.token]
                if generated != written:  # the first step
                    card = bundle.header.inputs[0]
                    self.tokens = [len(card.labels) - card.generated - 1]
                if before is None or _captured(before) != _captured(address):
                    self.against = ""
                if address.against is not None and _captured(address.against) == _captured(address):
                    self.against = _key(address.against)
                for name, value in (_seen(address, bundle) if self._opening else {}).items():
                    if name not in self._set:
                        setattr(self, name, value)
                self._opening = bundle.header.unmeasured and self._opening
                if fresh:
                    self.bundle, self.content = bundle, bundle.to_bytes()
                    self._stopped = False
                    self._addresses[address.model, bundle.header.inputs[0].id] = address
        finally:
            self._following = False

    def _choose(self, change: Any) -> None:
        """Show the chosen input, or report why not and stay."""
        if self._following or (self.location is not None and change["new"] == self.location.index):
            return
        self.trouble = ""
        if self._explorer is None or not 0 <= change["new"] < len(self.choices):
            count = len(self.choices)
            self._fail(InputError(f"there is no input {change['new']}: this page has {count} to choose from"))
        else:
            self.start({"index": change["new"]})

    def _stand(self, change: Any) -> None:
        """Move the explorer to where the page was moved."""
        if self._following or self.location is None or self.bundle is None:
            return
        if self.layer not in [card.index for card in self.bundle.header.layers]:
            return  # the page puts it right
        view = self.location.view
        if change["name"] == "tab":
            view = _VIEW_OF_TAB.get(self.tab, "attention")
        token = self.tokens[0] if self.tokens else None
        written = self.bundle.header.inputs[0]
        if token is not None and token >= len(written.labels) - written.generated:
            token = None  # of what the model wrote: no part of the input
        self.location = self.location.moved(layer=self.layer, head=self.head, token=token, view=view)
        self._host().take(self.location)

    # -------------------------------------------------------------------------------------------------- asked

    def _heard(self, _: Any, message: Any, buffers: Any) -> None:
        """Answer a message of the page: another model or input, a measurement, a figure, or to stop."""
        if not isinstance(message, Mapping):
            return
        if "shown" in message:  # a page came up: what was sent before it could hear is sent again
            if message["shown"] != [len(self.content), self.busy, self.trouble]:
                self.send_state()
            return
        self.trouble = self.notice = ""
        try:
            if message.get("cancel"):
                self.cancel()
            elif isinstance(message.get("open"), Mapping):
                self._open(message["open"], buffers)
            elif "measure" in message:
                self.measure(str(message["measure"]))
            elif "generate" in message:
                self.generate(message["generate"])
            elif isinstance(message.get("part"), list):
                self.look_closer(*map(int, message["part"]))
            elif "cards" in message:
                self.make_cards(message["cards"])
            elif "embed" in message:
                self.embed()
            elif "switch_off" in message:
                self.switch_off(str(message["switch_off"]))
            elif isinstance(message.get("link"), list):
                self.switch_link_off(*map(int, message["link"]))
            elif "layer" in message:
                self.start({"layer": message["layer"]})
            elif isinstance(message.get("save"), Mapping):
                request = message["save"]
                self._save(str(request.get("name")), str(request.get("view")), request.get("against"))
            elif "lines" in message:
                self._write(str(message["lines"]), message.get("against"))
        except Exception as error:  # nobody sees a callback's traceback
            self._fail(error)

    def _open(self, request: Mapping[str, Any], buffers: Any) -> None:
        changes = {
            name: request[name] for name in ("model", "inputs", "pretrained", "window") if name in request
        }
        if "typed" in request:  # as it is typed: kept in memory
            changes["inputs"] = [str(request["typed"])]
        if "text" in request:
            changes["inputs"] = keep_text(str(request["text"]))
        if "image" in request:
            changes["inputs"] = keep_image(str(request["image"]), bytes(buffers[0]) if buffers else b"")
        if isinstance(request.get("address"), str):
            from workbench.apps.explorer.address import plain_address

            changes |= plain_address(request["address"])
        self.start(changes)

    def cancel(self) -> None:
        """Stop the running work; the view stays."""
        if self.worker.cancel():
            self._stopped = True
            self._restore()
            self.notice = "Cancelled; the view is unchanged."

    def measure(self, analysis: str) -> None:
        """Add a registered analysis' numbers of heads and layers to the page."""
        from workbench.runs.analyze import analyze

        address, bundle, explorer = self._free()
        generate = self._generated

        def work(report: Report) -> Bundle:
            with explorer.material.reporting(report):
                chosen = [card.index for card in bundle.header.layers]
                layers = chosen if bundle.header.left_out else None
                if generate:
                    continued, _ = explorer.material.continued(address, generate)
                    with explorer.material.alone(f"{analysis} of {address.model}"):
                        frame = analyze(
                            analysis, model=explorer.material.model(address), inputs=continued, seed=address.seed,
                            layers=layers, progress=report.progress, **options_of(analysis),
                        )  # fmt: skip
                else:
                    frame = explorer.material.frame(analysis, address, **options_of(analysis), layers=layers)
                return bundle.with_measured(analysis, [frame])

        def done(measured: Bundle) -> None:
            names = {card.name for card in bundle.header.metrics}
            self._analyses = [*self._analyses, analysis]
            self._put(Opened(address, measured, self.choices, generate))
            self.sort = next(
                (card.name for card in measured.header.metrics if card.name not in names), self.sort
            )
            if len(measured.header.by_layer) > len(bundle.header.by_layer):
                self.depth = "tokens"

        self._work(work, done)

    def _save(self, name: str, view: str, against: Any = None) -> None:
        """Save a view as a figure with its data and provenance."""
        address, _, explorer = self._free()
        if self._generated:
            raise InputError(
                "a figure is drawn of an input, and the model wrote this text; SVG, PNG and CSV take what is seen"
            )

        def work(report: Report) -> str:
            report(f"saving {name}")
            with explorer.material.reporting(report):
                explorer.save_at(self._at(address, view, against), name)
            return name

        def done(saved: str) -> None:
            folder = Path(os.environ.get("WORKBENCH_OUT") or "figures").resolve()
            self.notice = f"Saved {saved} (PDF, SVG, PNG, HTML, data and provenance) in {folder}"

        self._work(work, done)

    def _write(self, view: str, against: Any = None) -> None:
        """Write the lines of Python that make a view."""
        address, _, explorer = self._free()

        def work(report: Report) -> str:
            with explorer.material.reporting(report):
                return explorer.code_at(self._at(address, view, against))

        self._work(work, lambda lines: setattr(self, "lines", lines), yields=True)

    def _at(self, address: Address, view: str, pinned: Any = None) -> Address:
        """Return a view's address; ``pinned`` is the other one in a comparison: model, input id, layer, head, token."""
        against = address.against
        if view == "compare" and isinstance(pinned, Mapping):
            where = self._addresses.get((str(pinned.get("model")), str(pinned.get("id"))), address)
            parts = {name: pinned.get(name) for name in ("layer", "head", "token")}
            against = where.moved(view="attention", against=None, **parts)
        elif view == "compare" and self.against:
            _, layer, head, tokens = self.against.split(".")
            token = None if tokens == "all" else int(tokens.split("+")[0])
            against = address.moved(
                layer=int(layer), head=int(head), token=token, view="attention", against=None
            )
        return address.moved(view=view, against=against)

    def _free(self) -> tuple[Address, Bundle, _Host]:
        """Return address, bundle and explorer; raise `InputError` where there is none, or other work is running."""
        explorer = self._host()
        if self.location is None or self.bundle is None:
            raise InputError("there is nothing here yet; open a model")
        if self.worker.busy and not self._yields:  # measuring goes on afterwards, lines are not missed
            raise InputError(f"wait for the running work ({self.busy}), or cancel it")
        return self.location, self.bundle, explorer

    # ------------------------------------------------------------------------------------------------- saying

    def _work(self, work: Any, done: Any, measuring: bool = False, yields: bool = False) -> None:
        """Start work; measuring, and other work that ``yields``, stops for what a person asks for next."""
        self._yields = measuring or yields

        def end(result: Any) -> None:
            self.busy, self.share = "", None
            try:
                done(result)
            except traitlets.TraitError as error:
                self._fail(error)
            self._go_on()

        def failed(error: Exception) -> None:
            self._stopped = self._stopped or measuring
            self._fail(error)
            self._go_on()

        self.worker.start(work, end, failed, self._tell)

    def _tell(self, text: str, share: float | None) -> None:
        self.busy, self.share = text, share

    def _fail(self, error: Exception) -> None:
        """Show an error, and go back to the last view."""
        request = self._asked
        message = str(error) or type(error).__name__
        if not isinstance(error, WorkbenchError):
            logging.getLogger("workbench").error("the explorer met an error it does not know", exc_info=error)
            message = f"{type(error).__name__}: {message}. This is a fault of the workbench; see its log."
        self._restore()
        trained = request.get("pretrained", True)  # random weights that cannot be had are not offered again
        name = str(request.get("model") or self._host().requested.model)
        self.missing = name if trained and _ADVICE.search(message) else ""
        self.trouble = _ADVICE.sub(r"\1take random weights (the button here)" if trained else "", message)

    def _restore(self) -> None:
        self._asked, self._following = {}, True
        try:
            self.busy, self.share = "", None
            if self.location is not None:
                self.index = self.location.index
        finally:
            self._following = False


def embedding_of(bundle: Bundle, layer: int, head: int, seed: int = 0) -> dict[str, Any]:
    """Lay queries and keys of a head of a bundle's first input out by UMAP, (x, y) by token, None for padding.

    Raises `InputError` where they are not in the bundle, and what `umap_plane` raises.
    """
    card, start = bundle.header.inputs[0], f"inputs.0.layers.{layer}"
    if f"{start}.q" not in bundle.arrays:
        raise InputError(
            f"queries and keys of layer {layer} are not here: they were left out, or it has none"
        )
    q, k = (torch.from_numpy(bundle.arrays[f"{start}.{site}"].astype("float64")) for site in ("q", "k"))
    heads = len(q)
    keys = torch.tensor(card.real)
    queries = keys if q.shape[1] == len(keys) else torch.tensor([True])
    planes = umap_plane(q[head, queries], k[head * len(k) // heads, keys], seed)
    embedding: dict[str, Any] = {"id": card.id, "layer": layer, "head": head}
    for name, points, real in zip(("q", "k"), planes, (queries, keys), strict=True):
        rows = iter(points.tolist())
        embedding[name] = [next(rows) if there else None for there in real.tolist()]
    return embedding


def _captured(address: Address) -> tuple[Any, ...]:
    """Return the parts of an address that a bundle depends on."""
    return (
        address.model,
        address.pretrained,
        address.inputs,
        address.n,
        address.seed,
        address.index,
        address.window,
    )


def _key(address: Address) -> str:
    return f"0.{address.layer}.{address.head}.{'all' if address.token is None else address.token}"


def _seen(address: Address, bundle: Bundle) -> dict[str, str]:
    """Return where the page opens for a view and a metric."""
    traits = {"tab": _TAB_OF_VIEW.get(address.view, "matrix")}
    if address.view == "trajectory":
        traits["depth"] = "tokens"
    if address.metric != type(address).metric:
        chosen = measure(address.metric)
        starts = chosen.metric, f"{chosen.analysis}/{chosen.metric}"
        traits["sort"] = next(
            (card.name for card in bundle.header.metrics if card.name.startswith(starts)), ""
        )
    return traits
