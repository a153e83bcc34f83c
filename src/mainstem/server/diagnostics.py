"""What a reply says about its cache misses: in OpenAI's and Anthropic's forms, and in our own beside them.

The hosted forms compare two requests, and so they can only say what changed between them. Here the cache itself knows
what became of each token; that goes into an object of our own, `mainstem`, so that strict parsers of the hosted forms
still work. It knows the forms; how a miss is explained is the business of `mainstem.explain`.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from mainstem.explain import Comparison, MissCause, Origin, Record
from mainstem.explain.diagnosis import FirstDifference, first_difference
from mainstem.explain.report import cause_in_a_word, public_totals
from mainstem.server.prompts import num_pieces
from mainstem.server.workers import PIECE_CHARACTERS, off_loop
from mainstem.tools.reading import read_reply

if TYPE_CHECKING:
    from starlette.requests import Request

    from mainstem.server.lifetime import Lifetime, OptionsBody
    from mainstem.server.service import Service
    from mainstem.server.turns import Turn
    from mainstem.tree import TokenArray

logger = logging.getLogger(__name__)

CAUSE_HEADER = "x-cache-miss-cause"


class Diagnosis(NamedTuple):
    """What is known of one prompt's misses.

    Attributes:
        record: of the first of its replies that was let in.
        difference: from the closest earlier request; None if that was not what kept tokens from being cached.
        asked: from the request that the client named; None if it named none, or there is no difference.
    """

    record: Record
    difference: FirstDifference | None
    asked: FirstDifference | None


def origin_of(
    request: Request,
    reply_id: str,
    *,
    lifetime: Lifetime,
    turn: Turn | None = None,
    key: str | None = None,
    compare_with: str | None = None,
) -> Origin:
    """Where a request comes from, for its record."""
    return Origin(
        id=reply_id,
        alias=request.scope["mainstem.request_id"],
        session=lifetime.session,
        key=key,
        compare_with=compare_with,
        conversation=None if turn is None else turn.conversation,
        places=None if turn is None else turn.places,
    )


def comparison_id(options: OptionsBody | None) -> str | None:
    """The id of the response to compare with, in OpenAI's `prompt_cache_options`."""
    return None if options is None else options.comparison_response_id


async def diagnose(service: Service, record: Record, tokens: TokenArray, *, namespace: tuple[str, ...]) -> Diagnosis:
    """Say what changed since the earlier requests that a prompt is compared with.

    Args:
        service: that it comes to.
        record: of the prompt.
        tokens: int32[n], the prompt.
        namespace: of who wants to know.
    """
    tokenizer = service.engine.tokenizer

    def decode(ids: TokenArray) -> str:
        return tokenizer.decode(ids, skip_special_tokens=False)

    def differs(comparison: Comparison) -> FirstDifference | None:
        return first_difference(
            tokens,
            record.conversation,
            comparison,
            decode,
            partial(read_reply, tokenizer, service.dialect),
            places=record.places,
            canonical_tools=service.engine.config.canonical_tools,
        )

    def work() -> Diagnosis:
        diverged = any(miss.cause is MissCause.DIVERGED for miss in record.public_misses)
        difference = differs(record.closest) if diverged and record.closest is not None else None
        asked = differs(record.asked) if record.asked is not None else None
        return Diagnosis(record, difference, asked)

    size = len(tokens)
    if record.conversation is not None:
        size += PIECE_CHARACTERS * num_pieces(record.conversation.messages)
    try:
        diagnosis = await off_loop(namespace, size, work)
    except Exception:  # what explains a reply must not cost it
        logger.exception("A cache miss could not be explained.")
        diagnosis = Diagnosis(record, None, None)
    record.difference = diagnosis.difference
    record.forget_tokens()
    return diagnosis


def miss_header(diagnoses: list[Diagnosis]) -> str | None:
    """The cause of most uncached tokens; None if no records are kept."""
    return cause_in_a_word([each.record for each in diagnoses]) if diagnoses else None


def usage_sibling(diagnoses: list[Diagnosis]) -> dict[str, Any]:
    """Our own object in `usage`: uncached tokens by cause."""
    return {"mainstem": {"misses": public_totals(each.record for each in diagnoses)}} if diagnoses else {}


def openai_diagnostics(origin: Origin, diagnoses: list[Diagnosis]) -> dict[str, Any] | None:
    """OpenAI's `prompt_cache_diagnostics`; None unless the client asked for it."""
    if origin.compare_with is None:
        return None
    if not diagnoses or diagnoses[0].record.asked is None:
        return {"type": "comparison_response_not_found" if diagnoses else "unavailable"}
    record, _, asked = diagnoses[0]
    comparison = record.asked
    assert comparison is not None
    change = asked.change if asked is not None else None
    reason = change.openai_reason if change is not None else None
    if reason is not None:
        return {
            "type": "cache_miss",
            "reason": reason,
            "cache_missed_tokens": _missed(record, comparison),
            "comparison_reusable_tokens": comparison.common,
        }
    return {"type": "cache_hit" if _was_reused(record, comparison) else "unavailable"}


def anthropic_diagnostics(origin: Origin, diagnoses: list[Diagnosis]) -> dict[str, Any] | None:
    """Anthropic's `diagnostics`; None unless the client asked for it, or if nothing was lost."""
    if origin.compare_with is None or not diagnoses:
        return None
    record, _, asked = diagnoses[0]
    comparison = record.asked
    if comparison is None:
        return {"cache_miss_reason": {"type": "previous_message_not_found"}}
    change = asked.change if asked is not None else None
    kind = change.anthropic_type if change is not None else None
    if kind is not None:
        return {"cache_miss_reason": {"type": kind, "cache_missed_input_tokens": _missed(record, comparison)}}
    return None if _was_reused(record, comparison) else {"cache_miss_reason": {"type": "unavailable"}}


def _missed(record: Record, comparison: Comparison) -> int:
    """About how many tokens would have been cached had nothing changed."""
    return min(comparison.lost or comparison.length - comparison.common, record.num_uncached)


def _was_reused(record: Record, comparison: Comparison) -> bool:
    """Whether what both begin with was cached, but for what never is."""
    computed = comparison.common - 1  # but the last token of a reply
    never = (MissCause.ROUNDING, MissCause.FIRST_SEEN)
    return all(miss.start >= computed or miss.cause in never for miss in record.public_misses)
