"""A history known in one piece is the one that is known part by part."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.tokens import KnownPrompt, TokenHistory, Tokenizer
from mainstem.tokens.matching import Reply
from tests.support.tiny_models import save_tiny_tokenizer
from tests.tokens.test_history import END, MEANING


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(save_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


class Said:
    """A history that is told what another is told, and asked what it is asked."""

    def __init__(self, tokenizer: Tokenizer, shortest: int, entries: int) -> None:
        self.shortest = shortest
        self.history = TokenHistory(tokenizer, max_entries=entries, max_bytes=2**40)

    def ask(self, text: str) -> KnownPrompt:
        return self.history.encode(text, meaning=MEANING)

    def remember(self, prompt: KnownPrompt, ids: list[int], text: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("mainstem.tokens.history.SHORTEST", self.shortest)
            patch.setattr("mainstem.tokens.history.LOOK_AFTER", 1)
            patch.setattr("mainstem.tokens.history.MAX_TRAILS", 2)
            self.history.remember(prompt, ids, text)

    def check(self) -> None:
        kept = self.history._entries
        assert kept.size == sum(owner.size for owner in kept._owners.values())
        assert kept.size == sum(sum(owner.entries.values()) for owner in kept._owners.values())
        nodes = [entry for entry in kept._owner_of if not isinstance(entry, Reply)]
        ended = [node.trail for node in nodes if node.trail is not None]
        begun = [trail for node in nodes for trail in node.trails]
        assert len(ended) == len(begun)
        assert set(map(id, ended)) == set(map(id, begun))
        for trail in ended:
            assert trail.node in kept
            assert trail.start in kept


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_prompts_are_the_same_with_and_without(tokenizer: Tokenizer, seed: int) -> None:
    rng = random.Random(seed)
    entries = rng.choice([5, 20, 1000])
    both = [Said(tokenizer, 1, entries), Said(tokenizer, 10**6, entries)]
    conversations = [[{"role": "user", "content": "Where?"}]]
    found = 0
    for _ in range(14):
        messages = list(rng.choice(conversations))
        if rng.random() < 0.2:
            messages[rng.randrange(len(messages))] = {"role": "user", "content": rng.choice(["edited", "Where?"])}
        text = tokenizer.render_chat(messages)
        prompts = [said.ask(text) for said in both]
        found += prompts[0].trail is not None
        assert prompts[0].ids.tolist() == prompts[1].ids.tolist()
        assert prompts[0].text == prompts[1].text
        assert prompts[0].spans == prompts[1].spans
        ids = [*(rng.randrange(3, 200) for _ in range(rng.randrange(6))), END]
        shown = tokenizer.decode(ids[:-1])
        for said, prompt in zip(both, prompts, strict=True):
            said.remember(prompt, ids, shown)
            said.check()
        assert both[0].history.stats()._replace(bytes=0) == both[1].history.stats()._replace(bytes=0)
        reply = {"role": "assistant", "content": shown}
        conversations.append([*messages, reply, {"role": "user", "content": rng.choice(["a", "b", "And?"])}])
        conversations = conversations[-4:]
    assert found or entries == 5


def test_it_is_bounded_with_the_rest(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainstem.tokens.history.SHORTEST", 1)
    monkeypatch.setattr("mainstem.tokens.history.LOOK_AFTER", 1)
    history = TokenHistory(tokenizer, max_entries=1000, max_bytes=20_000)
    for number in range(30):
        prompt = history.encode(tokenizer.render_chat([{"role": "user", "content": f"{number} " + "long " * 200}]))
        history.remember(prompt, [5, END], "reply")
        assert history.stats().bytes <= 20_000
    in_one_piece = [
        entry for entry in history._entries._owner_of if not isinstance(entry, Reply) and entry.trail is not None
    ]
    assert 0 < len(in_one_piece) < 15
