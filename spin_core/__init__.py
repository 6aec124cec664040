"""spin_core: speculative decoding with heterogeneous drafters, small enough to read.

A step of the engine is plan -> choose -> draft -> verify -> commit: start at :mod:`spin_core.step`.
"""

__version__ = "0.1.0"

from spin_core import threads

threads.prepare()
