"""What the command line's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny_models import make_tiny_model


@pytest.fixture(scope="session")
def roomy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that loads and answers in an instant, with room for the demo's session."""
    return make_tiny_model(tmp_path_factory.mktemp("cli") / "roomy", max_position_embeddings=16384)
