"""Formulas of labels are drawn, or refused in words."""

import pytest

from workbench.core.errors import InputError
from workbench.frames.tex import drawn_formulas


@pytest.mark.parametrize(
    ("label", "drawn"),
    [(r"$\theta$", "θ"), (r"$\lambda_{ij}^2$ of x", "λ<sub>ij</sub><sup>2</sup> of x"),
     (r"$\|q_i\|_2 \le \sqrt{d}$", "‖q<sub>i</sub>‖<sub>2</sub> ≤√d"), ("from $5 to $6", "from $5 to $6"),
     (r"$x_\alpha$, $y^{\mathrm{max}}$", "x<sub>α</sub>, y<sup>max</sup>"), (r"$\Sigma_{r}$", "Σ<sub>r</sub>")],
)  # fmt: skip
def test_a_formula_is_drawn_in_letters(label, drawn):
    assert drawn_formulas(label) == drawn


@pytest.mark.parametrize("label", [r"SD of $\hspace$", r"$\frac{a}{b}$", r"$x_{\vec a}$"])
def test_a_command_that_is_no_letter_is_refused_in_words(label):
    with pytest.raises(
        InputError, match=r"the label .* has \\\w+, which is not drawn; give letters with _ and \^"
    ):
        drawn_formulas(label)
