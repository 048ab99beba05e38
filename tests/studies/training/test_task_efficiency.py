"""What a training step costs on the tasks of chen2023, against what is counted by hand and what the paper prints."""

import pytest
import torch

from workbench.core.errors import InputError, UnknownName
from workbench.frames.results import join_frames
from workbench.frames.tables import summary_table
from workbench.studies.figures import cost_figure
from workbench.studies.training import published_task_costs, task_cost_findings, task_costs
from workbench.studies.training import task_efficiency as module
from workbench.studies.training.embedded_runs import PLAN
from workbench.studies.training.recipes import load_recipe

WIDTH, HEADS, DEPTH, TOKENS = 64, 2, 2, 100  # of the model of listops, embedded


@pytest.fixture(scope="module")
def costs():
    return task_costs(["listops", "rl"], ["embedded"], rounds=1)


@pytest.fixture(scope="module")
def agents():
    return task_costs(["rl"], ["published"], rounds=1)


def values(frame, task, metric, column="value"):
    chosen = frame[(frame["task"] == task) & (frame["metric"] == metric)]
    return chosen.set_index("attention")[column]


def test_softmax_costs_what_is_counted_by_hand_with_and_without_its_matrix(costs):
    layer = TOKENS * WIDTH * (3 + 1 + 2 * 2) * WIDTH + 2 * TOKENS * TOKENS * WIDTH
    macs = values(costs, "listops", "macs")
    assert macs["softmax"] == DEPTH * layer + WIDTH * 10
    assert macs["softmax-eager"] == macs["softmax"]
    memory = values(costs, "listops", "peak_memory")
    # Each layer keeps the probabilities of its heads for the backward pass, and the kernel one number a row of them.
    kept = DEPTH * HEADS * (TOKENS * TOKENS - TOKENS) * 4
    assert memory["softmax-eager"] - memory["softmax"] == pytest.approx(kept)


def test_a_mechanism_in_one_layer_leaves_the_matrix_of_the_other(costs):
    memory = values(costs, "listops", "macs")
    pair = 2 * TOKENS * TOKENS * WIDTH
    assert memory["primal"] < memory["softmax"] + pair
    parameters = values(costs, "listops", "parameters")
    one = parameters["primal"] - parameters["softmax"]
    assert parameters["primal layers=0-1"] - parameters["softmax"] == 2 * one > 0


def test_every_ratio_is_to_softmax_of_the_same_problem(costs):
    for _, own in costs.groupby(["problem", "metric"]):
        base = own.set_index("attention").loc["softmax-eager"]
        assert base["ratio"] == 1
        if own["metric"].iloc[0] != "seconds_per_sample":
            assert (own["ratio"] * base["value"]).to_list() == pytest.approx(own["value"].to_list())
    assert set(costs["problem"]) == {"ListOps (embedded), 100 tokens", "D4RL (embedded), 60 tokens"}
    assert costs.attrs["provenance"]["options"]["rounds"] == 1


def test_the_lengths_are_those_of_the_embedded_recipes_and_their_mechanisms_are_planned():
    for name, task in module.TASKS.items():
        recipe = load_recipe(f"{task.recipe}-embedded")
        assert recipe.architecture.get("context", task.embedded) == task.embedded, name
        assert set(task.published.values()) - {29, 1751} <= {
            load_recipe(task.recipe).architecture.get("context")
        }
    assert {"primal", "primal-all", "linformer", "nystrom"} <= {
        planned.variant for planned in PLAN["listops"]
    }


def test_nothing_is_drawn_from_the_callers_generator(costs):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    task_costs(["rl"], ["embedded"], rounds=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_published_costs_are_multiples_of_the_papers_transformer():
    printed = published_task_costs()
    assert (printed.loc[printed["attention"] == "softmax-eager", "ratio"] == 1).all()
    text = printed[(printed["task"] == "bytes") & (printed["metric"] == "seconds_per_sample")]
    ratios = text.set_index("attention")["ratio"]
    assert ratios["primal layers=0-1"] == pytest.approx(1 / 7.4, rel=0.02)  # the speed-up that Table 4 prints
    assert set(printed["source"]) == {"chen2023 Table 2", "chen2023 Table 4", "chen2023 Table 6"}
    assert "softmax" not in set(printed["attention"])


def test_the_figure_has_a_group_for_every_problem(costs, agents):
    fig = cost_figure(join_frames([costs, agents, published_task_costs()]))
    ticks = fig.layout.yaxis.ticktext
    groups = ("ListOps (embedded), 100 tokens", "D4RL (embedded), 60 tokens", "D4RL, 60 tokens")
    assert {f"<b>{name}</b>" for name in groups} <= set(ticks)
    assert "<b>Text, 4000 tokens</b>" not in ticks  # not measured
    assert [name for name in ticks if name == "softmax, eager"] == []


def test_findings_name_problem_and_print(agents):
    told = task_cost_findings(agents, published_task_costs())
    (line,) = [line for line in told if line.startswith("primal-causal, time")]
    assert "(D4RL, 60 tokens; printed 1.12)" in line
    assert not any(line.startswith("softmax-eager") for line in told)


def test_requests_that_cannot_be():
    with pytest.raises(UnknownName, match="did you mean 'listops'"):
        task_costs(["listop"])
    with pytest.raises(UnknownName, match="kind of length"):
        task_costs(["rl"], ["long"])
    with pytest.raises(InputError, match="rounds is a whole number"):
        task_costs(["rl"], rounds=0)
    with pytest.raises(InputError, match="budget is a number of seconds above 0"):
        task_costs(["rl"], budget=0)


def test_a_printed_table_has_a_row_per_problem_and_mechanism(costs):
    table = summary_table(costs)
    assert len(table) == len(costs[["problem", "attention"]].drop_duplicates())
    assert set(table["problem"]) == set(costs["problem"])


def test_the_sizes_of_a_task_are_those_of_its_data():
    """Long Range Arena: ListOps has ten digits as answers, Text and Retrieval two; bytes have two symbols besides."""
    sizes = {name: task.sizes for name, task in module.TASKS.items()}
    classes = {name: sizes[name]["num_classes"] for name in ("listops", "bytes", "retrieval")}
    assert classes == {"listops": 10, "bytes": 2, "retrieval": 2}
    assert sizes["bytes"]["vocabulary"] == sizes["retrieval"]["vocabulary"] == 256 + 2
    hopper = {"observations": 11, "actions": 3}  # of the simulator: 6 velocities, 5 positions; 3 torques
    assert sizes["rl"].items() >= hopper.items()
