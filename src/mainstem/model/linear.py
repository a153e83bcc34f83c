"""Linear layers whose weights lie in the form that the CPU's matrix product wants.

oneDNN reorders a weight once; afterwards products with few rows are about twice as fast as PyTorch's own, products with
many rows slightly faster, and a row's result does not depend on how many other rows are computed with it.
It knows modules, not models.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# The row count that oneDNN is told to expect; the reordered form is the same for any.
_EXPECTED_ROWS = 512


class PrepackedLinear(nn.Module):
    """`nn.Linear` in float32 for CPUs, holding only the reordered weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _EXPECTED_ROWS)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().clone())
        self.bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """(…, in_features) to (…, out_features)."""
        if x.numel() == 0:
            return x.new_empty(*x.shape[:-1], self.out_features)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self.bias, "none", [], "")
        return out


def can_prepack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this build of PyTorch can prepack linear layers of this kind."""
    return (
        dtype == torch.float32
        and device.type == "cpu"
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def prepack_linears(module: nn.Module) -> int:
    """Replace every `nn.Linear` below `module` in place; returns how many.

    A weight that is tied to the embedding stays with the embedding too.
    """
    replaced = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, PrepackedLinear(child))
                replaced += 1
    return replaced
