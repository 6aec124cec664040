"""Long contexts: what speculation gains there, what its passes read, and what a sparse draft still gets right."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from spin_core.lab.lessons.look import (
    BLUE, GREEN, GREY, INK, ORANGE, PUBLISHED, PURPLE, RED, SKY, bars, canvas, headline, legend_below, logarithmic, one,
    styled, tint)

SYSTEMS = {"vanilla": ORANGE, "MagicDec": SKY, "SPIRe": GREEN}


@styled
def multipliers(settings: Mapping[str, tuple[Mapping[str, float], Mapping[str, float]]], contexts: Sequence[int],
                ratios: Mapping[str, Sequence[float]]) -> Figure:
    """Left: (modelled, published) throughput over plain decoding by setting. Right: SPIRe over MagicDec by context."""
    figure, (left, right) = canvas(3.9, 1, 2, width_ratios=[1.25, 1])
    ticks, names = [], []
    for g, (setting, (ours, theirs)) in enumerate(settings.items()):
        for i, (system, colour) in enumerate(SYSTEMS.items()):
            x = g * 3.9 + i * 1.1
            left.bar(x - .2, ours[system], .4, color=colour, label="modelled" if g == i == 0 else None)
            left.bar(x + .2, theirs[system], .4, label="published" if g == i == 0 else None, **PUBLISHED)
            left.text(x, max(ours[system], theirs[system]) + .04, f"{ours[system]:.2f}", ha="center", size=9.5)
            ticks.append(x)
            names.append(system)
        left.text(g * 3.9 + 1.1, 3.45, setting, ha="center", weight="bold", size=9.5)
    one(left)
    off = [abs(ours[s] / theirs[s] - 1) for ours, theirs in settings.values() for s in SYSTEMS]
    left.set(xticks=ticks, ylim=(0, 3.75), ylabel="throughput over plain decoding",
             title=f"{len(off)} printed numbers, met within {max(off):.1%}")
    left.set_xticklabels(names, size=9)
    left.grid(axis="x", visible=False)
    left.legend(loc="upper left", bbox_to_anchor=(0, .9))
    for (label, values), colour, marker in zip(ratios.items(), (GREEN, RED), "os"):
        right.plot(contexts, values, marker=marker, color=colour, label=label, markersize=5)
    one(right)
    right.set(ylabel="SPIRe over MagicDec", title=f"{' or '.join(f'{values[-1]:.2f}' for values in ratios.values())} of "
              f"MagicDec at {contexts[-1]:,} tokens")
    _by_context(right, contexts)
    right.legend()
    return figure


@styled
def roofline(passes: Mapping[str, tuple[float, float, float]], gains: Mapping[str, float], title: str = "") -> Figure:
    """Each pass (arithmetic, weights, cache) as two bars in units of the first one's time, and the three gains."""
    figure, (left, right) = canvas(3.7, 1, 2, width_ratios=[2.2, 1])
    unit = max(next(iter(passes.values()))[0], sum(next(iter(passes.values()))[1:]))
    for y, (arithmetic, weights, cache) in enumerate(passes.values()):
        left.barh(y - .2, arithmetic / unit, .36, color=tint(PURPLE, .85), label="arithmetic" if y == 0 else None)
        left.barh(y + .2, weights / unit, .36, color=tint(BLUE, .9), label="reading weights" if y == 0 else None)
        left.barh(y + .2, cache / unit, .36, left=weights / unit, color=tint(BLUE, .4),
                  label="reading keys and values" if y == 0 else None)
        time = max(arithmetic, weights + cache) / unit
        left.plot([time, time], [y - .42, y + .42], color=INK, linewidth=2)
        left.text(time, y, f"  {time:.2f}", va="center", size=9.5)
    longest = max(max(a, w + c) for a, w, c in passes.values()) / unit
    left.set(yticks=range(len(passes)), yticklabels=list(passes), ylim=(len(passes) - .4, -.6),
             xlim=(0, 1.18 * longest), xlabel="time, in passes of plain decoding: the longer bar counts")
    times = {name: max(arithmetic, weights + cache) / unit for name, (arithmetic, weights, cache) in passes.items()}
    cheapest = min(times, key=times.get)
    left.set_title(f"Cheapest pass: {cheapest}, {times[cheapest]:.2f} of a plain one")
    left.grid(axis="y", visible=False)
    bars(right, list(gains), list(gains.values()), [SYSTEMS[name] for name in gains])
    one(right, "x")
    right.set(xlim=(0, 1.25 * max(1, *gains.values())), xlabel="throughput over plain decoding",
              title=f"{max(gains, key=gains.get)} is the fastest")
    legend_below(figure, title=title or None)
    return figure


@styled
def costs(contexts: Sequence[int], by_batch: Mapping[int, Mapping[str, Sequence[float]]]) -> Figure:
    """MagicDec's three quantities by context, a line per batch: keys "draft", "verify", "multiplier"."""
    figure, panels = canvas(3.5, 1, 3)
    titles = {"draft": ("Drafting falls to {:.2f}", min), "verify": ("Verifying falls to {:.2f}", min),
              "multiplier": ("Throughput: up to {:.2f}", max)}
    labels = {"draft": "a drafted token over a plain pass", "verify": "a verification over a plain pass",
              "multiplier": "throughput over plain decoding"}
    for panel, (key, (title, extreme)) in zip(panels, titles.items()):
        for (batch, lines), colour, marker in zip(by_batch.items(), (GREY, SKY, BLUE, RED), "ovs^"):
            panel.plot(contexts, lines[key], marker=marker, markersize=4.5, color=colour, label=f"batch {batch}")
        panel.set(title=title.format(extreme(map(extreme, (lines[key] for lines in by_batch.values())))),
                  ylabel=labels[key])
        _by_context(panel, contexts)
        panel.set_ylim(bottom=0)
        one(panel)
    legend_below(figure, ncols=4)
    return figure


@styled
def ladder(published: Mapping[str, tuple[float, float]], ours: Mapping[str, float]) -> Figure:
    """SPIRe's ablation: published tau and modelled throughput by rung, and ``ours``, tokens per verification of
    drafters trained here (empty: none has been recorded)."""
    figure, panels = canvas(3.7, 1, 3 if ours else 2, sharey=True)
    columns = [("tokens per verification,\npublished", [t for t, _ in published.values()], PUBLISHED),
               ("throughput over plain,\nmodelled, B 64, L 512", [g for _, g in published.values()],
                dict(color=tint(GREEN, .85)))]
    if ours:
        columns.append(("tokens per verification,\nmeasured, our family", [ours.get(r, np.nan) for r in published],
                        dict(color=tint(BLUE, .85))))
    for panel, (what, values, style) in zip(panels, columns):
        bars(panel, list(published), values, **style)
        panel.set_title(what)
    gains = {rung: gain for rung, (_, gain) in published.items()}
    worst = min(gains, key=gains.get)
    headline(figure, f"The largest loss, {worst}: {gains[worst]:.2f} of plain decoding in place of "
                     f"{max(gains.values()):.2f}")
    return figure


@styled
def our_family(rows: Sequence[Mapping], batch: int, gamma: int) -> Figure:
    """Speed-up over plain decoding of the drafters that were timed ("measured"): what the model says with the tokens
    per verification of all texts ("modelled"), and with those of the timed run ("own"). Without any timed drafter,
    "modelled" of all."""
    timed = [row for row in rows if "measured" in row]
    rows = timed or rows
    figure, panel = canvas(0.42 * len(rows) + 1.7)
    y = np.arange(len(rows))
    if timed:
        panel.barh(y, [row["measured"] for row in rows], 0.6, color=tint(BLUE, .45), label="measured")
    looks = {"own": ("D", GREEN, "modelled, tokens per verification of the timed run"),
             "modelled": ("o", ORANGE, "modelled, tokens per verification of all texts")}
    for key, (marker, colour, label) in looks.items():
        if key == "modelled" or timed:
            panel.plot([row[key] for row in rows], y, marker, color=colour, markersize=8, markeredgecolor="white",
                       label=label)
    for at, row in enumerate(timed):
        panel.text(0.02, at, f"{row['measured']:.2f}", va="center", size=9.5)
    one(panel, "x")
    if timed:
        off = max(abs(row["own"] / row["measured"] - 1) for row in timed)
        panel.set_title(f"Given the run's own tokens per verification, the model is within {off:.0%} of the clock")
    elif rows:
        best = max(rows, key=lambda row: row["modelled"])
        panel.set_title(f"The model puts {best['drafter']} first, {best['modelled']:.2f} of plain decoding; none is "
                        "timed here")
    panel.set(yticks=y, yticklabels=[row["drafter"] for row in rows], ylim=(len(rows) - .4, -.6),
              xlabel=f"throughput over plain decoding, batch {batch}, gamma {gamma}")
    panel.grid(axis="y", visible=False)
    legend_below(figure, ncols=2)
    return figure


@styled
def acceptance(rows: Sequence[Mapping], bar: float, here: Sequence[Mapping] = ()) -> Figure:
    """How often the target agrees with its own sparse drafts, by texts, greedy or sampled, and by window; tokens per
    verification beside.
    ``here``: such rows measured on the spot, as stars on the bars that they belong to."""
    figure, (left, right) = canvas(0.33 * len(rows) + 1.7, 1, 2, sharey=True)
    groups = list(dict.fromkeys(row["texts"] for row in rows))
    y = [i + 0.6 * groups.index(row["texts"]) for i, row in enumerate(rows)]       # a gap between the groups
    for panel, key in ((left, "acceptance"), (right, "tokens_per_verification")):
        panel.barh(y, [row[key] for row in rows], .6,
                   color=[tint((BLUE, ORANGE, GREEN)[groups.index(row["texts"])], .85) for row in rows])
        stars = {at: one[key] for at, row in zip(y, rows) for one in here if _setting(one) == _setting(row)}
        if stars:
            panel.plot(list(stars.values()), list(stars), linestyle="none", marker="*", markersize=12, color=INK,
                       markeredgecolor="white", label="measured in this notebook")
        for at, row in zip(y, rows):
            panel.text(0.02 * bar if key == "acceptance" else 0.08, at, f"{row[key]:.2f}", va="center", size=9,
                       color=INK, weight="bold")
        panel.grid(axis="y", visible=False)
    left.axvline(bar, color=INK, linewidth=1, linestyle=":", label=f"our aim for documents, half of the context: {bar:g}")
    left.set(yticks=y, yticklabels=[f"{texts}{', sampled' * (decoding == 'sampled')}: sees {window}"
                                    + (" of it" if "/" in window else " tokens")
                                    for texts, window, decoding in map(_setting, rows)],
             ylim=(y[-1] + .6, -.6), xlim=(0, 1.05), xlabel="accepted, of the tested tokens (measured)")
    half = [row["acceptance"] for row in rows if _setting(row)[1:] == ("1/2", "greedy")] or [0.0]
    left.set_title(f"Seeing half: {min(half):.0%} to {max(half):.0%} accepted")
    taus = [row["tokens_per_verification"] for row in rows]
    right.set(xlabel="tokens per verification (measured, gamma 4)", xlim=(0, 5.2),
              title=f"{min(taus):.2f} to {max(taus):.2f} of at most 5 tokens")
    legend_below(figure, ncols=2)
    return figure


def _setting(row: Mapping) -> tuple:
    return row["texts"], row["window"], row.get("decoding", "greedy")


def _by_context(panel, contexts: Sequence[int]) -> None:
    """A logarithmic axis of context lengths, with numbers a reader can say."""
    shown = [c for c in contexts if np.log2(c) % 3 == 1]
    logarithmic(panel, "x", shown)
    panel.set_xticklabels([f"{c // 1024}k" if c >= 1024 else str(c) for c in shown])
    panel.set_xlabel("context, tokens")
