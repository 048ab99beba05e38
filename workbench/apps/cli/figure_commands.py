"""Commands that draw: notebooks rendered, figures drawn again, the explorer."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from workbench.apps.cli.printing import check_out, print_table
from workbench.apps.cli.shared_options import (
    BUNDLED_NOTEBOOK,
    FORMATS,
    INPUTS,
    MODEL,
    NOTEBOOK,
    WIDTH,
    Finite,
    analysis_option,
    device_option,
    inputs_or_texts,
    json_option,
    number_option,
    out_file,
    out_folder,
    restart_option,
    text_option,
    theme_option,
    trust_models,
    trust_option,
    workers_option,
)
from workbench.core.errors import MissingResource


@click.command()
@out_file("File of the page: .html. [default: a new folder for temporary files]")
@click.option("--no-browser", is_flag=True, help="Print the address instead of opening a browser.")
def demo(out: str | None, no_browser: bool) -> None:
    """Show every head of a bundled model on digits, in one page. It needs no network.

    \b
    workbench demo
    """
    import tempfile
    import webbrowser
    from pathlib import Path

    from workbench.apps.demo import write_demo

    check_out(out, "the demo is", ".html")
    page = write_demo(out or Path(tempfile.mkdtemp(prefix="workbench-")) / "demo.html").resolve()
    opened = not no_browser and webbrowser.open(page.as_uri())
    click.echo(f"Every head of the model is in {page}" + ("" if opened else ": open it in a browser"))


@click.command()
@click.argument("names", nargs=-1, metavar="[NOTEBOOK]...", type=BUNDLED_NOTEBOOK)
@json_option
def notebooks(names: tuple[str, ...], as_json: bool) -> None:
    """List the figure notebooks, with their parameters and defaults.

    \b
    workbench notebooks gram_spectra
    """
    from workbench.apps.rendering.notebooks import read_notebook
    from workbench.core.paths import bundled_notebooks

    rows = []
    bundled = bundled_notebooks()
    for name in names or bundled:
        notebook = read_notebook(bundled[name])
        defaults = notebook.filled({})
        parameters = (
            defaults if as_json else " ".join(f"{name}={value!r}" for name, value in defaults.items())
        )
        rows.append({"notebook": notebook.name, "title": notebook.title, "parameters": parameters})
    print_table(rows, "Figure notebooks (`workbench render NOTEBOOK -p KEY VALUE` sets a parameter)", as_json)


@click.command()
@click.argument("notebooks", nargs=-1, metavar="[NOTEBOOK]...", type=NOTEBOOK)
@click.option("-p", "--parameters", "typed", nargs=2, multiple=True, metavar="KEY VALUE",
              help="A parameter of the notebooks, read as its default says. May be repeated.")  # fmt: skip
@click.option("-m", "--model", type=MODEL, metavar="SPEC", help="Short for -p model SPEC.")
@click.option("-i", "--inputs", type=INPUTS, metavar="SPEC", help="Short for -p inputs SPEC.")
@click.option("-r", "--parameters-raw", "raw", nargs=2, multiple=True, metavar="KEY VALUE",
              help="A parameter whose value is the text itself. May be repeated.")  # fmt: skip
@click.option("-f", "--parameters-file", "file", type=click.Path(dir_okay=False), metavar="FILE",
              help="Parameters from a YAML file.")  # fmt: skip
@click.option(
    "-y", "--parameters-yaml", "yaml", metavar="YAML", help="Parameters as YAML: '{n: 3, seed: 1}'."
)
@click.option("--preset", type=click.Choice(["quick", "default", "paper"]), default="default", show_default=True,
              help="Seconds; minutes; the papers' models and sample sizes.")  # fmt: skip
@click.option("--formats", type=FORMATS, metavar="LIST", default="pdf,svg,png,html", show_default=True,
              help="Formats to export, separated by commas.")  # fmt: skip
@theme_option
@click.option("--font", metavar="NAME", help="The font of all figures.  [default: Arial]")
@click.option("--letters", metavar="FIRST", help="How panel letters are written: '(a)'.  [default: a]")
@device_option
@trust_option
@out_folder("The folder of the gallery.", default="figures", show_default=True)
@workers_option
@restart_option
@click.option(
    "--check",
    is_flag=True,
    help="Render nothing: list device, weights and data, and which of them are missing.",
)
@json_option
def render(
    notebooks: tuple[str, ...],
    typed: tuple[tuple[str, str], ...],
    model: str | None,
    inputs: str | None,
    raw: tuple[tuple[str, str], ...],
    file: str | None,
    yaml: str | None,
    check: bool,
    as_json: bool,
    trust: bool,
    **options: Any,
) -> None:
    """Render figure notebooks into a gallery. Parameters are given as in papermill.

    Notebooks that are up to date are not rendered again, so the same command continues after an interruption.

    \b
    workbench render gram_spectra -p n 3 -p seed 1 --preset quick -o figures
    workbench render --preset paper --device cuda --check
    """
    from workbench.apps.rendering import render
    from workbench.apps.rendering.notebooks import parse_parameters, read_parameters, read_typed_parameters

    names = list(notebooks) or None
    typed += tuple((name, spec) for name, spec in (("model", model), ("inputs", inputs)) if spec)
    if trust:
        trust_models([value for _, value in (*typed, *raw)])
    parameters = parse_parameters(yaml, "--parameters-yaml") if yaml else {}
    parameters |= read_parameters(file) if file else {}
    parameters |= read_typed_parameters(names, typed) | dict(raw)
    if check:
        _print_needs(names, parameters, options["preset"], options["device"], as_json)
        return
    if as_json:
        raise click.UsageError("--json prints what --check finds; give both")
    if render(names, parameters=parameters, **options).failed:
        sys.exit(1)


def _print_needs(
    names: list[str] | None, parameters: dict[str, Any], preset: str, device: str | None, as_json: bool
) -> None:
    """Print the needs of a render; exit with status 3 if something is missing."""
    from workbench.apps.rendering.needs import MISSING, render_needs

    needs = render_needs(names, parameters=parameters, preset=preset, device=device)
    print_table([need._asdict() for need in needs], "Needed before rendering", as_json)
    missing = [need.name for need in needs if need.state == MISSING]
    if missing:
        click.echo(f"missing: {', '.join(missing)}", err=True)
        sys.exit(MissingResource.exit_code)


@click.command()
@click.argument("provenance", metavar="FIGURES/NAME.json", type=click.Path(dir_okay=False))
@out_folder("Keep the new figure in this folder.")
@click.option(
    "--trust", is_flag=True, help="Run the notebook that the file names, even if it is not bundled."
)
def reproduce(provenance: str, out: str | None, trust: bool) -> None:
    """Draw a figure again from its provenance, and compare both.

    \b
    workbench reproduce figures/gram_spectra.json
    """
    from workbench.apps.rendering import reproduce

    outcome = reproduce(provenance, out=out, trust=trust)
    click.echo(str(outcome))
    if not outcome.same:
        sys.exit(1)


@click.command()
@click.argument("figures", nargs=-1, required=True, metavar="FIGURE...", type=click.Path(dir_okay=False))
def cite(figures: tuple[str, ...]) -> None:
    """Print BibTeX of a figure's software, models, data and papers.

    \b
    workbench cite figures/gram_spectra.json
    """
    from workbench.papers.references import cite

    click.echo(cite(figures), nl=False)


@click.command()
@click.argument("figures", nargs=-1, required=True, metavar="FIGURE...", type=click.Path(dir_okay=False))
@number_option("--columns", "Panels per row. [default: 2 if the figures are half as wide as the page]")
@click.option(
    "--width",
    type=WIDTH,
    metavar="INCHES|NAME",
    help="Width of the whole, 5.5 or a venue's name. [default: a page of the figures' venue]",
)
@out_file("File of the new figure: .pdf, .svg, .png or .html.", required=True)
def combine(figures: tuple[str, ...], columns: int | None, width: str | float | None, out: str) -> None:
    """Combine saved figures into one, as panels with letters. Nothing is scaled.

    \b
    workbench combine a.figure.json b.figure.json -o ab.pdf
    """
    from workbench.core.files import check_writable
    from workbench.figures.export import combine

    check_writable(out)
    combine(figures, out, columns=columns, width=width)
    if not os.path.isfile(out):
        raise MissingResource(f"{out} was not printed; the other files of the figure were written")
    click.echo(f"{len(figures)} figures combined in {out}")


@click.command()
@click.argument("figure", required=False, type=click.Path(dir_okay=False), metavar="[FIGURE]")
@click.option("--app", is_flag=True, help="Only the explorer, as a page (voila).")
@click.option(
    "--save",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write all heads on one input as a page that opens anywhere, or a picture of it (.png).",
)
@click.option(
    "--cards",
    type=click.IntRange(1),
    metavar="NUMBER",
    help="With --save: add a card of each head over this number of inputs.",
)
@click.option(
    "--view",
    metavar="FRAGMENT",
    help='With --save: the view, "#layer=2&head=1&picture=heads"; "Export" on a page gives it.',
)
@click.option(
    "-m", "--model", type=MODEL, metavar="SPEC", help="With --save: the model. [default: bundled:digits-vit]"
)
@click.option(
    "-i",
    "--inputs",
    type=INPUTS,
    metavar="SPEC",
    help="With --save: the source of the input. [default: bundled inputs]",
)
@text_option
@click.option(
    "--index",
    type=click.IntRange(0),
    metavar="NUMBER",
    help="With --save: which of the inputs. [default: 0; all of several --text]",
)
@device_option
@trust_option
@click.option(
    "--max-size",
    type=Finite(0.1),
    metavar="MB",
    help="With --save: layers that do not fit are left out, evenly. [default: 16]",
)
@click.option(
    "--generate",
    type=click.IntRange(1, 256),
    metavar="NUMBER",
    help="With --save: number of tokens that a language model generates, to step through.",
)
@click.option(
    "--checkpoints",
    is_flag=True,
    help="With --save: all checkpoints of the model, with a slider through training.",
)
@analysis_option("With --save: an analysis whose results for heads and layers are added. May be repeated.")
@theme_option
@click.option("--port", type=click.IntRange(1, 65535), metavar="PORT",
              help="Port of the server. [default: the first free one from 8888; 8866 with --app]")  # fmt: skip
@click.option("--no-browser", is_flag=True, help="Print the address instead of opening a browser.")
def explore(
    figure: str | None,
    app: bool,
    theme: str | None,
    port: int | None,
    no_browser: bool,
    save: str | None,
    cards: int | None,
    view: str | None,
    max_size: float | None,
    analyses: tuple[str, ...],
    generate: int | None,
    checkpoints: bool,
    device: str | None,
    texts: tuple[str, ...],
    trust: bool,
    **address: Any,
) -> None:
    """Open the explorer, in JupyterLab or as a page. A token guards both.

    FIGURE is a file of a saved figure (PNG, SVG, PDF, HTML, JSON or CSV), or an address that a page gave: the explorer
    opens at the model, inputs, layer and head that it shows.

    \b
    workbench explore figures/gram_spectra.png --app --theme talk
    workbench explore --save attention.html -m bundled:digits-vit -i bundled:digits --index 3
    """
    address["inputs"] = inputs_or_texts(address["inputs"], texts)
    if trust:
        trust_models(address["model"])
    location = {name: value for name, value in address.items() if value is not None}
    if save is not None:
        indices = None
        if len(texts) > 1 and "index" not in location:
            indices, location["n"] = range(len(texts)), len(texts)
        _save_explorer(
            save,
            figure,
            location,
            indices,
            max_size,
            analyses,
            generate or 0,
            device,
            checkpoints,
            view or "",
            cards or 0,
        )
        return
    sizes = max_size, generate, view, cards
    if location or analyses or device or checkpoints or any(value is not None for value in sizes):
        raise click.UsageError(
            "--model, --inputs, --text, --index, --device, --analysis, --checkpoints, --generate, --max-size, "
            "--cards and --view need --save: add --save FILE.html"
        )
    from workbench.apps.explorer.launch import open_explorer, open_page

    sys.exit((open_page if app else open_explorer)(figure, port=port, browser=not no_browser, theme=theme))


def _save_explorer(
    path: str,
    figure: str | None,
    location: dict[str, Any],
    indices: Sequence[int] | None,
    megabytes: float | None,
    analyses: Sequence[str],
    generate: int,
    device: str | None,
    checkpoints: bool,
    view: str,
    cards: int,
) -> None:
    """Write the page of a location: that of a saved figure, updated by the options."""
    from workbench.apps.explorer import Explorer
    from workbench.apps.explorer.address import address_of_figure
    from workbench.apps.explorer.explorer import with_weights
    from workbench.apps.explorer.page import LIMIT_MB

    if "index" in location:
        location["n"] = location["index"] + 1
    figure_address = {} if figure is None else address_of_figure(figure)
    explorer = Explorer.at({**figure_address, **with_weights(location)}, device=device)
    limit = LIMIT_MB if megabytes is None else megabytes
    if path.lower().endswith(".png"):
        click.echo(explorer.save_picture(path, view, analyses))
        return
    written = explorer.save_html(
        path,
        limit_mb=limit,
        indices=indices,
        analyses=analyses,
        generate=generate,
        checkpoints=checkpoints,
        view=view,
        cards=cards,
    )
    click.echo(f"{written} ({written.stat().st_size / 1e6:.1f} MB): open it in a browser")
