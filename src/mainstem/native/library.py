"""Loads the native extension.

It is called through ctypes, so that it needs no Python headers and serves any Python. It knows nothing of plans.
"""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from pathlib import Path

import torch  # also loads the OpenMP runtime that the extension shares with it

from mainstem.native import build

LIBRARY = build.LIBRARY
logger = logging.getLogger(__name__)

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
"""The numbers that keys and values may be kept in, as native.c names them; all arithmetic is in float32."""
WEIGHT_DTYPES = {**DTYPES, torch.int8: 3}
"""Those of weights."""
WEIGHT_BLOCKS = {"Q4_1": 4, "Q8_0": 5}
"""Blocks of weights, as GGUF names them."""


class AttentionWork(ctypes.Structure):
    """The `AttentionWork` of native.c: one layer's attention."""

    _fields_ = (
        ("q", ctypes.c_void_p),
        ("q_row_stride", ctypes.c_int64),
        ("q_head_stride", ctypes.c_int64),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("kv_head_stride", ctypes.c_int64),
        ("out", ctypes.c_void_p),
        ("pieces", ctypes.c_void_p),
        ("tasks", ctypes.c_void_p),
        ("limits", ctypes.c_void_p),
        ("merged_rows", ctypes.c_void_p),
        ("states_at", ctypes.c_void_p),
        ("states", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_stride", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("dtype", ctypes.c_int32),
        ("kv_heads", ctypes.c_int32),
        ("group", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("num_tasks", ctypes.c_int32),
        ("num_merged", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("instruction_set", ctypes.c_int32),
        ("next_task", ctypes.c_int32),
        ("next_merge", ctypes.c_int32),
    )


class LinearWork(ctypes.Structure):
    """The `LinearWork` of native.c: one linear layer."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("dtype", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("instruction_set", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("next_panel", ctypes.c_int64),
    )


class _RowWork(ctypes.Structure):
    """The `RowWork` of native.c: what work that is done row by row begins with."""

    _fields_ = (
        ("rows", ctypes.c_int64),
        ("next_row", ctypes.c_int64),
        ("threads", ctypes.c_int32),
        ("instruction_set", ctypes.c_int32),
    )


class NormWork(ctypes.Structure):
    """The `NormWork` of native.c: add, then normalise by the root mean square."""

    _anonymous_ = ("work",)
    _fields_ = (
        ("work", _RowWork),
        ("x", ctypes.c_void_p),
        ("added", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("width", ctypes.c_int64),
        ("epsilon", ctypes.c_float),
    )


class RotateWork(ctypes.Structure):
    """The `RotateWork` of native.c: rotate queries and keys by their positions, put keys and values into slots."""

    _anonymous_ = ("work",)
    _fields_ = (
        ("work", _RowWork),
        ("qkv", ctypes.c_void_p),
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("q_weight", ctypes.c_void_p),
        ("k_weight", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("q", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("kv_head_stride", ctypes.c_int64),
        ("heads", ctypes.c_int32),
        ("kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("epsilon", ctypes.c_float),
        ("unused", ctypes.c_int32),
    )


class GateWork(ctypes.Structure):
    """The `GateWork` of native.c: silu(gate) * up."""

    _anonymous_ = ("work",)
    _fields_ = (
        ("work", _RowWork),
        ("gate_up", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("width", ctypes.c_int64),
    )


class NativeLibrary:
    """The loaded extension.

    Attributes:
        instruction_sets: those of this processor, from the slowest to the fastest; work names one by its index.
        block: keys whose scores are computed together; a piece of work begins at a multiple of this.
        span: keys of one partial result, a multiple of `block`.
        rows: rows that are computed together.
        panel: outputs of a linear layer whose weights lie together.
    """

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        library.mainstem_instruction_set.restype = ctypes.c_char_p
        library.mainstem_state_floats.restype = ctypes.c_int64
        library.mainstem_state_floats.argtypes = [ctypes.c_int64] * 2
        library.mainstem_workspace_floats.restype = ctypes.c_int64
        library.mainstem_workspace_floats.argtypes = [ctypes.c_int64] * 3
        for name, work in (
            ("attend", AttentionWork),
            ("linear", LinearWork),
            ("norm", NormWork),
            ("rotate", RotateWork),
            ("gate", GateWork),
        ):
            function = getattr(library, f"mainstem_{name}")
            function.argtypes, function.restype = [ctypes.POINTER(work)], None
        names = [library.mainstem_instruction_set(index) for index in range(3)]
        self.instruction_sets = tuple(name.decode() for name in names if name is not None)
        self.block: int = library.mainstem_block()
        self.span: int = library.mainstem_span()
        self.rows: int = library.mainstem_rows()
        self.panel: int = library.mainstem_panel()
        self._library = library

    @property
    def fastest(self) -> int:
        """Index of the fastest instruction set."""
        return len(self.instruction_sets) - 1

    def state_floats(self, head_dim: int, group: int) -> int:
        """Floats that keep the partial result of one row and KV head, whose queries are `group` heads."""
        return int(self._library.mainstem_state_floats(head_dim, group))

    def workspace_floats(self, head_dim: int, group: int, rows: int) -> int:
        """Floats that a thread needs for pieces of at most `rows` rows."""
        return int(self._library.mainstem_workspace_floats(head_dim, group, rows))

    def attend(self, work: AttentionWork) -> None:
        """Compute one layer's attention; every address in `work` must be valid."""
        self._library.mainstem_attend(ctypes.byref(work))

    def linear(self, work: LinearWork) -> None:
        """Compute a linear layer; every address in `work` must be valid."""
        self._library.mainstem_linear(ctypes.byref(work))

    def norm(self, work: NormWork) -> None:
        """Add and normalise; every address in `work` must be valid."""
        self._library.mainstem_norm(ctypes.byref(work))

    def rotate(self, work: RotateWork) -> None:
        """Rotate queries and keys, store keys and values; every address in `work` must be valid."""
        self._library.mainstem_rotate(ctypes.byref(work))

    def gate(self, work: GateWork) -> None:
        """Gate by SiLU; every address in `work` must be valid."""
        self._library.mainstem_gate(ctypes.byref(work))


@cache
def native_library() -> NativeLibrary | None:
    """The extension; None if it was not built or cannot be loaded here.

    One that was built from other sources than those that lie here is built again: after an update its memory layouts
    may be others.
    """
    try:
        if LIBRARY == build.LIBRARY and not build.is_current():
            logger.warning("The native extension was built from other sources; building it again")
            if (reason := build.build()) is not None:
                logger.warning("The native extension cannot be built, PyTorch's operators are used instead: %s", reason)
        return NativeLibrary(LIBRARY)
    except OSError:
        return None
