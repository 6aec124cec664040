"""Lesson 1's figures: a text by the origin of its tokens, steps and their distributions, acceptance, speed, theory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from matplotlib.ticker import MaxNLocator

from spin_core.lab import theory as formulas
from spin_core.lab.lessons.l1_speculation.steps import Place, Step
from spin_core.lab.lessons.look import (
    BLUE, GREEN, GREY, INK, LIGHT, MONO, ORANGE, PURPLE, P_COLOUR, Q_COLOUR, RED, RESIDUAL_COLOUR, SKY, WIDTH,
    apart, canvas, characters, label, look, styled, tint)

Counts = tuple[Sequence[int], Sequence[int]]
"""How often place 1, 2, ... of a draft was tested, and accepted:
:func:`spin_core.lab.theory.position_counts`."""

FATE_COLOURS = {"accepted": GREEN, "rejected": RED, "replacement": SKY, "bonus": PURPLE, "unseen": GREY}
FATE_WORDS = {"accepted": "drafted, accepted", "rejected": "drafted, rejected",
              "replacement": "target's replacement", "bonus": "target's bonus token",
              "unseen": "drafted, not tested"}


def _text_axes(figure: Figure, columns: float, lines: float, rect=(0, 0, 1, 1)) -> Axes:
    """Axes in which one unit is a character across and a line down."""
    ax = figure.add_axes(rect)
    ax.set(xlim=(0, columns), ylim=(lines, 0))
    ax.axis("off")
    return ax


def _box(ax: Axes, x: float, y: float, text: str, fate: str, size: float, pad: float = 0.55) -> float:
    """One token at character x, centred on line y; returns where it ends."""
    colour, width = FATE_COLOURS[fate], len(text) + 2 * pad
    unseen = fate == "unseen"
    ax.add_patch(FancyBboxPatch((x, y - 0.36), width, 0.72, boxstyle="round,pad=0,rounding_size=0.25",
                                mutation_aspect=0.5, linewidth=1.1, edgecolor=colour,
                                linestyle=(0, (2, 2)) if unseen else "solid",
                                facecolor="white" if unseen else tint(colour, 0.28)))
    ax.text(x + width / 2, y, text, ha="center", va="center_baseline", family=MONO, size=size,
            color=GREY if unseen else INK, weight="bold" if fate in ("replacement", "bonus") else "normal")
    if fate == "rejected":
        ax.plot([x + pad / 2, x + width - pad / 2], [y, y], color=RED, linewidth=1.4)
    return x + width


def _fate_legend(ax: Axes, y: float, fates: Sequence[str], size: float) -> None:
    x = 0.4
    for fate in fates:
        x = _box(ax, x, y, "a", fate, size) + 0.8
        ax.text(x, y, FATE_WORDS[fate], va="center_baseline", size=size, color=INK)
        x += len(FATE_WORDS[fate]) * 0.95 + 2.2


@styled
def text_by_fate(tokens: Sequence[str], fates: Sequence[str], *, title: str = "") -> Figure:
    """A text, token by token, coloured by its origin: the drafter or the target.

    ``tokens`` are the texts of the emitted tokens in order, ``fates`` "accepted", "replacement" or "bonus".
    """
    if len(tokens) != len(fates):
        raise ValueError(f"text_by_fate: {len(tokens)} tokens but {len(fates)} fates")
    size, columns = 10.5, int(characters(10.5)) - 1
    placed, x, line = [], 0, 0
    for i, (token, fate) in enumerate(zip(tokens, fates)):
        starts_word = token[:1].isspace() or i == 0
        word = len(token)       # up to the next token that begins with a space
        for later in tokens[i + 1:] if starts_word else ():
            if later[:1].isspace() or word > columns:
                break
            word += len(later)
        if x + (word if starts_word else len(token)) > columns:
            x, line, token = 0, line + 1, token.removeprefix(" ")
        pieces = token.split("\n")
        for k, piece in enumerate(pieces):
            shown = label(piece, columns).replace("␣", " ") if piece else ""
            shown += "↵" if k < len(pieces) - 1 else ""     # a line end is a token, or part of one: show it
            if shown:
                placed.append((x, line, shown, fate))
                x += len(shown)
            if k < len(pieces) - 1:
                x, line = 0, line + 1
    top, lines = (2.9 if title else 1.5), 1 + max((line for _, line, _, _ in placed), default=0)
    figure = Figure(figsize=(WIDTH, (top + lines + 0.3) * 0.26))
    ax = _text_axes(figure, columns + 1, top + lines + 0.3)
    if title:
        ax.text(0.4, 0.75, title, size=11, weight="bold", va="center")
    _fate_legend(ax, top - 0.95, ("accepted", "replacement", "bonus"), 9.5)
    for x, line, shown, fate in placed:
        y = top + line + 0.5
        shade = tint(FATE_COLOURS[fate], 0.30 if fate == "accepted" else 0.45)
        ax.add_patch(Rectangle((x + 0.44, y - 0.42), len(shown) - 0.08, 0.84, linewidth=0, facecolor=shade))
        ax.text(x + 0.4, y, shown, family=MONO, size=size, va="center_baseline",
                color=GREY if shown == "↵" else INK, weight="normal" if fate == "accepted" else "bold")
    return figure


def _strip(ax: Axes, y: float, step: Step, size: float, columns: float, *, before: int,
           number: int = 0) -> list[float]:
    """A step's tokens on line y, behind the end of the text before it; the centre of every place."""
    context = label(step.before, 10**6).replace("␣", " ") if step.before else "(start)"
    room = before - 4 if number else before
    if len(context) > room:         # begin with a whole word, where there is one
        end = context[1 - room:]
        context = "…" + (end.partition(" ")[2] or end)
    if number:
        ax.text(0.4, y, f"{number}", size=9, color=GREY, va="center_baseline")
    ax.text(before + 0.2, y, context, ha="right", va="center_baseline", family=MONO, size=size, color=GREY)
    x, centres = before + 1.0, []
    boxes = [*zip(step.drafted, step.fates), *([(step.own, step.own_fate)] if step.own is not None else [])]
    room = columns - x - 0.6
    longest = 14
    while longest > 4 and sum(len(label(t, longest)) + 1.7 for t, _ in boxes) + 1.5 > room:
        longest -= 1
    for i, (text, fate) in enumerate(boxes):
        if i == len(step.drafted):      # the target's own token stands apart from the draft
            ax.text(x + 0.75, y, "›", ha="center", va="center_baseline", size=size + 3, color=GREY)
            x += 1.5
        start = x
        x = _box(ax, x, y, label(text, longest), fate, size)
        centres.append((start + x) / 2)
        x += 0.6
    return centres


@styled
def steps(shown: Sequence[Step], *, title: str = "") -> Figure:
    """Several steps below one another: what was drafted, what became of it, what the target added."""
    size, columns = 9.5, characters(9.5)
    top = 3.3 if title else 1.8
    lines = top + 1.25 * len(shown) + 0.2
    figure = Figure(figsize=(WIDTH, lines * 0.27))
    ax = _text_axes(figure, columns, lines)
    if title:
        ax.text(0.4, 0.7, title, size=11, weight="bold", va="center")
    _fate_legend(ax, top - 1.4, list(FATE_WORDS), 8.5)
    for i, step in enumerate(shown):
        y = top + 1.25 * i + 0.3
        _strip(ax, y, step, size, columns, before=26, number=i + 1)
    return figure


@styled
def step(shown: Step, place: int, *, title: str = "") -> Figure:
    """One step, and how p and q overlap at a place (0-based; the last is the bonus place)."""
    if not 0 <= place < len(shown.places):
        raise ValueError(f"step: place {place} of {len(shown.places)}; were the distributions recorded?")
    here, size, columns = shown.places[place], 10, characters(10)
    figure = Figure(figsize=(WIDTH, 5.0))
    ax = _text_axes(figure, columns, 5.6, (0, 0.7, 1, 0.3))
    ax.text(0.4, 0.55, title, size=11, weight="bold", va="center")
    _fate_legend(ax, 1.65, list(FATE_WORDS), 8.5)
    centres = _strip(ax, 3.1, shown, size, columns, before=24)
    at = min(place, len(centres) - 1)
    if place < len(shown.drafted) or shown.own_fate == "bonus":
        ax.text(centres[at], 3.95, "▲", ha="center", va="center", size=9, color=INK)
    ax.text(0.4, 5.0, _story(shown, place), size=10, va="center_baseline")

    _overlap(figure.add_axes((0.07, 0.15, 0.91, 0.49)), here)
    return figure


def _overlap(ax: Axes, here: Place) -> None:
    """p and q as areas over the tokens: what both share is accepted, what q lacks is the residual.

    A drafted token is a point that fell somewhere below q, at the height u q; below p it is accepted.
    """
    x, p, residual = np.arange(len(here.tokens)), np.array(here.p), np.array(here.residual)
    q = np.array(here.q) if here.q else np.zeros(len(p))
    shared = p - residual
    top = max([*p, *q, 0.05]) * 1.3
    edges = np.append(x - 0.5, x[-1] + 0.5)
    if here.q:
        ax.bar(x, shared, 1, color=tint(GREEN, 0.55), label=f"min(p, q): accepted, {shared.sum():.0%}")
        ax.bar(x, residual, 1, bottom=shared, facecolor=tint(RESIDUAL_COLOUR, 0.45), edgecolor=P_COLOUR, hatch="////",
               linewidth=0, label=f"(p − q)₊: where replacements come from, {residual.sum():.0%}")
        ax.bar(x, q - shared, 1, bottom=shared, color=tint(Q_COLOUR, 0.35), label="q above p: drafted too often, rejected")
        ax.stairs(q, edges, color=Q_COLOUR, linewidth=2.2, label="q, the drafter")
    else:
        ax.bar(x, p, 1, color=tint(P_COLOUR, 0.25), label="nothing is drafted here: the target draws from p")
    ax.stairs(p, edges, color=P_COLOUR, linewidth=2.2, label="p, the target")
    for i, (mine, other) in enumerate(zip(p, q)):
        if max(mine, other) >= 0.0005:
            words = f"p {mine:.3f}\nq {other:.3f}" if here.q else f"p {mine:.3f}"
            ax.text(i, max(mine, other) + 0.01 * top, words, ha="center", va="bottom", size=8, color="#444444")
    if here.u is not None:
        ax.plot(here.drafted, here.u * here.q[here.drafted], "o", color=INK, markersize=8, markeredgecolor="white",
                zorder=6, label="the draft, at height u·q")
    ax.set_xticks(x, [*map(label, here.tokens[:-1]), here.tokens[-1]], family=MONO, fontsize=9)
    for i, tick in enumerate(ax.get_xticklabels()):
        if i in (here.drafted, here.emitted):
            tick.set(weight="bold", color=P_COLOUR if i == here.emitted else "#9A6A00")
    ax.set(xlim=(-0.5, x[-1] + 0.5), ylim=(0, top), ylabel="probability")
    ax.grid(axis="x", visible=False)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.11), ncols=3, fontsize=8.5)


def _story(step: Step, place: int) -> str:
    """One sentence: what happened at this place."""
    here, first = step.places[place], f"Place {place + 1}: "
    if place == len(step.drafted):
        if not step.drafted:
            return f"{first}nothing was drafted, so the target draws {label(step.own)} from p, as in plain decoding."
        if step.own_fate == "bonus":
            return f"{first}all drafted tokens were accepted; the target adds {label(step.own)} from p."
        return f"{first}the bonus place, not reached this time."
    token = label(here.tokens[here.drafted])
    if step.fates[place] == "unseen":
        return f"{first}{token} was drafted but not tested: the draft ended at an earlier place."
    p, q = here.p[here.drafted], here.q[here.drafted]
    accepted = step.fates[place] == "accepted"
    verdict = "accepted" if accepted else f"rejected; {label(step.own)} is drawn from (p − q)₊"
    if here.u is None:
        return f"{first}{token} has q = {q:.3f}, p = {p:.3f}: {verdict}."
    test = f"u·q = {here.u:.3f}·{q:.3f} = {here.u * q:.3f} {'<' if accepted else '≥'} p"
    return f"{first}{token} has q = {q:.3f}, p = {p:.3f}; {test}: {verdict}."


# ---- distributions and statistics


@styled
def outcomes(names: Sequence[str], exact: Sequence[float], samples: Mapping[str, Sequence[float]], *,
             count: int, distances: Mapping[str, float], noise: float) -> Figure:
    """Sampled frequencies against the exact distribution, and each sample's distance beside what chance explains.

    ``exact`` and each of ``samples`` are probabilities of the outcomes ``names``; every sample holds ``count`` draws.
    ``distances`` are total variation distances; ``noise``: 95 % of samples drawn
    from ``exact`` stay below it.
    """
    figure, (left, right) = canvas(4.3, 1, 2, width_ratios=[2.5, 1])
    exact, x = np.asarray(exact, float), np.arange(len(names))
    spread = 2 * np.sqrt(exact * (1 - exact) / count)
    left.bar(x, exact, color=tint(P_COLOUR, 0.30), width=0.82, label="exact distribution of the target")
    left.hlines(exact, x - 0.41, x + 0.41, color=P_COLOUR, linewidth=1.6)
    left.errorbar(x - 0.32, exact, [np.minimum(exact, spread), spread], fmt="none", ecolor=P_COLOUR, capsize=2.5,
                  elinewidth=1.3, label=f"± 2 standard deviations of {count:,} draws")
    offsets = np.linspace(-0.14, 0.3, len(samples))
    for (name, values), (colour, marker), shift in zip(samples.items(), SAMPLES, offsets):
        left.plot(x + shift, values, marker, color=colour, markeredgecolor="white", markeredgewidth=0.8,
                  label=name)
    left.set_xticks(x, names, rotation=38, ha="right", rotation_mode="anchor", family=MONO, fontsize=9)
    top = max([*(exact + spread), *(max(values) for values in samples.values())])
    left.set(ylabel="probability", ylim=(0, 1.42 * top), xlim=(-0.6, len(x) - 0.4))
    left.grid(axis="x", visible=False)
    left.legend(loc="upper left", ncols=2)
    left.set_title("The first tokens, over many seeds")

    y = np.arange(len(samples))
    for row, (name, (colour, marker)) in enumerate(zip(samples, SAMPLES)):
        right.plot([0, distances[name]], [row, row], color=colour, linewidth=2)
        right.plot(distances[name], row, marker, color=colour, markersize=8, markeredgecolor="white")
        right.text(distances[name], row - 0.2, f"{distances[name]:.3f}", ha="center", size=9.5)
    right.axvspan(0, noise, color=tint(GREY, 0.22), linewidth=0)
    right.set_yticks(y, [n.replace(", ", ",\n") for n in samples])
    right.set(ylim=(len(samples) - 0.35, -0.55), xlim=(0, max([noise, *distances.values()]) * 1.2))
    right.grid(axis="y", visible=False)
    right.set_xlabel("total variation distance\n(grey: 95 % of correct samples)")
    right.set_title("Distance from the target")
    return figure


SAMPLES = [("#444444", "o"), (GREEN, "D"), (RED, "X")]


@styled
def expected_tokens(gammas: Sequence[int], measured: Sequence[float], errors: Sequence[float],
                    counts: Counts) -> Figure:
    """Tokens per verification by gamma: measured, the formula with one alpha, and with one for every place.

    ``errors`` are half-widths. ``counts`` are how often place 1, 2, ... was tested and accepted, for as
    many places as the largest gamma; both formulas take their alphas from there.
    """
    alpha, by_position = formulas.one_rate(*counts) or 0.0, formulas.rates(*counts)
    figure, (left, right) = canvas(3.9, 1, 2, width_ratios=[1.35, 1])
    grid = np.arange(max(gammas) + 1)
    left.plot(grid, formulas.expected_tokens(alpha, grid), color=BLUE, linestyle="--",
              label=f"formula, one α = {alpha:.2f} for all places")
    left.plot(grid, [formulas.expected_tokens_by_position(by_position, g) for g in grid], color=BLUE,
              label="formula, each place its own α")
    left.errorbar(gammas, measured, errors, fmt="o", color=GREEN, capsize=3, elinewidth=1.3, zorder=5,
                  markeredgecolor="white", label="measured (bars: 2 standard errors)")
    left.axhline(1, color=GREY, linewidth=1, linestyle=":")
    left.text(max(gammas) + 0.25, 1.015, "plain decoding", color=GREY, size=9, va="bottom", ha="right")
    low, high = left.get_ylim()
    left.set(xlabel="γ, drafted tokens per step", ylabel="tokens per verification",
             xlim=(-0.3, max(gammas) + 0.3), ylim=(min(0.95, low), high + 0.22 * (high - low)))
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.legend(loc="upper left")
    left.set_title("Expected tokens: formula and measurement")
    _positions(right, {"": counts}, [BLUE])
    right.set_title("α by place in the draft")
    return figure


def _positions(ax: Axes, counts: Mapping[str, Counts], colours: Sequence[str] | None = None) -> None:
    longest = max(len(tested) for tested, _ in counts.values())
    shifts = np.linspace(-0.08, 0.08, len(counts)) if len(counts) > 1 else [0]
    for i, (name, (tested, accepted)) in enumerate(counts.items()):
        colour, marker = look(name, i)
        colour = colours[i] if colours else colour
        seen = np.flatnonzero(tested)
        x, y = seen + 1 + shifts[i], np.array(formulas.rates(tested, accepted), float)[seen]
        low, high = formulas.proportion_interval(np.asarray(accepted)[seen], np.asarray(tested)[seen])
        ax.vlines(x, low, high, color=tint(colour, 0.55), linewidth=1.4)
        ax.plot(x, y, marker=marker, color=colour, markeredgecolor="white", label=name, clip_on=False,
                zorder=3)
        if (overall := formulas.one_rate(tested, accepted)) is not None:
            ax.axhline(overall, color=colour, linestyle="--", linewidth=1.1, alpha=0.8)
    ax.set(xlabel="place in the draft", ylabel="accepted, if tested", ylim=(0, 1.04),
           xlim=(0.6, longest + 0.4))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


@styled
def acceptance_by_position(counts: Mapping[str, Counts], *, here: Mapping[str, Counts] | None = None,
                           title: str = "Acceptance by place in the draft") -> Figure:
    """Per curve the acceptance at place 1, 2, ... among the tokens that were tested, with 95 % intervals.

    ``counts`` are (tested, accepted) by place, per curve. Dashed: all places of a curve together. ``here``: the same of
    the reader's own run, as hollow marks where a place was tested at all.
    """
    figure, ax = canvas(3.9)
    _positions(ax, counts)
    for i, name in enumerate(counts):
        if here and name in here:
            tested, accepted = map(np.asarray, here[name])
            seen, (colour, marker) = np.flatnonzero(tested), look(name, i)
            ax.plot(seen + 1.18, accepted[seen] / tested[seen], marker, linestyle="none", color=colour,
                    markerfacecolor="white", markersize=5)
    ax.set_title(title)
    figure.legend(*ax.get_legend_handles_labels(), loc="outside right upper", title_fontsize=9,
                  title="bars: 95 % intervals\ndashed: all places" + "\nhollow: this run" * bool(here))
    return figure


@styled
def acceptance_by_request(values: Mapping[str, Sequence[float]], groups: Sequence[str], *,
                          ylabel: str = "tokens per verification") -> Figure:
    """One column per request, sorted: the range over all drafters, and the mark of its best drafter.

    ``values[drafter][i]`` belongs to request i, ``groups[i]`` names its workload: a panel each, titled with the drafters
    that are the best for most of its requests.
    """
    names, table, groups = list(values), np.array([values[n] for n in values], float), np.asarray(groups)
    kinds = list(dict.fromkeys(groups.tolist()))
    figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
    for ax, kind in zip(figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0], kinds):
        mine = table[:, groups == kind]
        mine = mine[:, np.argsort(mine.max(0), kind="stable")]
        winner, x = mine.argmax(0), np.arange(mine.shape[1])
        ax.vlines(x, mine.min(0), mine.max(0), color=LIGHT, linewidth=2, zorder=1)
        for row, name in enumerate(names):
            colour, marker = look(name, row)
            won = winner == row
            ax.plot(x[won], mine[row][won], marker, color=colour, markersize=5.5, label=name, linestyle="none")
        share = np.bincount(winner, minlength=len(names)) / len(winner)
        first, second = np.argsort(-share)[:2]
        ax.set(xlabel=f"{len(x)} requests, sorted", xticks=[])
        ax.set_title(f"{kind}: {names[first]} {share[first]:.0%},\n{names[second]} {share[second]:.0%}", size=10)
    figure.axes[0].set_ylabel(ylabel)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(names),
                  title="mark: the best drafter (of equal ones, the first); grey: down to the worst", title_fontsize=9)
    return figure


@styled
def speed(gammas: Sequence[int],
          measured: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float]]],
          curves: Mapping[str, Sequence[float]], phases: Mapping[str, Sequence[float]]) -> Figure:
    """Goodput by gamma against theory, and where the time of a step goes.

    ``gammas`` begin with 0, plain decoding. ``measured`` are (tokens per second, low, high) per drafter;
    ``curves`` and ``phases`` (milliseconds per step) are those of the first drafter.
    """
    figure, (left, right) = canvas(4.6, 1, 2, width_ratios=[1.35, 1])
    x, plain = np.arange(len(gammas)), next(iter(measured.values()))[0][0]
    for (name, values), (dash, shade) in zip(curves.items(), (("--", 0.6), ("-", 1.0))):
        left.plot(x, values, dash, color=tint(BLUE, shade), label=name)
    left.axhline(plain, color=GREY, linewidth=1, linestyle=":")
    for i, (name, (values, low, high)) in enumerate(measured.items()):
        colour, marker = look(name, i)
        best = int(np.argmax(values))
        gain = "never faster than plain"
        if best:
            gain = f"at best {values[best] / plain:.2f}× plain, γ = {gammas[best]}"
        bars = np.clip([np.subtract(values, low), np.subtract(high, values)], 0, None)
        left.errorbar(x + 0.12 * i - 0.06, values, bars, fmt=marker, color=colour, capsize=3, elinewidth=1.2,
                      markeredgecolor="white", zorder=5, label=f"{name}: {gain}")
    top = 1.2 * max(map(max, [*curves.values(), *(values for values, _, _ in measured.values())]))
    for row, (name, (_, _, high)) in enumerate(measured.items()):   # one lucky prompt must not squeeze all others
        for i in np.flatnonzero(np.asarray(high) > top):
            left.text(i + 0.1, top * (0.985 - 0.06 * row), f"↑{high[i]:.0f}", size=9, va="top",
                      color=look(name, row)[0])
    left.set(xlabel="γ, drafted tokens per step (0: plain decoding)", ylabel="tokens per second",
             ylim=(0, top))
    left.set_xticks(x, gammas)
    left.set_title("Goodput here (bars: slowest to fastest prompt, ↑ off axis)", size=10)
    base = np.zeros(len(gammas))
    whole = np.sum(list(phases.values()), axis=0).max()
    for (name, values), colour in zip(phases.items(), (ORANGE, BLUE, SKY, "#BBBBBB")):
        small = max(values) < 0.02 * whole      # too thin to be seen: the legend says so
        right.bar(x, values, bottom=base, color=colour, width=0.7, label=f"{name} (below 2 %)" if small else name)
        base += np.asarray(values, float)
    right.set_xticks(x, gammas)
    right.set(xlabel="γ", ylabel="milliseconds per step", ylim=(0, whole * 1.05))
    right.grid(axis="x", visible=False)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower left")
    figure.legend(*right.get_legend_handles_labels(), loc="lower right", reverse=True)
    right.set_title(f"Where a step's time goes, {next(iter(measured))}")
    return figure


# ---- theory


@styled
def theory(alpha: float, cost: float, *, gammas: int = 12) -> Figure:
    """Expected tokens and speed-up by gamma for one alpha and one cost, the best gamma marked."""
    figure, (left, right) = canvas(3.7, 1, 2)
    x = np.arange(gammas + 1)
    tokens, gain = formulas.expected_tokens(alpha, x), formulas.speed_up(alpha, x, cost)
    best, peak = formulas.best_gamma(alpha, cost, gammas)
    left.plot(x, tokens, "o-", color=BLUE, markeredgecolor="white")
    if alpha < 1:
        left.axhline(1 / (1 - alpha), color=GREY, linestyle=":", linewidth=1.2)
        left.annotate(f"limit 1 / (1 − α) = {1 / (1 - alpha):.2f}", (gammas, 1 / (1 - alpha)), (0, 6),
                      ha="right", textcoords="offset points", size=9, color="#555555")
    left.set(xlabel="γ, drafted tokens per step", ylabel="tokens per verification",
             ylim=(0, max(6, tokens.max() * 1.2)))
    left.set_title(f"Expected tokens, α = {alpha:.2f}")
    right.plot(x, gain, "o-", color=GREEN, markeredgecolor="white")
    right.axhline(1, color=GREY, linewidth=1, linestyle=":")
    right.text(gammas, 1.01, "plain decoding", color="#555555", size=9, va="bottom", ha="right")
    right.plot(best, peak, "o", color=GREEN, markersize=12, markeredgecolor=INK)
    words = f"best γ = {best}: {peak:.2f}×" if best else "best γ = 0: do not speculate"
    right.annotate(words, (best, peak), (0 if 2 <= best <= gammas - 2 else (14 if best < 2 else -14), 14),
                   textcoords="offset points", weight="bold",
                   ha="center" if 2 <= best <= gammas - 2 else ("left" if best < 2 else "right"))
    right.set(xlabel="γ, drafted tokens per step", ylabel="speed-up", ylim=(0, max(4, peak * 1.25)))
    right.set_title(f"Speed-up, one drafted token costs c = {cost:.2f}")
    for ax in (left, right):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


@styled
def theory_family(alphas: Sequence[float], costs: Sequence[float], *, gammas: int = 16) -> Figure:
    """Speed-up by gamma, one panel per cost, one curve per alpha, every curve's best gamma marked."""
    figure = Figure(figsize=(WIDTH, 3.5), layout="constrained")
    axes = figure.subplots(1, len(costs), sharey=True, squeeze=False)[0]
    x = np.arange(gammas + 1)
    for ax, cost in zip(axes, costs):
        ends = []
        for i, alpha in enumerate(alphas):
            gain = formulas.speed_up(alpha, x, cost)
            best, peak = formulas.best_gamma(alpha, cost, gammas)
            colour = tint(GREEN, 0.35 + 0.65 * (i + 1) / len(alphas))
            ax.plot(x, gain, color=colour)
            ax.plot(best, peak, "o", color=colour, markeredgecolor=INK, markersize=7)
            ends.append(gain[-1])
        for alpha, y in zip(alphas, apart(ends, 0.2)):
            ax.text(gammas + 0.35, y, f"α = {alpha:g}", va="center", size=9, color=INK)
        ax.axhline(1, color=GREY, linewidth=1, linestyle=":")
        ax.set(xlabel="γ, drafted tokens per step", xlim=(-0.4, gammas * 1.27))
        ax.set_xticks(range(0, gammas + 1, 4))
        ax.set_title(f"c = {cost:g}")
    axes[0].set_ylabel("speed-up over plain decoding")
    axes[0].set_ylim(0, None)
    return figure
