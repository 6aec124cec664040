"""What contenders are called in the tables of ``bench peers`` and ``bench gpu``: readers of tables need no engine."""

BASELINE, PACKED, CONTINUOUS = "transformers generate", "generate, packed products", "transformers continuous batching"
ASSISTED, FLASHSPEC = "transformers assisted", "flashspec"
PLAIN, FIXED, SPIN, MORE = "ours, plain", "ours, fixed", "ours, SPIN", "ours, SPIN + arms"
RUNGS = {"ours, vanilla": {"verification": "padded"},
         "+ selection": {"selector": "spin", "verification": "padded", "pipeline": "off"},
         "+ decomposition": {"selector": "spin", "pipeline": "off"}}
"""The ablation, up to the whole: options of the engine. Vanilla is the first fixed drafter."""
WHOLE = "+ pipeline"        # in ``bench gpu`` what ``bench peers`` calls SPIN
