"""A tiny target that a drafter can be made from."""

import pytest
import torch

from tests import tiny


@pytest.fixture(scope="module")
def family() -> tiny.ReadingFamily:
    model = tiny.llama(3, layers=4, dtype=torch.float32, initializer_range=.35, tie_word_embeddings=True)
    return tiny.ReadingFamily(model, {})
