"""A tiny target that a drafter can be made from, and training of its size."""

import pytest
import torch

from spin_core.lab.distill import fused, train
from tests import tiny


@pytest.fixture(scope="module")
def family() -> tiny.ReadingFamily:
    model = tiny.llama(3, layers=4, dtype=torch.float32, initializer_range=.35, tie_word_embeddings=True)
    return tiny.ReadingFamily(model, {})


@pytest.fixture(scope="module", autouse=True)
def plain():
    """float32 throughout, nothing compiled, and a short warm-up."""
    patch = pytest.MonkeyPatch()
    patch.setattr(fused, "HALF", torch.float32)
    patch.setattr(train, "WARM_UP", 4)
    yield
    patch.undo()
