"""Native code for CPUs: an optional extension, built when a C compiler is there at installation, never needed.

`native.c` says what it computes and what it guarantees; `build` compiles it and `library` loads it. It knows addresses
and sizes; nothing of plans, models or requests.
"""

from mainstem.native.library import (
    DTYPES,
    WEIGHT_BLOCKS,
    WEIGHT_DTYPES,
    AttentionWork,
    GateWork,
    LinearWork,
    NativeLibrary,
    NormWork,
    RotateWork,
    native_library,
)

__all__ = [
    "DTYPES",
    "WEIGHT_BLOCKS",
    "WEIGHT_DTYPES",
    "AttentionWork",
    "GateWork",
    "LinearWork",
    "NativeLibrary",
    "NormWork",
    "RotateWork",
    "native_library",
]
