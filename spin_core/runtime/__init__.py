"""Running models over flattened ragged batches: the KV cache by slots, the batch, the model runner."""

from spin_core.kv.batch import RaggedBatch
from spin_core.kv.cache import SlotCache
from spin_core.runtime.runner import ModelRunner

__all__ = ["ModelRunner", "RaggedBatch", "SlotCache"]
