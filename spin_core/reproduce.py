"""``python -m spin_core.reproduce``: the old spelling of ``python -m spin_core reproduce``, for one release more."""

import signal
import sys
import warnings

from spin_core.__main__ import main

if __name__ == "__main__":
    warnings.warn("python -m spin_core.reproduce is now python -m spin_core reproduce", DeprecationWarning)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(["reproduce", *sys.argv[1:]]))
