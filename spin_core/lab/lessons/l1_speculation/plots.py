"""Lesson 1's figures: a text by the origin of its tokens, steps and their distributions, acceptance, speed, theory."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from spin_core import theory as formulas
from spin_core.lab.bench import proportion_interval
from spin_core.lab.lessons.l1_speculation.steps import Place, Step
from spin_core.lab.lessons.look import (
    BLUE, GREEN, GREY, INK, LIGHT, MONO, ORANGE, PURPLE, P_COLOUR, Q_COLOUR, RED, RESIDUAL_COLOUR, SKY, WIDTH,
    apart, canvas, characters, flow, headline, label, look, styled, tint)

Counts = tuple[Sequence[int], Sequence[int]]
"""How often place 1, 2, ... of a draft was tested, and accepted:
:func:`spin_core.theory.position_counts`."""

FATE_COLOURS = {"accepted": GREEN, "rejected": RED, "replacement": SKY, "bonus": PURPLE, "unseen": GREY}
FATE_WORDS = {"accepted": "drafted, accepted", "rejected": "drafted, rejected",
              "replacement": "target's replacement", "bonus": "target's bonus token",
              "unseen": "drafted, not tested"}


def _page(figure: Figure, columns: float, lines: float, title: str, fates: Sequence[str], rect=(0, 0, 1, 1)) -> Axes:
    """Axes in which one unit is a character across and a line down, with a title and a legend of fates."""
    ax = figure.add_axes(rect)
    ax.set(xlim=(0, columns), ylim=(lines, 0))
    ax.axis("off")
    ax.text(0.4, 0.6, title, size=11, weight="bold", va="center")
    x, y = 0.4, 1.8 if title else 0.5
    for fate in fates:
        x = _box(ax, x, y, "a", fate, 8.5) + 0.8
        ax.text(x, y, FATE_WORDS[fate], va="center_baseline", size=8.5, color=INK)
        x += len(FATE_WORDS[fate]) * 0.95 + 2.2
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


@styled
def text_by_fate(tokens: Sequence[str], fates: Sequence[str], *, title: str = "") -> Figure:
    """A text, token by token, coloured by its origin: the drafter or the target.

    ``tokens`` are the texts of the emitted tokens in order, ``fates`` "accepted", "replacement" or "bonus".
    """
    if len(tokens) != len(fates):
        raise ValueError(f"text_by_fate: {len(tokens)} tokens but {len(fates)} fates")
    size, columns = 10.5, int(characters(10.5)) - 1
    placed = flow(tokens, columns)
    top = 2.9 if title else 1.5
    lines = top + 1.3 + max((line for _, _, line, _ in placed), default=0)
    figure = Figure(figsize=(WIDTH, lines * 0.26))
    ax = _page(figure, columns + 1, lines, title, ("accepted", "replacement", "bonus"))
    for token, x, line, shown in placed:
        y, fate = top + line + 0.5, fates[token]
        shade = tint(FATE_COLOURS[fate], 0.30 if fate == "accepted" else 0.45)
        ax.add_patch(Rectangle((x + 0.44, y - 0.42), len(shown) - 0.08, 0.84, linewidth=0, facecolor=shade))
        ax.text(x + 0.4, y, shown, family=MONO, size=size, va="center_baseline",
                color=GREY if shown == "↵" else INK, weight="normal" if fate == "accepted" else "bold")
    return figure


def _strip(ax: Axes, y: float, step: Step, size: float, columns: float, *, before: int,
           number: int = 0) -> list[float]:
    """A step's tokens on line y, after the end of the text before it; the centre of every place."""
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
    size, columns, top = 9.5, characters(9.5), 3.3 if title else 1.8
    lines = top + 1.25 * len(shown) + 0.2
    figure = Figure(figsize=(WIDTH, lines * 0.27))
    ax = _page(figure, columns, lines, title, list(FATE_WORDS))
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
    if here.q:
        title += f": of what is drafted here {1 - sum(here.residual):.0%} is accepted, the overlap of p and q"
    figure = Figure(figsize=(WIDTH, 5.0))
    ax = _page(figure, columns, 5.6, title, list(FATE_WORDS), (0, 0.7, 1, 0.3))
    centres = _strip(ax, 3.1, shown, size, columns, before=24)
    at = min(place, len(centres) - 1)
    if place < len(shown.drafted) or shown.own_fate == "bonus":
        ax.text(centres[at], 3.95, "▲", ha="center", va="center", size=9, color=INK)
    ax.text(0.4, 5.0, _story(shown, place), size=10, va="center_baseline")

    _overlap(figure.add_axes((0.07, 0.15, 0.91, 0.49)), here)
    return figure


def _overlap(ax: Axes, here: Place) -> None:
    """p and q as areas over the tokens: what both share is accepted, what q lacks is the residual.

    A drafted token is a point that fell somewhere below q, at the height u q; below p it is accepted. The last column
    sums up all other tokens: some have p above q, others q above p, so it is grey.
    """
    x, p, residual = np.arange(len(here.tokens)), np.array(here.p), np.array(here.residual)
    q = np.array(here.q) if here.q else np.zeros(len(p))
    shared = p - residual
    top = max([*p, *q, 0.05]) * 1.3
    edges = np.append(x - 0.5, x[-1] + 0.5)
    if here.q:
        one = x[:-1]
        ax.bar(one, shared[:-1], 1, color=tint(GREEN, 0.55), label=f"min(p, q): accepted, {shared.sum():.0%}")
        ax.bar(one, residual[:-1], 1, bottom=shared[:-1], facecolor=tint(RESIDUAL_COLOUR, 0.45), edgecolor=P_COLOUR,
               hatch="////", linewidth=0, label=f"(p − q)₊, the residual: {residual.sum():.0%}")
        ax.bar(one, (q - shared)[:-1], 1, bottom=shared[:-1], color=tint(Q_COLOUR, 0.35),
               label="q above p: rejected")
        ax.bar(x[-1], max(p[-1], q[-1]), 1, color=tint(GREY, 0.3),
               label=f"all other tokens: {100 * shared[-1]:.0f} of the {shared.sum():.0%}")
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
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.11), ncols=4, fontsize=8.5)


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
    far = [name for name in samples if distances[name] > noise]
    left.set_title(f"Only “{'” and “'.join(far)}” differs from the target" if far else
                   "No sample differs from the target by more than chance")

    for row, (name, (colour, marker)) in enumerate(zip(samples, SAMPLES)):
        right.plot([0, distances[name]], [row, row], color=colour, marker=marker, markevery=[1], markersize=8)
        right.text(distances[name], row - 0.2, f"{distances[name]:.3f}", ha="center", size=9.5)
    right.axvspan(0, noise, color=tint(GREY, 0.22), linewidth=0)
    right.set_yticks(range(len(samples)), [n.replace(", ", ",\n") for n in samples])
    right.set(ylim=(len(samples) - 0.35, -0.55), xlim=(0, max([noise, *distances.values()]) * 1.2),
              xlabel="total variation distance\n(grey: 95 % of correct samples)", title="Distance from the target")
    right.grid(axis="y", visible=False)
    return figure


SAMPLES = [("#444444", "o"), (GREEN, "D"), (RED, "X")]


@styled
def expected_tokens(measured: Sequence[float], errors: Sequence[float], counts: Counts,
                    here: Mapping[int, float], sample: str = "this run") -> Figure:
    """Tokens per verification at gamma 1, 2, ...: ``measured`` with half of the intervals, ``errors``; the formula
    with one alpha and with one for every place, from the ``counts`` by place; and the reader's own run, ``here`` by
    gamma, named ``sample`` in the legend."""
    alpha, by_position = formulas.one_rate(*counts) or 0.0, formulas.rates(*counts)
    figure, ax = canvas(3.9)
    gammas, grid = np.arange(len(measured)) + 1, np.arange(len(measured) + 1)
    ax.plot(grid, formulas.expected_tokens(alpha, grid), "--", color=BLUE,
            label=f"formula, one α = {alpha:.2f} for all places")
    ax.plot(grid, [formulas.expected_tokens_by_position(by_position, g) for g in grid], color=BLUE,
            label="formula, each place its own α")
    ax.errorbar(gammas, measured, errors, fmt="o", color=GREEN, capsize=3, zorder=5,
                label="recorded answers (bars: 95 %)")
    ax.plot(list(here), list(here.values()), "o", color=INK, markerfacecolor="white", zorder=6, label=sample)
    ax.axhline(1, color=GREY, linewidth=1, linestyle=":", label="plain decoding")
    ax.set(xlabel="γ, drafted tokens per step", ylabel="tokens per verification", xticks=grid,
           title=f"Each further token brings less: {measured[0]:.2f} tokens at γ = 1, {measured[-1]:.2f} at "
                 f"γ = {gammas[-1]}")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


ENOUGH = 20
"""Tests below which a share of one's own run says too little to be drawn."""


@styled
def acceptance_by_position(counts: Mapping[str, Counts], *, here: Mapping[str, Counts] | None = None,
                           title: str = "Acceptance by place in the draft") -> Figure:
    """Per curve the acceptance at place 1, 2, ... among the tokens that were tested, with 95 % intervals.

    ``counts`` are (tested, accepted) by place, per curve. Dashed: all places of a curve together. ``here``: the same of
    the reader's own run, as hollow marks where a place was tested at least ``ENOUGH`` times.
    """
    figure, ax = canvas(3.9)
    longest = max(len(tested) for tested, _ in counts.values())
    shifts = np.linspace(-0.08, 0.08, len(counts)) if len(counts) > 1 else [0]
    for i, (name, both) in enumerate(counts.items()):
        (tested, accepted), (colour, marker) = map(np.asarray, both), look(name, i)
        seen = np.flatnonzero(tested)
        x, low_high = seen + 1 + shifts[i], proportion_interval(accepted[seen], tested[seen])
        ax.vlines(x, *low_high, color=tint(colour, 0.55), linewidth=1.4)
        ax.plot(x, accepted[seen] / tested[seen], marker=marker, color=colour, markeredgecolor="white", label=name,
                clip_on=False, zorder=3)
        if tested.any():
            ax.axhline(formulas.one_rate(tested, accepted), color=colour, linestyle="--", linewidth=1.1, alpha=0.8)
        if here and name in here:
            tested, accepted = map(np.asarray, here[name])
            seen = np.flatnonzero(tested >= ENOUGH)
            ax.plot(seen + 1.18, accepted[seen] / tested[seen], marker, linestyle="none", color=colour,
                    markerfacecolor="white", markersize=5)
    ax.set(xlabel="place in the draft", ylabel="accepted, if tested", ylim=(0, 1.04), xlim=(0.6, longest + 0.4),
           xticks=range(1, longest + 1), title=title)
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), title_fontsize=9,
              title="bars: 95 % intervals\ndashed: all places" + "\nhollow: this run,\na small sample" * bool(here))
    return figure


@styled
def acceptance_by_request(values: Mapping[str, Sequence[float]], groups: Sequence[str]) -> Figure:
    """Tokens per verification: one column per request, sorted: the range over all drafters, and the mark of its best
    drafter.

    ``values[drafter][i]`` belongs to request i, ``groups[i]`` names its workload: a panel each, titled with the
    drafters that are the best for most of its requests.
    """
    names, table, groups = list(values), np.array([values[n] for n in values], float), np.asarray(groups)
    kinds = list(dict.fromkeys(groups.tolist()))
    figure, axes = canvas(3.9, 1, len(kinds), sharey=True, squeeze=False)
    for ax, kind in zip(axes[0], kinds):
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
        ax.set(xlabel=f"{len(x)} requests", xticks=[])
        ax.set_title(f"{kind}\n{names[first]} best for {share[first]:.0%},\n"
                     f"{names[second]} for {share[second]:.0%}", size=10)
    figure.axes[0].set_ylabel("tokens per verification")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(names),
                  title="a column: one request, sorted by the tokens of its best drafter (the mark; of equal ones "
                        "the first); grey: down to its worst", title_fontsize=9)
    return figure


@styled
def speed(gain: Mapping[str, tuple[Sequence[float], Sequence[float]]], theory: tuple[str, Sequence[float]],
          here: Mapping[str, Mapping[int, float]], phases: Mapping[str, Sequence[float]], answers: int) -> Figure:
    """The speed-up over plain decoding at gamma 0, 1, ..., and where the time of a step goes.

    ``gain[drafter]``: speed-ups in so many recorded ``answers``, with half of their intervals; ``theory``: a label and
    the formula's. ``here[drafter]``: the reader's own, by gamma. The titles speak of the first drafter; ``phases``: its
    milliseconds per step in the reader's run, at gamma 0 and at those of ``here``.
    """
    figure, (left, right) = canvas(4.6, 1, 2, width_ratios=[1.35, 1])
    x = np.arange(len(theory[1]))
    left.plot(x, theory[1], "--", color=BLUE, label=theory[0])
    left.axhline(1, color=GREY, linewidth=1, linestyle=":")
    for i, (name, (values, errors)) in enumerate(gain.items()):
        colour, marker = look(name, i)
        left.errorbar(x, values, errors, color=colour, marker=marker, capsize=3, label=name)
        own = np.array(list(here[name])) + (-.12 if i else .12)         # beside the recorded marks
        left.plot(own, list(here[name].values()), marker, linestyle="none", color=colour, markerfacecolor="white",
                  zorder=5, label=f"{name}, this run")
    drafter, (values, _) = next(iter(gain.items()))
    best = int(np.argmax(values))
    left.set(xlabel="γ, drafted tokens per step (0: plain decoding)", ylabel="speed-up over plain decoding", xticks=x,
             ylim=(0, None), title=f"{drafter}: at best {values[best]:.2f} times plain decoding, at γ = {best}"
             if best else f"{drafter} never beats plain decoding")
    gammas, base = [0, *next(iter(here.values()))], 0
    for (name, values), colour in zip(phases.items(), (ORANGE, BLUE, SKY, "#BBBBBB")):
        right.bar(range(len(gammas)), values, bottom=base, color=colour, width=0.7, label=name)
        base = base + np.asarray(values, float)
    right.set(xlabel="γ", ylabel="milliseconds per step", xticks=range(len(gammas)), xticklabels=gammas,
              title=f"{drafter}, this run: drafting takes\n{phases['drafting'][-1] / base[-1]:.0%} of a step at "
                    f"γ = {gammas[-1]}")
    right.grid(axis="x", visible=False)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=2, title_fontsize=9,
                  title=f"solid: {answers} recorded answers at recorded pass times")
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower right", reverse=True, ncols=2)
    return figure


# ---- theory


@styled
def theory(alpha: float, cost: float, *, gammas: int = 12) -> Figure:
    """Expected tokens and speed-up by gamma for one alpha and one cost, the best gamma marked."""
    figure, (left, right) = canvas(3.7, 1, 2)
    x = np.arange(gammas + 1)
    tokens, gain = formulas.expected_tokens(alpha, x), formulas.speed_up(alpha, x, cost)
    best, peak = formulas.best_gamma(alpha, cost, gammas)
    left.plot(x, tokens, "o-", color=BLUE)
    if alpha < 1:
        left.axhline(1 / (1 - alpha), color=GREY, linestyle=":", linewidth=1.2,
                     label=f"limit 1 / (1 − α) = {1 / (1 - alpha):.2f}")
        left.legend(loc="upper left")
    right.plot(x, gain, "o-", color=GREEN)
    right.plot(best, peak, "o", color=GREEN, markersize=12, markeredgecolor=INK)
    right.axhline(1, color=GREY, linewidth=1, linestyle=":", label="plain decoding")
    right.legend(loc="upper left")
    left.set(xlabel="γ, drafted tokens per step", ylabel="tokens per verification", xticks=x,
             ylim=(0, max(6, tokens.max() * 1.2)),
             title=f"Expected tokens, α = {alpha:.2f}")
    right.set(xlabel="γ, drafted tokens per step", ylabel="speed-up", ylim=(0, max(4, peak * 1.25)), xticks=x,
              title=f"c = {cost:.2f}: " + (f"best γ = {best}: {peak:.2f}×" if best else "best γ = 0: do not speculate"))
    return figure


@styled
def theory_family(alphas: Sequence[float], costs: Sequence[float], *, gammas: int = 16) -> Figure:
    """Speed-up by gamma, one panel per cost, one curve per alpha, every curve's best gamma marked."""
    figure, axes = canvas(3.5, 1, len(costs), sharey=True, squeeze=False)
    axes = axes[0]
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
        ax.set(xlabel="γ, drafted tokens per step", xlim=(-0.4, gammas * 1.27), xticks=range(0, gammas + 1, 4),
               title=f"c = {cost:g}")
    axes[0].set(ylabel="speed-up over plain decoding", ylim=(0, None))
    headline(figure, "The better and cheaper the drafter, the longer its best draft (circles)")
    return figure
