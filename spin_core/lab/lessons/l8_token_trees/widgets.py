"""The widgets of the lesson on token trees: grow one on a prompt, and test children one by one."""

from collections.abc import Mapping, Sequence
from functools import cache

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
    number = slider("step", 2, 1, 2, "which verification of the answer")
    said = HTML()
    controls = [menu("prompt", list(prompts), "the text to answer"),
                menu("drafters", [(" and ".join(group), tuple(group)) for group in drafters], "their trees are merged"),
                Text("2,1,1", description="shape", continuous_update=False,
                     tooltip="children of every node, level by level; or nodes by their paths, such as 0.1.0"),
                slider("temperature", 0.0, 0, 1.5, "0: greedy", 0.5), number, said]

    @cache
    def answered(prompt: str, group: tuple[str, ...], shape: str, heat: float) -> list[TreeStep]:
        parse(shape)
        try:
            return tree_steps(engine, f"tree:{','.join(group)}:{shape}", prompts[prompt],
                              SamplingParams(heat, max_new_tokens=max_new_tokens, seed=0))
        except RuntimeError as error:
            raise ValueError(str(error)) from error

    def draw(prompt: str, group: tuple[str, ...], shape: str, heat: float, step: int) -> Figure:
        found = answered(prompt, group, shape.replace(" ", ""), heat)
        number.max = max(1, len(found))
        tokens = sum(len(s.path) + (s.own is not None) for s in found)
        said.value = f"{tokens / len(found):.2f} tokens per verification in this answer"
        at = min(step, len(found))
        return plots.tree(found[at - 1], group, f"Step {at} of {len(found)}, "
                          f"{f'temperature {heat:g}' if heat else 'greedy'}: ")

    return Panel(controls, draw, kind="measured", hold=False,
                 task="Find a step whose path leaves the first branch. "
                 "Then a wide tree: does it bring more tokens per verification than a deep one of as many nodes?",
                 presets={"a chain": {"shape": "1,1,1"}, "wide": {"shape": "4,1"},
                          "deep": {"shape": "1,1,1,1,1,1,1,1"}})


def stepper() -> Panel:
    """Multi-step sampling at one node, test by test."""
    def draw(drawing: str, seed: int, shown: int) -> Figure:
        # two ways often draw the same first child, so the picture says which way it shows
        return plots.trials(walk(drawing, seed), shown, f"Children drawn: {drawing.replace('_', ' ')} (seed {seed})")

    return Panel([menu("drawing", ["without_replacement", "independent", "top_k"], "how children are drawn from q"),
                  slider("seed", 0, 0, 40, "of the random numbers"),
                  slider("tests shown", 4, 1, 4, "go through the tests one by one")], draw,
                 kind="modelled, on made-up distributions",
                 task="Find a seed whose third child is accepted. What is left of p then?")
