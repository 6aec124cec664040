"""SSM selection: which drafter drafts for which request. The paper's first idea.

Begin with ``reference.py``, the paper's rule in fifty lines, then ``base.py``, the interface that the engine and the
simulator call, then ``spin.py``. Greedy and the other bandits are its rivals (``greedy.py``, ``rivals.py``,
``hedge.py``, ``minions.py``); ``spin_full.py`` goes beyond the paper. ``assigner.py`` is the engine's side. To add a
policy, write a class with ``weights`` and name it in ``policies.py``; the matching, the capacities and the retiring of
drafters are the same for all.
"""

from spin_core.select.base import NONE, Choice, Outcome, Scored, RequestView, Selector
from spin_core.select.costs import AffineCost, shares
from spin_core.select.matching import match
from spin_core.select.policies import NAMES, make

__all__ = ["AffineCost", "Choice", "NAMES", "NONE", "Outcome", "Scored", "RequestView", "Selector",
           "make", "match", "shares"]
