"""Prompts for the target to answer: combinations of topics, tasks and manners, and turns the target writes itself.

Drafters learn the target's answers, so the prompts need only be as varied as those it will meet. What is measured
is measured on the test split of the workloads, from which nothing here is taken.
"""

from __future__ import annotations

import random

Messages = list[dict[str, str]]

TOPICS = """
rivers|volcanoes|bees|the moon|black holes|vaccines|photosynthesis|earthquakes|batteries|bicycles|coffee|tea|bread|
cheese|chess|football|swimming|yoga|running|sleep|dreams|memory|stress|friendship|honesty|courage|loneliness|parenting|
school uniforms|homework|libraries|museums|jazz|opera|guitars|pianos|painting|photography|poetry|novels|comics|films|
theatre|fashion|gardening|compost|houseplants|dogs|cats|parrots|whales|octopuses|ants|spiders|wolves|elephants|
dinosaurs|fossils|glaciers|deserts|rainforests|coral reefs|tides|clouds|rainbows|thunderstorms|winter|spring|autumn|
recycling|plastic|solar panels|wind turbines|nuclear power|electric cars|trains|buses|airports|ships|lighthouses|
bridges|skyscrapers|castles|pyramids|the Roman Empire|the Silk Road|the printing press|the steam engine|the telegraph|
the Renaissance|the French Revolution|Napoleon|Cleopatra|Marie Curie|Isaac Newton|Ada Lovelace|Shakespeare|Mozart|
money|inflation|taxes|banks|budgets|saving|insurance|job interviews|remote work|meetings|email|time management|
leadership|teamwork|negotiation|small businesses|marketing|customer service|social media|mobile phones|video games|
robots|artificial intelligence|computers|the internet|passwords|databases|sorting algorithms|recursion|version control|
spreadsheets|algebra|fractions|prime numbers|probability|statistics|geometry|calculus|logic|grammar|spelling|accents|
translation|public speaking|diaries|letters|birthdays|weddings|holidays|camping|hiking|beaches|hotels|cooking pasta|
soup|salads|pancakes|chocolate|vegetarian food|spices|breakfast|picnics|markets|neighbours|noise|traffic|parking|
moving house|furniture|paint|carpentry|knitting|sewing|pottery|toys|kites|balloons|umbrellas|shoes|hats|clocks|maps|
compasses|telescopes|microscopes|atoms|gravity|magnets|light|sound|oxygen|water|salt|gold|iron|glass|paper|ink|soap|
teeth|the heart|lungs|bones|muscles|allergies|colds|first aid|exercise|vitamins|sugar|democracy|elections|laws|courts|
police|firefighters|nurses|teachers|farmers|pilots|astronauts|Mars|Jupiter|comets|time travel|ghosts|dragons|mermaids|
pirates|knights|detectives|spies|superheroes|Paris|London|Tokyo|Cairo|New York|Rome|Brazil|India|Canada|Australia|Kenya
""".replace("\n", "").split("|")

PEOPLE = """
my grandmother|a ten-year-old|my boss|a colleague|a new neighbour|my best friend|a customer|a landlord|a teacher|
a class of beginners|a visitor from abroad|a shy teenager|my sister|a job applicant|a busy doctor|an engineer|a poet|
a tourist|the mayor|a sceptic|a scientist|a retired sailor|a nervous student|someone who has never heard of it
""".replace("\n", "").split("|")

ROLES = """
a patient mathematics teacher|a grumpy chef|a tour guide in an old town|a pirate captain|a medieval blacksmith|
a career coach|a doctor|a lawyer who explains things simply|a film critic|a food critic|a sports commentator|
a science journalist|a librarian|a detective|a wise old gardener|a stand-up comedian|a news reader|a travel agent|
a personal trainer|a historian|a philosopher|a kindergarten teacher|a software engineer|a data analyst|a shopkeeper|
a Linux terminal|a Python interpreter|a job interviewer|a debate opponent|a storyteller by the fire|a poet|a robot|
a ship's cook|a museum guard|a diplomat|a psychologist|a fitness coach|a startup founder|an astronomer|an editor|
a translator|a spelling checker|a writing tutor|a chess trainer|a music teacher|a magician|a ghost in an old house|
a king without a kingdom|a talking cat|an explorer in the Arctic|a customer support agent|a plumber|a farmer
""".replace("\n", "").split("|")

MANNERS = """
||||in one sentence|in two sentences|in three short paragraphs|in a friendly tone|in simple words|step by step|briefly|
with an example|with two examples|as a list|as a numbered list|in at most 50 words|in about 100 words|for beginners|
in plain English|with a comparison from daily life|and say why it matters|in a formal tone|with some humour
""".replace("\n", "").split("|")

STRAIGHT = """
Explain {t} to {p}|Explain {t}|Tell me about {t}|What should everyone know about {t}?|Why do people care about {t}?|
Write a short story about {t}|Write a story in which {t} and {t2} both matter|Write a poem about {t}|
Write a haiku about {t}|Give me five facts about {t}|List seven ideas for a project about {t}|
What are the advantages and disadvantages of {t}?|Compare {t} and {t2}|What do {t} and {t2} have in common?|
Write an email to {p} about {t}|Write a letter to {p} in which you recommend {t}|Write a speech about {t} for {p}|
Give me tips on {t}|How do I get started with {t}?|What are common mistakes with {t}?|Describe a day without {t}|
Plan a weekend around {t}|Plan a lesson about {t} for {p}|Write a dialogue between {p} and {p2} about {t}|
Write a product description for something to do with {t}|Summarise the history of {t}|Define {t}|
What questions could I ask {p} about {t}?|Write a quiz with four questions about {t} and give the answers|
Make a table with three columns about {t} and {t2}|Write a slogan for {t}|Invent a game about {t}|
Is it true that {t} will change in the next fifty years?|How does one measure {t}?|What is the best way to learn about {t}?|
i need help with {t}, where do i start|what's the deal with {t}|Do you like {t}?|Can you recommend a book about {t}?|
I am worried about {t}. What can I do?|My friend and I disagree about {t}. How do we settle it?|
Which is better for {p}, {t} or {t2}?|Write an advertisement for {t}|Write the opening of a novel about {t}|
Write a review of an exhibition on {t}|Write a fable about {t} with a moral|Write three riddles about {t}|
Argue for {t}, then argue against it|What would {p} say about {t}?|Write a diary entry about {t}|Name ten words that go with {t}|
Translate into French: "{p} often talks about {t}."|Translate into Spanish: "I would like to know more about {t}."|
Correct the mistakes: "{t} is more better than {t2}, i thinks."|Find a title for an article about {t}|
Classify each word as living or not living: {t}, {t2}, {t3}|Sort these alphabetically: {t}, {t2}, {t3}, {t4}|
Turn this into a question: "People have always been interested in {t}."|Write an outline for an essay about {t}|
Write an HTML page about {t}|Write a CSV file with four rows about {t}|Write JSON with three fields that describes {t}|
Rewrite politely: "Stop talking about {t} all the time!"|Give me a recipe that has something to do with {t}
""".replace("\n", "").split("|")

ROLE_PLAYS = """
Act as {r}. {p} asks you about {t}. Answer in character|I want you to act as {r}. My first request is: tell me about {t}|
You are {r}. Explain {t} to {p}|Pretend to be {r} and give me advice on {t}|Play {r}. Start a conversation about {t}|
Be {r} for a while. I say: "Good morning! What do you think of {t}?"|As {r}, write a short note about {t}|
Take the part of {r} and describe your first day with {t}|Speak as {r}: what annoys you about {t}?|
I will ask you questions and you answer as {r}. First question: how did you come to {t}?|
Imagine you are {r}. Write a letter to {p}|You are {r} and I am {p}. Ask me three questions about {t}, one at a time|
Let's play a game: you are {r}, I am {r2}. You begin|Act as {r} and judge the following idea: {t} for everyone
""".replace("\n", "").split("|")

FUNCTIONS = """
reverses a string|counts the vowels in a text|checks whether a number is prime|returns the n-th Fibonacci number|
sorts a list of numbers|removes duplicates from a list|finds the largest number in a list|computes the average of a list|
checks whether a word is a palindrome|counts how often each word occurs|converts Celsius to Fahrenheit|
reads a file and prints its lines|merges two dictionaries|flattens a nested list|computes a factorial|
finds the common elements of two lists|validates an email address|generates a random password|draws a triangle of stars|
sums the digits of a number|converts a number to binary|splits a list into chunks|rotates a list by k places|
computes the greatest common divisor|simulates rolling two dice|parses a date|downloads nothing but prints a greeting
""".replace("\n", "").split("|")
LANGUAGES = ["Python", "Python", "Python", "JavaScript", "Java", "C", "C++", "SQL", "Bash", "Rust", "Go"]
CODE = """
Write a {l} function that {f}.|Write a {l} program that {f} and explain it.|How do I write a function that {f} in {l}?|
Show me {l} code that {f}, with comments.|Write a class in {l} with a method that {f}.|Write tests for a {l} function that {f}.|
What is wrong if my {l} function that {f} returns nothing?|Explain to a beginner how a {l} function that {f} works.
""".replace("\n", "").split("|")

FOLLOW_UPS = """
Can you make it shorter?|Can you explain that in simpler words?|Give me an example.|Why?|What do you mean by that?|
Thanks! What else should I know?|Now write it as a list.|Rewrite it in a more formal tone.|Are you sure?|
And what are the disadvantages?|Translate your answer into French.|Summarise that in one sentence.|
What would you do first?|Please continue.|Turn this into an email.|Give me three more ideas like that.|
Which of these is the most important?|Now explain it to {p}.|How does that relate to {t}?|I don't agree. Convince me.
""".replace("\n", "").split("|")

ON_TEXT = """
Summarise the following text in one sentence.|Summarise this in two or three sentences.|Rewrite this text in simpler words.|
Correct the spelling and grammar of this text and change nothing else.|List the main points of this text.|
Rewrite the following in the past tense.|Make this text half as long.|Translate this text into Spanish.|
Find a title for this text.|Which words in this text are the most important?|Extract all names and numbers from this text.|
Turn this text into bullet points.|Copy this text and replace the first sentence by a better one.|Continue this text.|
Rewrite this as a letter to {p}.|What is the tone of this text? Explain your choice.|Ask three questions about this text.|
Answer from this text alone: what is it about?|Repeat the text below word for word.|Turn this text into a dialogue.
""".replace("\n", "").split("|")


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
            text = self._fill(self._pick(STRAIGHT), finish=True)
        elif kind < .74:
            text = self._fill(self._pick(ROLE_PLAYS), finish=True)
        elif kind < .88:
            text = self._fill(self._pick(CODE).format(l=self._pick(LANGUAGES), f=self._pick(FUNCTIONS)))
        else:
            text = self._sums()
        return [{"role": "user", "content": text}]

    def second_turn(self, messages: Messages, answer: str) -> Messages:
        """The conversation one turn on: the target's answer, and a reaction to it."""
        return [*messages, {"role": "assistant", "content": answer},
                {"role": "user", "content": self._fill(self._pick(FOLLOW_UPS))}]

    def about(self, text: str) -> Messages:
        """A task on a given text: what answers repeat of their context is learnt here."""
        task = self._fill(self._pick(ON_TEXT))
        content = f"{task}\n\n{text}" if self.random.random() < .8 else f"{text}\n\n{task}"
        return [{"role": "user", "content": content}]

    def _pick(self, items: list[str]) -> str:
        return self.random.choice(items)

    def _fill(self, template: str, finish: bool = False) -> str:
        topics, people, roles = (self.random.sample(pool, n) for pool, n in ((TOPICS, 4), (PEOPLE, 2), (ROLES, 2)))
        text = template.format(t=topics[0], t2=topics[1], t3=topics[2], t4=topics[3], p=people[0], p2=people[1],
                               r=roles[0], r2=roles[1])
        if not finish:
            return text
        manner = self._pick(MANNERS)
        if text.endswith(("?", ".", "!", '"')):
            text += f" Answer {manner}." if manner and manner[:3] in ("in ", "as ", "bri", "wit", "ste") else ""
        else:
            text += f" {manner}." if manner else self._pick([".", ".", ""])
        return text[0].upper() + text[1:] if self.random.random() < .85 else text[0].lower() + text[1:]

    def _sums(self) -> str:
        a, b, c = self.random.randint(2, 99), self.random.randint(2, 40), self.random.randint(2, 12)
        thing = self._pick(["apples", "books", "tickets", "chairs", "kilometres", "litres of paint", "pages", "coins"])
        return self._pick([
            f"What is {a} {self._pick(['+', '-', '*', '/'])} {b}?", f"What is {c}% of {a}?", f"Solve for x: {c}x + {b} = {a}.",
            f"I have {a} {thing} and give away {b}. How many are left? Show your work.",
            f"A box holds {c} {thing}. How many boxes do I need for {a} {thing}?",
            f"A train covers {a * c} km in {c} hours. How fast is it?", f"Which is larger, {c}/{b} or {b}/{a}? Explain.",
            f"If {c} {thing} cost {a} euros, what do {b} {thing} cost?", f"Continue the series: {b}, {b + c}, {b + 2 * c}, ...",
            f"{self._pick(['Anna', 'Tom', 'Mia', 'Omar'])} is {b} years old and {self._pick(['Ben', 'Lea', 'Jo'])} is {c} years "
            f"older. How old are they together in {c} years?", f"Find the mean and the median of {a}, {b}, {c}, {a + b}, {b + c}."])
