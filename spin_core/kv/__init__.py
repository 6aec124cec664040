"""The KV cache by slots, the flattened ragged batch that is written to it, and what keeps it small."""

from spin_core.kv.batch import RaggedBatch
from spin_core.kv.cache import SlotCache

__all__ = ["RaggedBatch", "SlotCache"]
