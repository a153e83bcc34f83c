"""How one model writes calls and thoughts, learnt from its chat template and its tokenizer."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

from mainstem.tokens import Tokenizer
from mainstem.tokens.rendering import Marks
from mainstem.tools.meaning import ReplyMeaning
from mainstem.tools.syntax import CallSyntax, recognise


class Dialect:
    """How the model of a tokenizer writes calls and thoughts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def syntax(self) -> CallSyntax | None:
        """Of its tool calls; None if it is not known here."""
        return recognise(self._tokenizer.chat.call_example)

    @cached_property
    def reasoning(self) -> Marks | None:
        """The marks around its thoughts, if it has any."""
        return self._tokenizer.chat.reasoning_marks

    @cached_property
    def spoken_token_ids(self) -> tuple[int, ...]:
        """Special tokens that calls and thoughts are told by."""
        marks = (*(self.syntax.marks if self.syntax else ()), *(self.reasoning or ()))
        ids = (self._tokenizer.special_id(mark) for mark in marks)
        return tuple(token_id for token_id in ids if token_id is not None)

    def meaning(self, names: Collection[str]) -> ReplyMeaning:
        """What replies of this model say, with tools of these names on offer."""
        return ReplyMeaning(self.syntax, names, self.reasoning)
