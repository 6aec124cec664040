"""Drafters by name: those of a family, prompt lookup, no speculation, compositions of them, and trees."""

from __future__ import annotations

from dataclasses import replace

from spin_core.draft.base import Drafter, NullDrafter
from spin_core.draft.composite import CompositeDrafter
from spin_core.draft.fed import FedDrafter, FedModel
from spin_core.draft.model import ModelDrafter
from spin_core.draft.ngram import NgramDrafter
from spin_core.draft.selfdraft import SelfDrafter
from spin_core.draft.table import DraftTable, TableDrafter
from spin_core.draft.trees import PREFIX, TreeDrafter, parse_name
from spin_core.draft.vote import VoteDrafter
from spin_core.runtime import ModelRunner
from spin_core.runtime.ring import Window
from spin_core.runtime.runner import LAST
from spin_core.zoo.family import DraftModel

COMPOSED_NGRAM = (4, 3)     # a composition trusts lookup from so many repeated tokens on: (longest, shortest)


def names(family) -> list[str]:
    """Every plain name. "FIRST+REST" composes: FIRST is "ngram" or a table, REST any name, itself composed or not.
    "sparse:NAME" or "sparse:NAME:WINDOW" drafts with a sparse cache: NAME is a model of the family or "target", WINDOW
    a number of tokens or a share of the text such as 1/8 (:mod:`spin_core.runtime.ring`). "tree:..." drafts trees
    (:mod:`spin_core.draft.trees`). "vote:A,B,..." has drafters vote; "vote" is a vote of all the family's and "ngram"
    (:mod:`spin_core.draft.vote`)."""
    return [*family.drafters, "ngram", "none"]


def is_fed(source) -> bool:
    """Does that drafter of a family read the target's states?"""
    return isinstance(getattr(source, "model", None), FedModel)


def layers_read(sources) -> tuple[int, ...]:
    """The layers of the target whose inputs any of these drafters of a family reads, in order; not LAST."""
    return tuple(sorted({layer for source in filter(is_fed, sources) for layer in source.model.layers_read} - {LAST}))


def build(name: str, family, slots: int, max_len: int, target: ModelRunner) -> Drafter:
    """The drafter of that name for an engine of ``slots`` requests of ``max_len`` tokens. Raises ValueError if it is
    unknown."""
    if name == "none":
        return NullDrafter()
    if name == "ngram":
        return NgramDrafter()
    size = slots, max_len, family.vocab_size
    if name in family.drafters:
        source = family.drafters[name]
        if isinstance(source, DraftTable):
            return TableDrafter(source)
        return FedDrafter(source, *size, target) if is_fed(source) else ModelDrafter(source, *size)
    if name.startswith("sparse:"):
        return _sparse(name, family, *size, target)
    if name.startswith(PREFIX):
        members, shape, drawing, budget = parse_name(name)
        # instances of its own, as below
        return TreeDrafter([build(member, family, slots, max_len, target) for member in members], shape, drawing, budget,
                           max_len=max_len, vocab_size=family.vocab_size)
    if name == "vote" or name.startswith("vote:"):
        members = name.removeprefix("vote:").split(",") if ":" in name else [*family.drafters, "ngram"]
        if len(set(members)) < len(members) or any(m == "" or m.startswith(("vote", PREFIX)) for m in members):
            raise ValueError(f"{name!r}: give drafters by name, each once, separated by commas")
        # instances of their own, as in a composition
        return VoteDrafter([build(member, family, slots, max_len, target) for member in members])
    first, plus, rest = name.partition("+")
    if plus and rest.startswith(PREFIX):
        raise ValueError(f"{name!r}: a composition is of chains; what {first} finds can be merged into the tree, as one "
                         f"of its members")
    if plus and (first == "ngram" or isinstance(family.drafters.get(first), DraftTable)):
        # instances of its own: a composition shares no state with drafters that serve under their own names
        lookup = NgramDrafter(*COMPOSED_NGRAM) if first == "ngram" else build(first, family, slots, max_len, target)
        return CompositeDrafter(lookup, build(rest, family, slots, max_len, target))
    raise ValueError(f"unknown drafter {name!r}; known: {', '.join(names(family))}")


def _sparse(name: str, family, slots: int, max_len: int, vocab_size: int, target: ModelRunner) -> Drafter:
    """"sparse:NAME" or "sparse:NAME:WINDOW"."""
    _, inner, *window = name.split(":", 2)
    window = Window.parse(window[0]) if window else Window()
    if inner == "target":
        source = DraftModel(name, family.target, None, family.max_context)
        return SelfDrafter(source, slots, max_len, vocab_size, target, window)
    source = family.drafters.get(inner)
    if source is None or isinstance(source, DraftTable):
        models = [n for n, d in family.drafters.items() if not isinstance(d, DraftTable)]
        raise ValueError(f"{name!r}: no model {inner!r} to draft with a sparse cache; there are {', '.join(models)}, "
                         "and the target")
    source = replace(source, name=name)
    return FedDrafter(source, slots, max_len, vocab_size, target, window) if is_fed(source) else \
        ModelDrafter(source, slots, max_len, vocab_size, window=window)
