"""The explorer as an object: an address, and what can be drawn, read and taken away there."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

from workbench.apps.explorer import code
from workbench.apps.explorer.address import Address, plain_address
from workbench.apps.explorer.bundle import ANALYSES
from workbench.apps.explorer.material import Material, models_to_choose, where
from workbench.apps.explorer.measures import measurable, measure
from workbench.apps.explorer.page import LIMIT_MB, LIVE_MB, save_page
from workbench.apps.explorer.views import view, without_attention
from workbench.core.errors import InputError
from workbench.core.options import ranges

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from workbench.apps.explorer.widget import PageWidget
    from workbench.models.loading import LoadedModel


ALL = "all"  # instead of a token: all queries alike, of an image too


class Explorer:
    """Look inside a model: one cell, ``Explorer()``, and a person sees what every head attends to.

    In a notebook it shows the page (`page`). Every action there is also a method: `move` changes the view
    (``explorer.layer = 3`` does, too), `observe` hears what the page is moved to, `figure` draws a view, `save`, `code`
    and `command` export it, and `address` is a small dict that opens the same view again: ``Explorer.at(saved)``.
    """

    def __init__(
        self,
        model: str | LoadedModel = "bundled:digits-vit",
        inputs: str | Sequence[Any] | None = None,
        n: int | None = None,
        seed: int = 0,
        index: int = 0,
        layer: int = -1,
        head: int = 0,
        token: int | Literal["all"] | None = None,
        view: str = "attention",
        metric: str = "attention_entropy",
        against: Mapping[str, Any] | str | None = None,
        pretrained: bool = True,
        window: int = 0,
        device: str | None = None,
    ) -> None:
        """Set up an explorer; models load, and wrong values are reported, at the first view.

        Args:
            model: any model spec, or what `workbench.load` or `workbench.wrap` returned.
            inputs: any inputs spec, or a list of texts or images; None is what is bundled for the model's kind.
            n: inputs to choose from: 8 by default, or all of a list.
            seed: of their choice.
            index: which of them.
            layer: from 0, or from the end where negative.
            head: also.
            token: the token in question; "all" is the mean over queries; None is the class token of an image, and
                all queries of a text.
            view: one of `workbench.apps.explorer.VIEWS`.
            metric: orders the heads, one of `workbench.apps.explorer.MEASURES`.
            against: the address of a pinned view, or its JSON, for ``view="compare"``.
            pretrained: False looks at the model's architecture with random weights.
            window: of a long text, as `workbench.inputs` takes it.
            device: where the model runs, as `workbench.load` takes it; no part of the address.

        Raises:
            InputError: a value of the wrong kind, or an unknown view or metric.
        """
        self.material = Material(device=device)
        if n is None:
            n = len(inputs) if isinstance(inputs, list | tuple) else 8
        model, inputs = self._names(model), self._names(inputs)
        self.requested = Address(
            model, inputs, n, seed, index, layer, head, None if token == ALL else token, view, metric,
            against=None if against is None else Address.from_dict(plain_address(against)), pretrained=pretrained,
            window=window,
        )  # fmt: skip
        _check_names(self.requested)
        self._choose_token = token is None
        # If false, a saved page opens at the most striking head.
        self._placed = (layer, head, token) != (-1, 0, None)
        self._resolved: Address | None = None
        self._pages: WeakSet[PageWidget] = WeakSet()
        self._shown: PageWidget | None = None

    @classmethod
    def at(cls, address: Mapping[str, Any] | str, device: str | None = None) -> Explorer:
        """Open a saved address, a dict or its JSON, on a device; raises as `Address.from_dict` does."""
        plain = plain_address(address)
        parts = Address.from_dict(plain).to_dict()
        if "token" in plain and plain["token"] is None:
            parts["token"] = ALL
        return cls(**parts, device=device)

    @property
    def location(self) -> Address:
        """Return the complete address: inputs named, numbers from 0, a token where one stands for the input."""
        if self._resolved is None:
            self._resolved = self.after({})
        return self._resolved

    @property
    def address(self) -> dict[str, Any]:
        """Return the address as a small dict that can be saved: ``Explorer.at(address)`` opens it again."""
        return self.location.to_dict()

    def move(self, **changes: Any) -> Explorer:
        """Look elsewhere: any part of the address, ``move(layer=2, head=1)``; the rest follows where it must.

        Another model brings inputs of its kind and its last layer; another input its class token. Pages of this
        explorer follow.

        Raises `InputError` for what does not exist; then nothing has moved.
        """
        self._resolved = self.after(changes)
        self._placed = self._placed or not {"layer", "head", "token"}.isdisjoint(changes)
        for page in self._pages:
            page.follow(self._resolved)
        return self

    @property
    def layer(self) -> int:
        """Return the current layer; setting it moves the explorer and its pages."""
        return self.location.layer

    @layer.setter
    def layer(self, number: int) -> None:
        self.move(layer=number)

    @property
    def head(self) -> int:
        """Return the current head; setting it moves the explorer and its pages."""
        return self.location.head

    @head.setter
    def head(self, number: int) -> None:
        self.move(head=number)

    @property
    def token(self) -> int | None:
        """Return the current token, None for all queries; setting it moves the explorer and its pages."""
        return self.location.token

    @token.setter
    def token(self, number: int | None) -> None:
        self.move(token=number)

    def _names(self, value: Any) -> Any:
        """Return the name of a loaded model or of a list of inputs, which are kept; other values as they are."""
        if isinstance(value, list | tuple):
            return self.material.list_inputs(value)
        return self.material.hold_model(value) if hasattr(value, "modality") else value

    def after(self, changes: Mapping[str, Any], address: Address | None = None) -> Address:
        """Return the address after changes, from here or from another address; raise as `move` does."""
        named = {name: self._names(changes[name]) for name in ("model", "inputs") if name in changes}
        changes = {**changes, **named}
        if address is not None:
            return moved(address, self.material, changes)
        if self._resolved is None:
            requested = Address.from_dict({**self.requested.to_dict(), **with_weights(changes)})
            return resolve(requested, self.material, first=self._choose_token and "token" not in changes)
        return moved(self._resolved, self.material, changes)

    def take(self, address: Address) -> None:
        """Take over the address of a page, a result of `moved` or `resolve`."""
        before, self._resolved = self._resolved, address
        if before is not None and before.place != address.place:
            self._placed = True

    # ---------------------------------------------------------------------------------------------------- draw

    def figure(self, view_name: str | None = None) -> go.Figure:
        """Draw the chosen view, or another; raise `InputError` where it does not apply."""
        return view(view_name or self.location.view).draw(self.location, self.material)

    def interpretation(self) -> str:
        """Return one sentence on the view, computed from its numbers."""
        address = self.location
        return (
            f"{where(address, self.material)}: {view(address.view).read(address, self.material)}"
            + without_attention(address, self.material)
        )

    # ------------------------------------------------------------------------------------- take away, and show

    def code(self) -> str:
        """Return lines of Python that draw this view with the library only."""
        return self.code_at(self.location)

    def code_at(self, address: Address) -> str:
        """Return the lines of Python of another address."""
        return code.script(view(address.view).lines(address, self.material))

    def command(self) -> str:
        """Return the command that draws and saves this view."""
        return code.command(self.location)

    def save(self, name: str = "explorer", out: str | os.PathLike[str] | None = None) -> go.Figure:
        """Save the view as a figure with its data and provenance, and return it (see `workbench.save_figure`)."""
        return self.save_at(self.location, name, out)

    def save_at(self, address: Address, name: str, out: str | os.PathLike[str] | None = None) -> go.Figure:
        """Save the view of another address."""
        from workbench.figures.export import save_figure
        from workbench.figures.frames import short_name
        from workbench.figures.words import sentences as split_sentences

        chosen_view = view(address.view)
        numbers = chosen_view.numbers(address, self.material)
        numbers.attrs.setdefault("provenance", [self._provenance(address)])
        here = where(address, self.material)
        pinned = [address.against] if chosen_view.name == "compare" and address.against is not None else []
        heads = [
            (view_address.model, where(view_address, self.material)) for view_address in (*pinned, address)
        ]
        places = [f"{model}, {at[0].lower()}{at[1:]}" for model, at in heads]
        if len({place.rpartition(", ")[2] for place in places}) < len(places):  # one input for both
            places[0] = places[0].rpartition(", ")[0]
        named = " and ".join(places)
        sentences = chosen_view.read(address, self.material) + without_attention(address, self.material)
        if "patch (" in sentences.lower():
            sentences += " Patches: (row, column), from 0."
        finding, *rest = split_sentences(sentences)
        if not pinned:  # a comparison names both models
            finding = f"In {short_name(address.model)}, {finding[0].lower()}{finding[1:]}"
        return save_figure(
            chosen_view.draw(address, self.material), name, data=numbers, width="page", out=out,
            caption=" ".join([f"**{finding}** {chosen_view.caption}: {named}.", *rest]),
            alt=f"{chosen_view.title}, {chosen_view.hint.partition(';')[0]}: {here}.",
            parameters=address.to_dict(),
        )  # fmt: skip

    def save_html(
        self,
        path: str | os.PathLike[str],
        layers: Sequence[int] | None = None,
        limit_mb: float = LIMIT_MB,
        indices: Sequence[int] | None = None,
        ablations: bool | None = None,
        analyses: Sequence[str] = (),
        generate: int = 0,
        checkpoints: bool = False,
        view: str = "",
        cards: int = 0,
    ) -> Path:
        """Write all heads on this input as one page that opens from a disk, without a kernel and without a network.

        It holds the input itself, and warns before it writes your own. ``layers`` chooses some; without it
        those are taken that fit into ``limit_mb``. ``indices`` takes several of the inputs.
        ``ablations`` runs the model again without each head in turn; None does so where that is a matter of seconds.
        ``analyses`` are registered ones ("gram-spectrum") whose numbers of heads and layers the page shows besides.
        ``generate`` has a language model continue its texts by that number of tokens: the page steps through them,
        each with the attention that chose it. ``checkpoints`` takes all of a bundled model or a training run: a slider
        goes through training. The page opens at the most striking head and token, unless a layer, head or token was
        chosen, or at ``view``, the fragment of a page's address. ``cards`` adds a card of each
        head over that number of inputs: strongest links, stability of patterns, plane of queries and keys, singular
        values. Raises the errors of
        `workbench.apps.explorer.page.save_page`.
        """
        return save_page(
            path,
            self.location,
            self.material,
            layers,
            limit_mb,
            indices,
            ablations,
            analyses,
            generate=generate,
            placed=self._placed,
            checkpoints=checkpoints,
            view=view,
            cards=cards,
        )

    def save_picture(
        self, path: str | os.PathLike[str], view: str = "", analyses: Sequence[str] = ()
    ) -> Path:
        """Save a part of the page as PNG, drawn by Chrome exactly as the page draws it.

        "Export" on the page writes the call for the view that is shown. ``view`` is the fragment of its address, with
        the part and the page's size: "#layer=2&head=1&token=5,9&scale=log&picture=heads&size=1440x900". The parts are
        head, heads, tab and depth. ``analyses`` are those of `save_html`. Raises the errors of `save_html`, and
        `MissingResource` without Chrome.
        """
        return save_page(path, self.location, self.material, limit_mb=LIVE_MB, analyses=analyses, view=view)

    def page(
        self,
        layers: Sequence[int] | None = None,
        ablations: bool | None = None,
        wait: bool = True,
        **settings: Any,
    ) -> PageWidget:
        """Show all heads on this input as a widget in a notebook: the page of `save_html`, with a kernel.

        Everything that a person sets there is a trait: ``page.layer = 3`` moves it, ``page.observe`` tells where it was
        moved to, and ``page.index = 3`` takes another input. ``settings`` are such traits, ``height`` in pixels and
        ``talk`` (everything larger; by default where ``WORKBENCH_THEME`` is "talk"); ``layers`` takes some layers only,
        ``ablations`` is that of `save_html`. With ``wait=False`` it is there at once, and says itself how far it is.
        """
        from workbench.apps.explorer.widget import PageWidget
        from workbench.figures.theme import find_theme

        analysis = measure(self.requested.metric).analysis
        traits = {
            "models": models_to_choose(),
            "measures": measurable(),
            "umap": find_spec("umap") is not None,
            "talk": find_theme(None).name == "talk",
        }
        page = PageWidget(
            None, self, layers, ablations, [] if analysis in ANALYSES else [analysis], **traits | settings
        )
        if wait:
            page.move()
        else:
            page.start()
        self._pages.add(page)
        return page

    def observe(self, handler: Callable[[Any], object], names: Any = "layer") -> None:
        """Call ``handler(change)`` when the page of this explorer is moved: a trait of `PageWidget`, or several."""
        self._own_page().observe(handler, names=names)

    def _own_page(self) -> PageWidget:
        """Return the page that the explorer shows as the last line of a cell."""
        if self._shown is None:
            self._shown = self.page(wait=False)
        return self._shown

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self._own_page()._repr_mimebundle_(**options)

    def _provenance(self, address: Address) -> dict[str, Any]:
        from workbench.frames.provenance import versions

        sample = self.material.one(address)
        return {
            "analysis": f"explorer: {address.view}",
            "model": self.material.model(address).identity,
            "inputs": sample.identity,
            "seed": address.seed,
            "notes": [*sample.notes],
            "versions": versions(),
        }


def resolve(address: Address, material: Material, first: bool = False) -> Address:
    """Return the address complete and checked: every name exists, every number is in range.

    With ``first`` a missing token becomes the class token of an image, which a person looks at first.

    Raises `InputError` for what does not exist, and what `workbench.load` and `workbench.inputs` raise.
    """
    _check_names(address)
    address = address.moved(inputs=address.inputs or material.default_inputs(address))
    layers_of_model = material.whole_outline(address)
    for mixes in (layer for layer in layers_of_model if layer.mixer and layer.index == address.layer):
        others = ranges([layer.index for layer in layers_of_model if not layer.mixer])
        raise InputError(
            f"layer {mixes.index} of {address.model} is a {mixes.mixer}, which has no attention to look at; layers "
            f"with attention: {others}"
        )
    layers = {layer.index: layer for layer in layers_of_model if not layer.mixer}
    layer = _check("layer", address.layer, sorted(layers), address.model)
    head = _check("head", address.head, range(layers[layer].heads), f"layer {layer} of {address.model}")
    token = address.token
    if first and token is None:
        token = _first_token(address, material)
    sample = material.one(address)
    tokens = sample.tokens
    count = max(len(kinds.labels[0]) for kinds in (tokens, *tokens.streams.values()))
    if token is not None and not 0 <= token < count:
        raise InputError(f"there is no token {token}: input {address.index} has {count}, counted from 0")
    return address.moved(layer=layer, head=head, token=token, window=max(sample.windows, default=0))


def _check_names(address: Address) -> None:
    """Raise `UnknownName` for a view or metric that does not exist."""
    view(address.view)
    measure(address.metric)


def with_weights(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes of an address: another model has its trained weights, unless they say otherwise."""
    return {**({"pretrained": True} if "model" in changes else {}), **changes}


def moved(address: Address, material: Material, changes: Mapping[str, Any]) -> Address:
    """Return `address` after changes and their consequences: matching inputs, an existing layer and head."""
    target = Address.from_dict({**address.to_dict(), **with_weights(changes)})
    if target.model != address.model:
        if "inputs" not in changes and material.model(target).modality != material.model(address).modality:
            target = target.moved(inputs=None)
        target = target.moved(layer=changes.get("layer", -1), head=changes.get("head", 0))
        if "inputs" not in changes and target.inputs is not None:
            fitting = material.default_inputs(target)
            if address.inputs == material.default_inputs(address):
                target = target.moved(inputs=fitting)
    if target.inputs != address.inputs or target.model != address.model:
        target = target.moved(index=changes.get("index", 0))
    if (target.inputs, target.model, target.index) != (address.inputs, address.model, address.index):
        target = target.moved(window=changes.get("window", 0))
    if target.layer != address.layer and "head" not in changes:
        heads = {layer.index: layer.heads for layer in material.outline(target)}
        target = target.moved(head=min(target.head, max(heads.get(target.layer, 1), 1) - 1))
    same_input = (target.model, target.inputs, target.index, target.seed, target.n, target.window) == (
        address.model, address.inputs, address.index, address.seed, address.n, address.window
    )  # fmt: skip
    if not same_input and "token" not in changes:
        return resolve(target.moved(token=None), material, first=True)
    return resolve(target, material)


def _check(kind: str, number: int, numbers: Any, whose: str) -> int:
    numbers = list(numbers)
    if not numbers:
        raise InputError(f"{whose} has no {kind} to look at")
    index = numbers[number] if -len(numbers) <= number < 0 else number
    if index not in numbers:
        raise InputError(f"no {kind} {number} in {whose}; there are {numbers[0]} to {numbers[-1]}")
    return index


def _first_token(address: Address, material: Material) -> int | None:
    sample = material.one(address)
    kinds = sample.tokens.kinds[0]
    return kinds.index("class") if sample.images and "class" in kinds else None
