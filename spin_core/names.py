"""Names that the laboratory adds to the engine's own: of policies, drafters and ways to attend."""

from functools import cache
from importlib import import_module


@cache
def load_rivals() -> None:
    """Make the names of what SPIN is compared with known (:mod:`spin_core.lab.rivals`): called where a name is not one
    of the system's, so that nothing of the laboratory is loaded before a user asks for it."""
    import_module("spin_core.lab.rivals")
