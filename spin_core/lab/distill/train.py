"""Train a pool of drafters on one target, all at once, for as long as there is time.

The drafters learn from the same batches, so the target's states and distributions are read once for all of them. A run
goes on where it was and takes up shards of texts as they appear. It needs no planned end: the learning rate is
constant, and what is evaluated and exported is a mean of the latest weights, which stands in for a rate that falls.
(The mean reaches back over about a tenth of the steps: Karras et al., arXiv 2312.02696, power-function EMA.)

A specialist learns only from the texts of its kind (:mod:`spin_core.lab.distill.kinds`) in each batch. It begins as the
generalist of its form, where that has a checkpoint.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from spin_core.files import writing
from spin_core.lab.distill import corpus, fused, loss
from spin_core.lab.distill.evaluate import chain
from spin_core.lab.distill.fused import later
from spin_core.lab.distill.kinds import KINDS, kind_of, user_turns
from spin_core.lab.distill.reading import ALIKE, ROWS, Reader, Store, Text, fill
from spin_core.lab.distill.recipes import Recipe, begin, fit
from spin_core.zoo.fed import LAST

WINDOW = 128        # answer tokens of a text that are learned
LONGEST = 400       # tokens of a text
EACH = 4            # texts of every kind in a batch
AHEAD = 16          # batches whose texts are read together
WARM_UP = 100       # steps
REACH = 16          # a weight's mean is over about the last 1.6 / REACH of the steps
DECAY = 0.8         # each further depth counts so much of the one before
GAMMA = 4
VOCABULARY = 16384  # ids ranked by frequency; every drafter drafts the first so many of them
SAVE_SECONDS = 300


@dataclass
class Batch:
    """B texts of T + 1 tokens at most, padded at the right end.

    ``embedded [B, T + 1, hidden]`` of the tokens; ``states [B, T, width]`` (:meth:`Reader.states`): position t holds
    the state before token t + 1. ``place``, ``valid [B, WINDOW]``: the positions among the states whose next token but
    one is an answer's, and which of them exist. ``rows [N]``: the valid ones in the flattened window, padded to a
    multiple of ROWS; ``p [N, Vd]`` the target's distribution there, ``came [N]`` the token that came.
    """

    states: Tensor
    embedded: Tensor
    place: Tensor
    valid: Tensor
    angles: tuple[Tensor, Tensor]
    rows: Tensor
    p: Tensor
    came: Tensor

    def part(self, first: int, count: int) -> "Batch":
        """Texts ``first`` to ``first + count``."""
        index = slice(first, first + count)
        valid = self.valid[index]
        rows, skip = _rows(valid), int(self.valid[:first].sum())
        at = torch.arange(len(rows), device=rows.device)
        at = skip + at.where(at < int(valid.sum()), 0)
        return Batch(self.states[index], self.embedded[index], self.place[index], valid, self.angles, rows, self.p[at],
                     self.came[at])


def _rows(valid: Tensor) -> Tensor:
    rows = valid.reshape(-1).nonzero()[:, 0]
    return torch.cat([rows, rows[:1].expand(-len(rows) % ROWS)])


def make_batch(texts: list[Text], store: Store, reader: Reader, head: Tensor) -> Batch:
    """The batch of texts that the store holds; p for the rows ``head [Vd, hidden]`` of the target's head."""
    device = reader.head.device
    width = max(-(-max(len(t.tokens) for t in texts) // ALIKE) * ALIKE, WINDOW + ALIKE)
    tokens = torch.zeros(len(texts), width + 1, dtype=torch.int64, device=device)
    states = torch.zeros(len(texts), width, reader.hidden * (len(reader.layers) + 1), dtype=fused.HALF, device=device)
    place = torch.zeros(len(texts), WINDOW, dtype=torch.int64, device=device)
    valid = torch.zeros(len(texts), WINDOW, dtype=torch.bool, device=device)
    hidden, log_z, came = [], [], []
    for row, text in enumerate(texts):
        kept, z = store.get(text.key)
        length, deciding = len(text.tokens), slice(text.prompt - 1, len(text.tokens) - 1)
        tokens[row, :length] = text.tokens.to(device)
        states[row, :length] = kept.to(device)
        place[row] = (text.prompt - 2 + torch.arange(WINDOW)).clamp(max=width - 1)
        valid[row, :text.answer] = True
        hidden.append(kept[deciding, -reader.hidden:])
        log_z.append(z[deciding])
        came.append(text.tokens[text.prompt:])
    rows = _rows(valid)
    at = torch.arange(len(rows))
    at = at.where(at < sum(map(len, came)), 0)
    hidden, log_z, came = (torch.cat(part)[at].to(device) for part in (hidden, log_z, came))
    return Batch(states, reader.embedding[tokens], place, valid, reader.angles(width + 1), rows,
                 reader.p(hidden, log_z, head), came.long())


class DrafterTrainer:
    """A drafter, its optimiser, and the mean of its weights.

    ``ids``: the target's, most frequent first; the drafter's are the first of them. ``layers``: those whose inputs
    stand in the batches' states. ``first``: weights instead of those it would begin with.
    """

    def __init__(self, name: str, recipe: Recipe, target: PreTrainedModel, ids: Tensor, layers: tuple[int, ...],
                 compiled: bool = True) -> None:
        places = [len(layers) if layer == LAST else layers.index(layer) for layer in recipe.reads]
        self.columns = None if places == list(range(len(layers) + 1)) else places
        self.name, self.recipe, self.ids = name, recipe, ids[:recipe.vocab].to(target.device)
        self.eps, self.compiled = target.config.rms_norm_eps, compiled
        self.parameters = {key: nn.Parameter(value) for key, value in begin(name, recipe, target).items()}
        self.mean = {key: value.detach().clone() for key, value in self.parameters.items()}
        self.optimizer = torch.optim.AdamW(self.parameters.values(), lr=recipe.rate, betas=(.9, .95), weight_decay=.01,
                                           fused=True)
        self.head = target.get_output_embeddings().weight.detach()[self.ids].to(fused.HALF)
        self.step, self.tokens, self.seconds = 0, 0, 0.0
        self.pieces = {piece: torch.compile(function) if compiled else function for piece, function in (
            ("head_first", fused.head_first), ("head_next", fused.head_next), ("norm", fused.norm),
            ("loss_and_gradient", loss.loss_and_gradient))}

    def put(self, weights: dict[str, Tensor]) -> None:
        """Go on with these weights instead."""
        for key, value in weights.items():
            for own in (self.parameters, self.mean):
                own[key].data.copy_(value)

    def bodies(self, weights: dict, batch: Batch, depth: int, compiled: bool = True) -> list[Tensor]:
        """What the head's logits are computed from, ``[B, WINDOW, hidden]`` at each depth."""
        compiled = compiled and self.compiled
        run = self.pieces if compiled else {**vars(fused)}
        plain, recipe, (cos, sin) = self.recipe.form == "plain", self.recipe, batch.angles
        # a plain drafter also reads the first token, which has no state before it: all places are one further on
        states, embedded, place = batch.states, batch.embedded if plain else batch.embedded[:, 1:], batch.place + plain
        cos, sin = cos[:, :embedded.shape[1]], sin[:, :embedded.shape[1]]
        if plain:
            states, depth = None, 1
        elif self.columns is not None:
            parts = states.split(embedded.shape[-1], -1)
            states = torch.cat([parts[column] for column in self.columns], -1)
        for part in (states, embedded, cos, sin) if compiled else ():
            if part is not None:
                torch._dynamo.mark_dynamic(part, 1)
        x, text, inner = run["head_first"](weights, states, embedded, place, cos, sin, self.eps, recipe.window)
        out = [run["norm"](x, weights["norm"], self.eps)]
        index = place[..., None].expand(-1, -1, embedded.shape[-1])
        here, angles = embedded.gather(1, index), (cos[0][place], sin[0][place])
        for part in (part for keys in text for part in keys) if compiled else ():
            torch._dynamo.mark_dynamic(part, 2)
        drafted: list[list] = [[] for _ in text]
        for ahead in range(1, depth):
            drafted = [[tuple(map(later, keys)) for keys in layer] for layer in drafted]
            own = x if recipe.form == "eagle3" else self._carried(weights, out[-1], inner)
            x, kept, inner = run["head_next"](weights, later(own), here, place - ahead, text, drafted, *angles,
                                              self.eps, recipe.window)
            drafted = [[*layer, keys] for layer, keys in zip(drafted, kept)]
            out.append(run["norm"](x, weights["norm"], self.eps))
        return out

    def _carried(self, weights: dict, last: Tensor, inner: list[Tensor]) -> Tensor:
        """What a fed drafter reads of its own next (:meth:`spin_core.zoo.fed.FedLlama.carried`)."""
        if self.recipe.carry == "mix":
            states = [*(fused.norm(x, weights["norm"], self.eps) for x in inner), last]
            return sum(share * state for share, state in zip(weights["mix"].softmax(0), states)).to(fused.HALF)
        return last if self.recipe.carry == "last" else torch.zeros_like(last)

    def train(self, batch: Batch) -> tuple[float, float]:
        """One step; the loss, and the overlap sum min(p, q) at the first depth."""
        began = time.process_time()
        bodies = self.bodies(fused.tree(self.parameters), batch, self.recipe.depth)
        every = sum(DECAY ** depth for depth in range(len(bodies)))
        count = int(batch.valid.sum())
        place = torch.arange(WINDOW, device=batch.rows.device).repeat(len(batch.valid))[batch.rows]
        p, gradients, value, overlap = batch.p[:, :len(self.ids)], [], 0.0, 0.0
        if self.recipe.hard:
            p = (batch.came[:, None] == self.ids).to(p.dtype)
        for depth, body in enumerate(bodies):
            flat = body.detach().reshape(-1, body.shape[-1])
            # a chain starts behind the prompt at the earliest, so early positions have no deep drafts
            weight = (place >= depth).float()
            weight[count:] = 0
            weight *= DECAY ** depth / every / weight.sum().clamp(min=1)
            read = flat[batch.rows]
            of_rows = torch.empty(read.shape, dtype=fused.HALF, device=flat.device)
            for at in range(0, len(read), ROWS):
                rows = slice(at, at + ROWS)
                gradient, lost, shared = self.pieces["loss_and_gradient"](
                    read[rows] @ self.head.T, p[rows], weight[rows], self.recipe.overlap)
                of_rows[rows] = gradient @ self.head
                value += float(lost)
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
        check_recipe(self.name, self.recipe, state)
        for key, parameter in self.parameters.items():
            parameter.data.copy_(state["parameters"][key])
            self.mean[key].copy_(state["mean"][key])
        self.ids, self.step = state["ids"].to(self.ids.device), state["step"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.tokens, self.seconds = state["tokens"], state["seconds"]


def generalist(out: Path, recipe: Recipe) -> dict | None:
    """The checkpoint in ``out`` of the drafter that differs from ``recipe`` only in learning from all kinds of text,
    with ``recipe`` in it; None if there is none."""
    for path in sorted(out.glob("*.pt")):
        state = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
        if state.get("recipe", {}) == asdict(replace(recipe, kind=None)):
            return state | {"recipe": asdict(recipe)}
    return None


def check_recipe(name: str, recipe: Recipe | None, state: dict) -> Recipe:
    """The recipe of a checkpoint; ValueError if it is not ``recipe``."""
    then = Recipe(**{**state["recipe"], "reads": tuple(state["recipe"]["reads"])})
    if recipe not in (None, then):
        differs = [f"{part} {getattr(then, part)}, now {value}" for part, value in asdict(recipe).items()
                   if value != getattr(then, part)]
        raise ValueError(f"the checkpoint of {name} is of another recipe ({'; '.join(differs)}): choose another "
                         "--out, or delete the checkpoint")
    return then


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
                if length > LONGEST or not 2 <= prompt < length:
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
        if not any(self.by_kind.values()):
            raise ValueError(f"no texts to learn from in {', '.join(map(str, self.folders))}")
        for kind, waiting in self.waiting.items():
            self.waiting[kind] = self._mixed(waiting)

    def batches(self) -> list[list[Text]]:
        """AHEAD batches of EACH texts of every kind, in the order of KINDS; those of a batch are of similar length.
        Where there are none of a kind, others stand in."""
        parts, every = [], [text for of in self.by_kind.values() for text in of]
        for kind in KINDS:
            while len(self.waiting[kind]) < AHEAD * EACH:
                self.waiting[kind] += self._mixed(self.by_kind[kind] or every)
            taken, self.waiting[kind] = self.waiting[kind][:AHEAD * EACH], self.waiting[kind][AHEAD * EACH:]
            taken.sort(key=lambda text: len(text.tokens))
            parts.append([taken[at:at + EACH] for at in range(0, len(taken), EACH)])
        return self._mixed([sum(batch, []) for batch in zip(*parts)])

    def some(self) -> list[Text]:
        """The texts, of every kind in turn."""
        longest = max(map(len, self.by_kind.values()))
        return [of[i] for i in range(longest) for of in self.by_kind.values() if i < len(of)]

    def _mixed(self, items: list) -> list:
        return [items[i] for i in torch.randperm(len(items), generator=self.generator).tolist()]


@torch.no_grad()
def evaluate(trainers: list[DrafterTrainer], held: list[Text], store: Store, reader: Reader, head: Tensor,
             size: int = 16) -> dict[str, dict]:
    """Tokens per verification at gamma 4 on held-out greedy answers, of all and by kind, agreement and overlap, of
    every drafter's mean weights."""
    counts = {t.name: {kind: [0, 0] for kind in ("all", *KINDS)} for t in trainers}
    right, shared = ({t.name: 0.0 for t in trainers} for _ in range(2))
    held = sorted(held, key=lambda text: len(text.tokens))
    for first in range(0, len(held), size):
        texts = held[first:first + size]
        fill(store, reader, texts)
        batch = make_batch(texts, store, reader, head)
        count = int(batch.valid.sum())
        for trainer in trainers:
            bodies = trainer.bodies(fused.tree(trainer.mean), batch, GAMMA, compiled=False)
            q = (bodies[0].flatten(0, 1)[batch.rows[:count]] @ trainer.head.T).float().softmax(-1)
            shared[trainer.name] += float(torch.minimum(q, batch.p[:count, :len(trainer.ids)].float()).sum())
            said = [trainer.ids[(body @ trainer.head.T).argmax(-1)].cpu() for body in bodies]
            for row, text in enumerate(texts):
                truth = text.tokens[text.prompt:].long()
                hits = [depth[row, :text.answer].eq(truth).tolist() for depth in said]
                steps = len(chain(hits, GAMMA, waits=trainer.recipe.form != "plain"))
                for kind in ("all", text.kind):
                    counts[trainer.name][kind][0] += text.answer
                    counts[trainer.name][kind][1] += steps
                right[trainer.name] += sum(hits[0])
    total = sum(text.answer for text in held)
    return {name: {"tokens_per_verification": {kind: round(a / b, 4) for kind, (a, b) in of.items() if b},
                   "agreement": round(right[name] / total, 4), "overlap": round(shared[name] / total, 4)}
            for name, of in counts.items()}


def run(family, recipes: dict[str, Recipe], out: Path, data: list[Path], *, seconds: float = float("inf"),
        steps: int | None = None, evaluations: int = 8, evaluate_minutes: float = 15.0, store_gb: float = 12.0,
        compiled: bool = True, stopped: Callable[[], bool] = lambda: False, tell=print) -> None:
    """Train until ``seconds`` are over, ``stopped()``, or every drafter has made ``steps``.

    ``out`` gets log.jsonl, a checkpoint of every drafter, the vocabulary and what is held out. Processes that train
    different drafters of one pool may share ``out``: each has a store of its own. The drafters are evaluated as often
    as ``evaluations`` says where the end is known, else after every ``evaluate_minutes`` of computing time.
    """
    if compiled:
        torch._dynamo.config.automatic_dynamic_shapes = False
        torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1024
    out.mkdir(parents=True, exist_ok=True)
    texts = Texts(data, family.decode)
    texts.scan()
    fixed = _fixed(out / "fixed.pt", texts, family)
    layers = tuple(sorted({layer for recipe in recipes.values() for layer in recipe.reads} - {LAST}))
    reader = Reader(family.target, family.vocab_size, layers, compiled)
    trainers = [DrafterTrainer(name, recipe, family.target, fixed["ids"], layers, compiled)
                for name, recipe in recipes.items()]
    fitted: dict[tuple, dict] = {}          # recipes share it
    for trainer in trainers:
        if (path := out / f"{trainer.name}.pt").exists():
            trainer.resume(torch.load(path, weights_only=True, map_location=family.target.device))
            continue
        if trainer.recipe.kind and (state := generalist(out, trainer.recipe)):
            trainer.resume(state)
            continue
        part = trainer.recipe.form, trainer.recipe.layers, trainer.recipe.reads, trainer.recipe.pruned
        if part not in fitted:
            fitted[part] = fit(trainer.recipe, texts.some(), family.target, family.vocab_size)
        trainer.put(fitted[part])
    texts.generator.manual_seed(sum(t.step for t in trainers))      # each time it goes on, in another order
    width = reader.hidden * (len(layers) + 1)
    needed = 2 * LONGEST * (EACH * AHEAD * len(KINDS) + len(fixed["held"]))
    path = out / f"states-{'-'.join(recipes)[:60]}.bin"
    room = shutil.disk_usage(out).free + (path.stat().st_size if path.exists() else 0)
    rows = int(min(store_gb * 1e9 / (2 * width), .9 * room / (2 * width + 4)))
    if steps is not None:
        rows = min(rows, needed)
    store = Store(path, width, rows)
    head = reader.head[fixed["ids"][:max(len(t.ids) for t in trainers)].to(reader.head.device)]

    def say(**facts) -> None:
        try:
            with open(out / "log.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps({"time": time.strftime("%F %T"), **facts}) + "\n")
        except OSError as error:
            raise OSError(f"cannot write {out / 'log.jsonl'}: {error}") from error

    def report() -> None:
        for trainer, (name, found) in zip(trainers, evaluate(trainers, fixed["held"], store, reader, head).items()):
            lost = [value for value, _ in results.get(name, [])]
            say(event="held out", head=name, step=trainer.step, tokens=trainer.tokens, **found,
                loss=round(sum(lost) / len(lost), 4) if lost else None, cpu_hours=round(trainer.seconds / 3600, 3),
                answer_tokens=texts.answer_tokens)
            tell(f"{name}: step {trainer.step:,}, {trainer.tokens:,} tokens; held out: "
                 f"{found['tokens_per_verification']['all']:.3f} tokens per verification, agreement "
                 f"{found['agreement']:.3f}, sum min(p, q) {found['overlap']:.3f}")

    def checkpoint() -> None:
        for trainer in trainers:
            with writing(out / f"{trainer.name}.pt") as part:
                torch.save(trainer.state() | {"data": texts.digest.hexdigest(), "answer_tokens": texts.answer_tokens},
                           part)
        store.save()

    say(event="start", heads={t.name: t.step for t in trainers}, shards=len(texts.known), torch=torch.__version__,
        answer_tokens=texts.answer_tokens, texts={kind: len(of) for kind, of in texts.by_kind.items()},
        held_out=len(fixed["held"]))
    began = saved = scanned = time.time()
    evaluated, queue, results = time.process_time(), [], {}
    waiting = [t for t in trainers if steps is None or t.step < steps]
    if all(t.step == 0 for t in trainers):
        report()
    while waiting and not stopped() and time.time() < began + seconds:
        if not queue:
            if time.time() - scanned > SAVE_SECONDS:
                texts.scan()
                scanned = time.time()
            queue = texts.batches()[:None if steps is None else steps - min(t.step for t in waiting)]
            fill(store, reader, sum(queue, []))
        batch = make_batch(queue.pop(), store, reader, head)
        for trainer in waiting:
            kind = trainer.recipe.kind
            own = batch if kind is None else batch.part(KINDS.index(kind) * EACH, EACH)
            results.setdefault(trainer.name, []).append(trainer.train(own))
        step = waiting[0].step
        waiting = [t for t in trainers if steps is None or t.step < steps]
        if step in (2, 10) or step % 50 == 0:
            say(step=step, seconds={t.name: round(t.seconds, 1) for t in trainers},
                loss_overlap={name: [round(sum(x) / len(x), 4) for x in zip(*of)] for name, of in results.items()})
        due = time.process_time() - evaluated > 60 * evaluate_minutes if steps is None else \
            not waiting or step % max(1, steps // evaluations) == 0
        if due:
            report()
            results, evaluated = {}, time.process_time()
        if time.time() - saved > SAVE_SECONDS:
            checkpoint()
            saved = time.time()
    if steps is None and results:
        report()
    checkpoint()


def _fixed(path: Path, texts: Texts, family) -> dict:
    """What stays as it was when the pool began: ids by their frequency in the answers, and what is held out."""
    if not path.exists():
        answers = torch.cat([t.tokens[t.prompt:] for of in texts.by_kind.values() for t in of]).long()
        counts = torch.bincount(answers, minlength=family.vocab_size)
        counts[list(family.stop_ids)] = counts.max() + 1
        ids = counts.sort(descending=True, stable=True).indices[:VOCABULARY]
        with writing(path) as part:
            torch.save({"ids": ids, "held": [vars(text) for text in texts.held]}, part)
    known = torch.load(path, weights_only=True)
    return {"ids": known["ids"], "held": [Text(**text) for text in known["held"]]}
