"""Attention in native code, for CPUs: an optional extension, built when a C compiler is there at installation.

`segments.c` holds the arithmetic and says what it guarantees; `tasks` cuts a step's plan into work for threads;
`build` compiles the extension and `library` loads it; `attention` calls it layer by layer.
"""

from mainstem.attention.native.attention import NativeStepAttention
from mainstem.attention.native.library import NativeLibrary, native_library

__all__ = ["NativeLibrary", "NativeStepAttention", "native_library"]
