"""Commands that list names, analyze and capture models, compare captures, and test claims."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from workbench.apps.cli.printing import (
    Tables,
    WithTables,
    check_out,
    option_rows,
    print_notes,
    print_table,
    records_of,
    write_csv,
)
from workbench.apps.cli.shared_options import (
    ANALYSIS,
    METRIC,
    PAPER,
    SITES,
    Finite,
    Settings,
    batch_size_option,
    count_option,
    device_option,
    dtype_option,
    inputs_option,
    inputs_or_texts,
    json_option,
    model_option,
    out_file,
    read_settings,
    run_settings,
    seed_option,
    set_option,
    text_option,
    trust_models,
    trust_option,
    written,
)

if TYPE_CHECKING:
    import pandas as pd

    from workbench.analyses.registry import Per

WARNED: set[str] = set()
"""Warnings that were printed; the same text is not printed again as a note."""


@click.command()
@json_option
def models(as_json: bool) -> None:
    """List the models that have a name here, and their weights.

    \b
    workbench models
    """
    from workbench.models.loading import list_models

    print_table(list_models(), "Models (any other timm or Hugging Face name is tried too)", as_json)


@click.command()
@json_option
def analyses(as_json: bool) -> None:
    """List the analyses: title, sites, options and their defaults.

    \b
    workbench analyses --json
    """
    from workbench.analyses.registry import ANALYSES

    rows = [
        {
            "analysis": analysis.name,
            "title": analysis.title,
            "per": ", ".join(str(entry.per) for entry in analysis.finer),
            "sites": ", ".join(analysis.sites) or "none (it reads weights)",
            "options": " ".join(
                f"{key}={written(option.default)}" for key, option in analysis.options.items()
            ),
        }
        for analysis in ANALYSES.values()
    ]
    print_table(rows, "Analyses (`workbench analyze NAME --help` describes the options)", as_json)


@click.command()
@click.argument("names", nargs=-1, metavar="[METRIC]...", type=METRIC)
@json_option
def metrics(names: tuple[str, ...], as_json: bool) -> None:
    """List the metrics of results: unit, range, definition, source.

    \b
    workbench metrics attention_entropy
    """
    from workbench.frames.metric import METRICS

    rows = [
        {
            "metric": metric.name,
            "unit": metric.unit,
            "range": f"{metric.low:g} … {metric.high:g}",
            "definition": metric.definition,
            "source": metric.source,
        }
        for metric in METRICS.values()
        if not names or metric.name in names
    ]
    print_table(rows, "Metrics", as_json)


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Check this machine: Chrome, devices, hub, cache and versions.

    \b
    workbench doctor
    """
    from workbench.apps.doctor import examine

    findings = examine()
    print_table([finding.row() for finding in findings], "Doctor", as_json)
    if any(finding.state == "missing" and finding.needed for finding in findings):
        sys.exit(3)


def _options_of(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    from workbench.analyses.registry import ANALYSES

    return (
        ANALYSES[parameters["name"]].rows_per(parameters.get("per")).options
        if parameters.get("name") in ANALYSES
        else {}
    )


def _analysis_tables(words: Sequence[str]) -> Tables:
    """List the options of the analyses that the words name, or all analyses by their titles."""
    from workbench.analyses.registry import ANALYSES

    chosen = [ANALYSES[word] for word in words if word in ANALYSES]
    if not chosen:
        rows = [(analysis.name, analysis.title) for analysis in ANALYSES.values()]
        return [("Analyses; `workbench analyze NAME --help` has the options of one", rows)]
    entries = [variant for analysis in chosen for variant in (analysis, *analysis.finer)]
    rows = [
        row
        for entry in entries
        for row in option_rows(
            entry.name if entry.per is None else f"{entry.name} --per {entry.per}", entry.title, entry.options
        )
    ]
    return [("Options, as --set takes them", rows)]


@click.command(cls=WithTables, tables=_analysis_tables)
@click.argument("name", metavar="ANALYSIS", type=ANALYSIS)
@click.option(
    "--per",
    type=click.Choice(["token", "pair"]),
    help="Rows of single tokens or pairs in place of metrics, where the analysis has them.",
)
@click.option("--qkv", type=click.Path(dir_okay=False), metavar="FILE",
              help="Queries, keys and values from a file (.safetensors, .npz) in place of a model.")  # fmt: skip
@run_settings()
@set_option(_options_of, "An option of the analysis, such as max_rank=8; see `analyze NAME --help`.")
@click.option(
    "--cache/--no-cache",
    default=None,
    help="Keep the result, and find it again. [default: WORKBENCH_CACHE_RESULTS, else not]",
)
@out_file("File of the result: .parquet, .csv, .json or .tex.", required=True)
def analyze(
    name: str,
    per: Per | None,
    qkv: str | None,
    settings: dict[str, Any],
    typed: Settings,
    cache: bool | None,
    out: str,
) -> None:
    """Run one analysis of a model on inputs, and write its result.

    \b
    workbench analyze gram-spectrum -m bundled:digits-vit -i bundled:digits -s max_rank=8 -o spectrum.parquet
    workbench analyze attention-map --qkv qkv.safetensors -o maps.csv
    workbench analyze class-attention --per token -m bundled:digits-vit -i bundled:digits -n 1 -o tokens.csv
    """
    from workbench.core.files import check_writable
    from workbench.frames.results import check_suffix, write_frame
    from workbench.runs.analyze import ANALYSES, analyze, check_request

    check_suffix(out)
    analysis = ANALYSES[name].rows_per(per)
    options = read_settings(name, typed, analysis.options)
    check_request(name, options, per)
    check_writable(out)
    frame = analyze(name, per=per, qkv=qkv, cache=cache, progress=sys.stderr.isatty(), **settings, **options)
    write_frame(frame, out)
    click.echo(f"{analysis.title}: {len(frame)} rows written to {out}")
    print_notes([note for note in frame.attrs["notes"] if not any(note in warned for warned in WARNED)])


@click.command()
@run_settings(required=True, without=("heads",))
@click.option("--sites", type=SITES, metavar="LIST", default="q,k,v", show_default=True,
              help="Which tensors of every layer, separated by commas.")  # fmt: skip
@click.option("--generate", type=click.IntRange(min=1), metavar="NUMBER",
              help="Continue the texts by this number of tokens, and capture each with its logits.")  # fmt: skip
@out_file("File of the capture: .safetensors.", required=True)
def capture(settings: dict[str, Any], sites: list[str], generate: int | None, out: str) -> None:
    """Write queries, keys, values or other sites of every layer.

    \b
    workbench capture -m bundled:digits-vit -i bundled:digits -n 4 -o qkv.safetensors
    workbench capture -m gpt2 -i bundled:prose -n 2 --generate 20 --sites attn -o steps.safetensors
    """
    from workbench.runs.analyze import capture_inputs

    check_out(out, "a capture is", ".safetensors")
    model, spec = settings.pop("model"), settings.pop("inputs")
    try:
        captured = capture_inputs(model, spec, sites=tuple(sites), generate=generate, **settings)
    except KeyboardInterrupt as stopped:
        partial = getattr(stopped, "captured", None)
        if partial is not None:
            partial.save(out)
            click.echo(f"{partial.notes[-1]}; these were written to {out}", err=True)
        raise
    captured.save(out)
    extra_sites = dict.fromkeys(site for record in captured for site in record.extra)
    written = [*(site for site in captured.sites if _layers_with(captured, site)), *extra_sites]
    click.echo(f"{len(captured)} layers, sites {', '.join(written)} written to {out}")
    for site in captured.sites:
        layers = _layers_with(captured, site)
        if site != "mask" and len(layers) < len(captured):
            some = ", ".join(map(str, layers))
            where = f"only layer{'s' if len(layers) > 1 else ''} {some}" if some else "no layer"
            print_notes([f"{where} of this attention has {site}"])


def _layers_with(captured: Any, site: str) -> list[int]:
    return [record.index for record in captured if getattr(record, site) is not None]


@click.command()
@click.argument("first", type=click.Path(dir_okay=False))
@click.argument("second", type=click.Path(dir_okay=False))
@click.option("--tolerance", default=1e-5, show_default=True, type=Finite(min=0),
              metavar="NUMBER", help="The largest relative difference that counts as none.")  # fmt: skip
@out_file("Also write the table: .csv.")
@json_option
def compare(first: str, second: str, tolerance: float, out: str | None, as_json: bool) -> None:
    """Compare two captures, layer by layer. Exit status 1: they differ by more than the tolerance.

    \b
    workbench compare qkv.safetensors other.safetensors --tolerance 1e-4
    """
    from workbench.captures import Capture, compare

    check_out(out, "a comparison is")
    frame = compare(Capture.load(first), Capture.load(second), tolerance=tolerance)
    print_table(
        records_of(frame) if as_json else frame.to_dict("records"), f"{first} against {second}", as_json
    )
    write_csv(frame, out)
    layer = frame.attrs["first_layer"]
    if layer is None:
        click.echo(f"the same in every layer and site, to within {tolerance:g}", err=as_json)
        return
    click.echo(f"they differ by more than {tolerance:g} from layer {layer} on", err=as_json)
    sys.exit(1)


def _null_options(_: Mapping[str, Any]) -> Mapping[str, Any]:
    from workbench.analyses.registry import ANALYSES

    return {
        key: option for key, option in ANALYSES["value-similarity"].options.items() if key == "null_samples"
    }


paper_option = click.option(
    "--paper", type=PAPER, metavar="KEY", help="Only this paper: teo2024, saritas2025 … [default: all]"
)
primary_option = click.option(
    "--primary", is_flag=True, help="Only the rows that count: one interpretation of each claim."
)
why_option = click.option(
    "--why",
    is_flag=True,
    help="Print the reason of each verdict below the table; --out and --json always have it.",
)


@click.command()
@paper_option
@model_option("The model to measure on. [default: bundled:digits-vit]")
@inputs_option("The inputs to measure on. [default: bundled:digits]")
@text_option
@count_option
@seed_option
@batch_size_option
@device_option
@dtype_option
@trust_option
@set_option(_null_options, "How many samples the null distribution has, as null_samples=20.")
@click.option(
    "--untrained",
    type=click.IntRange(min=0),
    metavar="N",
    help="Number of untrained weights of the model to measure too; 0 for none. [default: 6]",
)
@primary_option
@why_option
@out_file("Also write the table: .csv.")
@json_option
def claims(
    model: str | None,
    inputs: str | None,
    texts: Sequence[str],
    typed: Settings,
    trust: bool,
    primary: bool,
    why: bool,
    out: str | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Measure the papers' claims, and list which of them hold.

    \b
    workbench claims --paper saritas2025 -m bundled:digits-vit -i bundled:digits
    workbench claims --paper teo2024 -m bundled:digits-vit@epoch-003 --primary --why
    """
    import workbench

    check_out(out, "claims are")
    if trust:
        trust_models(model)
    model = model or "bundled:digits-vit"
    inputs = inputs_or_texts(inputs, texts) or "bundled:digits"
    settings = {name: value for name, value in settings.items() if value is not None}
    settings |= read_settings("claims", typed, _null_options({})) | {"model": model, "inputs": inputs}
    measured = workbench.claims(progress=sys.stderr.isatty(), **settings)
    print_claims(measured, f"Claims on {model} with {inputs}", primary, why, out, as_json)


@click.command()
@click.argument("paper", type=PAPER)
@click.argument("table")
@model_option("The model to measure on.", required=True)
@inputs_option("The inputs to measure on. [default: bundled ones]")
@text_option
@count_option
@seed_option
@batch_size_option
@device_option
@dtype_option
@trust_option
@set_option(_null_options, "How many samples the null distribution has, as null_samples=20.")
@out_file("Also write the rows: .csv.")
@json_option
def table(
    paper: str,
    table: str,
    model: str,
    inputs: str | None,
    texts: Sequence[str],
    typed: Settings,
    trust: bool,
    out: str | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Measure TABLE of PAPER on a model: published, each interpretation, nulls.

    \b
    workbench table saritas2025 1 -m bundled:digits-vit -n 4
    workbench table saritas2025 4 -m all-MiniLM-L6-v2 -n 2 -s null_samples=2
    """
    import workbench

    check_out(out, "tables are")
    if trust:
        trust_models(model)
    settings |= read_settings("table", typed, _null_options({})) | {"progress": sys.stderr.isatty()}
    frame = workbench.table(paper, table, model, inputs_or_texts(inputs, texts), **settings)
    write_csv(frame, out)
    rows = records_of(frame)
    title = f"Table {table} of {paper}, on {model} with {frame['inputs'].iloc[0]}"
    print_table(rows if as_json else _table_cells(rows), title, as_json)
    print_notes(frame.attrs["notes"])


def _table_cells(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cells of a measured table: a row for each interpretation, a column for each null."""
    nulls = dict.fromkeys(row["null"] for row in rows if row["null"])
    cells: dict[str, dict[str, Any]] = {}
    for row in rows:
        first = {
            "measure": row["measure"].replace("[", " ").replace(",", ", ").rstrip("]"),
            "interpretation": row["interpretation"],
            "published": row["published"],
            "measured [95 %]": _interval(row, "measured", "low", "high"),
            "within 10 %": row["within_margin"],
        }
        interpretation = cells.setdefault(
            row["measure"], first | dict.fromkeys(map("null: {}".format, nulls))
        )
        if row["null"]:
            within = " (within)" if row["within_null"] else ""
            band = _interval(row, "null_mean", "null_low", "null_high")
            interpretation[f"null: {row['null']}"] = band + within
    return list(cells.values())


def _interval(row: dict[str, Any], middle: str, low: str, high: str) -> str:
    """Return the cell of a number with its range; empty for none."""
    if row[middle] is None or row[middle] != row[middle]:
        return ""
    band = "" if row[low] is None or row[low] != row[low] else f" [{row[low]:.3g}, {row[high]:.3g}]"
    return f"{row[middle]:.3g}{band}"


def print_claims(
    frame: pd.DataFrame, title: str, primary: bool, why: bool, out: str | None, as_json: bool
) -> None:
    """Print claims with their verdicts, or only those that count, and write them if a path is given.

    With ``why`` the reasons follow the table, a paragraph each.
    """
    from workbench.papers.verdicts import counted

    selection = counted(frame) if primary else frame
    write_csv(selection, out)
    claims = selection.to_dict("records")
    rows = records_of(selection) if as_json else [_claim_row(claim) for claim in claims]
    print_table(rows, title, as_json)
    if why and not as_json:
        for row, claim in zip(rows, claims, strict=True):
            click.echo(f"\n{row['place']}, {row['claim']}: {row['verdict']}. {claim['why']}")
    print_notes(frame.attrs.get("notes", ()))


def _claim_row(claim: dict[str, Any]) -> dict[str, Any]:
    """Return the cells of a claim in the printed table; an interval is one cell."""
    published = claim["published"]
    interpretation = f" ({claim['interpretation']})" if claim["interpretation"] else ""
    return {
        "paper": claim["paper"],
        "place": claim["place"],
        "claim": claim["claim"] + interpretation,
        "published": None if published != published else published,
        "measured [95 %]": _interval(claim, "measured", "low", "high"),
        "null distribution [range]": _interval(claim, "null_mean", "null_low", "null_high"),
        "untrained [95 %]": _interval(claim, "untrained", "untrained_low", "untrained_high"),
        "verdict": claim["verdict"],
    }


@click.group()
def cache() -> None:
    """Show or remove the results of `workbench analyze --cache`."""


@cache.command()
@json_option
def info(as_json: bool) -> None:
    """Show the folder, the number of results, their size and its limit (WORKBENCH_CACHE_SIZE).

    \b
    workbench cache info
    """
    from workbench.runs.cache import Store

    row = Store().info()
    if not as_json:
        row |= {name: f"{row[name] / 2**20:.1f} MiB" for name in ("bytes", "limit")}
    print_table([row], "Results kept", as_json)


@cache.command()
def clear() -> None:
    """Remove all results that were kept.

    \b
    workbench cache clear
    """
    from workbench.runs.cache import Store

    store = Store()
    click.echo(f"{store.clear()} results removed from {store.folder}")
