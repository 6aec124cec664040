"""Running models over flattened ragged batches: the KV cache by slots, the batch, the model runner."""

from spin_core.runtime.batch import RaggedBatch
from spin_core.runtime.cache import SlotCache
from spin_core.runtime.runner import ModelRunner

__all__ = ["ModelRunner", "RaggedBatch", "SlotCache"]
