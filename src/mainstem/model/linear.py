"""Linear layers whose weights lie in the form that the CPU's matrix product wants.

oneDNN reorders a weight once; afterwards products with few rows are about twice as fast as PyTorch's own, products with
many rows slightly faster, and a row's result does not depend on how many other rows are computed with it. Layers that
always get the same input, such as the query, key and value projections, become one product.

It knows modules, not models.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

# The row count that oneDNN is told to expect; the reordered form is the same for any.
_EXPECTED_ROWS = 512
# Children with these names get the same input, one after the other, wherever a module has them all.
_SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class _Product:
    """The product of an input and several weights, computed for the first who asks and kept for the others."""

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        self._sizes = [linear.out_features for linear in linears]
        weight = torch.cat([linear.weight.detach() for linear in linears])
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _EXPECTED_ROWS)
        self._bias = _joint_bias(linears)
        self._input: Tensor | None = None
        self._outputs: list[Tensor | None] = []

    def output(self, x: Tensor, index: int) -> Tensor:
        """What the `index`-th linear layer makes of `x`: (…, in_features) to (…, its out_features)."""
        if self._input is not x or self._outputs[index] is None:
            self._input, self._outputs = x, list(self._compute(x))
        output = self._outputs[index]
        assert output is not None
        self._outputs[index] = None
        if not any(kept is not None for kept in self._outputs):
            self._input = None
        return output

    def _compute(self, x: Tensor) -> Sequence[Tensor]:
        if x.numel() == 0:
            return [x.new_empty(*x.shape[:-1], size) for size in self._sizes]
        out = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return [out] if len(self._sizes) == 1 else out.split(self._sizes, dim=-1)


class PrepackedLinear(nn.Module):
    """`nn.Linear` in float32 for CPUs; its weight lies, reordered, in a product that it may share with others."""

    def __init__(self, linear: nn.Linear, product: _Product, index: int) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self._product = product
        self._index = index

    def forward(self, x: Tensor) -> Tensor:
        """(…, in_features) to (…, out_features)."""
        return self._product.output(x, self._index)


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
        linears = {name: child for name, child in parent.named_children() if type(child) is nn.Linear}
        for names in _groups(linears):
            product = _Product([linears[name] for name in names])
            for index, name in enumerate(names):
                setattr(parent, name, PrepackedLinear(linears[name], product, index))
                replaced += 1
    return replaced


def _groups(linears: dict[str, nn.Linear]) -> list[tuple[str, ...]]:
    """The names of a module's linear children, those together that get the same input."""
    groups = [
        names
        for names in _SIBLINGS
        if all(name in linears for name in names) and len({linears[name].in_features for name in names}) == 1
    ]
    grouped = {name for names in groups for name in names}
    return groups + [(name,) for name in linears if name not in grouped]


def _joint_bias(linears: Sequence[nn.Linear]) -> Tensor | None:
    if all(linear.bias is None for linear in linears):
        return None
    return torch.cat(
        [
            linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias.detach()
            for linear in linears
        ]
    )
