"""A loaded model's weights, moved into the form that steps read.

Linear layers are packed; an embedding that is tied to the output layer is looked up in what that layer keeps, so that
there is one copy of both. It knows modules and number types, no KV memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol

from torch import Tensor, nn

from mainstem.model.blocks import Blocks, blocks_of, fill_in
from mainstem.model.linear import NativeProduct, PackedLinear, Product, pack_linears
from mainstem.model.loading import LoadedModel
from mainstem.model.precision import Precision, number_name


class _Rows(Protocol):
    """What keeps a matrix."""

    def rows(self, ids: Tensor) -> Tensor:
        """Rows by their numbers, int64[n], as floats: (n, width)."""
        ...


class LookUp(nn.Module):
    """`nn.Embedding` in float32 over a matrix in another form.

    Attributes:
        num_bytes: memory that the matrix takes, beside what is counted elsewhere.
    """

    def __init__(self, matrix: _Rows, num_bytes: int = 0) -> None:
        super().__init__()
        self._matrix = matrix
        self.num_bytes = num_bytes

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids of any shape to (…, width)."""
        rows = self._matrix.rows(ids.flatten())
        return rows.view(*ids.shape, rows.shape[1])


def pack(loaded: LoadedModel, precision: Precision, kernels: str) -> LoadedModel:
    """Pack a model's weights in place.

    Args:
        loaded: the model; its weights may be in blocks.
        precision: the numbers that weights and KV are to be kept in.
        kernels: see `ModelRunner`.

    Returns:
        The same module, with the sizes that it has now.
    """
    module, dtype = loaded.module, loaded.dtype
    embedding, head = _ends(module)
    tied = head is not None and embedding.weight is head.weight
    pack_linears(module, dtype=dtype, device=loaded.device, kernels=kernels, weights=precision.weights)
    _pack_embedding(module, embedding, _ends(module)[1] if tied else None, exact=precision.weights in (None, dtype))
    fill_in(module)
    _let_go_of_files(module)
    products = {part.product: None for part in module.modules() if isinstance(part, PackedLinear)}
    kept = {product.kept: None for product in products if isinstance(product, NativeProduct)} or {dtype: None}
    shape = replace(loaded.shape, kv_dtype=precision.kv, weight_bytes=_num_bytes(module, products))
    return loaded._replace(shape=shape, weights=" and ".join(number_name(number) for number in kept))


def _ends(module: nn.Module) -> tuple[Any, Any]:
    """The embedding and the output layer; modules of `transformers` are not typed."""
    model: Any = module
    return model.get_input_embeddings(), model.get_output_embeddings()


def _pack_embedding(module: Any, embedding: Any, head: Any, *, exact: bool) -> None:
    """Look tokens up in the output layer's weights, if that is tied and keeps the same numbers; else in blocks."""
    if type(embedding) is not nn.Embedding:
        return
    if exact and type(head) is PackedLinear and isinstance(head.product, NativeProduct):
        module.set_input_embeddings(LookUp(head.product))
    elif (blocks := blocks_of(embedding)) is not None and embedding.weight.is_meta:
        module.set_input_embeddings(LookUp(Blocks(blocks.kind, blocks.data.clone()), blocks.data.numel()))


def _num_bytes(module: nn.Module, products: Iterable[Product]) -> int:
    return (
        sum(product.num_bytes for product in products)
        + sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())
        + sum(part.num_bytes for part in module.modules() if isinstance(part, LookUp))
    )


def _let_go_of_files(module: nn.Module) -> None:
    """Copy what is left of the weights, so that no view of a mapped file keeps all of it in memory."""
    for parameter in module.parameters():
        parameter.data = parameter.data.clone()
