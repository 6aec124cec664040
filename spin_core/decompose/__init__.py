"""Request decomposition: verifying ragged batches without padding.

``plan`` decides what is computed together, ``reference`` has the equations, ``attend`` runs a plan over a slot
cache, ``kernels`` does it on a GPU without copies, ``costs`` measures what a device charges.
"""

from spin_core.decompose.plan import STRATEGIES, Piece, Plan, Pool, plan

__all__ = ["Piece", "Plan", "Pool", "STRATEGIES", "plan"]
