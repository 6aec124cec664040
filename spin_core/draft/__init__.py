"""Drafters: what proposes the tokens that the target verifies.

Begin with ``base`` (the contract: :class:`Draft` and :class:`Drafter`), ``reference`` (drafting in its textbook form),
``ngram`` and ``model``. Then: ``fed`` and ``sparse`` (a model on the target's states, on a part of the cache),
``table``, ``joined`` (both lookups in one), ``composite`` (a lookup and a model), ``tree``, ``shape``, ``grow``,
``trees`` (token trees).
To add a drafter, write a file with a subclass of Drafter and a ``from_name``, and list it in ``pool``.
"""

from spin_core.draft.base import CaughtUp, Draft, Drafter, NullDrafter
from spin_core.draft.composite import CompositeDrafter
from spin_core.draft.fed import FedDrafter
from spin_core.draft.joined import JoinedLookup
from spin_core.draft.model import ModelDrafter
from spin_core.draft.ngram import NgramDrafter
from spin_core.draft.table import TableDrafter
from spin_core.draft.tree import Tree
from spin_core.draft.trees import TreeDrafter
from spin_core.zoo.eagle3 import Eagle3Llama
from spin_core.zoo.fed import FedLlama, FedModel
from spin_core.zoo.table import DraftTable

__all__ = ["CaughtUp", "CompositeDrafter", "Draft", "DraftTable", "Drafter", "Eagle3Llama", "FedDrafter", "FedLlama",
           "FedModel", "JoinedLookup", "ModelDrafter", "NgramDrafter", "NullDrafter", "TableDrafter", "Tree",
           "TreeDrafter"]
