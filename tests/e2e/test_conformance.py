"""schemathesis against a whole daemon: nothing is a 5xx, every answer and event is as described."""

from pathlib import Path

import pytest

from tests.api.conformance import ACCEPTED_CHECKS, CHECKS, answered, described, of_types, run
from tests.e2e.live import LiveDaemon
from tests.e2e.tiny import tiny_folder


@pytest.mark.soak
@pytest.mark.parametrize(("mode", "num_cases"), [("positive", 2000), ("all", 300)])
async def test_a_real_daemon_conforms(tmp_path: Path, mode: str, num_cases: int) -> None:
    with LiveDaemon("--model", str(tiny_folder(tmp_path / "tiny"))) as daemon:
        model = daemon.model()["id"]
        document = await described(daemon.url)
        checks: tuple[str, ...] = CHECKS
        if mode == "positive":
            document = answered(document, model)
            checks = CHECKS + ACCEPTED_CHECKS
        else:  # answers of a length that is given: some fill the context otherwise
            of_types(document, model)
            for name in ("ChatRequest", "CompletionRequest"):
                request = document["components"]["schemas"][name]
                request["properties"]["max_tokens"] = {"enum": [1, 2, 3]}
                request["properties"].pop("max_completion_tokens", None)
                request["required"] = [*request["required"], "max_tokens"]
        phases = "fuzzing" if mode == "positive" else "coverage,fuzzing"
        found = await run(
            document,
            daemon.url,
            tmp_path,
            *("--checks", ",".join(checks), "--phases", phases, "-m", mode),
            *("-n", str(num_cases), "--seed", "1", "--generation-database", "none"),
        )
        assert not found.said, found.said
        assert found.num_cases > num_cases
        left = daemon.idle_snapshot()
        assert left.instances[0].kv_held == 0 == left.counters.worker_deaths
