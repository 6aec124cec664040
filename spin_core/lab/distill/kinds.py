"""Kinds of text, told from what the user asks: what a specialist is trained on.

A request's drafter is not chosen by its kind: a selector has to find out online which drafter suits it (SPIN).
"""

import re

KINDS = ("code", "story", "facts", "other")
# Written with the train split of the workloads in view; the first that fits counts.
_RULES = (
    ("story", r"""^(?!.{0,200}\b(python|sql|shell|json|terminal|console|linux|api|compiler|calculator)\b)
        (please )?(act as|be (an?|my|our|the)|you are|you're|you (teach|coach|play|write|run)|your name is|imagine|
        pretend|pose as|speak as|play|(i want|i would like|i'd like) you to|(assume|take)( on)? the (role|part|voice)|
        as an? )"""),
    ("facts", r"""translate|traduis|traduce|übersetz|in (french|spanish|german|italian)|what is \d|solve|how many|
        which is larger|\bdefine\b|definition|correct the|spelling|grammar|past tense|plural|synonym|classify|
        sort these|alphabetical|capital of|per ?cent|%|\d+ *[-+*/x] *\d+|\bcosts?\b|average|median|series:|sequence|
        probability|true or false|is it true|count from|answer (from|based)|\bwhen (did|was)|\bwho (was|is|wrote)|
        rewrite|repeat (the|its)|copy this|extract|how (fast|old)|years old|convert \d|work out|
        \d (euros|metres|km|m)\b"""),
    ("code", r"""\b(python|javascript|java|c\+\+|sql|bash|rust|shell|function|program|code|html|css|json|csv|script|
        regex|regular expression|api|algorithm|list|table|bullet|numbered|columns?|ideas?)\b|
        \b(three|four|five|seven|ten)\ (facts|tips|names|words|ways|things|questions|riddles)\b"""),
    ("story", r"""story|poem|haiku|limerick|novel|dialogue|diary|fable|\btale|song|letter|speech|act as|you are|you're|
        pretend|\bplay\b|imagine|in character|screenplay|slogan|tweet|email|advertisement|joke"""))
RULES = [(kind, re.compile(re.sub(r"\n\s*", "", rule.replace("\\ ", " ")), re.IGNORECASE | re.DOTALL))
         for kind, rule in _RULES]
FIRST = 260         # characters that tell: what follows may be a text to work on


def kind_of(turns: list[str]) -> str:
    """The kind of a conversation, from its user's turns.

    >>> kind_of(["Write a haiku about bees."]), kind_of(["What is 3 + 4?"])
    ('story', 'facts')
    """
    asked = " \n ".join(turns[:1] + turns[-1:] if len(turns) > 1 else turns)[:FIRST]
    return next((kind for kind, rule in RULES if rule.search(asked)), "other")


def user_turns(decoded: str) -> list[str]:
    """The user's turns of a decoded ChatML prompt, whose role names stay as lines of their own."""
    return re.findall(r"(?:^|\n)user\n(.*?)\n?(?=assistant\n|$)", decoded + "\n", re.DOTALL) or [decoded]
