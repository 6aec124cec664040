"""The Triton kernel that compacts accepted paths: one launch for all requests, layers and heads."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from spin_core.kv.cache import SlotCache


@triton.jit
def _compact(STORES, PATHS, LIKE, slot_stride, head_stride,
             DIM: tl.constexpr, D: tl.constexpr, LONGEST: tl.constexpr):
    """Program (b, s, h): head h of store s of request b. PATHS [B, 3 + LONGEST]: slot, base, nodes, then the nodes.

    STORES holds the addresses of all layers' keys and values; LIKE is any of them, for its type.
    """
    b, s, h = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = PATHS + b * (3 + LONGEST)
    slot, base, count = tl.load(row), tl.load(row + 1), tl.load(row + 2)
    step, dims = tl.arange(0, LONGEST), tl.arange(0, D)
    node = tl.load(row + 3 + step)
    store = tl.load(STORES + s).to(LIKE.dtype) + slot * slot_stride + h * head_stride
    mask = (step < count)[:, None] & (dims < DIM)[None]
    entries = tl.load(store + (base + node)[:, None] * DIM + dims[None], mask=mask)
    tl.debug_barrier()          # everything is read before anything is written: one's destination is another's source
    tl.store(store + (base + step)[:, None] * DIM + dims[None], entries, mask=mask)


def compact(store: SlotCache, slots: Sequence[int], bases: Sequence[int], paths: Sequence[list[int]]) -> None:
    """Entry ``base + path[i]`` of each slot moves to ``base + i``, in all layers."""
    stores = [*store.k, *store.v]
    device, (_, heads, _, dim) = stores[0].device, stores[0].shape
    longest = triton.next_power_of_2(max(map(len, paths)))
    # one transfer: the stores' addresses, then a row per request
    numbers = [s.data_ptr() for s in stores]
    for slot, base, path in zip(slots, bases, paths):
        numbers += [slot, base, len(path), *path, *[0] * (longest - len(path))]
    numbers = torch.tensor(numbers, dtype=torch.int64).to(device)
    _compact[len(paths), len(stores), heads](numbers, numbers[len(stores):], stores[0], stores[0].stride(0),
                                             stores[0].stride(1), DIM=dim, D=triton.next_power_of_2(dim),
                                             LONGEST=longest)
