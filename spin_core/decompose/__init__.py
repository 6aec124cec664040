"""Request decomposition: attention over ragged batches without padding, SPIN's second idea.

Begin with ``reference`` (the equations) and ``plan`` (what is computed together). ``layout`` turns a plan
into index tensors, ``attend`` runs it with torch, ``kernels`` on a GPU; ``costs`` is the price model that
``plan`` searches with and ``calibrate`` measures; ``strategies`` is what a model runner calls. A new way to attend
needs a step class with ``attend(layer, query, scale)`` and a name in ``steps``.
"""

from spin_core.decompose.plan import STRATEGIES, Piece, Plan, Pool, plan

__all__ = ["Piece", "Plan", "Pool", "STRATEGIES", "plan"]
