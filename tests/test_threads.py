"""How long the threads that compute may spin is settled when the package is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

NAMES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


@pytest.mark.parametrize(
    ("given", "after"),
    [({}, "2000 None"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None ACTIVE"), ({"GOMP_SPINCOUNT": "5"}, "5 None")],
    ids=["neither is set", "the policy is set", "the count is set"],
)
def test_spinning_is_short_unless_the_user_chose_otherwise(given: dict[str, str], after: str) -> None:
    inherited = {name: value for name, value in os.environ.items() if name not in NAMES}
    asked = "import os, mainstem; print(os.environ.get('GOMP_SPINCOUNT'), os.environ.get('OMP_WAIT_POLICY'))"
    ran = subprocess.run(
        [sys.executable, "-c", asked], env=inherited | given, capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.strip() == after
