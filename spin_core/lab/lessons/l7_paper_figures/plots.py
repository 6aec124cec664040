"""The whole system at the paper's scale: goodput, the ablation ladder, micro-batches, and the heuristic's
choice.

Modelled numbers are solid, published ones hatched grey bars or stars. No figure mixes them without saying so.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from spin_core.lab.lessons.look import (
    BLUE, GREEN, GREY, INK, LIGHT, ORANGE, PUBLISHED, PURPLE, RED, SKY, bars, canvas, headline, legend_below,
    logarithmic, one, stretch, styled, tint)
from spin_core.lab.lessons.l5_pipeline.plots import lane
from spin_core.lab.schedule import STAGES, Schedule

SYSTEMS = {"vanilla": ORANGE, "best fixed drafter": SKY, "SPIN": GREEN}
SETS = [(BLUE, "o"), (RED, "s"), (GREEN, "^"), (PURPLE, "D")]
STAR = dict(marker="*", color=INK, markersize=13, linestyle="none", zorder=6)


@styled
def overall_goodput(goodput: Mapping[str, Mapping[str, Mapping[str, float]]], published: float,
                    measured: Mapping[str, Mapping[str, Mapping[str, float]]] | None = None) -> Figure:
    """Tokens per second: ``goodput["target, model"][data set][system]``, modelled, one panel per target and model;
    systems as in ``SYSTEMS``. ``measured[where][workload][system]``: as measured, where any system may be missing.

    Above SPIN's bar stands its ratio to vanilla, in the title the ratios of each model; ``published`` is the paper's
    mean ratio.
    """
    shown = {**goodput, **{f"measured: {where}": sets for where, sets in (measured or {}).items()}}
    across = min(3, len(shown))
    high = -(-len(shown) // across)
    figure, panels = canvas(3.2 * high + 0.6, high, across, squeeze=False)
    stretch(panels, len(shown))
    panels = [panel for panel in panels.flat if panel.figure]
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
    ratios: dict[str, list[float]] = {}
    for kind, some in (("", goodput), ("measured", measured or {})):
        for where, sets in some.items():
            ratios.setdefault(kind or where.partition(", ")[2] or "modelled", []).extend(
                one["SPIN"] / one["vanilla"] for one in sets.values() if {"SPIN", "vanilla"} <= one.keys())
    said = [f"{kind} {min(found):.2f} to {max(found):.2f}" for kind, found in ratios.items() if found]
    headline(figure, f"SPIN over vanilla: {', '.join(said)}; published {published:.2f} on average")
    legend_below(figure, title="above SPIN: its ratio to vanilla")
    return figure


@styled
def ablation(modelled: Mapping[str, Mapping[str, float]], published: Mapping[str, float], setting: str,
             times: Mapping[str, float], times_published: Mapping[str, float],
             measured: Mapping[str, Mapping[str, float]] | None = None) -> Figure:
    """Left: speed-up over vanilla, rung by rung: ``modelled[data set][rung]``, ``published`` for ``setting``, and what
    was ``measured``: ``measured[where][rung]``, where any rung may be missing.

    Right, why they differ: seconds of one verification, ``times`` modelled and ``times_published``.
    """
    figure, (left, right) = canvas(4.4, 1, 2, width_ratios=[1.45, 1])
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
    one(left)
    nearest = min(modelled, key=lambda name: abs(modelled[name][rungs[-1]] - published[rungs[-1]]))
    left.set(xticks=x, xticklabels=rungs, ylabel="goodput over vanilla",
             title=f"All parts: published {published[rungs[-1]]:.2f}; nearest: {nearest}, "
                   f"{modelled[nearest][rungs[-1]]:.2f}")
    known = [*modelled.values(), *(measured or {}).values()]
    left.set_ylim(0, 1.1 * max(*published.values(), *(v for ratios in known for v in ratios.values())))
    legend_below(figure, ncols=3 - bool(measured))
    left.grid(axis="x", visible=False)
    every = {**times, **times_published}
    bars(right, list(every), [1e3 * seconds for seconds in every.values()],
         [tint(BLUE, 0.8) if name in times else "#D9D9D9" for name in every], text="{:.0f} ms")
    logarithmic(right, "x", (10, 100, 1000))
    right.set(xlabel="milliseconds of a verification, logarithmic", xlim=(5, 3000),
              title=f"Published: {max(times_published.values()) / min(times.values()):.0f}× the floor")
    return figure


@styled
def measured_ladders(ladders: Mapping[str, Mapping[int, Mapping[str, float]]], rungs: Sequence[str]) -> Figure:
    """Goodput over plain decoding as measured: ``ladders[where][batch][rung]``, a panel for each batch of each
    ``where`` with the ``rungs`` that were measured; its title says what the last of them gains."""
    panels = [(where, batch, ratios) for where, batches in ladders.items() for batch, ratios in batches.items()]
    high = 1.15 * max((ratio for _, _, ratios in panels for ratio in ratios.values()), default=1.0)
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = canvas(rows * (1.5 + 0.36 * max(len(ratios) for _, _, ratios in panels)), rows, columns,
                          squeeze=False)
    for panel in axes.flat[len(panels):]:
        panel.remove()
    for panel, (where, batch, ratios) in zip(axes.flat, panels):
        known = [rung for rung in rungs if rung in ratios]
        bars(panel, known, [ratios[rung] for rung in known],
             [SYSTEMS["SPIN"] if rung == rungs[-1] else tint(BLUE, 0.45) for rung in known])
        one(panel, "x")
        last = f"{ratios[known[-1]]:.2f} of plain decoding" if known else "nothing measured"
        panel.set(xlim=(0, high), xlabel="goodput over plain decoding (measured)")
        panel.set_title(f"batch {batch}: SPIN has {last}\n{where}", size=10)
    return figure


@styled
def gain_by_batch(gains: Mapping[float, Mapping[int, Mapping]], step: Mapping[int, float], ridge: float) -> Figure:
    """Left: SPIN over plain decoding by batch, ``gains[temperature][batch]`` with "over_plain" and its interval. Right:
    seconds of a step of plain decoding by batch, and the ``ridge`` from which on rows cost time. All measured."""
    figure, (left, right) = canvas(3.7, 1, 2, width_ratios=[1.3, 1])
    for (temperature, rows), (colour, marker) in zip(gains.items(), SETS):
        middle, low, high = np.array([[row["over_plain"], row["over_plain_low"] or row["over_plain"],
                                       row["over_plain_high"] or row["over_plain"]] for row in rows.values()]).T
        left.errorbar(list(rows), middle, np.clip([middle - low, high - middle], 0, None), color=colour, marker=marker,
                      capsize=3, elinewidth=1.2, label=f"temperature {temperature:g}" if temperature else "greedy")
    one(left)
    (temperature, rows), *_ = sorted(gains.items())
    said = [f"{rows[batch]['over_plain']:.2f} at batch {batch}" for batch in dict.fromkeys((min(rows), max(rows)))]
    left.set(ylabel="SPIN over plain decoding (measured)", ylim=(0, None),
             title=f"{f'Temperature {temperature:g}' if temperature else 'Greedy'}: {', '.join(said)}")
    left.legend(loc="lower left")
    right.plot(list(step), [1e3 * seconds for seconds in step.values()], "o", color=BLUE)
    right.axhline(1e3 * step[min(step)], color=GREY, linestyle="--", linewidth=1.2)
    right.axvline(max(ridge, min(step)), color=RED, linewidth=1.2)
    right.set(ylabel="ms of a plain step (measured)",
              title=f"The ridge: {ridge:.1f} rows" if ridge > 1 else "No ridge: every row costs time")
    logarithmic(right, "y")
    for panel in (left, right):
        logarithmic(panel, "x", list(step))
        panel.set_xlabel("batch, requests")
    return figure


@styled
def microbatches(modelled: Mapping[str, Mapping[int, float]], published: Mapping[int, float], best: Mapping[str, int]
                 ) -> Figure:
    """``modelled`` goodput over that of one micro-batch, by their number. Stars: ``published`` gains. ``best``: the
    published best number by data set."""
    figure, panel = canvas(4.0)
    for (name, gains), (colour, marker) in zip(modelled.items(), [*SETS, (ORANGE, "v")]):
        panel.plot(list(gains), list(gains.values()), marker=marker, color=colour, label=f"modelled: {name}")
    panel.plot(list(published), list(published.values()), label="published: Alpaca", **STAR)
    one(panel)
    for name, count in best.items():
        panel.axvline(count, color=LIGHT, linewidth=5, zorder=0)
        panel.text(count, 0.02, f"published best,\n{name}", size=8, ha="center", va="bottom", color=GREY)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    at, gain = next(iter(published.items()))
    reached = [gains[at] for gains in modelled.values() if at in gains]
    panel.set(xlabel="micro-batches", ylabel="goodput over one micro-batch",
              title=f"{at} micro-batches: published {gain:.2f}"
              + (f", modelled {min(reached):.2f} to {max(reached):.2f}" if reached else ""))
    panel.set_ylim(bottom=0)
    legend_below(figure)
    return figure


@styled
def microbatch_heuristic(cases: Sequence[Mapping]) -> Figure:
    """Goodput of the heuristic, its trials included, over that of the best number of micro-batches: "share" of each
    case; "name", "best" and "chosen" (numbers; chosen: the one that served most requests) stand beside it."""
    figure, panel = canvas(0.38 * len(cases) + 1.2)
    bars(panel, [f"{c['name']}: best {c['best']}, chosen {c['chosen']}" for c in cases], [c["share"] for c in cases])
    one(panel, "x")
    panel.set(xlabel="goodput over the best number's (modelled)",
              title=f"Trials included, the heuristic keeps {min(c['share'] for c in cases):.0%} or more of the best")
    return figure


@styled
def selection_at_scale(goodput: Mapping[str, Mapping[str, float]], ceilings: Mapping[str, Mapping[str, float]],
                       published: Mapping[str, float]) -> Figure:
    """Goodput over that of the first policy, the drafter that "vanilla" uses: ``goodput[setting][policy]``, one group
    of bars per setting, under lines for ``ceilings[setting]``. ``published``: the same by setting, where it is."""
    figure, panel = canvas(4.1)
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
        panel.hlines([ceilings.get(setting, {}).get(name, np.nan) for setting in goodput], x - 0.46, x + 0.46,
                     color=INK, linestyle=style, linewidth=1.6, label=name)
    stars = {i: published[setting] for i, setting in enumerate(goodput) if setting in published}
    panel.plot(list(stars), list(stars.values()), label="published: spin", **STAR)
    one(panel)
    top = max([*published.values(), *(v for c in ceilings.values() for v in c.values()),
               *(v / r[policies[0]] for r in goodput.values() for v in r.values())])
    panel.set(xticks=x, xticklabels=list(goodput), ylim=(0, 1.12 * top),
              ylabel=f"goodput over {policies[0]} for all (modelled)")
    if "spin" in policies:
        gains = {setting: rates["spin"] / rates[policies[0]] for setting, rates in goodput.items()}
        most = max(gains, key=gains.get)
        rest = [gain for setting, gain in gains.items() if setting != most]
        panel.set_title(f"SPIN over {policies[0]} for all: {gains[most]:.2f} for {most}"
                        + (f", else {min(rest):.2f} to {max(rest):.2f}" if rest else ""))
    panel.grid(axis="x", visible=False)
    legend_below(figure, ncols=(len(policies) + 4) // 2)
    return figure


@styled
def ceilings(bounds: Mapping[str, Mapping[str, float]], published: float) -> Figure:
    """What each part could bring at most by the model, ``bounds[data set][part]``, and all of them together."""
    figure, panel = canvas(3.4)
    parts = [*next(iter(bounds.values()))]
    for j, ((name, values), (colour, _)) in enumerate(zip(bounds.items(), SETS)):
        at = np.arange(len(parts)) + (j - (len(bounds) - 1) / 2) * 0.2
        panel.bar(at, [values[p] for p in parts], 0.18, color=tint(colour, 0.7), label=name)
        for place, part in zip(at, parts):
            panel.text(place, values[part] + 0.02, f"{values[part]:.2f}", ha="center", size=8.5)
    one(panel)
    panel.axhline(published, color=GREY, linestyle="--")
    panel.text(len(parts) - 0.6, published, f"published, overall: {published:.2f}", ha="right", va="bottom", color=GREY)
    top = max(published, *(v for values in bounds.values() for v in values.values()))
    best = [max(values.values()) for values in bounds.values()]
    panel.set(xticks=range(len(parts)), xticklabels=parts, ylim=(0, 1.2 * top),
              ylabel="at most, over vanilla (modelled)",
              title=f"With a cache even perfect parts reach {min(best):.2f} to {max(best):.2f}, not {published:.2f}")
    panel.grid(axis="x", visible=False)
    panel.legend(loc="upper left", ncols=len(bounds))
    return figure


@styled
def verdict(table: Mapping[str, Mapping[str, Mapping]], shown: Sequence[str]) -> Figure:
    """Modelled over published, for every published number: ``table[quantity][hypothesis]`` with "ratio" and "scored", a
    marker for each of the hypotheses ``shown``. Inside the band the two agree within 25 %."""
    quantities = [q for q, found in table.items() if next(iter(found.values()))["scored"]]
    figure, panel = canvas(0.3 * len(quantities) + 1.4)
    panel.axvspan(1 / 1.25, 1.25, color=LIGHT, zorder=0)
    panel.axvline(1, color=INK, linewidth=1)
    y, within = np.arange(len(quantities)), []
    for name, (colour, marker) in zip(shown, SETS):
        ratios = [table[q][name]["ratio"] or np.nan for q in quantities]
        within.append(f"{name} {sum(1 / 1.25 <= ratio <= 1.25 for ratio in ratios)}")
        panel.plot(ratios, y, marker, color=colour, markersize=8, markeredgecolor="white", label=name, zorder=3)
    panel.set(yticks=y, yticklabels=[f"{q}: {table[q][shown[0]]['published']:.3g}" for q in quantities],
              ylim=(len(quantities) - 0.5, -0.5), xlabel="modelled over published, logarithmic",
              title=f"Met within 25 %, of {len(quantities)}: {', '.join(within)}")
    logarithmic(panel, "x")
    legend_below(figure, ncols=len(shown))
    return figure


@styled
def verifications(seconds: Mapping[str, Mapping[str, Mapping[int, float]]], published: Mapping[str, float],
                  batch: int) -> Figure:
    """One verification by batch size, a panel for each hypothesis: ``seconds[hypothesis][way][batch]``, modelled.
    Stars: ``published`` seconds by way, at one ``batch``."""
    across = 3
    high = -(-len(seconds) // across)
    figure, panels = canvas(2.4 * high + 0.5, high, across, sharex=True, sharey=True, squeeze=False)
    panels = panels.flat
    for panel, (name, ways) in zip(panels, seconds.items()):
        for (way, times), (colour, marker) in zip(ways.items(), SETS[1::-1]):
            panel.plot(list(times), [1e3 * t for t in times.values()], marker=marker, color=colour, label=way)
            panel.plot([batch], [1e3 * published[way]], **STAR | {"color": colour}, label=f"published, {way}")
        logarithmic(panel, "x", list(next(iter(ways.values()))))
        logarithmic(panel, "y")
        panel.set_title(f"{name}:\npadded: {ways['padded'][batch] / published['padded']:.2f} of the published", size=10)
    for panel in panels[::across]:
        panel.set_ylabel("ms")
    for panel in panels[len(seconds) - across:]:
        panel.set_xlabel("batch")
    legend_below(figure, ncols=4)
    return figure


@styled
def ladder(modelled: Mapping[str, float], published: Mapping[str, float], *, title: str) -> Figure:
    """Goodput over vanilla, rung by rung: ``modelled`` beside ``published``."""
    figure, panel = canvas(2.9)
    x = np.arange(len(published))
    for shift, values, look in ((-0.2, published, PUBLISHED), (0.2, modelled, dict(color=tint(BLUE, 0.8)))):
        drawn = panel.bar(x + shift, [values[rung] for rung in published], 0.38, **look,
                          label="published: CP, LLaMA-7B, batch 8" if shift < 0 else "modelled")
        panel.bar_label(drawn, fmt="%.2f", size=9.5)
    one(panel)
    panel.set(xticks=x, xticklabels=list(published), ylabel="goodput over vanilla", title=title,
              ylim=(0, 1.2 * max(*published.values(), *modelled.values())))
    panel.grid(axis="x", visible=False)
    panel.legend(loc="upper left")
    return figure


@styled
def dashboard(schedule: Schedule, served: Mapping[str, int], *, title: str) -> Figure:
    """When each stage works (left: first rounds, bubbles hatched), and which drafters are used (right: share of
    verifications by drafter)."""
    figure, (left, right) = canvas(2.9, 1, 2, width_ratios=[2.1, 1])
    for stage, y in zip(STAGES, (1.05, 0.0)):
        lane(left, schedule, stage, y)
    left.set_yticks([1.5, 0.45], [f"{stage}\n{schedule.busy_share(stage):.0%} busy" for stage in STAGES])
    left.set(xlim=(0, schedule.seconds * 1e3), ylim=(-0.1, 2.1), xlabel="milliseconds; numbers are micro-batches")
    left.grid(axis="y", visible=False)
    total = sum(served.values())
    names = sorted(served, key=served.get, reverse=True)[:6]
    bars(right, names, [served[name] / total for name in names],
         [tint(GREY if name == "none" else GREEN, 0.7) for name in names], text="{:.0%}")
    right.set(xlim=(0, 1.22), ylim=(max(len(names), 3) - 0.5, -0.5), xlabel="share of verifications")
    headline(figure, title)
    return figure
