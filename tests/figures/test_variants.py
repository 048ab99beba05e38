"""Looks of the trained variants: one for each, and apart from each other."""

import colorsys
import itertools

import numpy as np
import plotly.graph_objects as go
import pytest
from plotly.colors import hex_to_rgb

from tests.figures.test_theme import DEFICIENT, _seen
from workbench.core.errors import UnknownName
from workbench.figures.variants import LOOKS, in_order, look_of
from workbench.studies.training.bundled_models import MODELS
from workbench.studies.training.recipes import load_recipe

ATTENTIONS = {
    load_recipe(model.recipe or model.task, model.attention).attention + ("+boost" if model.boost else "")
    for model in MODELS.values()
}


def test_every_bundled_model_has_a_look():
    assert set(LOOKS) >= ATTENTIONS
    with pytest.raises(UnknownName, match="rpc-sym"):
        look_of("rpc-symm")


def test_variants_of_one_task_are_distinguished_by_colour_and_dash():
    looks = {look for name, look in LOOKS.items() if not name.endswith("-causal")}
    assert len({look.label for look in looks}) == len(looks)
    assert len({(look.colour, look.dash) for look in looks}) == len(looks)


def test_a_causal_variant_looks_like_the_one_it_is_the_causal_form_of():
    for name in LOOKS:
        assert look_of(name) == look_of(name.removesuffix("-causal"))


@pytest.mark.parametrize("kind", [None, *DEFICIENT])
def test_colours_stay_apart_with_and_without_all_kinds_of_cones(kind):
    matrix = np.eye(3) if kind is None else DEFICIENT[kind]
    seen = [_seen(colour, matrix) for colour in {look.colour for look in LOOKS.values()}]
    assert len(seen) == 11
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 19


def test_a_boosted_variant_keeps_its_hue_darker_and_has_another_dash():
    plain, boosted = look_of("bilateral"), look_of("bilateral+boost")
    hue, dark = (
        colorsys.rgb_to_hsv(*(part / 255 for part in hex_to_rgb(look.colour))) for look in (plain, boosted)
    )
    assert abs(hue[0] - dark[0]) < 15 / 360
    assert dark[2] < 0.6 * hue[2]
    assert boosted.dash != plain.dash
    trace = go.Scatter(x=[1], y=[2], **boosted.style)
    assert trace.line.color == trace.marker.color == boosted.colour
    assert trace.marker.line.width == 0


def test_figures_list_variants_in_one_order():
    assert in_order(["tssa", "bilateral", "softmax", "tssa"]) == ["softmax", "bilateral", "tssa"]
    with pytest.raises(UnknownName, match="twicing"):
        in_order(["softmax", "twicing"])
