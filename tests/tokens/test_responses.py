"""Items of a Responses body become messages, in time that grows with their number."""

from __future__ import annotations

import time
from typing import Any

from mainstem.tokens.responses import MAX_CALLS, read_input


def calls(number: int) -> list[dict[str, Any]]:
    return [{"type": "function_call", "call_id": f"c{i}", "name": "f", "arguments": ""} for i in range(number)]


def test_calls_in_a_row_are_one_message_up_to_a_number() -> None:
    read = read_input(calls(MAX_CALLS + 1))
    assert [len(placed.message.tool_calls) for placed in read] == [MAX_CALLS, 1]
    assert [len(placed.calls) for placed in read] == [MAX_CALLS, 1]


def test_very_many_calls_in_a_row_are_read_in_linear_time() -> None:
    items = calls(20_000)
    began = time.perf_counter()
    read = read_input(items)
    assert time.perf_counter() - began < 8.0  # as one message they take half a minute, and gigabytes
    assert [call.id for placed in read for call in placed.message.tool_calls] == [item["call_id"] for item in items]
