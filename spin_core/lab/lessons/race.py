"""The race: the same answer by plain decoding, by one drafter and by SPIN, on one clock, as it was recorded or now."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from ipywidgets import VBox
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from spin_core.lab.bench import race as bench
from spin_core.lab.lessons import look, pages
from spin_core.lab.lessons.panel import Work
from spin_core.lab.lessons.show import folder
from spin_core.lab.results.stored import Stored, newest
from spin_core.lab.results import figures

TWO, THREE = (bench.PLAIN, bench.ONE), (bench.PLAIN, bench.ONE, bench.SPIN)
KINDS = {"accepted": look.GREEN, "own": look.SKY, "drafted": look.ORANGE}
FRAMES = 20             # of the animated picture
TASK = "Before you press play: which kinds of words will the drafter guess wrong?"


def recorded(directory: str | Path | None = None) -> Stored:
    """The newest race that ``bench race`` left in figures/data. Raises ValueError where there is none."""
    found = newest("race", directory)
    if found is None:
        raise ValueError("no race is stored: python -m spin_core bench race --json figures/data/MACHINE/race.json")
    return found


def lanes(rows: Sequence[dict], names: Sequence[str] = TWO) -> list[dict]:
    """The lanes ``names`` of a recorded race: each its steps, its drafters and its seconds."""
    out = []
    for name in names:
        steps = [row for row in rows if row["lane"] == name]
        if not steps:
            raise ValueError(f"the race has no lane {name!r}")
        used = [d for d in dict.fromkeys(row["drafter"] for row in steps) if d != "none"]
        out.append({"name": name, "about": ", ".join(used), "steps": steps,
                    "seconds": float(sum(row["seconds"] for row in steps)),
                    "tokens": sum(len(row["emitted"]) for row in steps)})
    return out


def finding(these: Sequence[dict]) -> str:
    """The result in a sentence."""
    plain, *others = these
    told = [f"{x['name']} {x['seconds']:.2f} s ({plain['seconds'] / x['seconds']:.2f} times as fast)" for x in others]
    return f"{plain['tokens']} tokens: {plain['name']} {plain['seconds']:.2f} s, {', '.join(told)}"


def why(these: Sequence[dict]) -> str:
    """What a pass saved and what a step cost, of the lane after plain decoding."""
    plain, lane = these[:2]
    passes, drafting = len(lane["steps"]), sum(step["draft_seconds"] for step in lane["steps"])
    longer = lane["seconds"] / passes / (plain["seconds"] / len(plain["steps"]))
    return (f"With {lane['name']}, {passes} target passes instead of {len(plain['steps'])}; but a step takes "
            f"{longer:.2f} times as long: it drafts ({drafting / lane['seconds']:.0%} of the time), and its target "
            "pass is wider (lesson 1, section 5).")


def wrong(these: Sequence[dict]) -> str:
    """The answer to the task: the drafted tokens that the target replaced, of the lane after plain decoding."""
    pairs = [f"“{step['emitted'][-1].strip()}” (drafted: “{step['drafted'][step['accepted']].strip()}”)"
             for step in these[1]["steps"] if step["accepted"] < min(len(step["drafted"]), len(step["emitted"]))]
    return f"{these[1]['about']} guessed {len(pairs)} tokens wrong. The first of them: {', '.join(pairs[:8])}."


def numbers(these: Sequence[dict], about: str, prompt: str = "") -> dict:
    """What the page is made of; ``prompt``: the text that the lanes answer."""
    return dict(lanes=these, title=finding(these), prompt=prompt, why=why(these), about=about, task=TASK,
                answer=wrong(these))


def show(names: Sequence[str] = TWO, *, save: str | None = None, directory: str | Path | None = None) -> None:
    """Display the recorded race as a page, and as an animated picture where scripts do not run.

    ``save``: also keep its last picture as the figure of that name.
    """
    found = recorded()
    these = lanes(found.rows, names)
    said = finding(these)
    prompt = bench.prompt_of(found.notes)
    if save:
        figures.save(save, picture(these, prompt=prompt), [dict(
            label=f"{lane['name']}, tokens by seconds", kind="measured", provenance=found.origin,
            x=np.cumsum([s["seconds"] for s in lane["steps"]]), y=np.cumsum([len(s["emitted"]) for s in lane["steps"]]))
            for lane in these], finding=f"{said}. {why(these)}", directory=directory or folder(),
            caption="One answer on one clock. Coloured: drafted and accepted, and the target's own tokens.")
    end = max(lane["seconds"] for lane in these)
    moving = pages.animated([picture(these, at, prompt) for at in np.linspace(0.04, 1, FRAMES) * end],
                            min(12.0, max(5.0, end)))
    threads = found.origin.get("threads")
    about = (f"measured on {found.origin.get('gpu') or found.origin.get('cpu') or found.machine}, {threads} "
             f"thread{'s' * (threads != 1)}, {(found.origin.get('date') or '')[:10]}")
    pages.show_page("race", numbers(these, about, prompt), moving, said)


@look.styled
def picture(these: Sequence[dict], now: float | None = None, prompt: str = "") -> Figure:
    """The lanes after ``now`` seconds, None: at the end; above them the ``prompt``."""
    end = max(lane["seconds"] for lane in these)
    now = end if now is None else now
    size = 9.5
    columns = int(look.characters(size, 0.98 * look.WIDTH)) - 1
    texts = [look.flow([t for step in lane["steps"] for t in step["emitted"]], columns) for lane in these]
    lines = 2 + max(line for text in texts for _, _, line, _ in text)
    top = 1.9 + bool(prompt)
    rows = top + 1.3 + len(these) * (lines + 1)
    figure = Figure(figsize=(look.WIDTH, 0.24 * rows))
    ax = figure.add_axes((0.01, 0, 0.98, 1))
    ax.set(xlim=(0, columns), ylim=(rows, 0))
    ax.axis("off")
    ax.text(0, 0.8, finding(these) if now >= end else f"{now:.1f} s", weight="bold", size=11, va="center")
    if prompt:
        ax.text(0, 1.9, textwrap.shorten(f"Prompt: {prompt}", columns, placeholder=" …"), size=9.5, va="center",
                style="italic")
    for row, lane in enumerate(these):
        _lane(ax, lane, now, top + row * (lines + 1), columns, size)
    x = 1
    for kind, word in (("accepted", "drafted, accepted"), ("own", "the target's own"), ("drafted", "being verified")):
        ax.text(x, rows - 0.6, word, size=9, va="center",
                bbox=dict(facecolor=look.tint(KINDS[kind], 0.4), edgecolor="none", pad=2))
        x += len(word) + 4
    return figure


def _lane(ax, lane: dict, now: float, y: float, columns: int, size: float) -> None:
    clock, pieces, tokens, passes = 0.0, [], 0, 0
    for step in lane["steps"]:
        if clock + step["seconds"] > now + 1e-9:
            if now < lane["seconds"]:
                pieces += [(t, "drafted") for t in step["drafted"]]
            break
        clock += step["seconds"]
        tokens, passes = tokens + len(step["emitted"]), passes + 1
        pieces += [(t, "accepted" if i < step["accepted"] else "own") for i, t in enumerate(step["emitted"])]
    done = f", done after {lane['seconds']:.2f} s" if passes == len(lane["steps"]) else ""
    ax.text(0, y + 0.5, lane["name"], weight="bold", size=10, va="center")
    ax.text(15, y + 0.5, f"{tokens} tokens, {passes} target passes{done}", size=9.5, va="center")
    ax.text(columns, y + 0.5, lane["about"], size=8.5, va="center", ha="right", color=look.GREY)
    for token, x, line, shown in look.flow([text for text, _ in pieces], columns):
        kind = pieces[token][1]
        if shown.strip():
            ax.add_patch(Rectangle((x, y + 1.2 + line), len(shown), 0.82, linewidth=0,
                                   facecolor=look.tint(KINDS[kind], 0.36)))
        ax.text(x, y + 1.62 + line, shown, family=look.MONO, size=size, va="center_baseline",
                weight="bold" if kind == "own" else "normal")


def live(family, names: Sequence[str] = TWO, *, tokens: int = 32) -> VBox:
    """A button that runs the race on this machine; the page of the new race appears below it."""
    def race(work: Work) -> pages.HTML | None:
        asked, others = bench.prompts()
        rows = bench.record(family, asked.messages, others, tokens=tokens, say=work.say)
        return None if work.stopped else pages.page("race", numbers(lanes(rows, names), "measured here, just now",
                                                                      asked.text))

    return pages.live(race, "race now, on this machine",
                      f"serves the prompt three times, {tokens} tokens each, in turns")
