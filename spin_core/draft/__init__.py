"""Drafters: who proposes the tokens that the target verifies."""

from spin_core.draft.base import CaughtUp, Draft, Drafter, NullDrafter
from spin_core.draft.composite import CompositeDrafter
from spin_core.draft.eagle3 import Eagle3Llama
from spin_core.draft.fed import FedDrafter, FedLlama, FedModel
from spin_core.draft.model import ModelDrafter
from spin_core.draft.ngram import NgramDrafter
from spin_core.draft.table import DraftTable, TableDrafter
from spin_core.draft.tree import Tree
from spin_core.draft.trees import TreeDrafter

__all__ = ["CaughtUp", "CompositeDrafter", "Draft", "DraftTable", "Drafter", "Eagle3Llama", "FedDrafter", "FedLlama",
           "FedModel", "ModelDrafter", "NgramDrafter", "NullDrafter", "TableDrafter", "Tree", "TreeDrafter"]
