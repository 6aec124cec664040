"""Lesson 2's figures: training, draft vocabularies, fed states, the pool, and the best drafter of each request."""

import textwrap
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spin_core.lab.bench import proportion_interval
from spin_core.lab.lessons.look import BLUE, GREY, INK, LIGHT, ORANGE, canvas, label, look, styled

Curve = tuple[Sequence[float], Sequence[float]]


@styled
def training(curves: Mapping[str, Curve], here: Mapping[str, Curve]) -> Figure:
    """Tokens per verification (gamma 4, held out) by tokens trained on: ``curves`` from the shipped drafters' logs,
    ``here`` what was trained on this machine, as large marks."""
    figure, ax = canvas(3.4)
    for index, (name, (x, y)) in enumerate(curves.items()):
        colour, marker = look(name, index)
        ax.plot(x, y, color=colour, marker=marker, markersize=5, label=name)
    for name, (x, y) in here.items():
        ax.plot(x, y, color=INK, marker="*", markersize=11, linestyle=":", label=name)
    ax.set_xscale("symlog", linthresh=1000)
    ax.set_xticks([0, 1e3, 1e4, 1e5, 1e6], ["0", "1k", "10k", "100k", "1M"])
    ax.set(xlabel="tokens trained on (0: pruned, not trained)", ylabel="tokens per verification", ylim=(0.97, None))
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    name, (x, y) = max(curves.items(), key=lambda curve: curve[1][1][-1])
    ax.set_title(f"{name}: {y[0]:.2f} tokens per verification after {x[0] / 1e6:.1f} million tokens, {y[-1]:.2f} after "
                 f"{x[-1] / 1e6:.1f}")
    return figure


@styled
def vocabulary(sizes: Sequence[int], coverage: Sequence[float], megabytes: Sequence[float], chosen: int,
               whole: float) -> Figure:
    """What a draft vocabulary of the ``sizes`` most frequent ids covers of answers, and what a drafted token reads:
    ``megabytes`` of weights of a one-layer drafter, ``whole`` with the target's vocabulary. The titles speak of the
    ``chosen`` size."""
    figure, (left, right) = canvas(3.1, 1, 2)
    left.plot(sizes, coverage, color=ORANGE, marker="o")
    left.set(ylabel="share of answer tokens covered", ylim=(min(coverage) - .05, 1.01))
    at = list(sizes).index(chosen)
    left.set_title(f"{chosen // 1024}k ids cover {coverage[at]:.0%} of the answers")
    right.plot(sizes, megabytes, color=GREY, marker="s")
    right.set(ylabel="MB of weights per drafted token", ylim=(0, None))
    right.set_title(f"{megabytes[at] / whole:.0%} of what the whole vocabulary reads")
    for ax in (left, right):
        ax.set_xscale("log", base=2)
        ax.set_xticks(sizes, [f"{s // 1024}k" for s in sizes])
        ax.set_xlabel("ids in the draft vocabulary")
        ax.axvline(chosen, color=BLUE, linestyle="--", linewidth=1.2)
        ax.minorticks_off()
    return figure


@styled
def fed(agreement: Mapping[str, Sequence[float]], here: Mapping[str, Sequence[float]], *, title: str) -> Figure:
    """How often a drafter's favourite is the target's token, by its place in the draft, behind right tokens only;
    ``here``, hollow: in the reader's own run."""
    figure, ax = canvas(3.1)
    for index, name in enumerate(dict.fromkeys([*agreement, *here])):
        colour, marker = look(name, index)
        if name in agreement:
            ax.plot(range(1, len(agreement[name]) + 1), agreement[name], color=colour, marker=marker, label=name)
        if name in here and here != agreement:
            ax.plot(range(1, len(here[name]) + 1), here[name], marker, color=colour, markerfacecolor="white")
    ax.set(xlabel="place in the draft", ylabel="agreement with the target", ylim=(0, None), title=title)
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1), title="hollow: this run" if here != agreement else None)
    return figure


@styled
def pool(rows: Mapping[str, Mapping], here: Mapping[str, Mapping], lookups: Collection[str], *, title: str) -> Figure:
    """Strength against price: tokens per verification by what a draft of four tokens costs, with intervals, on lines
    of equal speed-up. ``rows`` and ``here``, the reader's run, are those of ``bench drafters`` by drafter; one of
    ``lookups`` finds a whole draft for the price of one token."""
    figure, ax = canvas(3.9)
    top = 1.15 * max(row["tau4"] for row in [*rows.values(), *here.values()])
    price = {name: row["c"] * (1 if name in lookups else 4) for name, row in [*here.items(), *rows.items()]}
    x, y = np.geomspace(min(price.values()) / 2, max(2, *price.values()), 90), np.linspace(.9, top, 90)
    lines = ax.contour(x, y, y[:, None] / (1 + x), [1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3], colors=GREY, linewidths=.9)
    ax.set_xscale("log")                    # before the lines are labelled: it moves them
    ax.clabel(lines, fmt=lambda v: "no gain" if v == 1 else f"{v:g}x", fontsize=9)
    for index, name in enumerate(dict.fromkeys([*rows, *here])):
        colour, marker = look(name, index)
        if name in rows:
            ax.errorbar(price[name], rows[name]["tau4"], rows[name].get("tau4_error", 0), color=colour, marker=marker,
                        markersize=10, capsize=3, linestyle="none", label=name)
        if name in here:
            ax.plot(here[name]["c"] * price[name] / (rows.get(name) or here[name])["c"], here[name]["tau4"], marker,
                    color=colour, markerfacecolor="white", markersize=7)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set(xlabel="cost of a draft of four tokens, in target passes", ylabel="tokens per verification", title=title)
    ax.grid(False)
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1),
              title="lines: equal speed-up" + "\nhollow: this run" * bool(here))
    return figure


@styled
def best_share(share: Mapping[str, Mapping[str, float]], counts: Mapping[str, int], published: Mapping[str, float],
               modelled: Mapping[str, Mapping[str, float]], here: Mapping[str, Mapping[str, float]]) -> Figure:
    """For which ``share[workload][drafter]`` of the requests each drafter is the fastest; below it the workload's
    number of requests, if ``counts`` has it, and the 95 % interval of the largest share of the last workload in the
    title. ``here``: the shares of the reader's own run, as narrow bars. ``published``: the paper's shares for one of
    its five, by data set; ``modelled``: those of all five."""
    figure, (ax, at_scale, beside) = canvas(3.7, 1, 3, width_ratios=[3.4, 2.4, 1.1])
    drafters = list(dict.fromkeys(name for shares in (share, here) for values in shares.values() for name in values))
    _stacked(ax, share, drafters)
    _stacked(ax, {workload: here.get(workload, {}) for workload in share}, drafters, .43, .12)
    ax.set_xticks(range(len(share)), [f"{name}\n{counts[name]}" if name in counts else name for name in share],
                  fontsize=9)
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    last = next(reversed(share))
    name = max(share[last], key=share[last].get)
    said = f"{name} is the best for\n{share[last][name]:.0%} of the {last}"
    if last in counts:
        low, high = proportion_interval(share[last][name] * counts[last], counts[last])
        said += f" ({low:.0%} to {high:.0%})"
    ax.set(ylabel="share of requests", xlabel="workload" + ("; narrow: this run" if here else ""), title=said)
    _stacked(at_scale, modelled, list(next(iter(modelled.values()))))
    at_scale.set_xticks(range(len(modelled)), list(modelled), fontsize=9)
    at_scale.legend(loc="upper left", bbox_to_anchor=(1, 1))
    part, top, data = max((part, drafter, data) for data, parts in modelled.items() for drafter, part in parts.items())
    at_scale.set_title(f"Modelled, {data}:\n{top} for {part:.0%}")
    bars = beside.bar(range(len(published)), list(published.values()), .5, color=GREY)
    beside.bar_label(bars, fmt="{:.0%}")
    beside.set_xticks(range(len(published)), list(published))
    beside.set(ylim=(0, 1), xlim=(-.6, len(published) - .4),
               title=f"Published:\n265M for {max(published.values()):.0%}", xlabel="265M of five")
    beside.grid(False)
    return figure


def _stacked(ax: Axes, share: Mapping[str, Mapping[str, float]], drafters: Sequence[str], shift: float = 0.0,
             width: float = .66) -> None:
    """Bars of ``share[workload][drafter]`` on top of each other; labelled unless they stand ``shift`` beside others."""
    below = np.zeros(len(share))
    for index, name in enumerate(drafters):
        heights = np.array([values.get(name, 0) for values in share.values()])
        bars = ax.bar(np.arange(len(share)) + shift, heights, width, bottom=below, color=look(name, index)[0],
                      edgecolor="white", linewidth=.5, label="_" * bool(shift) + name)
        if not shift:
            ax.bar_label(bars, [f"{h:.0%}" if h >= .045 else "" for h in heights], label_type="center", color="white",
                         fontsize=9, weight="bold")
        below += heights
    ax.set_ylim(0, 1)
    ax.grid(False)


@styled
def pick(prompt: str, speed: Mapping[str, float], chosen: str | None) -> Figure:
    """One request: its prompt, and what each drafter would have made of it. Without a choice the bars are hidden."""
    figure, (above, ax) = canvas(3.6, 2, 1, height_ratios=[1, 2])
    above.axis("off")
    lines = textwrap.wrap(" ".join(prompt.split()), 105)
    shown = lines[:4] if len(lines) <= 4 else [*lines[:3], lines[3][:100] + " ..."]
    above.text(0, 1, "\n".join(shown), va="top", ha="left", transform=above.transAxes)
    best = max(speed, key=speed.get)
    names = list(speed)
    for index, name in enumerate(names):
        if chosen is None:
            ax.barh(index, 1, color=LIGHT)
            ax.text(.02, index, "?", va="center", color=GREY, weight="bold")
            continue
        ax.barh(index, speed[name], color=look(name, index)[0], alpha=1 if name in (chosen, best) else .35)
        note = [f"{speed[name]:.2f} times plain decoding", *["best"] * (name == best),
                *["your choice"] * (name == chosen)]
        ax.text(speed[name] + .01, index, ", ".join(note), va="center", fontsize=9.5)
    if chosen is not None:
        ax.axvline(1, color=INK, linewidth=1)
    ax.set_yticks(range(len(names)), [label(n, 24) for n in names])
    ax.invert_yaxis()
    ax.set(xlim=(0, 1.45 * max(speed.values())), xlabel="predicted speed-up")
    ax.grid(False)
    if chosen is not None:
        ax.set_title("Right!" if speed[chosen] >= .98 * speed[best] else f"{best} would have been better")
    return figure
