"""The processes that torchrun starts: rank 0 serves, the others answer it, and one that dies is named.

Rank 0 holds a connection to every other rank for each kind of conversation, so that none waits for another: "target"
(its share of the target's passes), "draft" and "read" (drafters that live there), and "life", a beat every second. The
system closes a dead process's connections, and a process that hangs sends no beats.

Messages are small Python objects; a large tensor (the distributions of a draft) travels by torch.distributed's backend,
NCCL between GPUs, gloo between CPUs.
"""

from __future__ import annotations      # some builds of torch have no dist.Store

import os
import pickle
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

CONVERSATIONS = ("target", "draft", "read", "life")
BEAT = 1.0              # seconds between two signs of life
HUNG = 30.0             # seconds without one after which a rank counts as lost
PATIENCE = 60.0         # seconds that an exchange of tensors may take
NOTICE = 2.0            # seconds in which the death of a rank is noticed that has just broken an exchange
LOADING = 7200.0        # seconds that ranks may wait for each other while the models are loaded


class RankLost(RuntimeError):
    """A rank has died or hangs. The message names it and says why."""


def processes() -> int:
    """How many processes ``torchrun`` started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", 1))


def own_rank() -> int:
    """The number of this process; rank 0 serves."""
    return int(os.environ.get("RANK", 0))


def take_device() -> None:
    """Let "cuda" mean the GPU that torchrun meant for this process."""
    if processes() > 1 and torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))


@cache
def store() -> dist.Store:
    """Where the ranks find each other: torchrun's, or else rank 0's."""
    return next(iter(dist.rendezvous("env://")))[0]


def sharding(parts: int) -> dict:
    """What ``from_pretrained`` needs to be told to load this rank's share of a model over the first ``parts`` ranks, by
    the model library's own plan: attention by heads, feed-forward layers by neurons. ValueError for too few processes.
    """
    if parts > processes():
        raise ValueError(f"a target over {parts} devices needs as many processes, and there are {processes()}: start "
                         f"with torchrun --nproc-per-node {parts}")
    if parts == 1:
        return {}
    from transformers.distributed import DistributedConfig

    share_target(parts)
    return {"distributed_config": DistributedConfig(tp_size=parts)}


def parts_of(model) -> int:
    """Over how many processes the model is sharded."""
    return getattr(model, "_tp_size", None) or 1


def check_heads(model, heads: int) -> None:
    """Raise ValueError where so many attention heads cannot be shared out to the processes of ``model``."""
    if heads % parts_of(model):
        raise ValueError(f"{heads} attention heads cannot be shared out to {parts_of(model)} processes")


def share_target(parts: int) -> None:
    """Let the first ``parts`` ranks, of which this is one, be the group that computes the target's passes."""
    if dist.is_initialized():
        return
    take_device()
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else None
    dist.init_process_group(backend, store=dist.PrefixStore("target", store()), rank=own_rank(), world_size=parts,
                            timeout=timedelta(seconds=LOADING), device_id=device)


class Link:
    """One conversation with one rank: numbered messages one way, answers the other way, in their order.

    On rank 0 any thread may :meth:`ask` and wait for its :meth:`answer`; the other side calls :meth:`receive` and
    :meth:`reply` in turn. ``lost`` gets an entry when a rank is lost, with the reason.
    """

    def __init__(self, connection: Connection, rank: int, lost: dict[int, str]) -> None:
        self.connection, self.rank, self.lost = connection, rank, lost
        self.device = torch.device("cpu")       # where tensors are received
        self.group: dist.ProcessGroup | None = None
        self._asked, self._answers = 0, {}
        self._sending, self._receiving = threading.Lock(), threading.Lock()

    def pair(self, device: torch.device) -> None:
        """Let tensors of ``device`` travel on this link. Both sides call it."""
        self.device, place = device, dist.PrefixStore(f"pair{max(self.rank, own_rank())}", store())
        me = int(own_rank() > 0)
        self.group = dist.ProcessGroupNCCL(place, me, 2, dist.ProcessGroupNCCL.Options()) if device.type == "cuda" \
            else dist.ProcessGroupGloo(place, me, 2, timedelta(seconds=PATIENCE))

    def ask(self, *message: Any) -> int:
        """Send a message; the number by which :meth:`answer` knows it."""
        with self._sending:
            self._asked += 1
            self.send((self._asked, *message))
            return self._asked

    def answer(self, number: int, meanwhile: Callable[[], None] | None = None) -> tuple[Any, Tensor | None]:
        """What the rank replied, a value and perhaps a tensor. Waits for it, and calls ``meanwhile`` now and then.

        Raises what the rank raised, as a RuntimeError that names it, and RankLost.
        """
        with self._receiving:
            while number not in self._answers:
                while not self._poll(0.02 if meanwhile else BEAT):
                    if meanwhile:
                        meanwhile()
                try:
                    key, value, shape, dtype = self.receive()
                except EOFError as error:
                    raise RankLost(str(error)) from error
                tensor = None
                if shape is not None:
                    tensor = torch.empty(shape, dtype=dtype, device=self.device)
                    self.group.recv([tensor], 1, 0).wait()
                self._answers[key] = value, tensor
            value, tensor = self._answers.pop(number)
        if isinstance(value, Exception):
            raise RuntimeError(f"rank {self.rank}: {value}") from value
        return value, tensor

    def receive(self) -> Any:
        """The next message; EOFError once the other side has ended."""
        try:
            return pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError) as error:    # reset where an ending process had left something unread
            raise EOFError(f"rank {self.rank} has ended") from error

    def reply(self, number: int, value: Any, tensor: Tensor | None = None) -> None:
        """Answer message ``number``, with a tensor on the link's device if one is given."""
        about = (None, None) if tensor is None else (tuple(tensor.shape), tensor.dtype)
        self.send((number, value, *about))
        if tensor is not None:
            self.group.send([tensor.contiguous()], 0, 0).wait()

    def send(self, message: Any) -> None:
        """Send a message that is not answered."""
        # not Connection.send: that hands a tensor over as a file of shared memory
        try:
            self.connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
        except OSError as error:
            raise RankLost(f"rank {self.rank} {self.lost.get(self.rank, 'has ended')}") from error

    def _poll(self, seconds: float) -> bool:
        if self.rank in self.lost:
            raise RankLost(f"rank {self.rank} {self.lost[self.rank]}")
        try:
            return self.connection.poll(seconds)
        except OSError:
            return True         # receive says what it is


class Ranks:
    """What rank 0 knows of the others: ``links[conversation][rank]``, and ``lost``, why a rank is.

    ``parts``: the ranks from 0 that hold a share of the target. ``places``: the rank of each drafter that lives on
    another one.
    """

    def __init__(self, connections: dict[tuple[str, int], Connection], parts: int, places: dict[str, int]) -> None:
        self.parts, self.places, self.lost = parts, places, {}
        self.links: dict[str, dict[int, Link]] = {name: {} for name in CONVERSATIONS}
        for (name, rank), connection in sorted(connections.items()):
            self.links[name][rank] = Link(connection, rank, self.lost)
        self.lock = threading.RLock()       # held in a pass that the ranks compute together
        self.dropped: deque[int] = deque()  # runners that are no longer in use, which the ranks are still to be told
        self._ended = False
        threading.Thread(target=self._watch, daemon=True, name="spin-ranks").start()

    @contextmanager
    def together(self, *message: Any) -> Iterator[None]:
        """Tell the target's other ranks to do what ``message`` says, while the caller does the same.

        Raises RankLost where one of them has died.
        """
        with self.lock:
            try:
                self._refuse_lost()
                while self.dropped:
                    self._tell("drop", self.dropped.popleft())
                self._tell(*message)
                yield
            except RuntimeError as error:       # of the backend, which does not know which rank it was
                broken = isinstance(error, RankLost | dist.DistError) or "gloo" in str(error)
                until = time.monotonic() + NOTICE * broken
                while time.monotonic() < until:         # its connection may break a moment later
                    self._refuse_lost()
                    time.sleep(0.01)
                raise

    def _refuse_lost(self) -> None:
        for rank in sorted(self.lost):
            if rank < self.parts:
                raise RankLost(f"rank {rank}, which holds a part of the target, {self.lost[rank]}")

    def _tell(self, *message: Any) -> None:
        for rank in range(1, self.parts):
            self.links["target"][rank].ask(*message)

    def end(self) -> None:
        """Let the other ranks end, when they have done what they were told."""
        self._ended = True
        for link in [*self.links["target"].values(), *self.links["draft"].values()]:
            with suppress(RankLost):
                link.ask("end")

    def _watch(self) -> None:
        """Listen to the signs of life."""
        links = dict(self.links["life"])
        heard = dict.fromkeys(links, time.monotonic())
        while links and not self._ended:
            ready = wait([link.connection for link in links.values()], BEAT)
            for rank, link in list(links.items()):
                reason = None
                if link.connection in ready:
                    heard[rank] = time.monotonic()
                    try:
                        reason = link.receive()
                    except EOFError:
                        reason = "has ended"
                elif time.monotonic() - heard[rank] > HUNG:
                    reason = f"has not given a sign of life for {HUNG:g} s"
                if reason and not self._ended:
                    del links[rank]
                    self.lost[rank] = reason
                    if rank < self.parts and torch.cuda.is_available():
                        dist.group.WORLD.abort()        # or the pass that waits for it would wait for ever


def gather(parts: int, places: dict[str, int], device: torch.device) -> Ranks:
    """On rank 0: connect to the other ranks, each of which calls :func:`report`."""
    count, key = processes(), secrets.token_bytes(16)
    alone = int(os.environ.get("LOCAL_WORLD_SIZE", count)) == count
    with Listener(("127.0.0.1" if alone else os.environ["MASTER_ADDR"], 0), authkey=key) as listener:
        store().set("rank 0", pickle.dumps((listener.address, key)))
        connections = {}
        while len(connections) < len(CONVERSATIONS) * (count - 1):
            connection = listener.accept()
            connections[pickle.loads(connection.recv_bytes())] = connection
    ranks = Ranks(connections, parts, places)
    for rank, link in ranks.links["draft"].items():
        link.ask(rank in places.values())
        if rank in places.values():
            link.pair(device)
    if parts > 1:
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=PATIENCE), dist.group.WORLD)
    return ranks


def report(device: torch.device) -> dict[str, Link]:
    """On another rank: its links to rank 0, one for each conversation."""
    address, key = pickle.loads(store().get("rank 0"))
    links = {}
    for name in CONVERSATIONS:
        links[name] = Link(Client(address, authkey=key), 0, {})
        links[name].connection.send_bytes(pickle.dumps((name, own_rank())))
    if links["draft"].receive()[1]:
        links["draft"].pair(device)
    if dist.is_initialized():
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=PATIENCE), dist.group.WORLD)
    threading.Thread(target=_beat, args=[links["life"]], daemon=True, name="spin-beat").start()
    return links


def _beat(link: Link) -> None:
    with suppress(RankLost):            # rank 0 has ended: the other conversations notice it, too
        while True:
            link.send("")
            time.sleep(BEAT)
