"""The first thing that differs between two requests, as it is told to people and to APIs."""

from __future__ import annotations

from dataclasses import dataclass

from mainstem.diagnosis.causes import (
    AnthropicType,
    Cause,
    OpenAIReason,
    Place,
    anthropic_type,
    fix_of,
    openai_reason,
)
from mainstem.diagnosis.texts import excerpt


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two requests part, and of which class the change is.

    Attributes:
        cause: the class.
        place: the region of the prompt.
        part: the path of the part in the later request, such as `messages[0].content`; in the earlier one for what the
            later one has not.
        offset: characters into that part, up to which both texts are equal.
        before, after: the texts around it in the earlier and in the later request, on one line each; empty where one
            has nothing there.
        detail: what else there is to say, such as the names of tools; may be empty.
        index: the number of the first message or tool that differs, counted as `Prompt` does.
    """

    cause: Cause
    place: Place
    part: str
    offset: int = 0
    before: str = ""
    after: str = ""
    detail: str = ""
    index: int = 0

    @property
    def is_fault(self) -> bool:
        """Whether tokens that could have been reused cannot be."""
        return self.cause.is_fault

    @property
    def fix(self) -> str:
        """What to do about it; empty where there is nothing to do."""
        return fix_of(self.cause)

    @property
    def openai_reason(self) -> OpenAIReason | None:
        """As OpenAI's `prompt_cache_diagnostics` calls it."""
        return openai_reason(self.cause, self.place)

    @property
    def anthropic_type(self) -> AnthropicType | None:
        """As Anthropic's `cache_miss_reason` calls it."""
        return anthropic_type(self.cause, self.place)


def in_texts(
    cause: Cause,
    place: Place,
    part: str,
    texts: tuple[str, str],
    at: tuple[int, int],
    *,
    detail: str = "",
    index: int = 0,
) -> Difference:
    """A difference within two texts of a part, at these characters of the earlier and of the later one."""
    before, after = (excerpt(text, where) for text, where in zip(texts, at, strict=True))
    return Difference(cause, place, part, at[1], before, after, detail, index)
