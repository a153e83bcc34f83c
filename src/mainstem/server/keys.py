"""Whose key is whose: the tenants of a server, and finding one by the key it presents.

Only digests of keys are kept. It knows files and settings, and nothing of HTTP.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mainstem.errors import ConfigError

if TYPE_CHECKING:
    from mainstem.config import ServerConfig

OPERATOR = "operator"
PUBLIC = "public"
"""What metrics call whom the tokens belong to that all tenants share; no tenant's name."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})")
_MAX_FILE_BYTES = 4 * 2**20
# Digits of a key's digest in the name of who has no other; more, where two keys have these in common.
_NAME_DIGITS = 8


class Tenant(NamedTuple):
    """Somebody who has one key or several.

    Attributes:
        name: a short word, which metrics and the log show.
        operator: may read /metrics, and reset everyone's cache.
    """

    name: str
    operator: bool


EVERYONE = Tenant("everyone", operator=True)
"""The only tenant of a server without keys."""


class Keyring:
    """The keys that are let in, as SHA-256 digests; none lets everyone in."""

    def __init__(self, tenants: dict[bytes, Tenant]) -> None:
        self._tenants = tenants

    def __bool__(self) -> bool:
        return bool(self._tenants)

    @property
    def names(self) -> list[str]:
        """The tenants, each once, in order of their first key."""
        return list(dict.fromkeys(tenant.name for tenant in self._tenants.values()))

    def find(self, key: bytes) -> Tenant | None:
        """Whose key this is; the time taken tells nothing about the keys that are known."""
        digest = hashlib.sha256(key).digest()
        found = None
        for known, tenant in self._tenants.items():
            # Every digest is compared, in full, whatever came before.
            if hmac.compare_digest(digest, known):
                found = tenant
        return found


def read_keys(config: ServerConfig) -> Keyring:
    """The keys in the settings and in the key file.

    A key in the settings is a tenant of its own, named after its digest; the first of them is an operator's. A line of
    the file is `TENANT KEY` or `TENANT sha256:DIGEST`, and `operator` after it for an operator; `#` begins a comment.
    No two tenants have one name, in the cache, in metrics or in the log.

    Raises:
        ConfigError: when the file cannot be read, a line is not understood, a key has two tenants, or a name is taken.
    """
    tenants = _named_after_digests(config.api_keys)
    nameless = {tenant.name for tenant in tenants.values()}
    if config.api_key_file is not None:
        for number, digest, tenant in _read_file(config.api_key_file):
            if digest not in tenants and tenant.name in nameless:
                raise _wrong(
                    config.api_key_file, number, "a key of --api-key has this name already; give the tenant another"
                )
            if tenants.setdefault(digest, tenant) != tenant:
                raise _wrong(config.api_key_file, number, "the key has another tenant already")
        if not tenants:
            # More likely a wrong file than the wish for an open server.
            raise ConfigError(f"{config.api_key_file} has no keys in it", setting="api_key_file")
    return Keyring(tenants)


def _named_after_digests(keys: Sequence[str]) -> dict[bytes, Tenant]:
    tenants: dict[bytes, Tenant] = {}
    for key in keys:
        digest = hashlib.sha256(key.encode()).digest()
        if digest not in tenants:
            names = {tenant.name for tenant in tenants.values()}
            lengths = range(_NAME_DIGITS, len(digest.hex()) + 1)
            name = next(name for length in lengths if (name := f"key-{digest.hex()[:length]}") not in names)
            tenants[digest] = Tenant(name, operator=not tenants)
    return tenants


class _Line(NamedTuple):
    number: int
    digest: bytes
    tenant: Tenant


def _read_file(name: str) -> Iterator[_Line]:
    path = Path(name)
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ConfigError(f"{name} is too large to be a key file", setting="api_key_file")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {name}: {error.strerror}", setting="api_key_file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{name} is not UTF-8 text", setting="api_key_file") from None
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if words and not words[0].startswith("#"):
            yield _read_line(name, number, words)


def _read_line(file: str, number: int, words: list[str]) -> _Line:
    # What is wrong is said without the line itself, which may hold a key.
    match words:
        case [tenant, key]:
            operator = False
        case [tenant, key, "operator"]:
            operator = True
        case _:
            raise _wrong(file, number, f"it must be TENANT KEY, and '{OPERATOR}' after it for an operator")
    if not _NAME.fullmatch(tenant):
        raise _wrong(file, number, "a tenant's name has 1 to 64 letters, digits and . _ @ -")
    if tenant == PUBLIC:
        raise _wrong(file, number, f"metrics call what all tenants share '{PUBLIC}'; give the tenant another name")
    if digest := _DIGEST.fullmatch(key):
        return _Line(number, bytes.fromhex(digest[1]), Tenant(tenant, operator))
    if key.startswith("sha256:"):
        raise _wrong(file, number, "a digest is sha256: and 64 hexadecimal digits")
    return _Line(number, hashlib.sha256(key.encode()).digest(), Tenant(tenant, operator))


def _wrong(file: str, number: int, reason: str) -> ConfigError:
    return ConfigError(f"{file}, line {number}: {reason}", setting="api_key_file")
