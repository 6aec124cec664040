"""The system on hardware that is not at hand: a simulator driven by recorded drafts and modelled costs.

Begin with ``recording.py`` (what every drafter would have drafted) and ``simulator.py`` (one step after another on a
clock); ``costs.py`` and ``profiles.py`` say what a pass takes, ``hypotheses.py`` what the paper's may have computed,
``paper.py`` runs the paper's setting. ``replay.py`` is the simulator on the recording's own costs, ``oracle.py`` the
ceilings above it. Add a device in ``profiles.py``, an assumption in ``hypotheses.py``.
"""
