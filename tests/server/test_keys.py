"""The keyring: reading keys from settings and files, and finding whose key one is."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from mainstem.config import ServerConfig
from mainstem.errors import ConfigError
from mainstem.server.keys import Keyring, Tenant, read_keys

DIGEST = hashlib.sha256(b"sk-bob").hexdigest()


def keyring(tmp_path: Path, text: str, *, api_key: str | None = None) -> Keyring:
    path = tmp_path / "keys"
    path.write_text(text, encoding="utf-8")
    return read_keys(ServerConfig(api_key_file=str(path), api_key=api_key))


def test_a_file_names_tenants_by_keys_and_by_digests(tmp_path: Path) -> None:
    keys = keyring(
        tmp_path, f"# who may come in\n\nalice sk-alice\nbob  sha256:{DIGEST.upper()}\nops\tsk-ops operator\n"
    )
    assert keys.find(b"sk-alice") == Tenant("alice", operator=False)
    assert keys.find(b"sk-bob") == Tenant("bob", operator=False)
    assert keys.find(b"sk-ops") == Tenant("ops", operator=True)
    assert keys.find(b"sk-eve") is None
    assert keys.find(f"sha256:{DIGEST}".encode()) is None
    assert keys.names == ["alice", "bob", "ops"]


def test_a_tenant_may_have_several_keys(tmp_path: Path) -> None:
    keys = keyring(tmp_path, "alice old-key\nalice new-key\n")
    assert keys.find(b"old-key") == keys.find(b"new-key") == Tenant("alice", operator=False)
    assert keys.names == ["alice"]


def test_keys_of_the_settings_are_tenants_of_their_own_and_the_first_is_an_operator() -> None:
    keys = read_keys(ServerConfig(api_key="one, two"))
    one, two = keys.find(b"one"), keys.find(b"two")
    assert one is not None
    assert two is not None
    assert one.name != two.name
    assert (one.operator, two.operator) == (True, False)


def test_a_key_that_is_given_twice_is_one_tenant() -> None:
    keys = read_keys(ServerConfig(api_key="one,one"))
    assert len(keys.names) == 1
    assert keys.find(b"one") == Tenant(keys.names[0], operator=True)


def test_keys_whose_digests_begin_alike_are_not_one_tenant() -> None:
    keys = read_keys(ServerConfig(api_key="sk-3334,sk-121845"))
    assert keys.find(b"sk-3334") == Tenant("key-a4dba211", operator=True)
    assert keys.find(b"sk-121845") == Tenant("key-a4dba211e", operator=False)


def test_a_file_takes_no_name_of_a_key_without_one(tmp_path: Path) -> None:
    """Its tenant would read that key's part of the cache."""
    name = f"key-{hashlib.sha256(b'one').hexdigest()[:8]}"
    with pytest.raises(ConfigError, match="line 2: a key of --api-key has this name"):
        keyring(tmp_path, f"alice sk-alice\n{name} sk-secret\n", api_key="one")
    assert keyring(tmp_path, f"{name} sk-secret\n").names == [name]
    assert keyring(tmp_path, f"{name} one operator\n", api_key="one").names == [name]


def test_no_keys_are_no_keyring() -> None:
    assert not read_keys(ServerConfig())


def test_a_keyring_holds_no_key(tmp_path: Path) -> None:
    keys = keyring(tmp_path, "alice sk-alice-secret\n", api_key="sk-flag-secret")
    assert "secret" not in repr(vars(keys))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no keys"),
        ("# nothing\n", "no keys"),
        ("alice\n", "line 1"),
        ("alice secret key three\n", "line 1"),
        ("a secret root\n", "line 1"),
        ("\n-alice secret\n", "line 2: a tenant's name"),
        ("al/ice secret\n", "a tenant's name"),
        ("alice sha256:12\n", "64 hexadecimal"),
        ("alice key\npublic secret\n", "line 2: .*all tenants share.*another name"),
        ("public secret operator\n", "line 1: .*another name"),
        ("alice secret\nbob secret\n", "line 2: the key has another tenant"),
        ("alice secret\nalice secret operator\n", "another tenant"),
    ],
)
def test_a_line_that_is_not_understood_is_named_without_its_key(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        keyring(tmp_path, text)
    assert refused.value.setting == "api_key_file"
    assert "secret" not in str(refused.value)


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere"):
        read_keys(ServerConfig(api_key_file=str(tmp_path / "nowhere")))


def test_a_file_that_is_no_text_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"alice \xff\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_keys(ServerConfig(api_key_file=str(tmp_path / "keys")))
