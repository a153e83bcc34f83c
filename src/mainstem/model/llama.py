"""The forward pass of the Llama family over the native extension: a step without PyTorch's cost for every operator.

The modules, weights and rotary frequencies are those of `transformers`; only the order of calls is repeated here, for
models whose structure is exactly this one. Everything else runs `transformers`' own forward pass, which the tests hold
this one against. It knows modules and pools, not requests.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mainstem.attention import KVPool
from mainstem.attention.native_attention import NativeStepAttention
from mainstem.model.linear import NativeProduct, PackedLinear
from mainstem.native import DTYPES, GateWork, NativeLibrary, NormWork, RotateWork

MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}


class _Layer(NamedTuple):
    """What one decoder layer needs, in the order of use."""

    input_norm: NormWork
    qkv: NativeProduct
    rotate: RotateWork
    output: NativeProduct
    middle_norm: NormWork
    gate_up: NativeProduct
    down: NativeProduct


class LlamaForward:
    """A step of a model of the Llama family.

    Args:
        module: a causal language model for which `is_llama` holds, its linear layers packed for the extension.
        pool: the KV memory, on a CPU.
        library: the extension.
    """

    def __init__(self, module: nn.Module, pool: KVPool, library: NativeLibrary) -> None:
        self._library = library
        self._pool = pool
        # The modules of `transformers` are not typed.
        model: Any = module.model
        self._embedding = model.embed_tokens
        self._rotary = model.rotary_emb
        self._head = _product(module.lm_head)  # type: ignore[arg-type]
        self._final_norm = self._norm_work(model.norm)
        self._scale = model.layers[0].self_attn.scaling
        self._kv_heads, _, self._head_dim = pool.keys[0].shape
        self._heads = _product(model.layers[0].self_attn.o_proj).in_features // self._head_dim
        self._layers = [self._layer(index, layer) for index, layer in enumerate(model.layers)]
        self._works: list[Any] = [self._final_norm]
        for layer in self._layers:
            self._works += [layer.input_norm, layer.rotate, layer.middle_norm]
        self._gate = GateWork(width=self._layers[0].down.in_features, instruction_set=library.fastest)
        self._works.append(self._gate)
        self._keep = module  # its weights are pointed at

    def __call__(
        self, token_ids: Tensor, positions: Tensor, slots: Tensor, logit_rows: Tensor, attention: NativeStepAttention
    ) -> Tensor:
        """Compute a packed step; all arguments but the last are int64, one number a row or one a wanted row.

        Returns logits, float32 (len(logit_rows), vocab).
        """
        library = self._library
        x: Tensor = self._embedding(token_ids)
        rows, hidden = x.shape
        cos, sin = (part[0].contiguous() for part in self._rotary(x[None], positions[None]))
        self._set_rows(rows)
        normed = torch.empty(rows, hidden)
        first = self._layers[0]
        qkv = torch.empty(rows, first.qkv.num_outputs)
        q = torch.empty(rows, self._heads, self._head_dim)
        attended = torch.empty(rows, self._heads, self._head_dim)
        projected, added = torch.empty(rows, hidden), torch.empty(rows, hidden)
        gate_up = torch.empty(rows, first.gate_up.num_outputs)
        gated = torch.empty(rows, first.down.in_features)
        self._gate.gate_up, self._gate.y = gate_up.data_ptr(), gated.data_ptr()

        for index, layer in enumerate(self._layers):
            self._normalize(layer.input_norm, x, added if index else None, normed)
            layer.qkv.compute(normed, qkv)
            work = layer.rotate
            work.qkv, work.cos, work.sin, work.q = qkv.data_ptr(), cos.data_ptr(), sin.data_ptr(), q.data_ptr()
            work.slots = slots.data_ptr()
            library.rotate(work)
            attention.attend(index, q, attended, self._scale)
            layer.output.compute(attended, projected)
            self._normalize(layer.middle_norm, x, projected, normed)
            layer.gate_up.compute(normed, gate_up)
            library.gate(self._gate)
            layer.down.compute(gated, added)

        wanted, last = x[logit_rows], added[logit_rows]
        self._set_rows(len(logit_rows))
        logits = torch.empty(len(logit_rows), self._head.num_outputs)
        final = torch.empty_like(wanted)
        self._normalize(self._final_norm, wanted, last, final)
        self._head.compute(final, logits)
        return logits

    def _set_rows(self, rows: int) -> None:
        threads = torch.get_num_threads()
        for work in self._works:
            work.rows, work.threads = rows, threads

    def _normalize(self, work: NormWork, x: Tensor, added: Tensor | None, y: Tensor) -> None:
        work.x, work.added, work.y = x.data_ptr(), None if added is None else added.data_ptr(), y.data_ptr()
        self._library.norm(work)

    def _layer(self, index: int, layer: Any) -> _Layer:
        attention, pool = layer.self_attn, self._pool
        normed = hasattr(attention, "q_norm")
        rotate = RotateWork(
            q_weight=attention.q_norm.weight.data_ptr() if normed else None,
            k_weight=attention.k_norm.weight.data_ptr() if normed else None,
            keys=pool.keys[index].data_ptr(),
            values=pool.values[index].data_ptr(),
            kv_head_stride=pool.keys[index].stride(0),
            heads=self._heads,
            kv_heads=self._kv_heads,
            head_dim=self._head_dim,
            dtype=DTYPES[pool.keys[index].dtype],
            epsilon=attention.q_norm.variance_epsilon if normed else 0.0,
            instruction_set=self._library.fastest,
        )
        return _Layer(
            self._norm_work(layer.input_layernorm),
            _product(attention.q_proj),
            rotate,
            _product(attention.o_proj),
            self._norm_work(layer.post_attention_layernorm),
            _product(layer.mlp.gate_proj),
            _product(layer.mlp.down_proj),
        )

    def _norm_work(self, norm: Any) -> NormWork:
        return NormWork(
            weight=norm.weight.data_ptr(),
            width=len(norm.weight),
            epsilon=norm.variance_epsilon,
            instruction_set=self._library.fastest,
        )


def is_llama(module: nn.Module, pool: KVPool) -> bool:
    """Whether `LlamaForward` computes what the module's own forward pass does.

    Args:
        module: a causal language model of `transformers`, its linear layers packed or not.
        pool: its KV memory.
    """
    config: Any = module.config
    if config.model_type not in MODEL_TYPES:
        return False
    model: Any = module.model
    head_dim = pool.keys[0].shape[2]
    return (
        type(module.lm_head) is PackedLinear
        and 2 * len(model.rotary_emb.inv_freq) == head_dim
        and all(_is_llama_layer(layer) for layer in model.layers)
    )


def _is_llama_layer(layer: Any) -> bool:
    attention = _names(layer.self_attn)
    mlp = _names(layer.mlp)
    linears = [getattr(layer.self_attn, name) for name in sorted(_ATTENTION & attention)]
    linears += [getattr(layer.mlp, name) for name in sorted(_MLP - {"act_fn"} & mlp)]
    return (
        _names(layer) == _LAYER
        and attention - {"q_norm", "k_norm"} == _ATTENTION
        and mlp == _MLP
        and _is_silu(layer.mlp.act_fn)
        and all(type(linear) is PackedLinear for linear in linears)
    )


def _names(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}


def _is_silu(function: nn.Module) -> bool:
    x = torch.linspace(-4, 4, 9)
    return torch.equal(function(x), nn.functional.silu(x))


def _product(linear: PackedLinear) -> NativeProduct:
    product = linear.product
    assert isinstance(product, NativeProduct)
    return product
