"""SPIRe's throughput model: the gain of speculation with large batches and long texts (arXiv 2504.06419).

A pass takes as long as its arithmetic or its memory traffic, whichever is longer. Both are counted in FLOP:
traffic in bytes times the hardware's operational intensity ``HOI``, the FLOP that the hardware can do while
it moves one byte. Everything is stored in one byte per value. With N parameters outside the embedding, batch
B and context L:

    C = 2 N B                                   arithmetic of one token per request
    KV = 2 B L layers kv_heads head_dim         bytes of keys and values
    T(k) = max(k C, (N + KV) HOI)               a pass over k tokens per request
    multiplier = tau / [(k T_draft(1) + T_target(k + 1)) / T_target(1)]

tau is the number of tokens per verification. All three systems draft k tokens: a small model with full
attention ("vanilla"), the target itself with sparse attention (MagicDec), and SPIRe: a few of the target's
layers with sparse attention and a feedback memory. Every number called published is from the paper; what it
leaves open is said here:

* the 70B extrapolation keeps B = 64 and the tau measured at L = 512, drafts with Llama 3 8B ("vanilla") and
  with a quarter of the target's layers (SPIRe). These are our readings; they reproduce the printed digits.
* the printed plots let a sparse draft see 1 + L // 8 positions, the text speaks of 1 + 64. At L = 512 both
  are the same.
"""

from dataclasses import dataclass
from typing import NamedTuple

from spin_core.lab.simulate.checks import finite, whole
from spin_core.lab.simulate.profiles import Model

HOI = 600.0         # FLOP per byte, about an H100's with 8-bit numbers
DRAFTED = 4         # k
SINK, WINDOW = 1, 64


def body(layers: int, width: int, head_dim: int, ffn: int, heads: int = 8, kv_heads: int = 8) -> Model:
    """A transformer without embedding and head: of a :class:`Model` only the layers count here."""
    return Model("body", layers, width, heads, kv_heads, head_dim, ffn, note="arXiv 2504.06419")


@dataclass(frozen=True)
class System:
    """A way to draft: which ``body``, over which part of the context, and the ``tau`` published for context
    lengths.

    ``memory``: the draft writes and reads a feedback memory, which costs two more projections per layer and
    token.
    """

    name: str
    body: Model
    sparse: bool
    tau: dict[int, float]
    memory: bool = False

    def flop(self, batch: int) -> float:
        """C_d: one drafted token for every request of the batch."""
        own = self.body
        feedback = 2 * own.layers * own.kv_heads * own.width * own.head_dim if self.memory else 0
        return 2 * batch * (own.stack + feedback)

    def span(self, context: int, window: int | None = None) -> int:
        """Positions that a draft sees: all, a sink and an eighth of them, or a sink and a fixed
        ``window``."""
        if not self.sparse:
            return context
        return SINK + (context // 8 if window is None else window)


TARGET = body(8, 512, 128, 4096)
VANILLA = System("vanilla", body(4, 256, 64, 2048), False, {256: 2.637, 512: 2.647, 960: 2.644})
MAGICDEC = System("MagicDec", TARGET, True, {256: 4.005, 512: 3.891, 960: 3.793})
SPIRE = System("SPIRe", body(2, 512, 128, 4096), True, {256: 3.427, 512: 3.401, 960: 3.382}, memory=True)
SYSTEMS = (VANILLA, MAGICDEC, SPIRE)

TARGET_70B = body(80, 8192, 128, 28672, heads=64)       # Llama 3 70B
SYSTEMS_70B = (System("vanilla", body(32, 4096, 128, 14336, heads=32), False, VANILLA.tau),     # Llama 3 8B
               System("MagicDec", TARGET_70B, True, MAGICDEC.tau),
               System("SPIRe", body(20, 8192, 128, 28672, heads=64), True, SPIRE.tau, memory=True))

PUBLISHED = {"vanilla": 1.36, "MagicDec": 2.05, "SPIRe": 2.78}             # B = 64, L = 512
PUBLISHED_70B = {"vanilla": 1.06, "MagicDec": 2.14, "SPIRe": 2.82}         # L = 65,536

# SPIRe without one of its parts, at L = 512: the published tau, and whether the cost changes too. The paper did not
# measure tau without the sparse cache; it assumes that of the whole.
ABLATION = {
    "SPIRe": (3.401, SPIRE),
    "no sparse KV cache": (3.401, System("dense", SPIRE.body, False, {}, memory=True)),
    "random initialisation": (3.105, SPIRE),
    "hard-target loss": (3.069, SPIRE),
    "distillation only": (3.375, SPIRE),
    "no feedback memory": (3.352, System("no memory", SPIRE.body, True, {})),
    "also no target activations": (2.959, System("no memory", SPIRE.body, True, {})),
}


def multiplier(system: System, batch: int, context: int, *, tau: float | None = None, **setting) -> float:
    """Throughput over plain decoding. ``tau`` defaults to the published one of the nearest context length; ``setting``
    as in :func:`passes`."""
    whole("spire", 1, context=context)
    if tau is None:
        tau = system.tau[min(system.tau, key=lambda length: abs(length - context))]
    finite("spire", zero=False, tau=tau)
    return tau / cost_ratio(system, batch, context, **setting)


def cost_ratio(system: System, batch: int, context: int, *, drafted: int = DRAFTED, **setting) -> float:
    """Delta t: a step of drafting and verifying over a step of plain decoding."""
    plain, draft, verify = (p.time for p in passes(system, batch, context, drafted=drafted, **setting))
    return (drafted * draft + verify) / plain


class Pass(NamedTuple):
    """A pass in FLOP: its ``arithmetic``, and what could be computed while its ``weights`` and its ``cache`` are
    read."""

    arithmetic: float
    weights: float
    cache: float

    @property
    def time(self) -> float:
        """Whichever is longer, arithmetic or traffic."""
        return max(self.arithmetic, self.weights + self.cache)


def passes(system: System, batch: int, context: int, *, target: Model = TARGET, drafted: int = DRAFTED,
           hoi: float = HOI, window: int | None = None) -> tuple[Pass, Pass, Pass]:
    """The three passes of the model: the target over one token, the draft over one token, the target verifying.

    ``window`` fixes how far a sparse draft looks back; None is an eighth of the context, as in the published plots.
    MagicDec (arXiv 2408.11049) reads the gain off two ratios of their times, draft / plain and verify / plain, and the
    number of tokens per verification. Raises ValueError for numbers that cannot be.
    """
    whole("spire", 1, batch=batch, context=context, drafted=drafted)
    whole("spire", 0, **{} if window is None else {"window": window})
    finite("spire", zero=False, hoi=hoi)
    flop, weights = 2 * target.stack * batch, target.stack * hoi
    own, per_token = system.body, batch * hoi       # one byte per value, as in fp8
    cache = target.kv_bytes("fp8") * context * per_token
    return (Pass(flop, weights, cache),
            Pass(system.flop(batch), own.stack * hoi, own.kv_bytes("fp8") * system.span(context, window) * per_token),
            Pass((drafted + 1) * flop, weights, cache))


def window_ratio(context: int, *, batch: int = 64, window: int | None = WINDOW) -> float:
    """SPIRe over MagicDec at the tau of L = 512: what is left of the lead when ``window`` is fixed."""
    one, other = (multiplier(s, batch, context, tau=s.tau[512], window=window) for s in (SPIRE, MAGICDEC))
    return one / other


def ablation(batch: int = 64, context: int = 512) -> dict[str, tuple[float, float]]:
    """For every rung: the published tau and the modelled multiplier."""
    return {name: (tau, multiplier(system, batch, context, tau=tau)) for name, (tau, system) in ABLATION.items()}
