"""What variants cost, against what can be counted by hand and what the papers print."""

import pytest

from workbench.core.errors import InputError, UnknownName
from workbench.studies.training import papers_counts, published_costs, variant_costs
from workbench.studies.training.efficiency import COLUMNS, VARIANTS, parse_variant

WIDTH, TOKENS, DEPTH, HEADS = 48, 65, 4, 3  # of bundled:digits-vit
N = 3
ASKED = ["softmax-sym", "rpc-sym", "scaled-free", "scaled-alpha", "primal", "bilateral+boost"]


@pytest.fixture(scope="module")
def costs():
    return variant_costs(variants=ASKED, n=N, rounds=2, seed=1)


def values(frame, metric, condition="", column="value", baseline="softmax"):
    chosen = (frame["metric"] == metric) & (frame["condition"] == condition) & (frame["baseline"] == baseline)
    return frame[chosen].set_index("attention")[column]


def test_softmax_is_once_itself(costs):
    own = costs[costs["attention"] == "softmax"]
    assert len(own) == 8
    assert (own[["ratio", "low", "high"]] == 1).all(axis=None)


def test_softmax_costs_what_is_counted_by_hand(costs):
    layer = TOKENS * WIDTH * (3 + 1 + 8) * WIDTH + 2 * TOKENS * TOKENS * WIDTH
    outside = 64 * 4 * WIDTH + WIDTH * 10  # patches of 2 × 2 pixels; the class
    found = values(costs, "macs", "training")["softmax"]
    assert found == values(costs, "macs", "test")["softmax"] == DEPTH * layer + outside
    assert values(costs, "macs", "training, in a batch")["softmax"] == found


def test_variants_differ_by_what_they_leave_out_or_add(costs):
    macs = values(costs, "macs", "training")
    projection, attention = TOKENS * WIDTH * WIDTH, 2 * TOKENS * TOKENS * WIDTH
    assert macs["softmax"] - macs["softmax-sym"] == DEPTH * projection
    assert macs["rpc-sym"] - macs["softmax-sym"] == 3 * attention  # four iterations in the first layer
    assert macs["scaled-alpha"] - macs["softmax"] == DEPTH * attention
    assert macs["scaled-free"] - macs["softmax"] == DEPTH * attention / 2
    parameters = values(costs, "parameters")
    assert parameters["softmax"] - parameters["softmax-sym"] == DEPTH * WIDTH * (WIDTH + 1)
    assert parameters["scaled-free"] - parameters["softmax"] == DEPTH * HEADS * TOKENS**2
    assert parameters["scaled-alpha"] - parameters["softmax"] == DEPTH


def test_the_position_term_is_counted_once_per_batch_and_not_at_inference(costs):
    term = DEPTH * (TOKENS * WIDTH * 2 * WIDTH + TOKENS * TOKENS * WIDTH)
    softmax, both = values(costs, "macs", "test")["softmax"], "bilateral+boost"
    assert values(costs, "macs", "training")[both] == softmax + term
    assert values(costs, "macs", "training, in a batch")[both] == pytest.approx(softmax + term / N)
    assert values(costs, "macs", "test", "ratio")[both] == 1


def test_a_free_s_is_held_in_training_with_its_gradient(costs):
    more = values(costs, "peak_memory", "training")
    assert more["scaled-free"] > more["softmax"]
    assert (values(costs, "peak_memory", "training") > values(costs, "peak_memory", "test")).all()


def test_rpc_attention_stands_beside_symmetric_softmax_as_well(costs):
    beside = costs[costs["baseline"] == "softmax-sym"]
    assert set(beside["attention"]) == {"rpc-sym"}
    macs = values(costs, "macs", "training", "ratio")
    own = values(costs, "macs", "training", "ratio", "softmax-sym")["rpc-sym"]
    assert own == pytest.approx(macs["rpc-sym"] / macs["softmax-sym"])


def test_rows_say_what_they_are(costs):
    assert list(costs.columns) == list(COLUMNS)
    assert not costs.duplicated(["attention", "baseline", "metric", "condition"]).any()
    assert (costs["low"] <= costs["ratio"]).all()
    assert (costs["ratio"] <= costs["high"]).all()
    run = costs.attrs["provenance"]
    assert run["model"]["spec"] == "bundled:digits-vit"
    assert run["options"]["variants"] == ["softmax", *ASKED]
    assert (run["inputs"]["n"], run["seed"]) == (N, 1)


def test_what_is_counted_depends_on_no_weights(costs):
    other = variant_costs(variants=["rpc-sym"], n=N, rounds=1, seed=2)
    for metric, condition in (("macs", "training"), ("peak_memory", "training"), ("peak_memory", "test")):
        assert values(other, metric, condition)["rpc-sym"] == values(costs, metric, condition)["rpc-sym"]


def test_a_variant_is_read_with_its_options():
    assert parse_variant("tssa") == ("tssa", {}, False)
    assert parse_variant("bilateral+boost") == ("bilateral", {}, True)
    read = parse_variant("rpc-sym num_iter=[5] convention=as_implemented lambd=3.5")
    assert read == ("rpc-sym", {"num_iter": [5], "convention": "as_implemented", "lambd": 3.5}, False)
    assert len({parse_variant(name).attention for name in VARIANTS}) == 10


@pytest.mark.parametrize("text", ["", "tssa+", "tssa+boast", "+boost", "rpc-sym num_iter", "rpc-sym =3"])
def test_what_names_no_variant(text):
    with pytest.raises(InputError, match="NAME OPTION=VALUE"):
        parse_variant(text)


def test_requests_that_cannot_be():
    with pytest.raises(InputError, match="softmax attention that was trained here"):
        variant_costs("bundled:digits-tssa", rounds=1, n=2)
    with pytest.raises(InputError, match="rounds"):
        variant_costs(rounds=0)
    with pytest.raises(InputError, match="n is a whole number"):
        variant_costs(n=0)
    with pytest.raises(UnknownName, match="tssa"):
        variant_costs(variants=["tsssa"])


def test_published_costs_are_multiples_of_their_own_baseline():
    printed = published_costs()
    own = printed[printed["attention"] == printed["baseline"]]
    assert (own["ratio"] == 1).all()
    macs = values(printed, "macs", "training", "ratio")
    assert macs["bilateral"] == pytest.approx(1.33 / 1.08)
    assert values(printed, "macs", "test", "ratio")["bilateral"] == 1
    table_13 = values(printed, "seconds_per_sample", "training", "ratio", "softmax-sym")
    assert table_13["rpc-sym num_iter=2"] == pytest.approx(0.092 / 0.079)
    assert set(printed["attention"]) <= set(VARIANTS)


@pytest.fixture(scope="module")
def counted():
    return papers_counts()


def test_table_13_prints_giga_for_mega(counted):
    ours = values(counted, "macs", "training", baseline="softmax-sym")
    theirs = values(published_costs(), "macs", "training", baseline="softmax-sym")
    assert len(ours) == 5
    assert ((ours / (1000 * theirs[ours.index]) - 1).abs() < 0.01).all()
    assert round(values(counted, "parameters", baseline="softmax-sym").iloc[0] / 1e6) == 5


def test_table_v_leaves_out_the_products_inside_attention(counted):
    tokens, width, depth = 197, 192, 12
    inside = depth * 2 * tokens**2 * width
    for condition in ("training", "test"):
        ours = values(counted, "macs", condition) - inside
        theirs = values(published_costs(), "macs", condition)
        assert ((ours / theirs[ours.index] - 1).abs() < 0.015).all()


def test_a_vision_transformer_of_the_papers_size_costs_what_is_counted_by_hand(counted):
    tokens, width, depth = 197, 192, 12
    layer = tokens * width * 12 * width + 2 * tokens**2 * width
    outside = 196 * 16 * 16 * 3 * width + width * 1000
    assert values(counted, "macs", "training")["softmax"] == depth * layer + outside
