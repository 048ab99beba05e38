"""The explorer: model, input, layer, head → attention over the image or the text, and the layer's spectrum.

The widgets hold what is chosen; every picture comes from the same functions as the figure notebooks.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import InputError, WorkbenchError

if TYPE_CHECKING:
    import ipywidgets
    import pandas as pd
    import plotly.graph_objects as go
    from jaxtyping import Float
    from torch import Tensor

    from workbench.batches import Inputs
    from workbench.models import LoadedModel
    from workbench.recording import Capture, TokenInfo

_INPUTS = {"image": ("bundled:digits", "bundled:photos"), "text": ("bundled:prose",)}
_ALL = "all queries"


class Explorer:
    """Look inside one layer at a time.

    ``view()`` draws the chosen state as two figures; ``widget()`` puts the controls around them. What a control
    asks for is computed once and kept: a model per name, a capture per input, a spectrum per input.
    """

    def __init__(
        self,
        model: str = "bundled:digits-vit",
        inputs: str | None = None,
        n: int = 8,
        seed: int = 0,
        layer: int = -1,
        head: int = 0,
    ) -> None:
        self.n, self.seed = n, seed
        self._load = lru_cache(maxsize=4)(self._load)
        self._capture = lru_cache(maxsize=32)(self._capture)
        self._spectra = lru_cache(maxsize=32)(self._spectra)
        self.choose_model(model, inputs)
        self.layer = self._check("layer", layer, self.layers)
        self.head = self._check("head", head, self.heads)

    # ------------------------------------------------------------------------------------------------ state

    def choose_model(self, model: str, inputs: str | None = None) -> None:
        """Take another model, with inputs it accepts; raises as `workbench.load` and `workbench.inputs` do."""
        loaded = self._load(model)
        if loaded.modality not in _INPUTS:
            raise InputError(
                f"{model} takes neither pictures nor texts alone, and the explorer shows those; hand "
                "workbench.capture a dict of tensors of your own"
            )
        chosen = inputs or _INPUTS[loaded.modality][0]
        batch = self._feed(loaded, chosen)
        self.model, self.loaded, self.inputs, self.batch = model, loaded, chosen, batch
        self.choose_input(0)
        capture = self.capture
        self.layers = [record.index for record in capture if record.kind == "token" and record.origin is None]
        if not self.layers:
            raise InputError(
                f"{model} has no layer whose attention runs over all tokens; the explorer has none to show"
            )
        self.layer = self.layers[-1]
        self.head = 0

    def choose_inputs(self, inputs: str) -> None:
        """Take other inputs for the same model."""
        self.batch = self._feed(self.loaded, inputs)
        self.inputs = inputs
        self.choose_input(0)

    def choose_input(self, index: int) -> None:
        """Take another of the inputs; the query becomes the class token of an image, all queries of a text."""
        self.index = index
        kinds = self.batch.tokens.kinds[index]
        self.query = kinds.index("class") if self.batch.images and "class" in kinds else None

    @property
    def capture(self) -> Capture:
        """All layers' attention on the chosen input."""
        return self._capture(self.model, self.inputs, self.index)

    @property
    def heads(self) -> list[int]:
        """Heads of the chosen layer."""
        return list(range(self.attn.shape[0]))

    @property
    def attn(self) -> Float[Tensor, "head query key"]:
        """Attention weights of the chosen layer on the chosen input."""
        held = self.capture[self.layer].attn
        assert held is not None  # it is the one site that is captured
        return held[0]

    @property
    def tokens(self) -> TokenInfo:
        """Labels and kinds of the chosen input's tokens; which are real."""
        held = self.capture.tokens
        assert held is not None  # inputs always come with their tokens
        return held

    @property
    def queries(self) -> list[tuple[str, int | None]]:
        """(label, index) of every query that can be chosen, and all of them where no class token stands for them."""
        tokens = self.tokens
        real = [i for i, here in enumerate(tokens.mask[0].tolist()) if here]
        if self.attn.shape[1] == 1:  # class attention asks for the class token only
            real = real[:1]
        one_by_one: list[tuple[str, int | None]] = [(f"{i} · {tokens.labels[0][i]}", i) for i in real]
        return one_by_one if self.batch.images and "class" in tokens.kinds[0] else [(_ALL, None), *one_by_one]

    def _check(self, kind: str, number: int, known: list[int]) -> int:
        place = known[number] if -len(known) <= number < 0 else number
        if place not in known:
            raise InputError(f"no {kind} {number} in {self.model}; there are {known[0]} to {known[-1]}")
        return place

    def _load(self, model: str) -> LoadedModel:
        from workbench.models import load

        return load(model)

    def _feed(self, loaded: LoadedModel, inputs: str) -> Inputs:
        from workbench.batches import inputs as choose

        return choose(inputs, loaded, n=self.n, seed=self.seed)

    def _capture(self, model: str, inputs: str, index: int) -> Capture:
        from workbench.recording import capture

        return capture(self._load(model), self.batch[index : index + 1], sites=("attn",))

    def _spectra(self, model: str, inputs: str, index: int) -> pd.DataFrame:
        from workbench.pipeline import analyze

        return analyze("gram-spectrum", model=self._load(model), inputs=self.batch[index : index + 1])

    # ------------------------------------------------------------------------------------------------ figures

    def attention(self) -> go.Figure:
        """The chosen head's attention over the image or the text."""
        from workbench.figures import attention_heatmap_figure

        image = self.batch.images[self.index] if self.batch.images else None
        return attention_heatmap_figure(
            self.capture, layers=[self.layer], heads=[self.head], image=image, query=self.query
        )

    def spectra(self) -> pd.DataFrame:
        """Gram spectra of every layer on the chosen input, for the head's keys."""
        frame = self._spectra(self.model, self.inputs, self.index)
        keys = frame["head"].nunique()
        own = self.head * keys // len(self.heads)  # grouped queries: several heads read the same keys
        return frame[frame["head"] == own]

    def spectrum(self) -> go.Figure:
        """The chosen head's spectrum in every layer, the chosen layer drawn thick."""
        from workbench.figures import spectrum_figure

        fig = spectrum_figure(self.spectra(), bands="none")
        for trace in fig.data:
            chosen = trace.name == f"layer {self.layer}"
            trace.update(line={"width": 3 if chosen else 1}, opacity=1 if chosen else 0.55)
        return fig

    def view(self) -> go.Figure:
        """Both pictures as one plate, fit to be saved."""
        from workbench.figures import plate

        return plate([self.attention(), self.spectrum()], columns=2)

    def reading(self) -> str:
        """One sentence on what the view shows, computed from its numbers."""
        attn = self.attn[self.head].double()
        labels = self.tokens.labels[0]
        row = (
            attn[self.tokens.mask[0]].mean(0) if self.query is None else attn[min(self.query, len(attn) - 1)]
        )
        top = int(row.argmax())
        whose = _ALL if self.query is None else f"query {labels[self.query]!r}"
        frame = self.spectra()
        rank = frame[(frame["metric"] == "rank_90") & (frame["layer"] == self.layer)]["value"].iloc[0]
        return (
            f"Layer {self.layer}, head {self.head}, {self.batch.ids[self.index]}: the most attended token "
            f"(of {whose}) is {labels[top]!r} with {row[top]:.1%} of the attention; "
            f"{rank:.0f} eigenvalues hold 90 % of the spectrum."
        )

    def save(self, name: str = "explorer", out: str | os.PathLike[str] | None = None) -> go.Figure:
        """Save the view as a figure with its data and provenance, and return it (see `workbench.save_figure`)."""
        from workbench.exporting import save_figure

        image = self.batch.ids[self.index]
        return save_figure(
            self.view(), name, data=self.spectra(), caption=self.reading(), width="page", out=out,
            alt=f"Attention of layer {self.layer}, head {self.head} of {self.model} on {image}, beside the eigenvalue "
            "spectrum of the head's keys in every layer.",
            parameters={
                "model": self.model, "inputs": self.inputs, "n": self.n, "seed": self.seed,
                "index": self.index, "layer": self.layer, "head": self.head, "query": self.query,
            },
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------------ widgets

    def widget(self) -> ipywidgets.Widget:
        """Controls and live figures, for JupyterLab."""
        return _Panel(self).box

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.widget()._repr_mimebundle_(**options)


class _Panel:
    """The controls of an explorer, and what follows when one of them moves."""

    def __init__(self, explorer: Explorer) -> None:
        import ipywidgets as widgets
        import plotly.graph_objects as go

        self.explorer = explorer
        self.busy = False
        wide = widgets.Layout(width="300px")
        style = {"description_width": "50px"}
        self.model = widgets.Combobox(
            value=explorer.model, options=_models_here(), description="model", layout=wide, style=style,
            continuous_update=False, placeholder="timm:NAME, hf:FOLDER, a name; then Enter",
        )  # fmt: skip
        self.inputs = widgets.Combobox(
            value=explorer.inputs, options=_INPUTS[explorer.loaded.modality], description="inputs", layout=wide,
            style=style, continuous_update=False, placeholder="bundled:NAME, images:FOLDER, text:FILE; then Enter",
        )  # fmt: skip
        self.index = widgets.Dropdown(description="input", layout=wide, style=style)
        self.layer = widgets.SelectionSlider(options=[0], description="layer", layout=wide, style=style)
        self.head = widgets.SelectionSlider(options=[0], description="head", layout=wide, style=style)
        self.query = widgets.Dropdown(description="query", layout=wide, style=style)
        self.name = widgets.Text(value="explorer", description="name", layout=wide, style=style)
        self.save = widgets.Button(
            description="Save figure", tooltip="PDF, SVG, PNG, HTML, the data and provenance"
        )
        self.message = widgets.HTML()
        # One figure for each kind of view: an image and a text differ in their axes, and what a figure in the
        # browser once had (an axis, a picture) stays when its layout is replaced.
        self.figures = {kind: go.FigureWidget() for kind in ("image", "text", "spectrum")}
        self.frames = {kind: widgets.Box([figure]) for kind, figure in self.figures.items()}
        pictures = widgets.HBox(list(self.frames.values()), layout=widgets.Layout(flex_flow="row wrap"))
        self._offer()
        for control, follow in (
            (self.model, self._model), (self.inputs, self._inputs), (self.index, self._index),
            (self.layer, self._layer), (self.head, self._head), (self.query, self._query),
        ):  # fmt: skip
            control.observe(lambda change, follow=follow: self._act(follow), names="value")
        self.save.on_click(lambda _: self._act(self._save))
        controls = [
            self.model,
            self.inputs,
            self.index,
            self.layer,
            self.head,
            self.query,
            self.name,
            self.save,
        ]
        grid = widgets.GridBox(controls, layout=widgets.Layout(grid_template_columns="repeat(3, 310px)"))
        self.box = widgets.VBox([grid, self.message, pictures])
        self._draw()

    def _act(self, follow: Any) -> None:
        """Carry out one change; what goes wrong is said in place, and the last good view stays."""
        if self.busy:
            return
        self.busy = True
        self.message.value = "…"
        try:
            follow()
        except WorkbenchError as error:
            self.message.value = f"<b style='white-space: pre-line'>{_escape(str(error))}</b>"
        finally:
            self.busy = False

    def _offer(self) -> None:
        """Bring the options of every control in line with the explorer's state."""
        explorer = self.explorer
        self.inputs.options = _INPUTS[explorer.loaded.modality]
        self.inputs.value = explorer.inputs
        _set(self.index, [(name, i) for i, name in enumerate(explorer.batch.ids)], explorer.index)
        _set(self.layer, explorer.layers, explorer.layer)
        _set(self.head, explorer.heads, explorer.head)
        # A dropdown shows a value of None as if nothing were chosen.
        _set(
            self.query,
            [(text, -1 if i is None else i) for text, i in explorer.queries],
            _number(explorer.query),
        )

    def _model(self) -> None:
        self.explorer.choose_model(self.model.value)
        self._offer()
        self._draw()

    def _inputs(self) -> None:
        self.explorer.choose_inputs(self.inputs.value)
        self._offer()
        self._draw()

    def _index(self) -> None:
        self.explorer.choose_input(self.index.value)
        self._offer()
        self._draw()

    def _layer(self) -> None:
        self.explorer.layer = self.layer.value
        self.explorer.head = min(self.explorer.head, len(self.explorer.heads) - 1)
        self._offer()
        self._draw()

    def _head(self) -> None:
        self.explorer.head = self.head.value
        self._draw()

    def _query(self) -> None:
        self.explorer.query = None if self.query.value < 0 else self.query.value
        self._draw()

    def _save(self) -> None:
        self.explorer.save(self.name.value)
        folder = Path(os.environ.get("WORKBENCH_OUT", "figures")).resolve()
        self.message.value = (
            f"saved {_escape(self.name.value)} (PDF, SVG, PNG, HTML, data) in {_escape(str(folder))}"
        )

    def _draw(self) -> None:
        from workbench.figures import apply_theme

        kind = self.explorer.loaded.modality
        for name, frame in self.frames.items():
            frame.layout.display = "flex" if name in (kind, "spectrum") else "none"
        for name, fig in ((kind, self.explorer.attention()), ("spectrum", self.explorer.spectrum())):
            themed = apply_theme(fig).update_layout(width=460, height=400)
            shown = self.figures[name]
            with shown.batch_update():
                shown.data = ()
                shown.layout = themed.layout
                shown.add_traces(themed.data)
        self.message.value = _escape(self.explorer.reading())


def _number(query: int | None) -> int:
    return -1 if query is None else query


def _set(control: Any, options: list[Any], value: Any) -> None:
    control.options = options
    control.value = value


def _models_here() -> list[str]:
    """Names whose weights are on this machine."""
    from workbench.models import list_models

    here = [row for row in list_models() if row["weights"] != "hub"]
    return [row["spec"] if row["weights"] == "bundled" else row["alias"] for row in here]


def _escape(text: str) -> str:
    import html

    return html.escape(text)
