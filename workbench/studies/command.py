"""The command ``workbench study``: training, evaluation, the cost of attention, recorded verdicts, committed records.

It is a plug-in of the command line, through the entry point ``workbench.commands``.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from workbench.apps.cli.analysis_commands import paper_option, primary_option, print_claims, why_option
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
    MODEL,
    Known,
    Settings,
    count_option,
    device_option,
    dtype_option,
    inputs_option,
    json_option,
    layers_option,
    max_time_option,
    model_option,
    number_option,
    out_file,
    out_folder,
    read_settings,
    restart_option,
    seed_option,
    set_option,
    workers_option,
)


def _recipes() -> Iterable[str]:
    folder = Path(__file__).parent / "training" / "recipes"  # importing them takes seconds
    return sorted(path.stem for path in folder.glob("*.toml"))


def _claimed_data() -> Iterable[str]:
    from workbench.studies.training.pilots import compared_on

    return compared_on()


RECIPE = Known("recipe", _recipes, more=True)
TASK = Known("task", "studies.training.tasks:TASKS")
_EMBEDDED_DATA = Known("embedded data", "studies.training.tasks.embedded:EMBEDDED")
_CLAIMED_DATA = Known("embedded data of claims", _claimed_data)
VARIANT = Known("attention variant", "attention:VARIANTS")
_PROTOCOL = Known("protocol", "studies.evaluation:PROTOCOLS")
SWEEP = Known("sweep", "papers.operators:SWEEPS")
_OPERATOR = Known("operator", "papers.operators:OPERATORS")
_epochs_option = number_option("--epochs", "How many epochs. [default: the recipe's]")
_limit_option = number_option("--limit", "Keep only this many examples, to try things out. [default: all]")
_sweep_option = click.option("--sweep", "sweeps", type=SWEEP, metavar="NAME", multiple=True,
                            help="A sweep of sizes. May be repeated. [default: all]")  # fmt: skip


@click.group()
def study() -> None:
    """Train, attack and time models; make the committed records."""


# Training ---------------------------------------------------------------------------------------------------


def _variant_options(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    from workbench.attention import find_variant
    from workbench.studies.training.recipes import load_recipe

    recipe = arguments.get("recipe") or arguments.get("task")
    name = arguments.get("attention") or (load_recipe(recipe).attention if recipe else "softmax")
    return find_variant(name).options


def _training_tables(words: Sequence[str]) -> Tables:
    from workbench.attention import VARIANTS
    from workbench.studies.training.tasks import TASKS
    from workbench.studies.training.tasks.embedded import EMBEDDED, PREFIX

    tasks = [
        (name, entry.title + (f"; --data {entry.takes}" if entry.takes else ""))
        for name, entry in TASKS.items()
    ]
    generated = [
        (PREFIX + name, f"{entry.title} (task {entry.task}; asks the question of the {entry.asks_for})")
        for name, entry in EMBEDDED.items()
    ]
    variants = [
        row for name, entry in VARIANTS.items() for row in option_rows(name, entry.title, entry.options)
    ]
    return [
        ("Tasks", tasks),
        ("Data made on the spot, as --data takes them; a task without --data takes its first", generated),
        ("Attention variants and their options, as --set takes them", variants),
    ]


@study.command(cls=WithTables, tables=_training_tables)
@click.argument("task", type=TASK)
@click.option("--attention", type=VARIANT, metavar="NAME",
              help="The attention variant. [default: the recipe's, or softmax]")  # fmt: skip
@layers_option
@click.option("--boost", is_flag=True, help="Add boosted residual connections around attention.")
@set_option(
    _variant_options, "An option of the attention variant, such as num_iter=2; they are listed below."
)
@_epochs_option
@seed_option
@click.option("--data", type=click.Path(), metavar="FILE-OR-FOLDER",
              help="The data of tasks that need some, or embedded:NAME.")  # fmt: skip
@click.option("--recipe", type=RECIPE, metavar="NAME-OR-FILE",
              help="A recipe of the package, or a .toml file of your own. [default: the task's]")  # fmt: skip
@click.option(
    "--shuffled", is_flag=True, help="A control: the tokens of every sequence in an order drawn at random."
)
@click.option("--start", type=click.Path(dir_okay=False, path_type=Path), metavar="CHECKPOINT",
              help="Begin with these weights, all but the head's: fine-tune a model.")  # fmt: skip
@_limit_option
@device_option
@out_folder("The folder of the run. [default: runs/RECIPE-…-seedN]")
@restart_option
def train(
    task: str, attention: str | None, typed: Settings, out: str | None, restart: bool, **arguments: Any
) -> None:
    """Train a model on a task from its recipe; an interrupted run goes on where it stopped.

    \b
    workbench study train digits --attention rpc-sym -s num_iter=[4] --seed 3
    """
    from workbench.studies.training import train
    from workbench.studies.training.tasks import usual_recipe
    from workbench.studies.training.tasks.embedded import embedded_name

    data_name = embedded_name(task, arguments["data"])
    recipe = Path(arguments["recipe"] or usual_recipe(task, arguments["data"])).stem
    named = f"{data_name}-embedded" if data_name and not arguments["recipe"] else recipe
    flags = [name for name in ("boost", "shuffled") if arguments[name]]
    parts = [named, attention, *flags, "tuned" if arguments["start"] else "", f"seed{arguments['seed']}"]
    options = read_settings(
        attention or recipe, typed, _variant_options({"task": task, "attention": attention, **arguments})
    )
    out = out or os.path.join("runs", "-".join(part for part in parts if part))
    click.echo(str(train(task, out, attention=attention, options=options, restart=restart, **arguments)))


# Evaluation -------------------------------------------------------------------------------------------------


def _protocol_options(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    from workbench.studies.evaluation import PROTOCOLS

    return PROTOCOLS[arguments.get("protocol") or "clean"].settings


def _protocol_tables(words: Sequence[str]) -> Tables:
    from workbench.studies.evaluation import PROTOCOLS

    return [("Protocols", [(protocol.name, protocol.summary()) for protocol in PROTOCOLS.values()])]


@study.command(cls=WithTables, tables=_protocol_tables)
@model_option("A model, or a checkpoint of a training run.", several=True, required=True)
@click.option(
    "--protocol",
    type=_PROTOCOL,
    metavar="NAME",
    help="What is done to the inputs; the protocols are listed below.",
    default="clean",
    show_default=True,
)
@inputs_option("Labelled images, or texts. [default: the test set of the model's task]")
@click.option("--epsilon", metavar="LIST", help="The budgets: 0,0.02,0.04. [default: the protocol's]")
@count_option
@seed_option
@click.option(
    "--reference", type=MODEL, metavar="SPEC", help="For corruptions: divide by this model's errors (mCE)."
)
@set_option(_protocol_options, "A setting of the protocol, such as steps=40; they are listed below.")
@device_option
@out_file("Also write the table: .csv.")
@json_option
def evaluate(
    model: tuple[str, ...],
    protocol: str,
    epsilon: str | None,
    typed: Settings,
    out: str | None,
    as_json: bool,
    **arguments: Any,
) -> None:
    """Evaluate models on clean, attacked, corrupted or out-of-distribution inputs, or on texts with words swapped.

    \b
    workbench study evaluate -m bundled:digits-vit --protocol pgd --epsilon 0,0.02 -s steps=10 -o pgd.csv
    """
    from workbench.core.options import literal
    from workbench.studies.evaluation import evaluate

    check_out(out, "an evaluation is")
    settings = read_settings(protocol, typed, _protocol_options({"protocol": protocol}))
    budgets = None if epsilon is None else [literal(part.strip()) for part in epsilon.split(",")]
    frame = evaluate([*model], protocol, epsilons=budgets, settings=settings, **arguments)
    write_csv(frame, out)
    printed = frame
    if not as_json:  # what is the same in every row stands in the title or is known
        same = ["inputs", "n", "seed", "protocol", "version", "unit"]
        printed = frame.drop(columns=same).dropna(axis=1, how="all")
    title = f"{protocol}: {', '.join(frame['inputs'].unique())}, n = {frame['n'].iloc[0]}"
    print_table(records_of(printed), title, as_json)
    print_notes(frame.attrs["notes"])


# Efficiency -------------------------------------------------------------------------------------------------


def _efficiency_tables(words: Sequence[str]) -> Tables:
    from workbench.papers.operators import OPERATORS, SWEEPS

    sweeps = [
        (name, f"wu2025 {sweep.figure}: {sweep.axis} {sweep.sizes[0]} to {sweep.sizes[-1]}")
        for name, sweep in SWEEPS.items()
    ]
    return [
        ("Sweeps", sweeps),
        ("Operators", [(name, operator.title) for name, operator in OPERATORS.items()]),
    ]


@study.command(cls=WithTables, tables=_efficiency_tables)
@_sweep_option
@click.option("--operator", "operators", type=_OPERATOR, metavar="NAME", multiple=True,
              help="An attention operator. May be repeated. [default: all]")  # fmt: skip
@max_time_option
@device_option
@dtype_option
@out_folder("Keep every finished point in this folder, and the table points.csv.")
@restart_option
@json_option
def efficiency(
    sweeps: tuple[str, ...], operators: tuple[str, ...], max_time: str | None, device: str | None, dtype: str | None,
    out: str | None, restart: bool, as_json: bool,
) -> None:  # fmt: skip
    """Measure time and memory of attention operators against tokens and width, and fit their exponents.

    Twelve attention layers with their projections, batch 1; every point in a process of its own, the smallest first.

    \b
    workbench study efficiency --sweep tokens --max-time 5m -o runs/tokens
    """
    from workbench.models.loading import default_device
    from workbench.runs.sweep import parse_duration
    from workbench.studies.records import POINTS_FILE
    from workbench.studies.scaling import printed_exponents, scaling_exponents, scaling_study

    budget = None if max_time is None else parse_duration(max_time) / 60
    if restart:
        _begin_anew(out)
    frame = scaling_study(
        sweeps or None, operators=operators or None, budget=budget, device=device or default_device(),
        dtype=dtype or "float32", out=out, progress=sys.stderr.isatty(),
    )  # fmt: skip
    write_csv(frame, Path(out) / POINTS_FILE if out else None)
    run = frame.attrs["provenance"]
    title = f"Exponents on {run['device']}, {run['dtype']}, {run['threads']} thread{'s' if run['threads'] > 1 else ''}"
    rows = [] if as_json else _exponent_rows(scaling_exponents(frame), printed_exponents())
    if as_json or rows:
        print_table(records_of(frame) if as_json else rows, title, as_json)
    else:
        click.echo(f"{title}: none, since no curve has the three sizes that a fit needs")
    for row in frame[frame["ended"].notna()].to_dict("records"):
        click.echo(
            f"{row['sweep']}: {row['operator']}, {row['condition']}, ends at {row['tokens']} × {row['width']}: "
            f"{row['ended']}",
            err=as_json,
        )
    print_notes(frame.attrs["notes"])


def _exponent_rows(fitted: Any, printed: Any) -> list[dict[str, Any]]:
    """Return rows of the printed table: measured exponents with the counted and published ones."""
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


# Verdicts ---------------------------------------------------------------------------------------------------


@study.command("claims")
@paper_option
@primary_option
@why_option
@out_file("Also write the table: .csv.")
@json_option
def recorded_verdicts(paper: str | None, primary: bool, why: bool, out: str | None, as_json: bool) -> None:
    """Say which claims about trained mechanisms hold, from the committed records; nothing is trained.

    \b
    workbench study claims --paper wu2025 --primary
    """
    from workbench.studies import claims_from_records

    check_out(out, "claims are")
    title = "Claims about trained mechanisms, from records"
    print_claims(claims_from_records(paper), title, primary, why, out, as_json)


# Committed records ------------------------------------------------------------------------------------------


@study.group()
def records() -> None:
    """Make the committed records again, under data/; an interrupted call goes on where it stopped."""


def _folders(work: str) -> Any:
    """Add the options for a record's folder and its folder of unfinished work."""

    def decorate(command: Any) -> Any:
        command = restart_option(command)
        folder = click.Path(file_okay=False, path_type=Path)
        command = click.option("--work", type=folder, default=work, show_default=True, metavar="FOLDER",
                               help="Where unfinished work lies.")(command)  # fmt: skip
        return out_folder("The folder that holds models/ and records/. [default: the package's data/]")(
            command
        )

    return decorate


def _into(work: str) -> Any:
    """Give a command the folders ``data`` and ``work``: ``--confirm`` names their subfolders, ``--restart`` empties."""

    def decorate(record: Callable[..., None]) -> Any:
        @functools.wraps(record)
        def command(*, out: str | None, work: Path, restart: bool, **arguments: Any) -> None:
            data = _data(out)
            if arguments.get("confirm"):
                data, work = data / "confirmed", work / "confirm"
            if restart:
                _begin_anew(work)
            record(data=data, work=work, **arguments)

        return _folders(work)(command)

    return decorate


def _data(out: str | None) -> Path:
    """Return the folder for records; raises `MissingResource` before the work if it cannot be written."""
    from workbench.core.files import check_writable
    from workbench.core.paths import data_dir

    folder = Path(out) if out else data_dir()
    check_writable(folder / "records" / "record.json")
    return folder


def _begin_anew(folder: str | os.PathLike[str] | None) -> None:
    """Move a folder aside and print its new path."""
    from workbench.core.store import set_aside

    moved = None if folder is None else set_aside(folder)
    if moved is not None:
        click.echo(f"{folder} moved aside to {moved}", err=True)


def _confirm_option(help: str) -> Any:
    return click.option("--confirm", is_flag=True, help=help)


@records.command()
@model_option("A bundled model. [default: all of them]", several=True)
@_epochs_option
@_limit_option
@workers_option
@_confirm_option("Train the confirmatory seeds of the models that claims compare.")
@_into("runs/bundle")
def training(model: tuple[str, ...], data: Path, work: Path, **arguments: Any) -> None:
    """Train the bundled models again, three seeds each, and write models/ and records/.

    \b
    workbench study records training -m bundled:digits-vit -j 2
    """
    from workbench.studies.training.bundled_models import make_training_records

    for line in make_training_records([_name(spec) for spec in model], data, work, **arguments):
        click.echo(line)


def _name(spec: str) -> str:
    return spec.removeprefix("bundled:")


@records.command()
@click.option("--name", type=_EMBEDDED_DATA, metavar="NAME", multiple=True,
              help="Only these data. May be repeated. [default: all]")  # fmt: skip
@click.option("--variant", metavar="NAME", multiple=True,
              help="Only these mechanisms, as the record calls them. "
              "May be repeated. [default: all]")  # fmt: skip
@_epochs_option
@_limit_option
@device_option
@workers_option
@_into("runs/embedded")
def embedded(
    name: tuple[str, ...],
    variant: tuple[str, ...],
    device: str | None,
    data: Path,
    work: Path,
    **arguments: Any,
) -> None:
    """Train what is recorded of the embedded tasks: every mechanism that a claim is about, three seeds each.

    \b
    workbench study records embedded --name listops -j 2
    """
    from workbench.models.loading import default_device
    from workbench.studies.evaluation.embedded import undergone
    from workbench.studies.training.embedded_runs import make_embedded_records

    arguments["device"] = device or default_device()
    for line in make_embedded_records(name, data, work, undergone=undergone, variants=variant, **arguments):
        click.echo(line)


@records.command()
@click.option("--name", type=_CLAIMED_DATA, metavar="NAME", multiple=True,
              help="Only these data. May be repeated. [default: all that claims are about]")  # fmt: skip
@_folders("runs/embedded")
def learned(name: tuple[str, ...], out: str | None, work: Path, restart: bool) -> None:
    """Train pilot runs, which show on validation splits which embedded data are learned.

    \b
    workbench study records learned --name listops
    """
    from workbench.studies.training.pilots import make_learned_record

    for line in make_learned_record(name, _data(out), work / "pilots", restart=restart):
        click.echo(line)


@records.command()
@model_option("A bundled model of digits or prose. [default: all of them]", several=True)
@click.option("--protocol", type=_PROTOCOL, metavar="NAME", multiple=True,
              help="Only this protocol. May be repeated. [default: all]")  # fmt: skip
@_limit_option
@workers_option
@_confirm_option("Evaluate every confirmatory seed on record, as claims compare it.")
@click.option("--runs", type=click.Path(file_okay=False, path_type=Path), default="runs/bundle/confirm",
              show_default=True, metavar="FOLDER", help="With --confirm, where their weights are.")  # fmt: skip
@_into("runs/robustness")
def robustness(
    model: tuple[str, ...],
    protocol: tuple[str, ...],
    data: Path,
    work: Path,
    confirm: bool,
    runs: Path,
    **arguments: Any,
) -> None:
    """Evaluate the bundled models again: attacks, corruptions, swapped words.

    \b
    workbench study records robustness -m bundled:digits-vit --protocol fgsm -j 2
    """
    from workbench.studies.evaluation.robustness import make_robustness_record

    models = [f"bundled:{_name(spec)}" for spec in model]
    record = make_robustness_record(
        models or None, [*protocol] or None, data, work, runs=runs if confirm else None, **arguments
    )
    seconds = record["seconds"]
    click.echo(f"{len(seconds)} evaluations, {sum(seconds.values()) / 60:.0f} minutes of one core")


@records.command()
@workers_option
@_into("runs/claims")
def claims(data: Path, work: Path, workers: int) -> None:
    """Measure the claims again that the notebook `claims` draws; seven minutes of one core.

    \b
    workbench study records claims -j 2
    """
    from workbench.studies.claims_measured import make_claims_record

    calls = make_claims_record(data, work, workers=workers)["calls"]
    seconds = sum(call["seconds"] for call in calls)
    click.echo(f"claims about {len(calls)} models, {seconds / 60:.0f} minutes of one core")


@records.command()
@workers_option
@_into("runs/theorems")
def theorems(data: Path, work: Path, workers: int) -> None:
    """Measure again what theorems and remarks come to in bundled models; six short trainings.

    \b
    workbench study records theorems -j 2
    """
    from workbench.studies.theorems import make_theorems_record

    record = make_theorems_record(data, work, workers=workers)
    click.echo(f"theorems: {', '.join(record['files'])}")


@records.command()
@_sweep_option
@device_option
@dtype_option
@_into("runs/operators")
def operators(sweeps: tuple[str, ...], device: str | None, dtype: str | None, data: Path, work: Path) -> None:
    """Measure the attention operators again: time, memory, exponents.

    \b
    workbench study records operators --sweep causal
    """
    from workbench.models.loading import default_device
    from workbench.studies.scaling.study import make_operators_record

    record = make_operators_record(
        data,
        work,
        sweeps=[*sweeps] or None,
        device=device or default_device(),
        dtype=dtype or "float32",
    )
    click.echo(f"{record['device']}, {record['dtype']}: {record['seconds'] / 60:.0f} minutes")
