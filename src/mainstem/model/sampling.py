"""From logits to the next token: penalties, a mask, temperature, top-k, top-p, min-p, and a draw that can be repeated.

A draw depends on the row's logits, the request's seed and the token's place in its reply, and on nothing else: not on
the other rows of the batch, not on what was drawn before. So a seeded request gives the same text alone or in a batch,
and a preempted one goes on as if nothing had happened.

It knows nothing of requests, stop conditions or text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from mainstem.model.logprobs import PositionLogprobs, TokenLogprob
from mainstem.params import SamplingParams

Floats: TypeAlias = NDArray[np.float32]
Tokens: TypeAlias = NDArray[np.int32]
Ids: TypeAlias = NDArray[np.int64]

NOT_FINITE = "The model computed numbers that are not finite for this request, so it was given up."
# Two-level cumulative sums: one partial sum for this many tokens.
_BLOCK = 256
# Below this a temperature is greedy in all but name, and dividing by it would overflow.
_COLDEST = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """One token to draw. Several may use one row of logits (the `n` replies of a prompt).

    Attributes:
        params: of the request.
        logits_row: which row of the logits.
        prompt_ids: the prompt, int32[...]; read only if there are penalties.
        output_ids: the reply so far, int32[...]; its length is the place of the token to draw.
        seed: of this reply; resolved, never None, any integer (taken modulo 2**64).
        mask: which tokens may be drawn, one bit each, the lowest bit of a word first: int32[ceil(vocab_size / 32)];
            None for all. It acts after the penalties and before everything else.
    """

    params: SamplingParams
    logits_row: int
    prompt_ids: Tokens
    output_ids: Tokens
    seed: int
    mask: Tokens | None = None


class Sampled(NamedTuple):
    """The token drawn; or, if `error` is set, why none could be (`token_id` is then -1)."""

    token_id: int
    logprobs: PositionLogprobs | None = None
    error: str | None = None


def sample(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[Sampled]:
    """Draws one token for every row.

    A row whose logits are not finite gets an error of its own and leaves the others alone.

    Args:
        logits: (num_logits_rows, vocab_size), any float type and device. Not changed.
        rows: what to draw; the result has the same order.
    """
    greedy = _most_likely(logits) if any(map(_is_plain_greedy, rows)) else []
    others = sorted({row.logits_row for row in rows if not _is_plain_greedy(row)})
    on_host = dict(zip(others, logits[others].to("cpu", torch.float32).numpy(), strict=True)) if others else {}
    return [
        greedy[row.logits_row] if _is_plain_greedy(row) else _sample_row(on_host[row.logits_row], row) for row in rows
    ]


def token_logprobs(logits: torch.Tensor, token_ids: Tokens) -> list[float]:
    """The log-probability of one given token for each row, before temperature and penalties.

    Args:
        logits: (rows, vocab_size), any float type and device. Not changed.
        token_ids: int32[rows].

    Returns:
        As many numbers; NaN where the row's logits are not finite.
    """
    wanted = torch.from_numpy(token_ids.astype(np.int64)).to(logits.device)
    chosen = logits.gather(1, wanted[:, None])[:, 0].float()
    values: list[float] = (chosen - torch.logsumexp(logits.float(), dim=-1)).tolist()
    return values


def _is_plain_greedy(row: SampleRow) -> bool:
    params = row.params
    return params.greedy and params.logprobs is None and row.mask is None and not _has_penalties(params)


def _has_penalties(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def _most_likely(logits: torch.Tensor) -> list[Sampled]:
    if logits.device.type == "cpu":  # numpy's argmax takes a tenth of the time of torch's
        host: Floats = logits.to(torch.float32).numpy()
        token_ids = host.argmax(axis=-1)
        best = host[np.arange(len(host)), token_ids]
    else:
        on_device = logits.argmax(dim=-1)
        token_ids = on_device.cpu().numpy()
        best = logits.gather(1, on_device[:, None])[:, 0].float().cpu().numpy()
    # Both take the lowest id of equals, and the place of a NaN where there is one.
    finite = np.isfinite(best).tolist()
    return [Sampled(i) if ok else _NOT_FINITE for i, ok in zip(token_ids.tolist(), finite, strict=True)]


def _sample_row(logits: Floats, row: SampleRow) -> Sampled:
    if not np.isfinite(logits.max()):
        return _NOT_FINITE
    params = row.params
    penalized = _penalize(logits, row) if _has_penalties(params) else logits
    if row.mask is not None:
        penalized = _masked(penalized, row.mask)
        if penalized.max() == -np.inf:
            return _NOTHING_ALLOWED
    token_id = (
        int(penalized.argmax()) if params.greedy else _draw(penalized, params, uniform(row.seed, len(row.output_ids)))
    )
    logprobs = None if params.logprobs is None else _logprobs(logits, token_id, params.logprobs)
    return Sampled(token_id, logprobs)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on seed and position only (Philox 4x64, Salmon et al., SC 2011)."""
    generator = np.random.Philox(key=seed % 2**64, counter=position)
    return float(int(generator.random_raw()) >> 11) * 2.0**-53


def _penalize(logits: Floats, row: SampleRow) -> Floats:
    """A copy of the logits with penalties applied: repetition as in CTRL (Keskar et al., 2019), then OpenAI's two."""
    params, penalized = row.params, logits.copy()
    if params.repetition_penalty != 1.0:
        seen = np.zeros(len(logits), bool)
        seen[row.prompt_ids] = seen[row.output_ids] = True
        factor = np.float32(params.repetition_penalty)
        values = penalized[seen]
        penalized[seen] = np.where(values > 0, values / factor, values * factor)
    if params.presence_penalty or params.frequency_penalty:
        times = np.bincount(row.output_ids, minlength=len(logits)).astype(np.float32)
        penalized -= np.float32(params.frequency_penalty) * times + np.float32(params.presence_penalty) * (times > 0)
    return penalized


def _masked(logits: Floats, mask: Tokens) -> Floats:
    """The logits, without those of tokens whose bit is not set."""
    allowed = np.unpackbits(mask.view(np.uint8), count=len(logits), bitorder="little").view(bool)
    return np.where(allowed, logits, np.float32(-np.inf))


def _draw(logits: Floats, params: SamplingParams, u: float) -> int:
    """The token at which the cumulative probability, in the order of token ids, passes `u`.

    That order makes the draw steady: logits that differ in their last bits move the bounds between tokens by as little,
    where an order by probability could swap two tokens.
    """
    with np.errstate(over="ignore", under="ignore"):
        weights = np.exp((logits - logits.max()) / np.float32(max(params.temperature, _COLDEST)))
    kept = _kept(weights, params)
    if kept is None:
        return _draw_from_all(weights, u)
    return int(kept[_passes(np.cumsum(weights[kept], dtype=np.float64), u)])


def _draw_from_all(weights: Floats, u: float) -> int:
    """Inverse CDF by two levels: first the block of tokens, then the token in it."""
    starts = np.arange(0, len(weights), _BLOCK)
    sums = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
    block = _passes(sums, u)
    before = sums[block - 1] if block else 0.0
    inside = np.cumsum(weights[starts[block] : starts[block] + _BLOCK], dtype=np.float64)
    at = int(np.searchsorted(inside, u * sums[-1] - before, side="right"))
    return int(starts[block]) + min(at, _last_rise(inside))


def _passes(cumulative: NDArray[np.float64], u: float) -> int:
    """First index whose cumulative weight is above `u` of the total; never one that adds no weight."""
    at = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
    return min(at, _last_rise(cumulative))


def _last_rise(cumulative: NDArray[np.float64]) -> int:
    """Where the cumulative sum reaches its final value."""
    return int(np.searchsorted(cumulative, cumulative[-1], side="left"))


def _kept(weights: Floats, params: SamplingParams) -> Ids | None:
    """Ids that top-k, top-p and min-p leave, ascending; None for all.

    Each is taken of the distribution that the one before left. Tokens rank by weight, ties by lower id first.
    """
    kept: Ids | None = None
    if 0 < params.top_k < len(weights):
        kept = _largest(weights, params.top_k)
    if params.top_p < 1.0:
        kept = _nucleus(weights, kept, params.top_p)
    if params.min_p > 0.0:
        kept = np.arange(len(weights)) if kept is None else kept
        kept = kept[weights[kept] >= np.float32(params.min_p)]  # the largest weight is 1
    return None if kept is None else _ascending(kept, len(weights))


def _ascending(ids: Ids, vocab_size: int) -> Ids:
    """Distinct ids in order; faster than sorting when there are many."""
    present = np.zeros(vocab_size, bool)
    present[ids] = True
    return np.flatnonzero(present)


def _largest(weights: Floats, count: int) -> Ids:
    """Ids of the `count` largest weights, largest first, ties by lower id."""
    bound = np.partition(weights, len(weights) - count)[len(weights) - count]
    candidates = np.flatnonzero(weights >= bound)
    return candidates[np.argsort(-weights[candidates], kind="stable")][:count]


def _nucleus(weights: Floats, kept: Ids | None, top_p: float) -> Ids:
    """The smallest set of largest weights whose share reaches `top_p` (Holtzman et al., 2020).

    Sorting the vocabulary takes milliseconds. Instead tokens are counted into buckets by the upper half of their
    weight's bits, which rise with the weight, and only the bucket where the share is reached is sorted.
    """
    kept = np.arange(len(weights)) if kept is None else kept
    values = weights[kept]
    buckets = values.view(np.uint32) >> 16
    mass_from_top = np.cumsum(np.bincount(buckets, weights=values)[::-1])
    target = top_p * mass_from_top[-1]
    crossing = int(np.searchsorted(mass_from_top, target))
    needed = target - (mass_from_top[crossing - 1] if crossing else 0.0)
    bucket = len(mass_from_top) - 1 - crossing
    inside = np.flatnonzero(buckets == bucket)
    ranked = inside[np.argsort(-values[inside], kind="stable")]
    count = int(np.searchsorted(np.cumsum(values[ranked], dtype=np.float64), needed)) + 1
    return np.concatenate([kept[buckets > bucket], kept[ranked[:count]]])


def _logprobs(logits: Floats, chosen: int, count: int) -> PositionLogprobs:
    peak = logits.max()
    log_total = float(peak) + float(np.log(np.exp(logits - peak).sum(dtype=np.float64)))
    top = _largest(logits, count) if count else ()
    return PositionLogprobs(
        chosen=TokenLogprob(chosen, float(logits[chosen]) - log_total),
        top=tuple(TokenLogprob(int(i), float(logits[i]) - log_total) for i in top),
    )


_NOT_FINITE = Sampled(-1, error=NOT_FINITE)
_NOTHING_ALLOWED = Sampled(-1, error="No token can follow in the grammar of this request, so it was given up.")
