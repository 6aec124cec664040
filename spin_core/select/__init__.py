"""SSM selection: who drafts for whom. SPIN's bandit with matching, its rivals, and the ceilings above them."""

from spin_core.select.base import NONE, Choice, Outcome, Scored, RequestView, Selector
from spin_core.select.costs import AffineCost, shares
from spin_core.select.matching import match
from spin_core.select.policies import NAMES, make

__all__ = ["AffineCost", "Choice", "NAMES", "NONE", "Outcome", "Scored", "RequestView", "Selector", "make", "match", "shares"]
