"""The whole system at the paper's scale: goodput, the ablation ladder, micro-batches, and the heuristic's
choice.

Modelled numbers are solid, published ones hatched grey bars or stars. No figure mixes them without saying so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator, StrMethodFormatter

from spin_core.pipeline.schedule import STAGES, Schedule
from spin_core.lab.lessons.look import BLUE, GREEN, GREY, INK, LIGHT, ORANGE, PURPLE, RED, SKY, WIDTH, styled, tint
from spin_core.lab.lessons.l5_pipeline.plots import lane

SYSTEMS = {"vanilla": ORANGE, "best fixed drafter": SKY, "SPIN": GREEN}
SETS = [(BLUE, "o"), (RED, "s"), (GREEN, "^"), (PURPLE, "D")]
PUBLISHED = dict(facecolor="#D9D9D9", edgecolor=GREY, hatch="///", linewidth=0.8)
STAR = dict(marker="*", color=INK, markersize=13, linestyle="none", zorder=6)


@styled
def overall_goodput(goodput: Mapping[str, Mapping[str, Mapping[str, float]]], published: float,
                    measured: Mapping[str, Mapping[str, Mapping[str, float]]] | None = None) -> Figure:
    """Tokens per second: ``goodput[target][data set][system]``, modelled, one panel per target; systems as in
    ``SYSTEMS``. ``measured[where][workload][system]``: the same as measured, where any system may be missing.

    Above SPIN's bar stands its ratio to vanilla; ``published`` is the paper's mean ratio.
    """
    shown = {**goodput, **{f"measured: {where}": sets for where, sets in (measured or {}).items()}}
    across = min(3, len(shown))
    high = -(-len(shown) // across)
    figure = Figure(figsize=(WIDTH, 3.2 * high + 0.6), layout="constrained")
    panels = figure.subplots(high, across, squeeze=False).flat
    for panel in panels[len(shown):]:
        panel.set_axis_off()
    for panel, (target, sets) in zip(panels, shown.items()):
        x, names = np.arange(len(sets)), list(SYSTEMS)
        for j, name in enumerate(names):
            values = [systems.get(name, np.nan) for systems in sets.values()]
            panel.bar(x + (j - 1) * 0.27, values, 0.25, color=SYSTEMS[name], label=name)
        for i, systems in enumerate(sets.values()):
            if {"SPIN", "vanilla"} <= systems.keys():
                panel.text(i + 0.27, systems["SPIN"], f"{systems['SPIN'] / systems['vanilla']:.2f}×", ha="center",
                           va="bottom", size=9, weight="bold")
        beside = 0.5 + max(0, 3 - len(sets)) / 2        # a lone group is no wider than one of several
        panel.set(xticks=x, xlim=(-beside, len(sets) - 1 + beside))
        panel.set_xticklabels(list(sets), size=8.5)
        panel.set_title(target.replace(", ", ",\n", 1), size=10)
        panel.set_ylim(0, 1.15 * max(rate for s in sets.values() for rate in s.values()))
        panel.grid(axis="x", visible=False)
    panels[0].set_ylabel("tokens per second (modelled)")
    if measured:
        panels[len(goodput)].set_ylabel("tokens per second (measured)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3,
                  title=f"above SPIN: its ratio to vanilla. Published: about {published:.2f}× on average")
    return figure


@styled
def ablation(modelled: Mapping[str, Mapping[str, float]], published: Mapping[str, float], setting: str,
             times: Mapping[str, float], times_published: Mapping[str, float],
             measured: Mapping[str, Mapping[str, float]] | None = None) -> Figure:
    """Left: speed-up over vanilla, rung by rung: ``modelled[data set][rung]``, ``published`` for ``setting``, and what
    was ``measured``: ``measured[where][rung]``, where any rung may be missing.

    Right, why they differ: seconds of one verification, ``times`` modelled and ``times_published``.
    """
    figure = Figure(figsize=(WIDTH, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.45, 1])
    rungs = list(published)
    x = np.arange(len(rungs))
    left.bar(x, [published[r] for r in rungs], 0.7, label=f"published: {setting}", **PUBLISHED)
    for r, value in zip(x, published.values()):
        left.text(r - 0.32, value + 0.02, f"{value:.2f}", size=9.5)
    for j, ((name, ratios), (colour, marker)) in enumerate(zip(modelled.items(), SETS)):
        shift = (j - (len(modelled) - 1) / 2) * 0.14
        left.plot(x + shift, [ratios[r] for r in rungs], marker, color=colour, markeredgecolor="white",
                  label=f"modelled: {name}", zorder=5, markersize=8.5)
    for (name, ratios), marker in zip((measured or {}).items(), cycle("PXhp")):
        left.plot(x + 0.38, [ratios.get(r, np.nan) for r in rungs], marker, color=INK, markersize=9, zorder=6,
                  label=f"measured: {name}")
    left.axhline(1, color=INK, linewidth=1, linestyle=":")
    left.set(xticks=x, xticklabels=rungs, ylabel="goodput over vanilla", title="The ladder")
    known = [*modelled.values(), *(measured or {}).values()]
    left.set_ylim(0, 1.1 * max(*published.values(), *(v for ratios in known for v in ratios.values())))
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3 - bool(measured))
    left.grid(axis="x", visible=False)

    names = [*times, *times_published]
    for y, name in enumerate(names):
        seconds = times.get(name, times_published.get(name))
        look = dict(color=tint(BLUE, 0.8)) if name in times else PUBLISHED
        right.barh(y, seconds * 1e3, 0.62, **look)
        right.text(seconds * 1e3 * 1.08, y, f"{seconds * 1e3:.0f} ms", va="center", size=9.5)
    right.set(yticks=range(len(names)), yticklabels=names, xscale="log", xlabel="milliseconds, logarithmic",
              xlim=(5, 3000), ylim=(len(names) - 0.4, -0.6), title="One verification")
    right.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    right.grid(axis="y", visible=False)
    return figure


@styled
def measured_ladders(ladders: Mapping[str, Mapping[int, Mapping[str, float]]], rungs: Sequence[str]) -> Figure:
    """Goodput over plain decoding as measured: ``ladders[where][batch][rung]``, a panel for each batch of each ``where``
    with the ``rungs`` that were measured; its title says what the last of them gains."""
    panels = [(where, batch, ratios) for where, batches in ladders.items() for batch, ratios in batches.items()]
    most = max(len(ratios) for _, _, ratios in panels)
    figure = Figure(figsize=(WIDTH, 1.5 + 0.36 * most), layout="constrained")
    high = 1.15 * max((ratio for _, _, ratios in panels for ratio in ratios.values()), default=1.0)
    for panel, (where, batch, ratios) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        known = [rung for rung in rungs if rung in ratios]
        panel.barh(known, [ratios[rung] for rung in known], 0.62,
                   color=[SYSTEMS["SPIN"] if rung == rungs[-1] else tint(BLUE, 0.45) for rung in known])
        for row, rung in enumerate(known):
            panel.text(ratios[rung] + 0.01 * high, row, f"{ratios[rung]:.2f}", va="center", size=9.5)
        panel.axvline(1, color=INK, linewidth=1, linestyle=":")
        panel.set(xlim=(0, high), ylim=(len(known) - 0.4, -0.6), xlabel="goodput over plain decoding (measured)")
        last = f"{ratios[known[-1]]:.2f} of plain decoding" if known else "nothing measured"
        panel.set_title(f"batch {batch}: SPIN has {last}\n{where}", size=10)
        panel.grid(axis="y", visible=False)
    return figure


@styled
def microbatches(modelled: Mapping[str, Mapping[int, float]], supposed: Mapping[str, Mapping[int, float]],
                 published: Mapping[int, float], best: Mapping[str, int]) -> Figure:
    """Goodput over that of one micro-batch, by their number. Left: ``modelled`` on the profile. Right: ``supposed``
    costs of passes. Stars: ``published`` gains. ``best``: the published best number by data set."""
    figure = Figure(figsize=(WIDTH, 4.0), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, lines, title in zip(panels, (modelled, supposed), ("On the profile", "If passes had other fixed costs")):
        for (name, gains), (colour, marker) in zip(lines.items(), SETS):
            panel.plot(list(gains), list(gains.values()), marker=marker, color=colour, label=name)
        panel.plot(list(published), list(published.values()), label="published: Alpaca", **STAR)
        panel.axhline(1, color=INK, linewidth=1, linestyle=":")
        for name, count in best.items():
            panel.axvline(count, color=LIGHT, linewidth=5, zorder=0)
            panel.text(count, 0.02, f"published best,\n{name}", size=8, ha="center", va="bottom", color=GREY)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.set(xlabel="micro-batches", title=title)
        panel.legend(loc="upper right")
    top = max(v for lines in (modelled, supposed) for g in lines.values() for v in g.values())
    panels[0].set(ylabel="goodput over one micro-batch", ylim=(0, 1.6 * max(top, *published.values())))
    return figure


@styled
def microbatch_heuristic(cases: Sequence[Mapping]) -> Figure:
    """Which number of micro-batches is the best, and what the heuristic did.

    Each case has "name", "best" and "chosen" (numbers; chosen: the one that served most requests), "right" (the goodput
    that its number would have had all along, over the best's) and "share" (its own, with all its trying, over the
    best's).
    """
    figure = Figure(figsize=(WIDTH, 0.42 * len(cases) + 1.7), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    y = np.arange(len(cases))
    left.plot([c["best"] for c in cases], y, "o", color=tint(BLUE, 0.5), markersize=13, label="best, in hindsight")
    left.plot([c["chosen"] for c in cases], y, "X", color=RED, markersize=7, label="the heuristic's")
    left.set(yticks=y, yticklabels=[c["name"] for c in cases], xlabel="micro-batches", title="Which number",
             xlim=(0.5, max(max(c["best"], c["chosen"]) for c in cases) + 0.9), ylim=(len(cases) - 0.5, -0.5))
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.barh(y - 0.18, [c["right"] for c in cases], 0.34, color=tint(RED, 0.85),
               label="its number, without trying others")
    right.barh(y + 0.18, [c["share"] for c in cases], 0.34, color=tint(RED, 0.4),
               label="with the time that trying took")
    for row, case in zip(y, cases):
        for key, at in (("right", row - 0.18), ("share", row + 0.18)):      # inside: outside the line at 1 crosses it
            right.text(case[key] - 0.02, at, f"{case[key]:.2f}", va="center", ha="right", size=8.5)
    right.axvline(1, color=INK, linewidth=1, linestyle=":")
    right.set(xlabel="goodput over the best's", xlim=(0, 1.25), title="What it cost")
    for panel in (left, right):
        panel.grid(axis="y", visible=False)
    handles, labels = (a + b for a, b in zip(left.get_legend_handles_labels(), right.get_legend_handles_labels()))
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


@styled
def selection_at_scale(goodput: Mapping[str, Mapping[str, float]], ceilings: Mapping[str, Mapping[str, float]],
                       published: Mapping[str, float]) -> Figure:
    """Goodput over that of the first policy, the drafter that "vanilla" uses: ``goodput[setting][policy]``, one group
    of bars per setting, under lines for ``ceilings[setting]``. ``published``: the same by setting, where it is."""
    figure = Figure(figsize=(WIDTH, 4.1), layout="constrained")
    panel = figure.subplots()
    policies = list(next(iter(goodput.values())))
    width, x = 0.88 / len(policies), np.arange(len(goodput))
    colours = {"none": tint(GREY, 0.6), "greedy": RED, "epsilon-greedy": ORANGE, "spin": GREEN, "spin-full": PURPLE}
    fixed = [p for p in policies if p not in colours]
    colours |= {p: tint(BLUE, 0.25 + 0.6 * i / len(fixed)) for i, p in enumerate(fixed)}
    for j, policy in enumerate(policies):
        values = [rates[policy] / rates[policies[0]] for rates in goodput.values()]
        at = x + (j - (len(policies) - 1) / 2) * width
        panel.bar(at, values, 0.92 * width, color=colours[policy], label=policy)
        if policy not in fixed and policy != "none":
            for place, value in zip(at, values):
                panel.text(place, value - 0.03, f"{value:.2f}", ha="center", va="top", size=8.5, rotation=90,
                           color="white", weight="bold")
    for style, name in zip(("--", ":"), next(iter(ceilings.values()), ())):
        panel.hlines([ceilings.get(setting, {}).get(name, np.nan) for setting in goodput], x - 0.46, x + 0.46, color=INK,
                     linestyle=style, linewidth=1.6, label=name)
    stars = {i: published[setting] for i, setting in enumerate(goodput) if setting in published}
    panel.plot(list(stars), list(stars.values()), label="published: spin", **STAR)
    panel.axhline(1, color=INK, linewidth=1, linestyle=":")
    top = max([*published.values(), *(v for c in ceilings.values() for v in c.values()),
               *(v / r[policies[0]] for r in goodput.values() for v in r.values())])
    panel.set(xticks=x, xticklabels=list(goodput), ylim=(0, 1.12 * top),
              ylabel=f"goodput over {policies[0]} for all (modelled)")
    panel.grid(axis="x", visible=False)
    figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=(len(policies) + 4) // 2)
    return figure


@styled
def ceilings(bounds: Mapping[str, Mapping[str, float]], published: float) -> Figure:
    """What each part could bring at most by the model, ``bounds[data set][part]``, and all of them together."""
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    panel = figure.subplots()
    parts = [*next(iter(bounds.values()))]
    for j, ((name, values), (colour, _)) in enumerate(zip(bounds.items(), SETS)):
        at = np.arange(len(parts)) + (j - (len(bounds) - 1) / 2) * 0.2
        panel.bar(at, [values[p] for p in parts], 0.18, color=tint(colour, 0.7), label=name)
        for place, part in zip(at, parts):
            panel.text(place, values[part] + 0.02, f"{values[part]:.2f}", ha="center", size=8.5)
    panel.axhline(1, color=INK, linewidth=1, linestyle=":")
    panel.axhline(published, color=GREY, linestyle="--")
    panel.text(len(parts) - 0.6, published, f"published, overall: {published:.2f}", ha="right", va="bottom", color=GREY)
    top = max(published, *(v for values in bounds.values() for v in values.values()))
    best = [max(values.values()) for values in bounds.values()]
    panel.set(xticks=range(len(parts)), xticklabels=parts, ylim=(0, 1.2 * top), ylabel="at most, over vanilla (modelled)",
              title=f"With a cache even perfect parts reach {min(best):.2f} to {max(best):.2f}, not {published:.2f}")
    panel.grid(axis="x", visible=False)
    panel.legend(loc="upper left", ncols=len(bounds))
    return figure


@styled
def verdict(table: Mapping[str, Mapping[str, Mapping]], shown: Sequence[str]) -> Figure:
    """Modelled over published, for every published number: ``table[quantity][hypothesis]`` with "ratio" and "scored", a
    marker for each of the hypotheses ``shown``. Inside the band the two agree within 25 %."""
    quantities = [q for q, found in table.items() if next(iter(found.values()))["scored"]]
    figure = Figure(figsize=(WIDTH, 0.3 * len(quantities) + 1.4), layout="constrained")
    panel = figure.subplots()
    panel.axvspan(1 / 1.25, 1.25, color=LIGHT, zorder=0)
    panel.axvline(1, color=INK, linewidth=1)
    y = np.arange(len(quantities))
    for name, (colour, marker) in zip(shown, SETS):
        ratios = [table[q][name]["ratio"] or np.nan for q in quantities]
        panel.plot(ratios, y, marker, color=colour, markersize=8, markeredgecolor="white", label=name, zorder=3)
    panel.set(yticks=y, yticklabels=[f"{q}: {table[q][shown[0]]['published']:.3g}" for q in quantities], xscale="log",
              ylim=(len(quantities) - 0.5, -0.5), xlabel="modelled over published, logarithmic")
    panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=len(shown))
    return figure


@styled
def verifications(seconds: Mapping[str, Mapping[str, Mapping[int, float]]], published: Mapping[str, float],
                  batch: int) -> Figure:
    """One verification by batch size, a panel for each hypothesis: ``seconds[hypothesis][way][batch]``, modelled. Stars:
    ``published`` seconds by way, at one ``batch``."""
    across = 3
    figure = Figure(figsize=(WIDTH, 2.4 * -(-len(seconds) // across) + 0.5), layout="constrained")
    panels = figure.subplots(-(-len(seconds) // across), across, sharex=True, sharey=True, squeeze=False).flat
    for panel, (name, ways) in zip(panels, seconds.items()):
        for (way, times), (colour, marker) in zip(ways.items(), SETS[1::-1]):
            panel.plot(list(times), [1e3 * t for t in times.values()], marker=marker, color=colour, label=way)
            panel.plot([batch], [1e3 * published[way]], **STAR | {"color": colour}, label=f"published, {way}")
        panel.set(xscale="log", yscale="log", title=name)
        panel.set_xticks(list(next(iter(ways.values()))), [str(n) for n in next(iter(ways.values()))])
        panel.xaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    for panel in panels[::across]:
        panel.set_ylabel("ms")
    for panel in panels[len(seconds) - across:]:
        panel.set_xlabel("batch")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


@styled
def ladder(modelled: Mapping[str, float], published: Mapping[str, float], *, title: str) -> Figure:
    """Goodput over vanilla, rung by rung: ``modelled`` beside ``published``."""
    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    panel = figure.subplots()
    x = np.arange(len(published))
    for shift, values, look in ((-0.2, published, PUBLISHED), (0.2, modelled, dict(color=tint(BLUE, 0.8)))):
        bars = panel.bar(x + shift, [values[rung] for rung in published], 0.38, **look,
                         label="published: CP, LLaMA-7B, batch 8" if shift < 0 else "modelled")
        panel.bar_label(bars, fmt="%.2f", size=9.5)
    panel.axhline(1, color=INK, linewidth=1, linestyle=":")
    panel.set(xticks=x, xticklabels=list(published), ylabel="goodput over vanilla", title=title,
              ylim=(0, 1.2 * max(*published.values(), *modelled.values())))
    panel.grid(axis="x", visible=False)
    panel.legend(loc="upper left")
    return figure


@styled
def dashboard(schedule: Schedule, served: Mapping[str, int], *, title: str) -> Figure:
    """When each stage works (left: first rounds, bubbles hatched), and which drafters are used (right: share of
    verifications by drafter)."""
    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[2.1, 1])
    for stage, y in zip(STAGES, (1.05, 0.0)):
        lane(left, schedule, stage, y)
    left.set_yticks([1.5, 0.45], [f"{stage}\n{schedule.busy_share(stage):.0%} busy" for stage in STAGES])
    left.set(xlim=(0, schedule.seconds * 1e3), ylim=(-0.1, 2.1), xlabel="milliseconds; numbers are micro-batches")
    left.grid(axis="y", visible=False)
    total = sum(served.values())
    names = sorted(served, key=served.get, reverse=True)[:6]
    shares = [served[name] / total for name in names]
    right.barh(range(len(names)), shares, 0.66, color=[tint(GREY if name == "none" else GREEN, 0.7) for name in names])
    for y, share in enumerate(shares):
        right.text(share + 0.02, y, f"{share:.0%}", va="center", size=9)
    right.set(yticks=range(len(names)), yticklabels=names, xlim=(0, 1.22), ylim=(max(len(names), 3) - 0.5, -0.5),
              xlabel="share of verifications")
    right.grid(axis="y", visible=False)
    figure.suptitle(title)
    return figure
