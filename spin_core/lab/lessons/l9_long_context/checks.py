"""Lesson 9's exercises: solutions, and how answers are checked."""

from spin_core.lab.lessons.checking import Exercise
from spin_core.lab.simulate import spire


def crossing(weights, cache_per_token, batch):
    return weights / (batch * cache_per_token)


check_crossing = Exercise(
    crossing, "All requests of a batch share the weights, and each has a cache of its own: the larger the batch, the "
    "sooner the cache takes most of the time.",
    cases=[(body.stack, body.kv_bytes("fp8"), batch) for batch in (1, 8, 64)
           for body in (spire.TARGET, spire.VANILLA.body, spire.TARGET_70B)],
    rtol=0.001, atol=1, low=0,
    mistakes={
        "Every request of the batch has a cache of its own.": lambda w, each, batch: w / each,
        "The weights are read once for the whole batch; the caches are not shared.":
            lambda w, each, batch: batch * w / each,
        "That is the reciprocal.": lambda w, each, batch: batch * each / w})


def entry(position, sink, ring):
    # `claim` in spin_core/kv/ring.py
    return position if position < sink else sink + (position - sink) % ring


check_entry = Exercise(
    entry, "The sink stays, the others are used in turn. To draft gamma tokens and take them back, give the ring gamma "
    "entries more than the window.",
    cases=[(position, sink, ring) for sink, ring in ((1, 4), (4, 7), (0, 3), (1, 64))
           for position in range(3 * (sink + ring) + 2)],
    whole=True, low=0,
    mistakes={
        "That overwrites the sink when the buffer is full.": lambda p, s, r: p % (s + r),
        "The buffer has only sink + ring entries.": lambda p, s, r: p,
        "Behind the sink come the ring's entries: add sink.": lambda p, s, r: p if p < s else (p - s) % r,
        "The ring's first token comes right behind the sink: count from there.":
            lambda p, s, r: p if p < s else s + p % r,
        "The ring has `ring` entries, beside the sink's.":
            lambda p, s, r: p if p < s else s + (p - s) % max(1, r - s)})
