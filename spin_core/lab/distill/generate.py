"""Let the target answer: fresh prompts, turns it wrote itself, second turns, tasks on its own texts, the workloads.

Shard n depends on (seed, n) and, for second turns, on shard n - 1, so a killed run goes on where it was and two runs
with one seed make the same data.
"""

import random
import time
from pathlib import Path

import torch

from spin_core.lab.distill import corpus
from spin_core.lab.distill.decode import BatchDecoder
from spin_core.lab.distill.kinds import user_turns
from spin_core.lab.distill.prompts import Messages, PromptWriter
from spin_core.zoo import Family

# Greedy answers matter most: they are what is served by default and what is measured.
TEMPERATURES = (0.0, 0.0, 0.7, 1.0)
MAX_PROMPT, MAX_ANSWER, MAX_TURN = 448, 128, 64


def generate(family: Family, folder: Path, answer_tokens: int, *, seed: int = 0, shard_size: int = 256,
             deadline: float = float("inf"), train_prompts: list[Messages] | None = None, tell=print) -> None:
    """Add shards of ``shard_size`` sequences to ``folder`` until they hold ``answer_tokens`` tokens of answers, or
    ``time.time()`` has passed ``deadline``. At least one shard is made. ValueError for a folder whose
    shards were made with another seed."""
    done = corpus.paths(folder)
    previous = corpus.read(done[-1]) if done else None
    tokens, number = sum(corpus.read(p).answer_tokens for p in done), len(done)
    if other := {corpus.seed_of(p) for p in done} - {seed}:
        raise ValueError(f"{folder} holds data of seed {', '.join(map(str, other))}, not {seed}: go on with that seed, "
                         "or choose another folder (--out)")
    decoder = BatchDecoder(family.target, family.vocab_size, family.stop_ids)
    began, fresh = time.time(), 0
    while number == 0 or (tokens < answer_tokens and time.time() < deadline):
        shard = make_shard(family, decoder, number, seed, shard_size, previous, train_prompts or [])
        corpus.write(folder / f"shard-{number:05d}.safetensors", shard, {"seed": str(seed)})
        tokens, fresh, number, previous = tokens + shard.answer_tokens, fresh + shard.answer_tokens, number + 1, shard
        tell(f"data: {number} shards, {tokens:,} answer tokens ({answer_tokens:,} wanted), "
             f"{fresh / (time.time() - began):.0f} tokens/s")


def make_shard(family: Family, decoder: BatchDecoder, number: int, seed: int, size: int,
               previous: corpus.Shard | None, train_prompts: list[Messages]) -> corpus.Shard:
    """One batch of prompts and their answers."""
    rng = random.Random(f"{seed}/{number}")
    generator = torch.Generator(family.target.device).manual_seed(rng.getrandbits(60))
    writer = PromptWriter(rng.getrandbits(60))
    # The first of a shard are held out: fresh prompts, answered greedily; no later prompt is built on them.
    messages = [writer.fresh() for _ in range(size * 30 // 100)]
    if train_prompts:
        messages += [rng.choice(train_prompts) for _ in range(size * 20 // 100)]
    if previous is not None:
        messages += _on_answers(family, previous, writer, rng, size * 20 // 100)
    if family.tokenizer.chat_template:
        messages += _own_turns(family, decoder, size - len(messages), generator)
    prompts = [ids for m in messages if len(ids := family.encode(m if family.tokenizer.chat_template
                                                                 else m[-1]["content"])) <= MAX_PROMPT]
    while len(prompts) < size:
        prompts.append(family.encode(writer.fresh()[0]["content"]))
    temperatures = [0.0 if i < -(-size // corpus.HELD_OUT) else rng.choice(TEMPERATURES) for i in range(size)]
    return corpus.Shard.build(prompts, decoder(prompts, temperatures, MAX_ANSWER, generator), temperatures)


def _on_answers(family: Family, shard: corpus.Shard, writer: PromptWriter, rng: random.Random,
                count: int) -> list[Messages]:
    """Second turns and tasks on the answers of an earlier shard."""
    out = []
    for _ in range(count):
        prompt, answer = shard.sequence(rng.randrange(shard.held_out, len(shard.lengths)))
        question, text = family.decode(prompt), family.decode(answer).strip()
        if not text:
            out.append(writer.fresh())
        elif rng.random() < .5:
            out.append(writer.about(text))
        else:
            # the last user turn is enough of a conversation to go on from
            out.append(writer.second_turn([{"role": "user", "content": user_turns(question)[-1].strip()}], text))
    return out


def _own_turns(family: Family, decoder: BatchDecoder, count: int, generator: torch.Generator) -> list[Messages]:
    """User turns that the target writes itself, behind the template's opening of one."""
    one, two = (family.encode([{"role": "user", "content": text}]) for text in ("a", "b"))
    opening = one[:next(i for i, (x, y) in enumerate(zip(one, two)) if x != y)]
    turns = decoder([opening] * count, [1.0] * count, MAX_TURN, generator)
    texts = [family.decode(turn).strip() for turn in turns]
    return [[{"role": "user", "content": text}] for text in texts if text]
