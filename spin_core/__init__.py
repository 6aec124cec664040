"""spin_core: speculative decoding with heterogeneous drafters, small enough to read.

A batch of requests flows select -> draft -> decompose -> verify -> commit -> observe; each stage is one
subpackage. Start at :mod:`spin_core.engine`, the loop that ties them together.
"""

__version__ = "0.1.0"

from spin_core import threads

threads.prepare()
