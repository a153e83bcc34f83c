"""Guessing what a reply says next, without a second model, so that one step can check several tokens.

Guesses come from the request's own context and from the prefix cache. Which of them a step checks is decided by what
they are likely to save and what they are known to cost. Knows no tensors, no text and no HTTP.
"""

from mainstem.speculation.drafts import MAX_DRAFTS, Candidates, DraftTree, Guess, draft_of
from mainstem.speculation.ngram import Lookup, look_up
from mainstem.speculation.pace import Account, Load, Pace
from mainstem.speculation.rates import Rates

__all__ = [
    "MAX_DRAFTS",
    "Account",
    "Candidates",
    "DraftTree",
    "Guess",
    "Load",
    "Lookup",
    "Pace",
    "Rates",
    "draft_of",
    "look_up",
]
