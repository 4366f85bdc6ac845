"""A candidate as a daemon's configuration file."""

from collections.abc import Iterator

from daemon.config.checks import QUANTIZE
from daemon.lab.planner.candidate import CandidatePool, PlanCandidate
from daemon.lab.planner.errors import PlannerError
from daemon.lab.planner.goal import Goal


def configuration(candidate: PlanCandidate, goal: Goal, model: str = "", reasons: str = "") -> str:
    """`llmd.toml` for a candidate on devices numbered from 0 on; what is open is left out.

    `model` is a path or a name of the Hub; empty: the embedded model. Raises PlannerError where no
    configuration says what the candidate is.
    """
    knobs = candidate.knobs
    formats = {pool.quantize for pool in candidate.pools}
    quantize = formats.pop()
    sections: dict[str, dict[str, str | int | float]] = {
        "model": {"path": model, "quantize": quantize},
        "scheduler": {
            "policy": knobs.policy,
            "max_batch_tokens": knobs.max_batch_tokens,
            "prefill_chunk": knobs.prefill_chunk,
            "max_running": knobs.max_running,
            "roles": candidate.roles,
        },
        "slo": {"ttft_s": goal.ttft_s, "tpot_s": goal.tpot_s},
        "memory": {"kv_bytes": int(knobs.kv_bytes)},
    }
    if formats:
        raise PlannerError(f"{candidate.text}: one daemon has weights in one format")
    if quantize and quantize not in QUANTIZE:
        raise PlannerError(f"{quantize} is a format of files: give model.path a file of that kind")
    lines = [f"# {line}" for line in reasons.splitlines()]
    for section, values in sections.items():
        given = {key: value for key, value in values.items() if value}
        if given:
            lines += ["", f"[{section}]"]
            lines += [f"{key} = {_toml(value)}" for key, value in given.items()]
    lines += _instances(candidate)
    return "\n".join(lines).lstrip("\n") + "\n"


def _instances(candidate: PlanCandidate) -> Iterator[str]:
    number = 0
    for pool in candidate.pools:
        for _ in range(pool.count):
            count = pool.tp * pool.pp
            yield from ("", "[[instance]]")
            if pool.device.startswith("cpu"):
                yield 'device = "cpu"'
            else:
                numbers = ",".join(str(number + place) for place in range(count))
                yield f'device = "cuda:{numbers}"'
            number += count
            if count > 1:
                yield f'parallel = "{_parallel(pool)}"'
            yield f'role = "{pool.role}"'
            if pool.power_cap < 1.0:
                yield f"# its cards at {100 * pool.power_cap:g} % of their power limit"


def _parallel(pool: CandidatePool) -> str:
    if pool.tp > 1 and pool.pp > 1:
        raise PlannerError(
            f"{pool.text}: an instance of a configuration has tensor or pipeline parallelism, not "
            "both"
        )
    return f"tp{pool.tp}" if pool.tp > 1 else f"pp{pool.pp}"


def _toml(value: str | float) -> str:
    return (
        f'"{value}"'
        if isinstance(value, str)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
