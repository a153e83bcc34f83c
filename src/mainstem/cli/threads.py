"""How the threads that compute wait for one another, which must be settled before torch is imported."""

from __future__ import annotations

import os


def wait_without_spinning() -> None:
    """Leave the cores to others between two pieces of work, unless the user chose otherwise.

    A spinning thread is up to a fifth faster on an idle machine and many times slower on a busy one, which is where
    commands that are typed by hand run. See docs/log.md.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
