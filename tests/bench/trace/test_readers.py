"""What the readers make of files, good and bad."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mainstem.bench.trace import BlockTrace, read_traces
from mainstem.errors import TraceError


def _lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _request(tokens: int, *ids: int, at: int = 0) -> dict[str, Any]:
    return {"timestamp": at, "input_length": tokens, "output_length": 9, "hash_ids": list(ids)}


def _session(path: Path, *requests: dict[str, Any], **fields: Any) -> Path:
    session = {"id": path.stem, "block_size": 64, "hash_id_scope": "local", "requests": list(requests), **fields}
    path.write_text(json.dumps(session), encoding="utf-8")
    return path


def _turn(at: float, *ids: int, model: str = "a") -> dict[str, Any]:
    return {"t": at, "type": "n", "model": model, "in": 64 * len(ids) + 1, "out": 5, "hash_ids": list(ids)}


def _blocks(trace: BlockTrace) -> list[list[int]]:
    return [request.blocks.tolist() for request in trace.requests]


def test_mooncake_lines_become_requests_of_numbered_blocks(tmp_path: Path) -> None:
    trace = read_traces([_lines(tmp_path / "a", _request(1500, 70, 50, 30), _request(1024, 70, 90))])
    assert _blocks(trace) == [[0, 1, 2], [0, 3]]
    assert [request.tokens for request in trace.requests] == [1500, 1024]
    assert (trace.block_size, trace.distinct, trace.references, trace.longest) == (512, 4, 5, 3)


def test_requests_are_ordered_by_time_and_equal_times_by_place(tmp_path: Path) -> None:
    rows = (_request(512, 7, at=20), _request(512, 8, at=10), _request(512, 9, at=10))
    trace = read_traces([_lines(tmp_path / "a", *rows)])
    assert _blocks(trace) == [[0], [1], [2]]
    assert _blocks(read_traces([_lines(tmp_path / "b", rows[1], rows[2], rows[0], rows[2])])) == [[0], [1], [1], [2]]


def test_a_block_is_its_whole_prefix_even_where_files_hash_its_content_alone(tmp_path: Path) -> None:
    trace = read_traces([_lines(tmp_path / "a", _request(1024, 1, 2), _request(1024, 3, 2), _request(512, 2))])
    assert _blocks(trace) == [[0, 1], [2, 3], [4]]


def test_the_last_block_of_a_prompt_has_the_tokens_that_are_left(tmp_path: Path) -> None:
    trace = read_traces([_lines(tmp_path / "a", _request(700, 1, 2))])
    assert [trace.tokens_in(blocks, trace.requests[0]) for blocks in (0, 1, 2)] == [0, 512, 700]


def test_another_block_size_can_be_given(tmp_path: Path) -> None:
    path = _lines(tmp_path / "a", _request(40, 1, 2, 3))
    assert read_traces([path], block_size=16).block_size == 16
    with pytest.raises(TraceError, match=r"line 1: a prompt of 40 tokens has not 3 blocks of 512; .* --block-size"):
        read_traces([path])


def test_a_sub_agents_requests_are_between_those_of_its_parent(tmp_path: Path) -> None:
    agent = {"t": 5.0, "type": "subagent", "requests": [_turn(0.0, 8), _turn(10.0, 8, 9)]}
    trace = read_traces([_session(tmp_path / "a", _turn(0.0, 1), agent, _turn(7.0, 1, 2))])
    assert _blocks(trace) == [[0], [1], [0, 2], [1, 3]]


def test_models_of_one_session_share_no_blocks(tmp_path: Path) -> None:
    trace = read_traces([_session(tmp_path / "a", _turn(0, 1, 2), _turn(1, 1, 2, model="b"), _turn(2, 1, 2))])
    assert _blocks(trace) == [[0, 1], [2, 3], [0, 1]]


def test_identities_hold_within_a_file_unless_it_says_that_they_are_global(tmp_path: Path) -> None:
    local = [_session(tmp_path / name, _turn(0, 1)) for name in "ab"]
    assert _blocks(read_traces(local)) == [[0], [1]]
    shared = [_session(tmp_path / name, _turn(0, 1), hash_id_scope="global") for name in "ab"]
    assert _blocks(read_traces(shared)) == [[0], [0]]


def test_several_files_start_together(tmp_path: Path) -> None:
    files = [
        _session(tmp_path / "a", _turn(0, 1), _turn(10, 1, 2)),
        _session(tmp_path / "b", _turn(0, 1), _turn(5, 1, 2)),
    ]
    assert _blocks(read_traces(files)) == [[0], [1], [1, 2], [0, 3]]


def test_files_of_two_block_sizes_do_not_mix(tmp_path: Path) -> None:
    files = [_session(tmp_path / "a", _turn(0, 1)), _lines(tmp_path / "b", _request(512, 1))]
    with pytest.raises(TraceError, match=r"b has blocks of 512 tokens and .*a of 64"):
        read_traces(files)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "neither JSON nor JSON lines"),
        ("=== record 1 ===\n{}", "neither JSON nor JSON lines"),
        ('{"messages": []}', "is no hash trace"),
        ("[]", "is no hash trace"),
        ("3", "is no hash trace"),
        ('{"prefix_tokens": 4, "input_tokens_total": 9}', "does not say which blocks they are"),
        ('[{"prefix_tokens": 4}]', "does not say which blocks they are"),
        ('{"timestamp": 0, "input_length": 512, "hash_ids": [1]}\n{"timest', "line 2: not a JSON object, perhaps cut"),
        ('{"timestamp": 0, "input_length": 512, "hash_ids": [1]}\n[1]', "line 2: a request must be a JSON object"),
        ('{"input_length": 512, "hash_ids": [1]}', "line 1: timestamp must be a number, got null"),
        ('{"timestamp": NaN, "input_length": 512, "hash_ids": [1]}', "line 1: timestamp must be a number, got nan"),
        ('{"timestamp": 0, "input_length": -1, "hash_ids": [1]}', "line 1: input_length must be a whole number"),
        ('{"timestamp": 0, "input_length": 512, "hash_ids": ["x"]}', "line 1: hash_ids must be a list of whole"),
        ('{"timestamp": 0, "input_length": 512, "hash_ids": 1}', "line 1: hash_ids must be a list of whole"),
        ('{"timestamp": 0, "input_length": 5, "hash_ids": []}', "no prompt in .* has a whole block"),
        ('{"block_size": 64, "requests": []}', "has no requests"),
        ('{"block_size": 0, "requests": []}', "block_size must be at least 1"),
        ('{"block_size": 64, "requests": 5}', "requests must be a list"),
        ('{"block_size": 64, "requests": [5]}', "request 1: a request must be a JSON object"),
        (
            '{"block_size": 64, "requests": [{"t": 0, "requests": [{"t": 0, "in": 64, "hash_ids": null}]}]}',
            "request 1, request 1: hash_ids must be a list",
        ),
    ],
)
def test_a_bad_file_is_refused_with_the_place_and_the_reason(content: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(TraceError, match=complaint) as refused:
        read_traces([path])
    assert str(path) in str(refused.value)


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot read .*gone: No such file"):
        read_traces([tmp_path / "gone"])
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="binary is not a text file"):
        read_traces([tmp_path / "binary"])
