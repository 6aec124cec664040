"""Pure plotting functions: numbers in, a matplotlib Figure out. No models, no files, no global state.

:mod:`base` is the look they share; every other module holds the pictures of one lesson. Those of the first lesson,
which all others build on, and the style can be had from the package itself.
"""

from spin_core.plots.speculation import (
    Counts, FATE_COLOURS, FATE_WORDS, acceptance_by_position, acceptance_by_request, expected_tokens, law,
    speed, step, steps, text_by_fate, theory, theory_family,
)
from spin_core.plots.base import (
    BLUE, GREEN, GREY, INK, LIGHT, ORANGE, P_COLOUR, PURPLE, Q_COLOUR, RED, RESIDUAL_COLOUR, SERIES, SKY,
    WIDTH, apart, characters, label, look, png, style, styled, tint,
)

__all__ = [
    "BLUE", "Counts", "FATE_COLOURS", "FATE_WORDS", "GREEN", "GREY", "INK", "LIGHT", "ORANGE", "PURPLE",
    "P_COLOUR", "Q_COLOUR", "RED", "RESIDUAL_COLOUR", "SERIES", "SKY", "WIDTH", "acceptance_by_position",
    "acceptance_by_request", "apart", "characters", "expected_tokens", "label", "law", "look", "png",
    "speed", "step", "steps", "style", "styled", "text_by_fate", "theory", "theory_family", "tint",
]
