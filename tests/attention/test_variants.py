"""The one table: what it says of a variant is what the module does."""

import inspect
import math

import pytest
import torch

from tests.attention.modules import BATCH, TOKENS, assert_observing_changes_nothing, randn
from workbench.attention import SHARED_OPTIONS, VARIANTS, AttentionModule, attention_module
from workbench.core.errors import InputError, UnknownName


def build(name, **options):
    return attention_module(name, 15, 3, **({"num_tokens": TOKENS} | options))


@pytest.mark.parametrize("name", VARIANTS)
def test_options_are_those_of_the_module(name):
    variant = VARIANTS[name]
    own = {
        key: parameter
        for cls in variant.module.__mro__
        if issubclass(cls, AttentionModule) and cls is not AttentionModule and "__init__" in vars(cls)
        for key, parameter in inspect.signature(cls.__init__).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and key not in SHARED_OPTIONS
    }
    assert set(own) == {*variant.options, *variant.fixed} - set(SHARED_OPTIONS)
    assert all(option.help for option in variant.options.values())


@pytest.mark.parametrize("name", VARIANTS)
def test_sites_and_what_it_attends_to(name):
    module = build(name).double()
    assert_observing_changes_nothing(module)
    _, inside = module.attend(randn(BATCH, TOKENS, 15), observe=True)
    operands = {"q", "k", "v", "scale", "mask"}
    if VARIANTS[name].attends == "token":
        assert operands <= set(inside)
    assert VARIANTS[name].attends in ("token", "channel", "none")
    if VARIANTS[name].attends == "none":
        assert "attn" not in VARIANTS[name].sites


@pytest.mark.parametrize("name", VARIANTS)
def test_causality_is_what_the_table_says(name):
    causality = VARIANTS[name].causality
    if causality == "never":
        with pytest.raises(InputError, match="no causal form"):
            build(name, causal=True)
    elif causality == "always":
        assert build(name).causal
    else:
        assert not build(name).causal
        assert build(name, causal=True).causal


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_reach_every_parameter(name):
    module = build(name)
    output = module(torch.randn(BATCH, TOKENS, 15, generator=torch.Generator().manual_seed(0)))
    # some variants learn a parameter through an objective of their own, beside the task's
    objective = getattr(module, "objective", None)
    (output.square().sum() + (0 if objective is None else objective.square().mean())).backward()
    assert [key for key, value in module.named_parameters() if value.grad is None] == []


def test_unknown_names_and_options_are_refused_with_the_near_ones():
    with pytest.raises(UnknownName, match="unknown attention variant 'softmx'; did you mean 'softmax'"):
        attention_module("softmx", 15, 3)
    with pytest.raises(UnknownName, match="option of attention 'softmax'"):
        attention_module("softmax", 15, 3, num_iter=4)
    with pytest.raises(UnknownName, match="symmetry"):
        attention_module("rpc-sym", 15, 3, symmetry="asym")


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("rpc-sym", "lambd", math.nan), ("rpc-sym", "lambd", "4"), ("rpc-sym", "lambd", -1.0),
        ("rpc-sym", "num_iter", 1.5), ("rpc-sym", "num_iter", True), ("rpc-sym", "num_iter", [1, None]),
        ("rpc-sym", "num_iter", -1), ("primal", "low_rank", 0), ("primal", "low_rank", "many"),
        ("primal", "rank_multi", 2.5), ("bilateral", "h_p", math.nan), ("bilateral", "h_y", math.inf),
        ("bilateral", "h_y", "wide"), ("bilateral", "learn_bandwidths", 1), ("softmax", "qkv_bias", "no"),
        ("softmax", "layer", -1), ("tssa", "convention", None), ("primal", "scores", ["both"]),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_type_or_range_is_refused_with_what_is_accepted(name, option, value):
    with pytest.raises(InputError, match=option):
        build(name, **{option: value})


def test_infinite_values_are_accepted_where_they_mean_something():
    assert build("rpc-sym", lambd=math.inf)
    assert build("bilateral", h_p=math.inf)
