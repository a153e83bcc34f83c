"""Linear layers whose weights lie in the form that the CPU's matrix product wants.

A weight is packed once; afterwards products with few rows are two to three times as fast as PyTorch's own, products
with many rows slightly faster, and a row's result does not depend on how many other rows are computed with it. Layers
that always get the same input, such as the query, key and value projections, become one product. The native extension
does the products where it was built, oneDNN elsewhere.

It knows modules, not models.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from mainstem.model.blocks import BlockPanels, blocks_of, joined
from mainstem.native import WEIGHT_BLOCKS, WEIGHT_DTYPES, LinearWork, NativeLibrary, native_library

# The row count that oneDNN is told to expect; the reordered form is the same for any.
_EXPECTED_ROWS = 512
# Children with these names get the same input, one after the other, wherever a module has them all.
_SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class Product(ABC):
    """The product of an input and several weights, computed for the first who asks and kept for the others.

    Args:
        linears: float32 layers on a CPU with the same input size.

    Attributes:
        num_bytes: memory that the weights take.
    """

    num_bytes: int

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        self._sizes = [linear.out_features for linear in linears]
        self._input: Tensor | None = None
        self._outputs: list[Tensor | None] = []

    def output(self, x: Tensor, index: int) -> Tensor:
        """What the `index`-th linear layer makes of `x`: (…, in_features) to (…, its out_features)."""
        if self._input is not x or self._outputs[index] is None:
            self._input, self._outputs = x, list(self._split(x))
        output = self._outputs[index]
        assert output is not None
        self._outputs[index] = None
        if not any(kept is not None for kept in self._outputs):
            self._input = None
        return output

    def _split(self, x: Tensor) -> Sequence[Tensor]:
        if x.numel() == 0:
            return [x.new_empty(*x.shape[:-1], size) for size in self._sizes]
        out = self._compute(x)
        return [out] if len(self._sizes) == 1 else torch.split(out, self._sizes, dim=-1)

    @abstractmethod
    def _compute(self, x: Tensor) -> Tensor:
        """The outputs of all layers side by side."""


class OneDnnProduct(Product):
    """A product by oneDNN, over its own reordered form of the weights."""

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        super().__init__(linears)
        weight = _joint_weight(linears)
        self.num_bytes = weight.numel() * weight.element_size()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _EXPECTED_ROWS)
        self._bias = _joint_bias(linears)

    def _compute(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return out


class NativeProduct(Product):
    """A product by the native extension, over panels of weights.

    Args:
        linears: see `Product`; their weights may be in blocks.
        library: the extension.
        dtype: what the weights are kept in, int8 with a scale for each output; sums are float32. None keeps them in
            the fewest bits that hold the same numbers: in blocks, if they are, or in 16 bits, if these are exact.
        instruction_set: which of the library's to use; the fastest if None.

    Attributes:
        in_features: numbers a row of input.
        num_outputs: numbers a row of output, of all layers together.
        kept: what the weights are kept in: a number type, or blocks by their name.
    """

    def __init__(
        self,
        linears: Sequence[nn.Linear],
        library: NativeLibrary,
        *,
        dtype: torch.dtype | None = torch.float32,
        instruction_set: int | None = None,
    ) -> None:
        super().__init__(linears)
        self._library = library
        self._scale: Tensor | None = None
        self._panels = _block_panels(linears, library.panel) if dtype is None else None
        self.kept: torch.dtype | str
        if self._panels is not None:
            self.kept, self._weight = self._panels.kind, self._panels.data
        else:
            weight = _joint_weight(linears)
            self.kept = dtype or _narrowest(weight)
            if self.kept == torch.int8:
                weight, scale = _in_bytes(weight)
                self._scale = nn.functional.pad(scale, (0, -len(scale) % library.panel))
            self._weight = _panels(weight.to(self.kept), library.panel)
        self.in_features = linears[0].in_features
        self.num_outputs = sum(self._sizes)
        self.num_bytes = self._weight.numel() * self._weight.element_size()
        self._bias = torch.zeros(self._weight.shape[0] * library.panel)
        bias = _joint_bias(linears)
        if bias is not None:
            self._bias[: len(bias)] = bias
        self._work = LinearWork(
            weights=self._weight.data_ptr(),
            bias=self._bias.data_ptr(),
            inputs=self.in_features,
            outputs=self.num_outputs,
            scale=None if self._scale is None else self._scale.data_ptr(),
            dtype=WEIGHT_DTYPES[self.kept] if isinstance(self.kept, torch.dtype) else WEIGHT_BLOCKS[self.kept],
            instruction_set=library.fastest if instruction_set is None else instruction_set,
        )

    def rows(self, ids: Tensor) -> Tensor:
        """The weights of outputs by their numbers, int64[n], as floats: (n, in_features); not for int8."""
        if self._panels is not None:
            return self._panels.rows(ids)
        panel = self._library.panel
        return self._weight[ids // panel, :, ids % panel].float()

    def _compute(self, x: Tensor) -> Tensor:
        out = torch.empty(*x.shape[:-1], self.num_outputs)
        self.compute(x.contiguous(), out)
        return out

    def compute(self, x: Tensor, out: Tensor) -> None:
        """Write the outputs of all layers side by side; both are contiguous, `in_features` and `num_outputs` a row."""
        work = self._work
        work.x, work.y = x.data_ptr(), out.data_ptr()
        work.rows, work.threads = x.numel() // self.in_features, torch.get_num_threads()
        workspace = None
        if work.rows > 1 and self.kept != torch.float32:
            workspace = torch.empty(work.threads * self.in_features * self._library.panel)
            work.workspace = workspace.data_ptr()
        self._library.linear(work)


class PackedLinear(nn.Module):
    """`nn.Linear` in float32 for CPUs; its weight lies, packed, in a product that it may share with others.

    Attributes:
        product: the product.
    """

    def __init__(self, linear: nn.Linear, product: Product, index: int) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.product = product
        self._index = index

    def forward(self, x: Tensor) -> Tensor:
        """(…, in_features) to (…, out_features)."""
        return self.product.output(x, self._index)


def pack_linears(
    module: nn.Module,
    *,
    dtype: torch.dtype,
    device: torch.device,
    kernels: str = "auto",
    weights: torch.dtype | None = torch.float32,
) -> int:
    """Replace every `nn.Linear` below `module` in place, if this can be done for its dtype and device.

    A weight that is tied to the embedding stays with the embedding too.

    Args:
        module: a model.
        dtype: of its weights.
        device: where they are.
        kernels: "native" for the extension, "torch" for oneDNN as PyTorch has it, "auto" for the best that is there.
        weights: what the extension keeps them in, see `NativeProduct`.

    Returns:
        How many layers were replaced.
    """
    make = _product_for(dtype, device, kernels, weights)
    return 0 if make is None else _replace_linears(module, make)


def has_onednn() -> bool:
    """Whether this build of PyTorch can prepack linear layers."""
    return (
        torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def _product_for(
    dtype: torch.dtype, device: torch.device, kernels: str, weights: torch.dtype | None
) -> Callable[[Sequence[nn.Linear]], Product] | None:
    library = native_library()
    if dtype != torch.float32 or device.type != "cpu":
        return None
    if library is not None and kernels != "torch":
        return partial(NativeProduct, library=library, dtype=weights)
    return OneDnnProduct if has_onednn() else None


def _replace_linears(module: nn.Module, make: Callable[[Sequence[nn.Linear]], Product]) -> int:
    replaced = 0
    for parent in list(module.modules()):
        linears = {name: child for name, child in parent.named_children() if type(child) is nn.Linear}
        for names in _groups(linears):
            product = make([linears[name] for name in names])
            for index, name in enumerate(names):
                setattr(parent, name, PackedLinear(linears[name], product, index))
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


def _weight_of(linear: nn.Linear) -> Tensor:
    blocks = blocks_of(linear)
    return linear.weight.detach() if blocks is None else blocks.floats()


def _joint_weight(linears: Sequence[nn.Linear]) -> Tensor:
    return torch.cat([_weight_of(linear) for linear in linears])


def _block_panels(linears: Sequence[nn.Linear], panel: int) -> BlockPanels | None:
    """The weights in blocks, if all of them are, in the same."""
    blocks = [found for linear in linears if (found := blocks_of(linear)) is not None]
    if len(blocks) < len(linears) or len({part.kind for part in blocks}) > 1:
        return None
    return BlockPanels.of(joined(blocks), panel)


def _narrowest(weight: Tensor) -> torch.dtype:
    """The number type of the fewest bits that holds a weight's numbers exactly."""
    for number in (torch.bfloat16, torch.float16):
        if all(torch.equal(part.to(number).float(), part) for part in (weight[:1], weight)):
            return number
    return torch.float32


def _joint_bias(linears: Sequence[nn.Linear]) -> Tensor | None:
    if all(linear.bias is None for linear in linears):
        return None
    return torch.cat(
        [torch.zeros(linear.out_features) if linear.bias is None else linear.bias.detach() for linear in linears]
    )


def _in_bytes(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers from -127 to 127 for each output, (outputs, inputs), and what they are to be multiplied with."""
    scale = weight.abs().amax(dim=1) / 127
    return torch.round(weight / scale.clamp_min(torch.finfo(torch.float32).tiny)[:, None]), scale


def _panels(weight: Tensor, panel: int) -> Tensor:
    """(outputs, inputs) to (panels, inputs, panel), with zeros for the outputs that are missing in the last panel."""
    outputs, inputs = weight.shape
    count = -(-outputs // panel)
    padded = nn.functional.pad(weight, (0, 0, 0, count * panel - outputs))
    return padded.view(count, panel, inputs).transpose(1, 2).contiguous()
