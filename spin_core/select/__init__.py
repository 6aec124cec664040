"""SSM selection: which drafter drafts for which request. The paper's first idea.

Begin with ``reference.py``, the paper's rule in fifty lines, then ``base.py``, the interface that the engine and the
simulator call, then ``spin.py``, which builds on ``greedy.py``. ``assigner.py`` is the engine's side. To add a policy,
write a class with ``weights`` and name it in ``policies.py``; the matching, the capacities and the retiring of drafters
are the same for all. The policies that SPIN is compared with are in :mod:`spin_core.lab.rivals`.
"""

from spin_core.select.base import NONE, Choice, Outcome, Scored, RequestView, Selector
from spin_core.select.costs import AffineCost, shares
from spin_core.select.matching import match
from spin_core.select.policies import make, names

__all__ = ["AffineCost", "Choice", "NONE", "Outcome", "Scored", "RequestView", "Selector",
           "make", "match", "names", "shares"]
