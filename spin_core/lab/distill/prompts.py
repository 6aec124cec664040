"""Prompts for the target to answer: combinations of topics, tasks and manners, and turns the target writes itself.

Drafters learn the target's answers, so the prompts need only be as varied as those it will meet. What is measured
is measured on the test split of the workloads, from which nothing here is taken.
"""

import random
import tomllib
from pathlib import Path
from types import SimpleNamespace

Messages = list[dict[str, str]]

WORDS = SimpleNamespace(**tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")))


class PromptWriter:
    """An endless, seeded source of prompts: message lists ending with a user's turn.

    >>> PromptWriter(seed=1).fresh() == PromptWriter(seed=1).fresh()
    True
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def fresh(self) -> Messages:
        """A first user turn."""
        kind = self.random.random()
        if kind < .52:
            text = self._fill(self._pick(WORDS.straight), finish=True)
        elif kind < .74:
            text = self._fill(self._pick(WORDS.role_plays), finish=True)
        elif kind < .88:
            text = self._pick(WORDS.code).format(l=self._pick(WORDS.languages), f=self._pick(WORDS.functions))
            text = self._fill(text)
        else:
            text = self._sums()
        return [{"role": "user", "content": text}]

    def second_turn(self, messages: Messages, answer: str) -> Messages:
        """The conversation one turn on: the target's answer, and a reaction to it."""
        return [*messages, {"role": "assistant", "content": answer},
                {"role": "user", "content": self._fill(self._pick(WORDS.follow_ups))}]

    def about(self, text: str) -> Messages:
        """A task on a given text: what answers repeat of their context is learnt here."""
        task = self._fill(self._pick(WORDS.on_text))
        content = f"{task}\n\n{text}" if self.random.random() < .8 else f"{text}\n\n{task}"
        return [{"role": "user", "content": content}]

    def _pick(self, items: list[str]) -> str:
        return self.random.choice(items)

    def _fill(self, template: str, finish: bool = False) -> str:
        topics, people, roles = (self.random.sample(pool, n) for pool, n in
                                 ((WORDS.topics, 4), (WORDS.people, 2), (WORDS.roles, 2)))
        text = template.format(t=topics[0], t2=topics[1], t3=topics[2], t4=topics[3], p=people[0], p2=people[1],
                               r=roles[0], r2=roles[1])
        if not finish:
            return text
        manner = self._pick(WORDS.manners)
        if text.endswith(("?", ".", "!", '"')):
            text += f" Answer {manner}." if manner and manner[:3] in ("in ", "as ", "bri", "wit", "ste") else ""
        else:
            text += f" {manner}." if manner else self._pick([".", ".", ""])
        return text[0].upper() + text[1:] if self.random.random() < .85 else text[0].lower() + text[1:]

    def _sums(self) -> str:
        a, b, c = self.random.randint(2, 99), self.random.randint(2, 40), self.random.randint(2, 12)
        thing = self._pick(["apples", "books", "tickets", "chairs", "kilometres", "litres of paint", "pages", "coins"])
        return self._pick([
            f"What is {a} {self._pick(['+', '-', '*', '/'])} {b}?", f"What is {c}% of {a}?",
            f"Solve for x: {c}x + {b} = {a}.",
            f"I have {a} {thing} and give away {b}. How many are left? Show your work.",
            f"A box holds {c} {thing}. How many boxes do I need for {a} {thing}?",
            f"A train covers {a * c} km in {c} hours. How fast is it?",
            f"Which is larger, {c}/{b} or {b}/{a}? Explain.",
            f"If {c} {thing} cost {a} euros, what do {b} {thing} cost?",
            f"Continue the series: {b}, {b + c}, {b + 2 * c}, ...",
            f"{self._pick(['Anna', 'Tom', 'Mia', 'Omar'])} is {b} years old and {self._pick(['Ben', 'Lea', 'Jo'])} is "
            f"{c} years older. How old are they together in {c} years?",
            f"Find the mean and the median of {a}, {b}, {c}, {a + b}, {b + c}."])
