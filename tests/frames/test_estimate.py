"""Findings of layers in words."""

from workbench.core.intervals import Finding
from workbench.frames.estimate import first_to_last


def test_the_first_and_the_last_layer_are_named_and_a_single_one_once():
    found = {3: Finding(0.5, 0.4, 0.6, 7), 0: Finding(0.25, 0.2, 0.3, 7), 1: Finding(0.9, 0.8, 1.0, 7)}
    assert first_to_last(found) == "0.25 [0.20, 0.30] in layer 0 and 0.50 [0.40, 0.60] in layer 3"
    assert first_to_last(found, ".1f", ", ") == "0.2 [0.2, 0.3] in layer 0, 0.5 [0.4, 0.6] in layer 3"
    assert first_to_last({2: found[3]}) == "0.50 [0.40, 0.60] in layer 2"
