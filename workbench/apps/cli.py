"""The `workbench` command: verbs only, each calls one public function.

Heavy libraries are imported inside the commands, so that ``--help`` answers at once.

Exit status: 0 done; 1 part of the work failed (a notebook, an export, a figure that did not come out the same, an
incomplete capture); 2 the request was wrong (usage, bad input, unknown name); 3 this machine lacks something
(network or cached weights, Chrome, room on the disk); 130 interrupted.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import click

from workbench._version import __version__
from workbench.core.errors import InputError, WorkbenchError
from workbench.core.typed import literal, read_typed

EXIT_CODES = (
    "Exit status: 0 done; 1 part of the work failed; 2 the request was wrong; "
    "3 this machine lacks something (weights, Chrome, disk); 130 interrupted."
)
_WARNED: set[str] = set()
_show_library_warning = warnings.showwarning
_LACKS = {errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EPERM, errno.EDQUOT}


def _apply(options: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_SAMPLE = (
    click.option("--n", type=click.IntRange(min=1), help="How many inputs. [default: 25, or all there are]"),
    click.option("--seed", default=0, show_default=True, type=int, help="Chooses the inputs, and all chance."),
    click.option("--layers", metavar="LIST", help="Layers, from 0: 0,3-5 or -1. [default: all]"),
    click.option("--checkpoint", metavar="NAME-OR-FILE",
                 help="A checkpoint of a bundled model, e.g. epoch-003; a file of weights for timm:, tost:, crate:."),
    click.option("--preprocessing", type=click.Choice(["paper", "model"]), default="paper", show_default=True,
                 help="The papers' image preprocessing, or the model's own."),
    click.option("--batch-size", default=8, show_default=True, type=click.IntRange(min=1),
                 help="Inputs per forward pass; does not change any number."),
    click.option("--device", metavar="NAME", help="cpu, cuda, mps … [default: cpu]"),
    click.option("--dtype", metavar="NAME", help="float32, bfloat16, float16 [default: as stored]"),
)  # fmt: skip


class _Commands(click.Group):
    """The command list in the order of a first visit, not of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_Commands, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="workbench")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Look inside any transformer's attention, test what papers claim, print the figure.

    \b
    workbench explore                                  look inside a layer, in JupyterLab
    workbench render                                   every figure, into figures/index.html
    workbench analyze gram-spectrum --model bundled:digits-vit --inputs bundled:digits --out spectrum.csv
    """


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print records instead of a table.")
def models(as_json: bool) -> None:
    """List the models that have a name here, and where their weights are."""
    from workbench.models.loading import list_models

    rows = list_models()
    _print_table(rows, "Models (any other timm or Hugging Face name is tried too)", as_json)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print records instead of a table.")
def metrics(as_json: bool) -> None:
    """List the metrics a result may hold: unit, range, definition, source."""
    from workbench.frames.metrics import METRICS

    rows = [
        {
            "metric": metric.name,
            "unit": metric.unit,
            "range": f"{metric.low:g} … {metric.high:g}",
            "definition": metric.definition,
            "source": metric.source,
        }
        for metric in METRICS.values()
    ]
    _print_table(rows, "Metrics", as_json)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print records instead of a table.")
def doctor(as_json: bool) -> None:
    """Check this machine: Chrome, devices, hub and cache, bundled files, versions."""
    from workbench.apps.doctor import examine

    findings = examine()
    _print_table([finding.row() for finding in findings], "Doctor", as_json)
    if any(finding.state == "missing" and finding.needed for finding in findings):
        sys.exit(3)


class _AnalyzeCommand(click.Command):
    """Help that ends with the analyses and their own options, read from the one registry of analyses."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from workbench.runs.analyze import ANALYSES

        with formatter.section("Analyses and their options"):
            for analysis in ANALYSES.values():
                formatter.write_dl([(analysis.name, analysis.title)])
                if not analysis.options:
                    continue
                with formatter.indentation():
                    formatter.write_dl(
                        [
                            (f"--{name.replace('_', '-')}", f"{option.help} [default: {option.default}]")
                            for name, option in analysis.options.items()
                        ]
                    )


@cli.command(cls=_AnalyzeCommand, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.argument("name", metavar="ANALYSIS")
@click.option(
    "--model",
    metavar="SPEC",
    help="timm:NAME, hf:REPO-OR-FOLDER, tost:SIZE, crate:SIZE, bundled:NAME, file:CHECKPOINT or a name.",
)
@click.option(
    "--inputs", metavar="SPEC", help="bundled:NAME, images:FOLDER, imagenet:FOLDER, text:FILE, wikitext-103."
)
@click.option(
    "--qkv", type=click.Path(dir_okay=False), help="q, k, v from a file (.safetensors, .npz) instead."
)
@_apply(_SAMPLE)
@click.option("--heads", metavar="LIST", help="Heads, from 0. [default: all]")
@click.option(
    "--cache/--no-cache",
    default=None,
    help="Keep the result, and find it again. [default: WORKBENCH_CACHE_RESULTS, else not]",
)
@click.option(
    "--out", required=True, type=click.Path(dir_okay=False), help="Result: .parquet, .csv, .json or .tex."
)
@click.pass_context
def analyze(ctx: click.Context, name: str, out: str, **arguments: Any) -> None:
    """Run one ANALYSIS and write its tidy result.

    \b
    workbench analyze gram-spectrum --model bundled:digits-vit --inputs bundled:digits --out spectrum.parquet
    workbench analyze attention-map --qkv qkv.safetensors --out maps.csv
    """
    from workbench.core.files import check_place
    from workbench.core.options import read_options
    from workbench.frames.results import check_suffix, write_frame
    from workbench.runs.analyze import ANALYSES, analyze
    from workbench.runs.analyze import check_request as check

    check_suffix(out)
    typed = _own_options(ctx.args)
    options = read_options(typed, ANALYSES[name].options if name in ANALYSES else {})
    check(name, options)
    check_place(out)
    frame = analyze(name, progress=sys.stderr.isatty(), **arguments, **options)
    write_frame(frame, out)
    click.echo(f"{ANALYSES[name].title}: {len(frame)} rows written to {out}")
    for note in frame.attrs["notes"]:
        if not any(note in said for said in _WARNED):
            click.echo(f"note: {note}", err=True)


def _own_options(words: Sequence[str]) -> dict[str, str]:
    """`--max-rank 64 --flag` to `{"max_rank": "64", "flag": "true"}`; an analysis says what they mean."""
    options: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            raise InputError(
                f"unexpected argument {word!r}; options of an analysis are given as --NAME VALUE"
            )
        key, equals, inline = word[2:].partition("=")
        if equals:
            value = inline
        elif rest and not rest[0].startswith("--"):
            value = rest.pop(0)
        else:
            value = "true"
        options[key.replace("-", "_")] = value
    return options


class _SweepCommand(_Commands):
    """A command that runs, with a command of its own that looks: `sweep` and `sweep status`."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args[0] not in self.commands:
            raise click.UsageError(f"unexpected argument {args[0]!r}; several models are written A,B", ctx)
        return super().resolve_command(ctx, args)


@cli.group(cls=_SweepCommand, invoke_without_command=True)
@click.option("--models", metavar="LIST", help="Model specs: A,B. (required)")
@click.option("--inputs", metavar="LIST", help="An inputs spec for all, or one for each model. (required)")
@click.option(
    "--analyses",
    metavar="LIST",
    help="Analyses, with options: gram-spectrum,gram-spectrum:standardize=per-token. (required)",
)
@click.option("--out", type=click.Path(file_okay=False), help="The folder of the sweep. (required)")
@click.option("--n", type=click.IntRange(min=1), help="How many inputs. [default: all there are]")
@click.option(
    "--shards", type=click.IntRange(min=1), help="Parts of the inputs. [default: one for about 256]"
)
@click.option("--workers", default=1, show_default=True, type=click.IntRange(min=1), help="Processes.")
@click.option(
    "--backend",
    type=click.Choice(["loky", "dask", "ray"]),
    default="loky",
    show_default=True,
    help="joblib's own processes, or the workers of a cluster.",
)
@click.option("--scheduler", metavar="ADDRESS", help="Of the cluster: tcp://HOST:8786.")
@click.option("--resume", is_flag=True, help="Go on with a sweep of the same plan.")
@click.option("--max-time", metavar="TIME", help="End cleanly after 90s, 30m, 8h.")
@click.option("--per-input", is_flag=True, help="Also keep the rows of every input.")
@_apply([option for option in _SAMPLE if option is not _SAMPLE[0]])
@click.option("--heads", metavar="LIST", help="Heads, from 0. [default: all]")
@click.pass_context
def sweep(ctx: click.Context, **arguments: Any) -> None:
    """Run analyses of many models over many inputs, in shards, on all cores or a cluster.

    \b
    workbench sweep --models timm:vit_tiny_patch16_224,timm:deit_tiny_patch16_224 --inputs imagenet:imagenet/ \\
        --analyses gram-spectrum,value-similarity --workers 8 --out sweeps/imagenet
    workbench sweep status sweeps/imagenet
    workbench render gram_spectra -p inputs sweep:sweeps/imagenet -p n 50000 -p model timm:vit_tiny_patch16_224
    """
    if ctx.invoked_subcommand is not None:
        return
    missing = [name for name in ("models", "inputs", "analyses", "out") if not arguments[name]]
    if missing:
        raise click.UsageError(f"missing {', '.join(f'--{name}' for name in missing)}", ctx)
    from workbench.runs.sweep import parse_duration, sweep

    for name in ("models", "inputs"):
        arguments[name] = [part.strip() for part in arguments[name].split(",") if part.strip()]
    arguments["analyses"] = [_analysis(part) for part in arguments["analyses"].split(",") if part.strip()]
    limit = arguments["max_time"]
    arguments["max_time"] = None if limit is None else parse_duration(limit)
    status = sweep(progress=sys.stderr.isatty(), **arguments)
    click.echo(str(status))
    for task, error in status.failures.items():
        click.echo(f"failed: {task}: {error}", err=True)
    if status.failed:
        sys.exit(1)


def _analysis(text: str) -> tuple[str, dict[str, Any]]:
    """`gram-spectrum:max_rank=8` as the name and its options."""
    from workbench.analyses.registry import ANALYSES
    from workbench.core.options import read_options

    name, *pairs = (part.strip() for part in text.split(":"))
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"{text!r}: an option is written NAME=VALUE, as in {name}:max_rank=8")
        options[key.replace("-", "_")] = value
    return name, read_options(options, ANALYSES[name].options if name in ANALYSES else {})


@sweep.command("status")
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print records instead of a table.")
def sweep_status(folder: str, as_json: bool) -> None:
    """How far the sweep in FOLDER is: done, failed, left, and the time that is left."""
    from workbench.runs.sweep import sweep_status

    status = sweep_status(folder)
    _print_table(status.rows, str(status), as_json)
    for task, error in status.failures.items():
        click.echo(f"failed: {task}: {error}", err=True)


@cli.command()
@click.option("--model", required=True, metavar="SPEC", help="The model to look into.")
@click.option("--inputs", "input_spec", required=True, metavar="SPEC", help="What to feed it.")
@_apply(_SAMPLE)
@click.option("--sites", default="q,k,v", show_default=True, metavar="LIST",
              help="input, q, k, v, scale, mask, attn, head_out, resid_pre, attn_out, resid_mid, …")  # fmt: skip
@click.option("--out", required=True, type=click.Path(dir_okay=False), help="A .safetensors file.")
def capture(model: str, input_spec: str, out: str, layers: str | None, sites: str, **rest: Any) -> None:
    """Write the q, k, v (or other sites) of every layer to a file."""
    from workbench.runs.analyze import capture_inputs

    _check_out(out, "a capture is", ".safetensors")
    names = tuple(site.strip() for site in sites.split(",") if site.strip())
    captured = capture_inputs(model, input_spec, layers=layers, sites=names, **rest)
    captured.save(out)
    own = dict.fromkeys(site for record in captured for site in record.extra)
    held = [*(name for name in captured.sites if _layers_with(captured, name)), *own]
    click.echo(f"{len(captured)} layers, sites {', '.join(held)} written to {out}")
    for name in captured.sites:
        layers_with = _layers_with(captured, name)
        if name != "mask" and len(layers_with) < len(captured):
            some = ", ".join(map(str, layers_with))
            where = f"only layer{'s' * (len(layers_with) > 1)} {some}" if some else "no layer"
            click.echo(f"note: {where} of this attention has {name}", err=True)


def _layers_with(captured: Any, site: str) -> list[int]:
    return [record.index for record in captured if getattr(record, site) is not None]


def _check_out(out: str | None, told: str, suffix: str = ".csv") -> None:
    """Raise where a result could not be written after all the work: another ending, or a place that takes no file."""
    from workbench.core.files import check_place

    if out is None:
        return
    if not out.endswith(suffix):
        raise InputError(f"{told} written as {suffix}; {Path(out).name!r} ends otherwise")
    check_place(out)


@cli.command()
@click.argument("first", type=click.Path(dir_okay=False))
@click.argument("second", type=click.Path(dir_okay=False))
@click.option("--tolerance", default=1e-5, show_default=True, type=click.FloatRange(min=0), help="Relative.")
@click.option("--out", type=click.Path(dir_okay=False), help="Also write the table: .csv.")
def compare(first: str, second: str, tolerance: float, out: str | None) -> None:
    """Tell two captures apart, layer by layer; exit status 1 if they differ by more than the tolerance."""
    from workbench.captures import Capture, compare
    from workbench.core.files import atomic_write

    _check_out(out, "a comparison is")
    frame = compare(Capture.load(first), Capture.load(second), tolerance=tolerance)
    _print_table(frame.to_dict("records"), f"{first} against {second}", as_json=False)
    if out:
        atomic_write(out, lambda handle: frame.to_csv(handle, index=False))
    layer = frame.attrs["first_layer"]
    if layer is None:
        click.echo(f"the same in every layer and site, to within {tolerance:g}")
        return
    click.echo(f"they differ by more than {tolerance:g} from layer {layer} on")
    sys.exit(1)


@cli.command()
@click.option("--paper", metavar="KEY", help="teo2024, saritas2025, … [default: all]")
@click.option(
    "--model", default="bundled:digits-vit", show_default=True, metavar="SPEC", help="Measure on this model."
)
@click.option(
    "--inputs", default="bundled:digits", show_default=True, metavar="SPEC", help="And on these inputs."
)
@click.option("--n", default=25, show_default=True, type=click.IntRange(min=2), help="How many inputs.")
@click.option("--seed", default=0, show_default=True, type=int, help="Chooses the inputs, and all chance.")
@click.option("--null-samples", default=20, show_default=True, type=int, help="Draws of the chance level.")
@click.option("--out", type=click.Path(dir_okay=False), help="Also write the table: .csv.")
@click.option("--json", "as_json", is_flag=True, help="Print records instead of a table.")
def claims(out: str | None, as_json: bool, **arguments: Any) -> None:
    """Measure what the papers claim, and say which claims hold."""
    import workbench
    from workbench.core.files import atomic_write
    from workbench.frames.results import join_frames

    _check_out(out, "claims are")
    measured = workbench.claims(progress=sys.stderr.isatty(), **arguments)
    from_records = measured.iloc[:0]
    if importlib.util.find_spec("workbench.studies") is not None:  # the library works without that folder
        from workbench.studies import claims_from_records

        from_records = claims_from_records(arguments["paper"])
    frame = join_frames([part for part in (measured, from_records) if len(part)])
    if out:
        atomic_write(out, lambda handle: frame.to_csv(handle, index=False))
    if as_json:
        click.echo(frame.to_json(orient="records", indent=1, force_ascii=False))
    else:
        titles = (
            f"Claims on {arguments['model']} with {arguments['inputs']}",
            "Claims about mechanisms, from committed records",
        )
        for title, part in zip(titles, (measured, from_records), strict=True):
            if len(part):
                _print_table([_claim_row(claim) for claim in part.to_dict("records")], title, as_json=False)
    for note in measured.attrs.get("notes", ()):
        click.echo(f"note: {note}", err=True)


def _claim_row(claim: dict[str, Any]) -> dict[str, Any]:
    """A claim as the printed table shows it: intervals in one cell, what is absent left empty."""

    def interval(middle: str, low: str, high: str) -> str:
        if claim[middle] != claim[middle] or claim[middle] is None:
            return ""
        band = "" if claim[low] != claim[low] else f" [{claim[low]:.3g}, {claim[high]:.3g}]"
        return f"{claim[middle]:.3g}{band}"

    published = claim["published"]
    interpretation = f" ({claim['interpretation']})" if claim["interpretation"] else ""
    return {
        "paper": claim["paper"],
        "place": claim["place"],
        "claim": claim["claim"] + interpretation,
        "published": None if published != published else published,
        "measured [95 %]": interval("measured", "low", "high"),
        "chance [95 %]": interval("null_mean", "null_low", "null_high"),
        "verdict": claim["verdict"],
    }


def _all_accept(parameters: Sequence[Any], value: Any) -> bool:
    """Whether every one of some notebooks' parameters takes a value."""
    return all(parameter.accepts(value) for parameter in parameters)


@cli.command()
@click.argument("notebooks", nargs=-1, metavar="[NOTEBOOK]...")
@click.option(
    "-p", "--parameter", "pairs", nargs=2, multiple=True, metavar="KEY VALUE", help="Set a parameter."
)
@click.option(
    "-f", "--file", "parameter_file", type=click.Path(dir_okay=False), help="Parameters from a YAML file."
)
@click.option("--preset", type=click.Choice(["quick", "default", "paper"]), default="default", show_default=True,
              help="Seconds; minutes; the papers' models and sample sizes.")  # fmt: skip
@click.option(
    "-j", "--jobs", default=1, show_default=True, type=click.IntRange(min=1), help="Notebooks at a time."
)
@click.option(
    "--formats", default="pdf,svg,png,html", show_default=True, metavar="LIST", help="What to export."
)
@click.option("--theme", type=click.Choice(["paper", "talk"]), default="paper", show_default=True)
@click.option(
    "--out", default="figures", show_default=True, type=click.Path(file_okay=False), help="Output folder."
)
@click.option("--force", is_flag=True, help="Render again what is up to date.")
def render(
    notebooks: tuple[str, ...], pairs: tuple[tuple[str, str], ...], parameter_file: str | None, **options: Any
) -> None:
    """Render figure notebooks (all, or those named) into a gallery."""
    from workbench.apps.rendering import find_notebooks, read_parameters, render

    formats = tuple(part.strip() for part in options.pop("formats").split(",") if part.strip())
    parameters = read_parameters(parameter_file) if parameter_file else {}
    chosen = find_notebooks(list(notebooks) or None) if pairs else []
    for key, text in pairs:
        having = [notebook.parameters[key] for notebook in chosen if key in notebook.parameters]
        parameters[key] = read_typed(text, partial(_all_accept, having))
    report = render(list(notebooks) or None, parameters=parameters, formats=formats, **options)
    if report.failed:
        sys.exit(1)


@cli.command()
@click.argument("provenance", metavar="FIGURES/NAME.json", type=click.Path(dir_okay=False))
@click.option("--out", type=click.Path(file_okay=False), help="Keep the new figure in this folder.")
@click.option(
    "--trust", is_flag=True, help="Run the notebook that the file names, though it is not a bundled one."
)
def reproduce(provenance: str, out: str | None, trust: bool) -> None:
    """Draw a figure again from its provenance, and say whether it came out the same."""
    from workbench.apps.rendering import reproduce

    outcome = reproduce(provenance, out=out, trust=trust)
    click.echo(str(outcome))
    if not outcome.same:
        sys.exit(1)


class _TrainCommand(click.Command):
    """Help that ends with the tasks and the attention variants, read from their tables."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from workbench.attention import VARIANTS
        from workbench.studies.training.tasks import TASKS

        with formatter.section("Tasks"):
            formatter.write_dl(
                [
                    (name, entry.title + (f"; --data {entry.takes}" if entry.takes else ""))
                    for name, entry in TASKS.items()
                ]
            )
        with formatter.section("Attention variants and their options"):
            for name, variant in VARIANTS.items():
                formatter.write_dl([(name, variant.title)])
                if not variant.options:
                    continue
                with formatter.indentation():
                    formatter.write_dl(
                        [
                            (key, f"{option.help} [default: {option.default}]")
                            for key, option in variant.options.items()
                        ]
                    )


@cli.command(cls=_TrainCommand)
@click.argument("task")
@click.option("--attention", metavar="NAME", help="An attention variant. [default: softmax]")
@click.option(
    "--layers", metavar="LIST", help="Layers that get it: 0,3-5 or -1. [default: the recipe's, or all]"
)
@click.option("--boost", is_flag=True, help="Boosted residual connections around attention.")
@click.option("--option", "options", nargs=2, multiple=True, metavar="KEY VALUE",
              help="An option of the attention variant.")  # fmt: skip
@click.option("--epochs", type=click.IntRange(min=1), help="[default: the recipe's]")
@click.option("--seed", default=0, show_default=True, type=int)
@click.option("--data", type=click.Path(), help="The folder or file of tasks that need one.")
@click.option("--recipe", metavar="NAME-OR-FILE", help="A recipe of the package, or your own .toml file.")
@click.option("--limit", type=click.IntRange(min=1), help="Keep only this many training examples.")
@click.option("--out", type=click.Path(file_okay=False), help="Run folder. [default: runs/RECIPE-…-seedN]")
@click.option("--device", metavar="NAME", help="[default: what accelerate finds]")
@click.option("--resume/--restart", default=True, show_default=True, help="Go on from an interrupted run.")
def train(
    task: str,
    attention: str | None,
    boost: bool,
    out: str | None,
    seed: int,
    options: Sequence[tuple[str, str]],
    **rest: Any,
) -> None:
    """Train a model on TASK from its recipe; an interrupted run goes on where it stopped.

    \b
    workbench train digits --attention rpc-sym --option num_iter "[4]"
    workbench train digits --recipe digits-tost
    workbench train prose --attention bilateral --boost
    workbench train images --data imagenet/ --recipe imagenet-deit-tiny
    """
    from workbench.studies.training import train

    recipe = Path(rest["recipe"] or task).stem
    named = [recipe, *([attention] if attention else []), *(["boost"] if boost else []), f"seed{seed}"]
    result = train(
        task,
        out or os.path.join("runs", "-".join(named)),
        attention=attention,
        boost=boost,
        seed=seed,
        options={key: literal(text) for key, text in options},
        **rest,
    )
    click.echo(str(result))


class _EvaluateCommand(click.Command):
    """Help that ends with the protocols, read from their one table."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from workbench.studies.evaluation import PROTOCOLS

        with formatter.section("Protocols"):
            formatter.write_dl([(protocol.name, protocol.summary()) for protocol in PROTOCOLS.values()])


@cli.command(cls=_EvaluateCommand)
@click.argument("models", nargs=-1, required=True, metavar="CHECKPOINT...")
@click.option("--protocol", default="clean", show_default=True, metavar="NAME", help="See the list below.")
@click.option("--inputs", metavar="SPEC",
              help="Labelled images, or texts. [default: the test set of the model's task]")  # fmt: skip
@click.option("--epsilon", metavar="LIST", help="Budgets: 0,0.02,0.04. [default: the protocol's]")
@click.option("--n", type=click.IntRange(min=1), help="How many inputs. [default: 100 images, 10 texts]")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0),
              help="Chooses the inputs, and all chance.")  # fmt: skip
@click.option("--reference", metavar="SPEC", help="corruptions: divide by this model's errors (mCE).")
@click.option("--option", "options", nargs=2, multiple=True, metavar="KEY VALUE",
              help="A setting of the protocol, e.g. steps 40.")  # fmt: skip
@click.option("--device", metavar="NAME", help="cpu, cuda, … [default: cpu]")
@click.option("--out", type=click.Path(dir_okay=False), help="Also write the table: .csv.")
@click.option("--json", "as_json", is_flag=True, help="Print records instead of a table.")
def evaluate(
    models: tuple[str, ...],
    epsilon: str | None,
    options: tuple[tuple[str, str], ...],
    out: str | None,
    as_json: bool,
    **arguments: Any,
) -> None:
    """Evaluate models on clean, attacked, corrupted or foreign inputs, or on texts with words swapped.

    \b
    workbench evaluate bundled:digits-vit --protocol fgsm --epsilon 0,0.02,0.04 --out fgsm.csv
    workbench evaluate runs/a/epoch-030.safetensors --protocol corruptions --reference bundled:digits-vit
    """
    from workbench.core.files import atomic_write
    from workbench.core.options import read_options
    from workbench.studies.evaluation import PROTOCOLS, evaluate

    _check_out(out, "an evaluation is")
    budgets = None if epsilon is None else [literal(part.strip()) for part in epsilon.split(",")]
    chosen = PROTOCOLS.get(arguments["protocol"])
    typed = {key.replace("-", "_"): text for key, text in options}
    settings = read_options(typed, chosen.settings if chosen else {})
    frame = evaluate(list(models), epsilons=budgets, settings=settings, **arguments)
    if out:
        atomic_write(out, lambda handle: frame.to_csv(handle, index=False))
    rows = frame.astype(object).where(frame.notna(), None)
    if not as_json:
        # What is the same in every row stands in the title or is known.
        rows = rows.drop(columns=["inputs", "n", "seed", "protocol", "version", "unit"]).dropna(
            axis=1, how="all"
        )
    title = f"{arguments['protocol']}: {', '.join(frame['inputs'].unique())}, n = {frame['n'].iloc[0]}"
    _print_table(rows.to_dict("records"), title, as_json)
    for note in frame.attrs["notes"]:
        click.echo(f"note: {note}", err=True)


@cli.group()
def cache() -> None:
    """Results that were kept (`analyze --cache`): how many there are, and away with them."""


@cache.command()
@click.option("--json", "as_json", is_flag=True, help="Print records instead of a table.")
def info(as_json: bool) -> None:
    """Folder, results, size and limit (WORKBENCH_CACHE_SIZE)."""
    from workbench.runs.cache import Store

    row = Store().info()
    if not as_json:
        row |= {name: f"{row[name] / 2**20:.1f} MiB" for name in ("bytes", "limit")}
    _print_table([row], "Results kept", as_json)


@cache.command()
def clear() -> None:
    """Remove all results that were kept."""
    from workbench.runs.cache import Store

    store = Store()
    click.echo(f"{store.clear()} results removed from {store.folder}")


@cli.group()
def bench() -> None:
    """Measure what attention costs on this machine."""


class _OperatorsCommand(click.Command):
    """Help that ends with the sweeps and the operators, read from their tables."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from workbench.papers.operators import OPERATORS, SWEEPS

        with formatter.section("Sweeps"):
            formatter.write_dl(
                [
                    (name, f"wu2025 {sweep.figure}: {sweep.axis} {sweep.sizes[0]} to {sweep.sizes[-1]}")
                    for name, sweep in SWEEPS.items()
                ]
            )
        with formatter.section("Operators"):
            formatter.write_dl([(name, operator.title) for name, operator in OPERATORS.items()])


@bench.command(cls=_OperatorsCommand)
@click.option(
    "--budget",
    type=click.FloatRange(min=0),
    metavar="MINUTES",
    help="Begin nothing that would end later; the smallest sizes come first. [default: all there is]",
)
@click.option(
    "--sweep", "sweeps", multiple=True, metavar="NAME", help="A sweep; may be repeated. [default: all]"
)
@click.option(
    "--operator",
    "operators",
    multiple=True,
    metavar="NAME",
    help="An operator; may be repeated. [default: all]",
)
@click.option("--device", default="cpu", show_default=True, metavar="NAME", help="cpu or cuda.")
@click.option(
    "--dtype", default="float32", show_default=True, metavar="NAME", help="float32, bfloat16, float16."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False),
    help="Folder that keeps every finished point, from which the study goes on, and points.csv.",
)
@click.option("--json", "as_json", is_flag=True, help="Print records instead of a table.")
def operators(
    sweeps: tuple[str, ...], operators: tuple[str, ...], out: str | None, as_json: bool, **arguments: Any
) -> None:
    """Time and memory of attention operators against tokens and width, and the exponents fitted to them.

    Twelve attention layers with their projections, batch 1; every point in a process of its own.

    \b
    workbench bench operators --budget 5 --sweep tokens --out runs/tokens
    """
    from workbench.core.files import atomic_write
    from workbench.studies.records import POINTS_FILE
    from workbench.studies.scaling import printed_exponents, scaling_exponents, scaling_study

    frame = scaling_study(
        sweeps or None, operators=operators or None, out=out, progress=sys.stderr.isatty(), **arguments
    )
    if out:
        atomic_write(Path(out) / POINTS_FILE, lambda handle: frame.to_csv(handle, index=False))
    if as_json:
        click.echo(frame.to_json(orient="records", indent=1, force_ascii=False))
    else:
        run = frame.attrs["provenance"]
        title = f"Exponents on {run['device']}, {run['dtype']}, {run['threads']} thread{'s' * (run['threads'] > 1)}"
        rows = _exponent_rows(scaling_exponents(frame), printed_exponents())
        if rows:
            _print_table(rows, title, as_json=False)
        else:
            click.echo(f"{title}: none, since no curve has the three sizes that a fit needs")
    for row in frame[frame["ended"].notna()].to_dict("records"):
        click.echo(
            f"{row['sweep']}: {row['operator']}, {row['condition']}, ends at {row['tokens']} × {row['width']}: "
            f"{row['ended']}"
        )
    for note in frame.attrs["notes"]:
        click.echo(f"note: {note}", err=True)


def _exponent_rows(fitted: Any, printed: Any) -> list[dict[str, Any]]:
    """Fitted exponents as the printed table shows them: what is counted and published beside what is measured."""
    keys = ["sweep", "operator", "metric"]
    counted = fitted[fitted["source"] == "counted"].set_index([*keys, "condition"])["value"]
    published = printed.set_index(keys)["value"]
    return [
        {
            **{name: row[name] for name in ("sweep", "operator", "condition")},
            "exponent": row["metric"].replace("_exponent_", ", "),
            "measured [95 %]": f"{row['value']:.2f} [{row['low']:.2f}, {row['high']:.2f}]",
            "counted": f"{counted[tuple(row[name] for name in (*keys, 'condition'))]:.2f}",
            "published": published.get(tuple(row[name] for name in keys)),
            "sizes": f"{row['smallest']} to {row['largest']}",
        }
        for row in fitted[fitted["source"] == "measured"].to_dict("records")
    ]


@cli.command()
@click.option("--app", is_flag=True, help="The explorer alone, as a page (needs the extra app: voila).")
@click.option("--theme", type=click.Choice(["paper", "talk"]), help="Letters for reading or for a lecture hall. "
              "[default: WORKBENCH_THEME, or paper]")  # fmt: skip
@click.option(
    "--port", type=click.IntRange(1, 65535), help="[default: the first free one from 8888; 8866 with --app]"
)
@click.option("--no-browser", is_flag=True, help="Print the address instead of opening a browser.")
def explore(app: bool, theme: str | None, port: int | None, no_browser: bool) -> None:
    """Open the explorer notebook in JupyterLab, or the explorer alone as a page (a token guards both)."""
    from workbench.apps.explorer.launch import open_explorer, open_page

    sys.exit((open_page if app else open_explorer)(port=port, browser=not no_browser, theme=theme))


def _print_table(rows: Sequence[dict[str, Any]], title: str, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(list(rows), indent=1, ensure_ascii=False, default=str))
        return
    from rich.console import Console
    from rich.table import Table

    # A pipe has no width of its own; a table cut at 80 columns would lose what it is read for.
    console = Console(width=None if sys.stdout.isatty() else 160)
    table = Table(title=title, title_justify="left", header_style="bold", show_lines=False)
    for name in rows[0] if rows else ():
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*("" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
                        for value in row.values()))  # fmt: skip
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: a user's mistake ends in one clear line and an exit status, never in a traceback."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments or bool(os.environ.get("WORKBENCH_DEBUG"))
    # The flag is honoured wherever it stands, since it is added to a command that has just failed.
    arguments = [word for word in arguments if word != "--debug"]
    _WARNED.clear()
    warnings.showwarning = _warn  # ty: ignore[invalid-assignment] - Python documents it as the hook to replace
    try:
        cli.main(arguments, prog_name="workbench", standalone_mode=False)
        status = 0
    except click.exceptions.Exit as leave:
        status = leave.exit_code
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted; what was finished is kept", err=True)
        status = 130
    except BrokenPipeError:
        # The reader of our output (head, less) has gone: nothing is wrong, and nothing can be printed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    except (WorkbenchError, OSError, MemoryError) as error:
        if debug:
            raise
        status = _status(error)
        click.echo(f"error: {str(error) or type(error).__name__}", err=True)
    except Exception as error:
        if debug:
            raise
        status = 1
        click.echo(
            f"error: {type(error).__name__}: {error}\n"
            "This is not a message the workbench meant to give: run again with --debug and report the traceback.",
            err=True,
        )
    sys.exit(status)


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning of ours as one line, without the place in the code; one of a library as Python shows it."""
    if Path(filename).is_relative_to(Path(__file__).parents[1]):
        _WARNED.add(str(message))
        click.echo(f"warning: {message}", err=True)
    else:
        _show_library_warning(message, category, filename, lineno, file, line)


def _status(error: BaseException) -> int:
    if isinstance(error, WorkbenchError):
        return error.exit_code
    return 3 if isinstance(error, MemoryError) or getattr(error, "errno", None) in _LACKS else 2
