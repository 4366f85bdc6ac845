"""A plan that names no profile that can be read is refused before anything starts."""

from pathlib import Path

import pytest

from daemon.cli.main import main

AUTO = ("--set", "plan.auto=true", "--set", 'plan.profile="{}"')


@pytest.mark.parametrize(
    ("profile", "fault"),
    [
        ("opt-13@a100-80g", "unknown profile 'opt-13@a100-80g'; did you mean"),
        ("{folder}/missing.json", "missing.json: No such file"),
        ("{folder}/other.json", "other.json: not a profile"),
    ],
)
def test_a_plan_without_a_profile_does_not_serve(
    profile: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.json").write_text("{}")
    flags = [each.format(profile.format(folder=tmp_path)) for each in AUTO]
    for verb, status in (("serve", 2), ("check", 1)):
        assert main([verb, "--port", "0", "--model", str(tmp_path), *flags]) == status
        told = capsys.readouterr().err
        assert "plan.profile: " in told and fault in told
