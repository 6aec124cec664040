"""Drafters: who proposes the tokens that the target verifies."""

from spin_core.draft.base import CaughtUp, Draft, Drafter, NullDrafter
from spin_core.draft.composite import CompositeDrafter
from spin_core.draft.fed import FedDrafter, FedLlama
from spin_core.draft.model import ModelDrafter
from spin_core.draft.ngram import NgramDrafter
from spin_core.draft.table import DraftTable, TableDrafter
from spin_core.draft.tree import Tree
from spin_core.draft.trees import TreeDrafter

__all__ = ["CaughtUp", "CompositeDrafter", "Draft", "DraftTable", "Drafter", "FedDrafter", "FedLlama", "ModelDrafter",
           "NgramDrafter", "NullDrafter", "TableDrafter", "Tree", "TreeDrafter"]
