"""What SPIN is compared with: other policies, drafters that vote, and today's kernel without padding.

``bandits`` and ``hedge`` choose drafters in other ways, ``minions`` adapts draft lengths and lets drafters ``vote``;
``spin_full`` goes beyond the paper, with the ``survival`` model of drafts; ``groups`` forms micro-batches in other
ways, ``flex`` attends without padding. Importing this package makes their names known to the engine, which does so when
one is first asked for (:func:`spin_core.names.load_rivals`). To add one, write its file and name it here.
"""

from spin_core.decompose.steps import STEPS
from spin_core.draft.pool import KINDS
from spin_core.lab.rivals import vote
from spin_core.lab.rivals.bandits import EXP3, UCB, EpsilonGreedy, Fixed, Random, Thompson
from spin_core.lab.rivals.flex import FlexStep
from spin_core.lab.rivals.groups import by_drafter, by_length
from spin_core.lab.rivals.hedge import Hedge
from spin_core.lab.rivals.minions import Minions
from spin_core.lab.rivals.spin_full import SpinFull
from spin_core.pipeline import grouping
from spin_core.select.policies import POLICIES

POLICIES |= {"spin-full": SpinFull, "random": Random, "epsilon-greedy": EpsilonGreedy, "ucb": UCB, "exp3": EXP3,
             "thompson": Thompson, "hedge": Hedge, "minions": Minions, "fixed": Fixed}
KINDS.append(vote)
STEPS["flex"] = FlexStep
grouping.POLICIES |= {"drafter": by_drafter, "length": by_length}
