"""Distillation: small drafters that learn to say what the target would say.

:mod:`prompts` writes prompts, :mod:`generate` lets the target answer them, :mod:`recipes` cuts drafters out of the
target, :mod:`train` fits a pool of them to the target's distribution, :mod:`evaluate` counts tokens per verification.
``python -m spin_core distill --drafter NAME`` does all of it.
"""

from spin_core.lab.distill.command import add_arguments, run

__all__ = ["add_arguments", "run"]
