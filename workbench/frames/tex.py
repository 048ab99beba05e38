"""Plain text as LaTeX has it, whichever letters it is written in."""

from __future__ import annotations

import re

from workbench.core.errors import InputError

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\ensuremath{<}",  # in LaTeX's own old encoding of fonts these three are other letters
    ">": r"\ensuremath{>}",
    "|": r"\ensuremath{|}",
}
_MATHEMATICS = {
    "±": r"\pm", "×": r"\times", "·": r"\cdot", "⋅": r"\cdot", "−": "-", "≤": r"\le", "≥": r"\ge", "≠": r"\ne",
    "≈": r"\approx", "∞": r"\infty", "∈": r"\in", "∂": r"\partial", "∑": r"\sum", "∏": r"\prod", "√": r"\surd",
    "‖": r"\|", "∥": r"\|", "⟨": r"\langle", "⟩": r"\rangle", "⊙": r"\odot", "⊤": r"\top", "→": r"\to", "←": r"\gets",
    "↑": r"\uparrow", "↓": r"\downarrow", "⌊": r"\lfloor", "⌋": r"\rfloor",
    "⋯": r"\cdots", "ℓ": r"\ell", "°": r"^\circ",
    "∝": r"\propto", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "◇": r"\diamond",
    "α": r"\alpha", "β": r"\beta", "γ": r"\gamma", "δ": r"\delta", "ε": r"\varepsilon", "ζ": r"\zeta", "η": r"\eta",
    "θ": r"\theta", "ι": r"\iota", "κ": r"\kappa", "λ": r"\lambda", "μ": r"\mu", "µ": r"\mu", "ν": r"\nu", "ξ": r"\xi",
    "π": r"\pi", "ρ": r"\rho", "σ": r"\sigma", "τ": r"\tau", "υ": r"\upsilon", "φ": r"\varphi", "χ": r"\chi",
    "ψ": r"\psi", "ω": r"\omega", "Γ": r"\Gamma", "Δ": r"\Delta", "Θ": r"\Theta", "Λ": r"\Lambda", "Ξ": r"\Xi",
    "Π": r"\Pi", "Σ": r"\Sigma", "Υ": r"\Upsilon", "Φ": r"\Phi", "Ψ": r"\Psi", "Ω": r"\Omega",
}  # fmt: skip
_WORDS = {
    "…": r"\dots{}", "–": "--", "—": "---", "“": "``", "”": "''", "‘": "`", "’": "'", "§": r"\S{}",
    "•": r"\textbullet{}", "\u00a0": "~", "\u2011": "-", "\u202f": r"\,", "\u2009": r"\,", "\u200b": "",
}  # fmt: skip
_ACCENTS = {"\u0302": r"\hat", "\u0303": r"\tilde", "\u0304": r"\bar", "\u0307": r"\dot"}
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿᵀ", "0123456789+-nT")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉₊₋ᵢⱼₖₙₑᵣ", "0123456789+-ijkner")
_RAISED_RUN, _LOWERED_RUN = (re.compile(f"[{''.join(map(chr, each))}]+") for each in (_RAISED, _LOWERED))
_ACCENTED = re.compile(f"(.)([{''.join(_ACCENTS)}])")
_FORMULA = re.compile(r"\$([^$\n]*[\\_^][^$\n]*)\$")
_PART = re.compile(r"([_^])\s*(\{(?:[^{}]|\{[^{}]*\})*\}|\\[A-Za-z]+|[^\s\\{}])|\\([A-Za-z]+|.) ?|[{}]")
_DRAWN = {command: letter for letter, command in _MATHEMATICS.items()} | {
    r"\epsilon": "ε", r"\phi": "φ", r"\|": "‖", r"\top": "ᵀ", r"\,": " ", r"\;": " ", r"\%": "%", r"\leq": "≤",
    r"\geq": "≥", r"\sqrt": "√", r"\mathrm": "", r"\text": "", r"\log": "log ", r"\exp": "exp ",
}  # fmt: skip
_INDEXED = re.compile(rf"\b(\w){re.escape(_SPECIAL['_'])}(\w){re.escape(_SPECIAL['^'])}(\w+)")  # R_c^var


def tex_text(text: str) -> str:
    """Convert a sentence to LaTeX's text mode: escape special characters, set symbols in math mode."""
    escaped = "".join(_SPECIAL.get(letter, letter) for letter in text)
    return tex_symbols(
        _INDEXED.sub(lambda match: _maths(rf"{match[1]}_{{{match[2]}}}^{{\mathrm{{{match[3]}}}}}"), escaped)
    )


def tex_symbols(text: str) -> str:
    """Replace the Unicode symbols of a LaTeX text by commands."""
    text = _RAISED_RUN.sub(lambda match: _maths(f"^{{{match[0].translate(_RAISED)}}}"), text)
    text = _LOWERED_RUN.sub(lambda match: _maths(f"_{{{match[0].translate(_LOWERED)}}}"), text)
    text = _ACCENTED.sub(
        lambda match: _maths(f"{_ACCENTS[match[2]]} {_MATHEMATICS.get(match[1], match[1])}"), text
    )
    return "".join(
        _maths(_MATHEMATICS[letter]) if letter in _MATHEMATICS else _WORDS.get(letter, letter)
        for letter in text
    )


def _maths(command: str) -> str:
    return rf"\ensuremath{{{command}}}"


def drawn_formulas(label: str) -> str:
    r"""Write the formulas of a label, such as ``$\theta_1$``, in the letters and tags that plotly draws: θ<sub>1</sub>.

    Raises `InputError` for a command that is no letter, such as ``\frac``.
    """

    def drawn(match: re.Match[str]) -> str:
        script, argument, command = match.groups()
        if script:
            tag = "sub" if script == "_" else "sup"
            return f"<{tag}>{_PART.sub(drawn, argument)}</{tag}>"
        if command is None:  # a brace
            return ""
        if f"\\{command}" not in _DRAWN:
            raise InputError(
                f"the label {label!r} has \\{command}, which is not drawn; give letters with _ and ^, such as "
                r"'$\theta_1$', or Unicode"
            )
        return _DRAWN[f"\\{command}"]

    return _FORMULA.sub(lambda match: _PART.sub(drawn, match[1]), label)
