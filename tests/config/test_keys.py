"""Keys in the configuration: what is taken, what is refused, and that no hash is ever shown."""

import re
from pathlib import Path

import msgspec
import pytest

from daemon.config.keys import KEY_BYTES, hash_of, new_key
from daemon.config.load import ConfigError, load
from daemon.config.schema import Config, KeyConfig
from tests.config.test_load import write
from tests.house.source import ROOT

HASH = hash_of("llmd-anything")
KEY = f"[[key]]\nname = 'alice'\nhash = '{HASH}'\n"


def test_a_key_with_every_limit(tmp_path: Path) -> None:
    limits = "priority = -3\nrequests_per_minute = 60\ntokens_per_minute = 1000\nmax_running = 4\n"
    other = f"[[key]]\nname = 'bob'\nhash = '{HASH[::-1].upper()}'\nsalt = 'team'"
    loaded = load(write(tmp_path, KEY + limits + other))
    assert loaded.config.key == (
        KeyConfig("alice", HASH, -3, 60, 1000, 4),
        KeyConfig("bob", HASH[::-1].upper(), salt="team"),
    )
    assert loaded.source("key") == str(tmp_path / "llmd.toml")
    assert HASH not in repr(loaded) + str(loaded.config)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[[key]]\nname = 'alice'", "key[0]: hash is missing"),
        (KEY + "limit = 3", "key[0].limit: unknown key"),
        (KEY.replace("alice", "a b"), "key: key[0].name takes up to 64 of"),
        (KEY.replace("alice", ""), "key: key[0].name takes up to 64 of"),
        (KEY.replace("alice", "a\\nb").replace("'", '"'), "key: key[0].name takes up to 64 of"),
        (KEY.replace("alice", "x" * 65), "key: key[0].name takes up to 64 of"),
        (KEY.replace(HASH, HASH[1:]), "key: key[0].hash (alice) must be 64 hexadecimal digits"),
        (KEY.replace(HASH, "g" * 64), "key: key[0].hash (alice) must be 64 hexadecimal digits"),
        (KEY + KEY.replace(HASH, HASH[::-1]), "key: two keys are named 'alice'"),
        (KEY + KEY.replace("alice", "bob").upper().lower(), "key[1] (bob) has the hash of a key"),
        (KEY + "max_running = -1", "key: key[0].max_running (alice) must be in 0..2147483647"),
        (KEY + "requests_per_minute = -1", "key[0].requests_per_minute (alice) must be in 0.."),
        (KEY + f"tokens_per_minute = {10**400}", "key[0]"),
        (
            KEY + "requests_per_minute = 1.5",
            "key[0].requests_per_minute: must be a whole number, got 1.5",
        ),
        (KEY + f"priority = {2**31}", "key[0].priority (alice) must be in"),
        (KEY + "slo_scale = -1", "key[0].slo_scale (alice) must be in 0..1000 (0: no deadline)"),
        (KEY + "slo_scale = nan", "key[0].slo_scale (alice) must be in 0..1000"),
        (KEY + "slo_scale = 'fast'", 'key[0].slo_scale: must be a number, got "fast"'),
        ("[server]\nmax_connections = 0", "server.max_connections: must be at least 1"),
        ("[server]\nstall_timeout_s = inf", "server.stall_timeout_s: must be a finite number"),
        ("[server]\nheader_timeout_s = 0", "server.header_timeout_s: must be at least 0.1"),
    ],
)
def test_faults_are_named_and_show_no_hash(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(write(tmp_path, text))
    assert fault in str(error.value)
    assert HASH[:16] not in str(error.value)


def test_keys_are_long_and_never_the_same() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(re.fullmatch(r"llmd-[A-Za-z0-9_-]{43}", key) for key in keys)
    assert KEY_BYTES >= 32


def test_the_documented_key_names_every_field(tmp_path: Path) -> None:
    """The example is a comment, since there is no key without one."""
    text = (ROOT / "docs" / "llmd.toml").read_text(encoding="utf-8")
    begin = text.index("# [[key]]")
    example = text[begin:].partition("\n\n")[0].replace("\n# ", "\n").removeprefix("# ")
    (key,) = load(write(tmp_path, example.replace('hash = ""', f'hash = "{HASH}"'))).config.key
    assert key == KeyConfig("alice", HASH)
    written = set(re.findall(r"^(\w+) =", example, re.MULTILINE))
    assert written == {field.name for field in msgspec.structs.fields(KeyConfig)}
    assert Config().key == ()
