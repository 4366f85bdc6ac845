"""`llmd key new`: what it prints opens the door that its section describes."""

import tomllib

import pytest

from daemon.api.http.keyring import Keyring
from daemon.cli.main import main
from daemon.config.load import load


def test_a_new_key_fits_its_section(capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    assert main(["key", "new", "alice"]) == 0
    key, _, section = capsys.readouterr().out.partition("\n")
    assert tomllib.loads(section)["key"][0]["name"] == "alice"
    assert key not in section
    file = tmp_path / "llmd.toml"
    file.write_text(section)
    keyring = Keyring()
    keyring.update(load(file).config.key)
    account = keyring.admit([f"Bearer {key}"])
    assert account is not None and account.key.name == "alice"
    main(["key", "new", "alice"])
    assert key not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["", "a b", 'x"\ny = "', "x" * 65, "-x"])
def test_names_that_no_key_has(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["key", "new", "--", name]) == 2
    printed = capsys.readouterr()
    assert not printed.out and "llmd: a key's name takes" in printed.err
