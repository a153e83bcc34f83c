"""`python -m mainstem.native` builds the extension, for those who got a compiler after they installed mainstem."""

from __future__ import annotations

import sys

from mainstem.native.build import build

reason = build()
if reason is not None:
    sys.exit(f"The native extension could not be built: {reason}")
