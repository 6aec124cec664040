"""Train a pool of drafters that are fed with the states of one target, all at once, for as long as there is time.

    python -m spin_core.lab.distill.joint OUT --data DIR [DIR ...] --heads NAME [NAME ...]

The drafters learn from the same batches, so the target's states and distributions are read once for all of them. The
run goes on where it was, takes up shards of texts as they appear, and has no planned end: the learning rate is constant, and
what is evaluated and exported is a mean of the latest weights, which stands in for a rate that falls. (The mean reaches
back over about a tenth of the steps: Karras et al., arXiv 2312.02696, power-function EMA.)

A specialist learns only from the texts of its kind (:mod:`spin_core.lab.distill.kinds`) in each batch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from spin_core.lab.distill import corpus, fused
from spin_core.lab.distill.fused import HALF, later
from spin_core.lab.distill.kinds import KINDS, kind_of, user_turns
from spin_core.lab.distill.reading import ALIKE, ROWS, Reader, Store, Text, fill
from spin_core.zoo.fed import LAST
from spin_core.zoo.weights import to_int8

WINDOW = 128        # answer tokens of a text that are learned
LONGEST = 400       # tokens of a text
EACH = 4            # texts of every kind in a batch
AHEAD = 16          # batches whose texts are read together
WARM_UP = 100       # steps
REACH = 16          # a weight's mean is over about the last 1.6 / REACH of the steps
DECAY = 0.8         # each further depth counts so much of the one before
GAMMA = 4
FITTED = 120        # texts for the least squares at the beginning
VOCABULARY = 16384  # ids ranked by frequency; every head drafts the first so many of them


@dataclass(frozen=True)
class HeadRecipe:
    """``layers`` and draft ``vocab`` of a drafter, how many tokens ahead it is trained to run, the learning rate, the
    ``kind`` of text it learns from (None: all), its ``form``, "fed" (:class:`spin_core.zoo.fed.FedLlama`) or "eagle3"
    (:class:`spin_core.zoo.eagle3.Eagle3Llama`), and the layers of the target whose inputs it ``reads``."""

    layers: int = 1
    vocab: int = 8192
    depth: int = 3
    rate: float = 1e-3
    kind: str | None = None
    form: str = "fed"
    reads: tuple[int, ...] = (2, 15, LAST)


HEADS = {
    "fed3-1L-4k": HeadRecipe(vocab=4096),
    "fed3-1L-8k": HeadRecipe(),
    "fed3-4L-8k": HeadRecipe(layers=4),
    "fed3-code": HeadRecipe(vocab=4096, kind="code"),
    "fed3-story": HeadRecipe(vocab=4096, kind="story"),
    "fed3-facts": HeadRecipe(vocab=4096, kind="facts"),
    # other forms at the same cost, to compare with
    "eagle3-1L-4k": HeadRecipe(vocab=4096, form="eagle3", reads=(2, 15, 27)),
    "fed1-1L-4k": HeadRecipe(vocab=4096, reads=(LAST,)),
}


@dataclass
class Batch:
    """B texts. ``states [B, T, width]`` (:meth:`Reader.states`) and ``embedded [B, T, hidden]``: position t holds the state before token t + 1
    and that token's embedding. ``place``, ``valid [B, WINDOW]``: the positions whose next token is an answer's, and which
    of them exist. ``rows [N]``: the valid ones in the flattened window, padded to a multiple of ROWS; ``p [N, Vd]`` the
    target's distribution there."""

    states: Tensor
    embedded: Tensor
    place: Tensor
    valid: Tensor
    angles: tuple[Tensor, Tensor]
    rows: Tensor
    p: Tensor

    def part(self, first: int, count: int) -> "Batch":
        """Texts ``first`` to ``first + count``."""
        index = slice(first, first + count)
        valid = self.valid[index]
        skip, size = int(self.valid[:first].sum()), int(valid.sum())
        padded = -(-size // ROWS) * ROWS
        p = self.p[skip:skip + padded]
        if len(p) < padded:
            p = torch.cat([p, p[:1].expand(padded - len(p), -1)])
        return Batch(self.states[index], self.embedded[index], self.place[index], valid, self.angles, _rows(valid), p)


def _rows(valid: Tensor) -> Tensor:
    rows = valid.reshape(-1).nonzero()[:, 0]
    return torch.cat([rows, rows[:1].expand(-len(rows) % ROWS)])


def make_batch(texts: list[Text], store: Store, reader: Reader, head: Tensor | None) -> Batch:
    """The batch of texts that the store holds; p for the rows ``head [Vd, hidden]`` of the target's head."""
    width = max(-(-max(len(t.tokens) for t in texts) // ALIKE) * ALIKE, WINDOW + ALIKE)
    tokens = torch.zeros(len(texts), width + 1, dtype=torch.int64)
    states = torch.zeros(len(texts), width, reader.hidden * (len(reader.layers) + 1), dtype=HALF)
    place = torch.zeros(len(texts), WINDOW, dtype=torch.int64)
    valid = torch.zeros(len(texts), WINDOW, dtype=torch.bool)
    hidden, log_z = [], []
    for row, text in enumerate(texts):
        kept, z = store.get(text.key)
        length, deciding = len(text.tokens), slice(text.prompt - 1, len(text.tokens) - 1)
        tokens[row, :length] = text.tokens
        states[row, :length] = kept
        place[row] = (text.prompt - 2 + torch.arange(WINDOW)).clamp(max=width - 1)
        valid[row, :text.answer] = True
        hidden.append(kept[deciding, -reader.hidden:])
        log_z.append(z[deciding])
    rows, hidden, log_z = _rows(valid), torch.cat(hidden), torch.cat(log_z)
    more = len(rows) - len(hidden)
    p = None if head is None else reader.p(torch.cat([hidden, hidden[:1].expand(more, -1)]),
                                           torch.cat([log_z, log_z[:1].expand(more)]), head)
    return Batch(states, reader.embedding[tokens[:, 1:]], place, valid, reader.angles(width), rows, p)


class HeadTrainer:
    """A drafter, its optimiser, and the mean of its weights. ``ids``: the target's, most frequent first. ``layers``:
    those whose inputs stand in the batches' states."""

    def __init__(self, name: str, recipe: HeadRecipe, target: PreTrainedModel, ids: Tensor, layers: tuple[int, ...]
                 ) -> None:
        places = [len(layers) if layer == LAST else layers.index(layer) for layer in recipe.reads]
        self.columns = None if places == list(range(len(layers) + 1)) else places
        self.name, self.recipe, self.ids, self.eps = name, recipe, ids[:recipe.vocab], target.config.rms_norm_eps
        self.parameters = {key: nn.Parameter(value) for key, value in begin(name, recipe, target).items()}
        self.mean = {key: value.detach().clone() for key, value in self.parameters.items()}
        self.optimizer = torch.optim.AdamW(self.parameters.values(), lr=recipe.rate, betas=(.9, .95), weight_decay=.01,
                                           fused=True)
        self.head = target.get_output_embeddings().weight.detach()[self.ids].to(HALF)
        self.step, self.tokens, self.seconds = 0, 0, 0.0
        self.pieces = {piece: torch.compile(getattr(fused, piece))
                       for piece in ("head_first", "head_next", "norm", "loss_and_gradient")}

    def bodies(self, weights: dict, batch: Batch, depth: int, compiled: bool = True) -> list[Tensor]:
        """What the head's logits are computed from, ``[B, WINDOW, hidden]`` at each depth."""
        run = self.pieces if compiled else vars(fused)
        cos, sin = batch.angles
        states = batch.states
        if self.columns is not None:
            parts = states.split(batch.embedded.shape[-1], -1)
            states = torch.cat([parts[place] for place in self.columns], -1)
        if compiled:
            for part in (states, batch.embedded, cos, sin):
                torch._dynamo.mark_dynamic(part, 1)
        x, text = run["head_first"](weights, states, batch.embedded, batch.place, cos, sin, self.eps)
        out = [run["norm"](x, weights["norm"], self.eps)]
        index = batch.place[..., None].expand(-1, -1, batch.embedded.shape[-1])
        embedded, angles = batch.embedded.gather(1, index), (cos[0][batch.place], sin[0][batch.place])
        if compiled:
            for part in (part for keys in text for part in keys):
                torch._dynamo.mark_dynamic(part, 2)
        drafted: list[list] = [[] for _ in text]
        for ahead in range(1, depth):
            drafted = [[tuple(map(later, keys)) for keys in layer] for layer in drafted]
            own = out[-1] if self.recipe.form == "fed" else x
            x, kept = run["head_next"](weights, later(own), embedded, batch.place - ahead, text, drafted, *angles, self.eps)
            drafted = [[*layer, keys] for layer, keys in zip(drafted, kept)]
            out.append(run["norm"](x, weights["norm"], self.eps))
        return out

    def train(self, batch: Batch) -> tuple[float, float]:
        """One step; the loss, and the overlap sum min(p, q) at the first depth."""
        began = time.process_time()
        bodies = self.bodies(fused.tree(self.parameters), batch, self.recipe.depth)
        every = sum(DECAY ** depth for depth in range(len(bodies)))
        count, place = int(batch.valid.sum()), torch.arange(WINDOW).repeat(len(batch.valid))[batch.rows]
        p, gradients, value, overlap = batch.p[:, :len(self.ids)], [], 0.0, 0.0
        for depth, body in enumerate(bodies):
            flat = body.detach().reshape(-1, body.shape[-1])
            # a chain starts behind the prompt at the earliest, so early positions have no deep drafts
            weight = (place >= depth).float()
            weight[count:] = 0
            weight *= DECAY ** depth / every / weight.sum()
            read, of_rows = flat[batch.rows], torch.empty(len(batch.rows), flat.shape[1], dtype=HALF)
            for at in range(0, len(read), ROWS):
                rows = slice(at, at + ROWS)
                gradient, loss, shared = self.pieces["loss_and_gradient"](read[rows] @ self.head.T, p[rows], weight[rows])
                of_rows[rows] = gradient @ self.head
                value += float(loss)
                overlap += float(shared) * every if depth == 0 else 0.0
            whole = torch.zeros_like(flat)
            whole[batch.rows[:count]] = of_rows[:count]
            gradients.append(whole.view_as(body))
        torch.autograd.backward(bodies, gradients)
        nn.utils.clip_grad_norm_(self.parameters.values(), 1.0)
        self.step += 1
        self.optimizer.param_groups[0]["lr"] = self.recipe.rate * min(1.0, self.step / WARM_UP)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(list(self.mean.values()), list(self.parameters.values()),
                                 1 - (1 - 1 / self.step) ** REACH)
        self.tokens += count
        self.seconds += time.process_time() - began
        return value, overlap

    def state(self) -> dict:
        return {"recipe": asdict(self.recipe), "ids": self.ids, "mean": self.mean, "step": self.step,
                "parameters": {key: value.detach() for key, value in self.parameters.items()}, "tokens": self.tokens,
                "optimizer": self.optimizer.state_dict(), "seconds": self.seconds}

    def resume(self, state: dict) -> None:
        """Go on from :meth:`state`. ValueError if it is of another recipe."""
        then = {**state["recipe"], "reads": tuple(state["recipe"]["reads"])}
        if then != asdict(self.recipe):
            raise ValueError(f"the checkpoint of {self.name} is of the recipe {then}, not {asdict(self.recipe)}")
        for key, parameter in self.parameters.items():
            parameter.data.copy_(state["parameters"][key])
        self.ids, self.mean, self.step = state["ids"], state["mean"], state["step"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.tokens, self.seconds = state["tokens"], state["seconds"]


def begin(name: str, recipe: HeadRecipe, target: PreTrainedModel) -> dict[str, Tensor]:
    """A drafter's first weights: the target's last layers and norm. What these lack :func:`fit` decides, but for the
    embedding's half of a head's projections, which is small and random."""
    generator = torch.Generator().manual_seed(int(hashlib.sha256(name.encode()).hexdigest()[:8], 16))
    given = {key: value.detach().float() for key, value in target.model.state_dict().items()}
    size, total = target.config.hidden_size, target.config.num_hidden_layers
    out = {"norm.weight": given["norm.weight"].clone()}
    for layer in range(recipe.layers):
        for part in fused.PARTS.values():
            if part != "hidden_norm":
                out[f"layers.{layer}.{part}.weight"] = given[f"layers.{total - recipe.layers + layer}.{part}.weight"].clone()
    out["fc.weight"] = torch.cat([torch.zeros(size, size * (len(recipe.reads) - 1)), torch.eye(size)], 1)
    if recipe.form == "fed":
        out["fuse.weight"] = torch.eye(size).repeat(1, 2)
        return out
    out["layers.0.hidden_norm.weight"] = out["layers.0.input_layernorm.weight"]
    out["layers.0.input_layernorm.weight"] = torch.ones(size)
    for part in "qkv":
        key = f"layers.0.self_attn.{part}_proj.weight"
        out[key] = torch.cat([.02 * torch.randn(out[key].shape, generator=generator), out[key]], 1)
    return out


@torch.no_grad()
def fit(trainer: HeadTrainer, texts: list[Text], target: PreTrainedModel, vocab_size: int) -> None:
    """Fit ``fuse``, or a head's ``fc``, by least squares: what the first of the drafter's layers read when it was the
    target's, from the states before and the token.

    Each token counts by the inverse of its size, since the layer's norm divides by that; first tokens, whose states are
    gigantic, are left out. The last state alone is fitted for ``fuse``; ``fc`` begins as handing it on.
    """
    recipe, fed = trainer.recipe, trainer.recipe.form == "fed"
    read, first = ((LAST,) if fed else recipe.reads), target.config.num_hidden_layers - recipe.layers
    layers = tuple(sorted({first, *read} - {LAST}))
    reader = Reader(target, vocab_size, layers)
    size = reader.hidden
    width = size * (len(read) + fed)
    gram, cross = (torch.zeros(width, n, dtype=torch.float64) for n in (width, size))
    for text in texts:
        tokens = text.tokens[None].long()
        parts = reader.states(tokens, compiled=False)[0].double().split(size, -1)
        kept = dict(zip((*layers, LAST), parts))
        given = torch.cat([kept[layer][1:-1] for layer in read], -1)
        if fed:
            given = torch.cat([given, reader.embedding[tokens[0, 2:]].double()], -1)
        wanted = kept[first][2:]
        weight = wanted.square().mean(1, keepdim=True).rsqrt()
        gram += (weight * given).T @ (weight * given)
        cross += (weight * given).T @ (weight * wanted)
    gram.diagonal().mul_(1 + 1e-3)              # so few data do not fit noise
    for weights in (trainer.parameters, trainer.mean):
        weights["fuse.weight" if fed else "fc.weight"].data.copy_(torch.linalg.solve(gram, cross).T)


class Texts:
    """The training texts of some folders by kind; shards that appear are taken up by :meth:`scan`."""

    def __init__(self, folders: list[Path], decode) -> None:
        self.folders, self.decode = folders, decode
        self.generator = torch.Generator()
        self.known: set[Path] = set()
        self.by_kind: dict[str, list[Text]] = {kind: [] for kind in KINDS}
        self.waiting: dict[str, list[Text]] = {kind: [] for kind in KINDS}
        self.held: list[Text] = []          # greedy answers that are never learned
        self.answer_tokens, self.digest = 0, hashlib.sha256()

    def scan(self) -> None:
        for path in [p for folder in self.folders for p in corpus.paths(folder) if p not in self.known]:
            self.known.add(path)
            shard = corpus.read(path)
            self.digest.update(shard.tokens.numpy().tobytes())
            for number, (start, length, prompt) in enumerate(zip(shard.starts.tolist(), shard.lengths.tolist(),
                                                                 shard.prompt_lengths.tolist())):
                length = min(length, prompt + WINDOW)
                if length > LONGEST or not 2 < prompt < length:
                    continue
                tokens = shard.tokens[start:start + length].clone()
                kind = kind_of(user_turns(self.decode(tokens[:prompt].tolist())))
                text = Text(f"{path.parent.name}/{path.stem}/{number}", tokens, prompt, kind)
                if number < shard.held_out:
                    self.held += [text] if float(shard.temperatures[number]) == 0 else []
                    continue
                self.answer_tokens += text.answer
                self.by_kind[kind].append(text)
                self.waiting[kind].append(text)
        for kind, waiting in self.waiting.items():
            self.waiting[kind] = self._mixed(waiting)

    def batches(self) -> list[list[Text]]:
        """AHEAD batches of EACH texts of every kind, in the order of KINDS; those of a batch are of similar length."""
        parts = []
        for kind in KINDS:
            while len(self.waiting[kind]) < AHEAD * EACH:
                self.waiting[kind] += self._mixed(self.by_kind[kind])
            taken, self.waiting[kind] = self.waiting[kind][:AHEAD * EACH], self.waiting[kind][AHEAD * EACH:]
            taken.sort(key=lambda text: len(text.tokens))
            parts.append([taken[at:at + EACH] for at in range(0, len(taken), EACH)])
        return self._mixed([sum(batch, []) for batch in zip(*parts)])

    def some(self, count: int) -> list[Text]:
        """The first texts, of every kind as many."""
        return [text for of in self.by_kind.values() for text in of[:-(-count // len(KINDS))]]

    def _mixed(self, items: list) -> list:
        return [items[i] for i in torch.randperm(len(items), generator=self.generator).tolist()]


@torch.no_grad()
def evaluate(trainers: list[HeadTrainer], held: list[Text], store: Store, reader: Reader, size: int = 16) -> dict:
    """Tokens per verification at gamma 4 on held-out greedy answers, of all and by kind, and agreement, of every head's
    mean weights."""
    from spin_core.lab.distill.evaluate import chain

    counts = {t.name: {kind: [0, 0] for kind in ("all", *KINDS)} for t in trainers}
    right = {t.name: [0, 0] for t in trainers}
    held = sorted(held, key=lambda text: len(text.tokens))
    for first in range(0, len(held), size):
        texts = held[first:first + size]
        fill(store, reader, texts)
        batch = make_batch(texts, store, reader, None)
        for trainer in trainers:
            bodies = trainer.bodies(fused.tree(trainer.mean), batch, GAMMA, compiled=False)
            said = [trainer.ids[(body @ trainer.head.T).argmax(-1)] for body in bodies]
            for row, text in enumerate(texts):
                truth = text.tokens[text.prompt:].long()
                hits = [depth[row, :text.answer].eq(truth).tolist() for depth in said]
                steps = len(chain(hits, GAMMA, waits=True))
                for kind in ("all", text.kind):
                    counts[trainer.name][kind][0] += text.answer
                    counts[trainer.name][kind][1] += steps
                right[trainer.name][0] += sum(hits[0])
                right[trainer.name][1] += text.answer
    return {name: {"tokens_per_verification": {kind: round(a / b, 4) for kind, (a, b) in of.items() if b},
                   "agreement": round(right[name][0] / right[name][1], 4)} for name, of in counts.items()}


def main(arguments: list[str] | None = None) -> None:
    from spin_core import zoo

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="folders of shards; more may appear in them")
    parser.add_argument("--heads", nargs="+", default=list(HEADS), choices=list(HEADS), metavar="NAME")
    parser.add_argument("--store-gb", type=float, default=12.0, help="disk for the target's states (default 12)")
    parser.add_argument("--evaluate-minutes", type=float, default=15.0, help="of computing time between evaluations")
    parser.add_argument("--steps", type=int, help="stop after so many (default: never)")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)            # a process per core: two threads hardly multiply faster than one
    family = zoo.load("smollm2", drafters=[])
    run(family, {name: HEADS[name] for name in args.heads}, args.out, args.data, args.store_gb, args.evaluate_minutes,
        args.steps)


def run(family, recipes: dict[str, HeadRecipe], out: Path, data: list[Path], store_gb: float = 12.0,
        evaluate_minutes: float = 15.0, steps: int | None = None) -> None:
    """Train until SIGTERM, or for ``steps``. ``out`` gets log.jsonl, a checkpoint of every head, the vocabulary and what
    is held out. Processes that train different heads of one pool may share ``out``, if each has a store of its own."""
    torch._dynamo.config.automatic_dynamic_shapes = False
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1024
    out.mkdir(parents=True, exist_ok=True)
    texts = Texts(data, family.decode)
    texts.scan()
    fixed = _fixed(out / "fixed.pt", texts, family)
    layers = tuple(sorted({layer for recipe in recipes.values() for layer in recipe.reads} - {LAST}))
    reader = Reader(family.target, family.vocab_size, layers)
    trainers = [HeadTrainer(name, recipe, family.target, fixed["ids"], layers) for name, recipe in recipes.items()]
    for trainer in trainers:
        if (path := out / f"{trainer.name}.pt").exists():
            trainer.resume(torch.load(path, weights_only=True))
        else:
            fit(trainer, texts.some(FITTED), family.target, family.vocab_size)
    texts.generator.manual_seed(sum(t.step for t in trainers))      # each time it goes on, in another order
    width = reader.hidden * (len(layers) + 1)
    store = Store(out / f"states-{'-'.join(recipes)[:60]}.bin", width, int(store_gb * 1e9 / (2 * width)))
    head = reader.head[fixed["ids"][:max(len(t.ids) for t in trainers)]]

    def say(**facts) -> None:
        line = json.dumps({"time": time.strftime("%F %T"), **facts})
        print(line, flush=True)
        with open(out / "log.jsonl", "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def checkpoint() -> None:
        for trainer in trainers:
            partial = out / f"{trainer.name}.partial"
            torch.save(trainer.state() | {"data": texts.digest.hexdigest(), "answer_tokens": texts.answer_tokens}, partial)
            os.replace(partial, out / f"{trainer.name}.pt")
        store.save()

    say(event="start", heads={t.name: t.step for t in trainers}, shards=len(texts.known), torch=torch.__version__,
        answer_tokens=texts.answer_tokens, texts={kind: len(of) for kind, of in texts.by_kind.items()},
        held_out=len(fixed["held"]))
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))
    saved = scanned = time.time()
    evaluated, spent, queue, results, step = time.process_time(), [0.0, 0.0], [], {}, 0
    while not stop and (steps is None or step < steps):
        began = time.process_time()
        if not queue:
            if time.time() - scanned > 300:
                texts.scan()
                scanned = time.time()
            queue = texts.batches()
            fill(store, reader, sum(queue, []))
        read = time.process_time()
        batch = make_batch(queue.pop(), store, reader, head)
        spent = [spent[0] + read - began, spent[1] + time.process_time() - read]
        for trainer in trainers:
            kind = trainer.recipe.kind
            own = batch if kind is None else batch.part(KINDS.index(kind) * EACH, EACH)
            results.setdefault(trainer.name, []).append(trainer.train(own))
        step += 1
        if step in (2, 10) or step % 50 == 0:
            say(step=step, loss_overlap={name: [round(sum(x) / len(x), 4) for x in zip(*of)] for name, of in results.items()},
                seconds={"reading": round(spent[0], 1), "batches": round(spent[1], 1),
                         **{t.name: round(t.seconds, 1) for t in trainers}})
            results = {}
        if time.process_time() - evaluated > 60 * evaluate_minutes:
            for name, found in evaluate(trainers, fixed["held"], store, reader).items():
                trainer = next(t for t in trainers if t.name == name)
                say(event="held out", head=name, step=trainer.step, tokens=trainer.tokens, **found,
                    cpu_hours=round(trainer.seconds / 3600, 3), answer_tokens=texts.answer_tokens)
            evaluated = time.process_time()
        if time.time() - saved > 300:
            checkpoint()
            saved = time.time()
    checkpoint()


def export(checkpoint: Path, path: Path, facts: dict[str, str], int8: bool = True) -> None:
    """Write the mean weights of a checkpoint as a drafter's file (:mod:`spin_core.zoo.pruned`), matrices in int8 or
    bf16. ``facts`` go into its metadata."""
    state = torch.load(checkpoint, weights_only=True)
    tensors: dict[str, Tensor] = {"draft_ids": state["ids"].sort().values.to(torch.int32)}
    for key, value in state["mean"].items():
        if int8 and value.dim() == 2:
            tensors[key], tensors[f"{key}.scale"] = to_int8(value)
        else:
            tensors[key] = value.to(HALF)
    recipe = state["recipe"]
    text = f"{recipe['layers']} layer{'s' * (recipe['layers'] > 1)} fed with three of the target's states"
    text += f", distilled on {recipe['kind']}" if recipe["kind"] else ""
    corpus.save_whole(path, tensors, {
        "description": text, "recipe": str(recipe),
        "layers_read": ",".join("last" if layer == LAST else str(layer) for layer in recipe["reads"]),
        "steps": str(state["step"]), "tokens": str(state["tokens"]), "data": state["data"], **facts})


def _fixed(path: Path, texts: Texts, family) -> dict:
    """What stays as it was when the pool began: ids by their frequency in the answers, and what is held out."""
    if not path.exists():
        answers = torch.cat([t.tokens[t.prompt:] for of in texts.by_kind.values() for t in of]).long()
        counts = torch.bincount(answers, minlength=family.vocab_size)
        counts[list(family.stop_ids)] = counts.max() + 1
        ids = counts.sort(descending=True, stable=True).indices[:VOCABULARY]
        torch.save({"ids": ids, "held": [vars(text) for text in texts.held]}, path)
    known = torch.load(path, weights_only=True)
    return {"ids": known["ids"], "held": [Text(**text) for text in known["held"]]}


if __name__ == "__main__":
    main()
