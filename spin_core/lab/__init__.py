"""The laboratory: everything that measures, simulates, trains and teaches. The system works without it: it loads
a command, or the ``rivals``, only when a user asks for one by its name.

``lessons`` are what the notebooks call, one folder per lesson; ``simulate`` is SPIN at the paper's scale and the replay
of recordings; ``distill`` makes drafters; ``rivals`` are what SPIN is compared with; ``bench`` measures; ``reproduce``
runs the notebooks; ``results`` turns numbers into figures that carry their provenance.
"""
