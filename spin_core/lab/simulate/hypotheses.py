"""What the published system may have computed: rival hypotheses on the cost of a pass, none of them fitted.

Each class is today's roofline with one assumption changed, which its ``assumption`` says in a sentence. No hypothesis
has a constant of its own but ``Eager``, whose constant has a source. So the published numbers can judge between them
(``bench hypotheses``). They are inferences from those numbers; nothing is known of the paper's code.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy import ndarray

from spin_core.lab.simulate.costs import Roofline, Verified
from spin_core.lab.simulate.profiles import BYTES, Hardware, Model

HOST = 25e-6
"""Seconds per operation on the host before its kernel starts, when a framework interprets the model eagerly: the upper
end of 5 to 25 microseconds (jiahuanglin.xyz, "From PyTorch op to kernel launch"); the lower end is about the profile's
own 6."""
PIECES = 12             # widths of pieces that are tried


class Cached(Roofline):
    assumption = "Target and drafters keep keys and values; a pass computes new tokens only."


class Recompute(Roofline):
    """A verification computes prompt, answer and draft of every request anew. "padded": each at the length of the
    longest. "decomposed": in pieces of one width, the cheapest by this profile; every piece holds its own rows of the
    products, and every query of a request attends to all the request's pieces."""

    assumption = "The target keeps no cache: a verification computes all tokens of every request anew."
    wide_queries = False            # whether queries are padded to those of the longest request

    @property
    def kv_room(self) -> float:
        """Tokens are not limited by a cache; at least the weights must fit."""
        return super().kv_room * math.inf

    def verify(self, lengths: ndarray, drafted: ndarray, extra: int = 0, width: int = 0) -> Verified:
        tokens = lengths + drafted              # prompts are among them: `extra` reads nothing that is not there
        longest, charge = int(tokens.max()), self.attention
        if self.strategy == "padded":
            rows, width = len(tokens) * longest, 0
            layer = charge.whole_pool(len(tokens), 0, longest, longest)
            return Verified(self._seconds(rows, layer), rows, 0)
        widths = [width] if width else np.unique(np.geomspace(8, longest, PIECES).astype(int)).tolist()
        found = []
        for width in widths:
            counts = np.ceil(tokens / width)
            wide, queries = math.ceil((tokens / counts).max()), longest if self.wide_queries else tokens
            layer = charge.pool(counts, wide, queries).sum() + charge.calls(True, bool((counts > 1).any()), wide)
            rows = int(counts.sum()) * wide
            found.append((self._seconds(rows, float(layer)), rows, width))
        return Verified(*min(found))

    def _seconds(self, rows: int, layer: float) -> float:
        return self._verify.seconds(rows, self.target.layers * layer) + self.overhead

    def memory(self, lengths: Sequence[int]) -> float:
        """Bytes for weights, and for the larger of what a layer and the head hold at once: a layer the residual, three
        matrices of its gated network, scores and their softmax; the head its logits."""
        tokens, model, size = np.asarray(lengths), self.target, BYTES[self.dtype]
        padded = self.strategy == "padded"
        rows = len(tokens) * int(tokens.max()) if padded else int(tokens.sum())
        scores = len(tokens) * int(tokens.max()) ** 2 if padded else int((tokens ** 2).sum())
        layer = rows * (2 * model.width + 3 * model.ffn) + 2 * scores * model.heads
        held = size * max(layer, rows * (model.width + model.vocab))
        return model.parameters * size + held + self.devices * self.hardware.reserve


class RecomputeAll(Recompute):
    assumption = "Neither target nor drafters keep a cache: every pass computes all tokens anew."

    def draft(self, arm: str, members: int, counts: Sequence[int], keys: float) -> float:
        mean = keys / members                   # tokens of a request; each drafted one makes it longer by one
        return sum(self._products[arm].seconds(n * (mean + k), 0.0) for k, n in enumerate(counts))

    def reading(self, arm: str, rows: int, beside: int) -> float:
        return 0.0                              # there is no cache to fill


class WideQueries(Recompute):
    assumption = "As recompute, and queries are as long as keys: every piece holds those of the longest request."
    wide_queries = True


class Eager(Cached):
    assumption = f"As cached, and the host takes {HOST * 1e6:.0f} microseconds for every kernel (an eager framework)."

    def __init__(self, target: Model, drafters: Mapping[str, Model], hardware: Hardware, **options) -> None:
        super().__init__(target, drafters, replace(hardware, launch=HOST), **options)


class Single(Cached):
    assumption = "As cached, in 32-bit numbers, which the V100's tensor cores cannot multiply."

    def __init__(self, target: Model, drafters: Mapping[str, Model], hardware: Hardware, **options) -> None:
        super().__init__(target, drafters, hardware, **options | {"dtype": "fp32"})


HYPOTHESES: dict[str, type[Roofline]] = {
    "cached": Cached, "recompute": Recompute, "recompute-all": RecomputeAll, "recompute, wide queries": WideQueries,
    "eager": Eager, "fp32": Single}
