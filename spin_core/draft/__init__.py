"""Drafters: who proposes the tokens that the target verifies."""

from spin_core.draft.base import Draft, Drafter, NullDrafter
from spin_core.draft.fed import FedDrafter, FedLlama
from spin_core.draft.model import ModelDrafter
from spin_core.draft.ngram import NgramDrafter

__all__ = ["Draft", "Drafter", "FedDrafter", "FedLlama", "ModelDrafter", "NgramDrafter", "NullDrafter"]
