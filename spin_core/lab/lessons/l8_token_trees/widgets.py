"""The widgets of the lesson on token trees: grow one on a prompt, and test children one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ipywidgets import HTML, Text
from matplotlib.figure import Figure

from spin_core.draft.shape import parse
from spin_core.engine import Engine
from spin_core.lab.lessons.l8_token_trees import plots
from spin_core.lab.lessons.l8_token_trees.steps import TreeStep, tree_steps, walk
from spin_core.lab.lessons.panel import Panel, menu, slider
from spin_core.request import SamplingParams


def editor(engine: Engine, prompts: Mapping[str, str], drafters: Sequence[Sequence[str]], max_new_tokens: int = 24
           ) -> Panel:
    """Choose a prompt, the drafters, the shape and the temperature; go through the verifications.

    ``prompts`` by name; ``drafters``: groups to choose from, whose trees are merged. A shape that is malformed or
    too large gets a message, and the last picture stays.
    """
    prompt = menu("prompt", list(prompts), "the text to answer")
    choice = menu("drafters", [(" and ".join(group), tuple(group)) for group in drafters], "their trees are merged")
    shape = Text("2,1,1", description="shape", continuous_update=False,
                 tooltip="children of every node, level by level; or nodes by their paths, such as 0.1.0")
    heat = slider("temperature", 0.0, 0, 1.5, "0: greedy", 0.5)
    number = slider("step", 2, 1, 2, "which verification of the answer")
    said = HTML()
    answered: dict[tuple, list[TreeStep]] = {}

    def steps() -> list[TreeStep]:
        setting = prompt.value, tuple(choice.value), shape.value.replace(" ", ""), heat.value
        if setting not in answered:
            parse(setting[2])
            answered[setting] = tree_steps(engine, f"tree:{','.join(choice.value)}:{setting[2]}", prompts[setting[0]],
                                           SamplingParams(heat.value, max_new_tokens=max_new_tokens, seed=0))
        return answered[setting]

    def draw() -> Figure:
        try:
            found = steps()
        except RuntimeError as error:
            raise ValueError(str(error)) from error
        number.max = max(1, len(found))
        tokens = sum(len(s.path) + (s.own is not None) for s in found)
        said.value = f"{tokens / len(found):.2f} tokens per verification in this answer"
        at = min(number.value, len(found))
        return plots.tree(found[at - 1], choice.value, f"Step {at} of {len(found)}, "
                          f"{f'temperature {heat.value:g}' if heat.value else 'greedy'}: ")

    return Panel([prompt, choice, shape, heat, number, said], draw, kind="measured", hold=False,
                 task="Find a step whose path leaves the first branch. "
                 "Then a wide tree: does it bring more tokens per verification than a deep one of as many nodes?",
                 presets={"a chain": {"shape": "1,1,1"}, "wide": {"shape": "4,1"},
                          "deep": {"shape": "1,1,1,1,1,1,1,1"}})


def stepper() -> Panel:
    """Multi-step sampling at one node, test by test."""
    drawing = menu("drawing", ["without_replacement", "independent", "top_k"], "how children are drawn from q")
    seed = slider("seed", 0, 0, 40, "of the random numbers")
    shown = slider("tests shown", 4, 1, 4, "go through the tests one by one")

    def draw() -> Figure:
        # two ways often draw the same first child, so the picture says which way it shows
        way = drawing.value.replace("_", " ")
        return plots.trials(walk(drawing.value, seed.value), shown.value, f"Children drawn: {way} (seed {seed.value})")

    return Panel([drawing, seed, shown], draw, kind="modelled, on made-up distributions",
                 task="Find a seed whose third child is accepted. What is left of p then?")
