"""One request alone, as published: Llama-2-70B on two A100, 256 output tokens.

Time to the first token and mean time between tokens, from the step model alone: one step computes
the prompt, each further step one token. Beside them stand the predictions of Vidur and of
Splitwise's simulator for the same request.

    python -m benchmarks.isolated [PROFILE ...] [--splitwise perf_model.csv]

PROFILE is a shipped name or a file; `--splitwise` also converts that project's own table.
"""

import argparse
from pathlib import Path

from daemon.cost.profile import Profile
from daemon.cost.step_cost import step_cost
from daemon.cost.work import StepWork
from daemon.lab.profiles.importers import IMPORTERS
from daemon.lab.profiles.load import load_profile

NUM_OUTPUTS = 256
PROMPTS = (1024, 2048)
DEFAULT = ("llama-2-70b@a100-80g-tp2",)
PUBLISHED = (("Vidur", 0.390, 0.733, 0.0567), ("Splitwise's simulator", 0.397, 0.766, 0.0531))


def isolated(profile: Profile, prompt: int) -> tuple[float, float]:
    """Seconds to the first token, and mean seconds between the others."""
    cost = step_cost(profile.step)
    first_s = cost.step_s(StepWork(0, 0, ((prompt, 0),), 1))
    others = [cost.step_s(StepWork(1, prompt + i, (), 1)) for i in range(1, NUM_OUTPUTS)]
    return first_s * profile.pp, sum(others) / len(others) * profile.pp


def report(rows: list[tuple[str, float, float, float]]) -> str:
    """A text table; each row beside its difference to Vidur's and Splitwise's predictions."""
    lines = [f"{'':32}{'TTFT 1,024':>11}{'TTFT 2,048':>12}{'TBT':>10}"]
    for name, first_s, second_s, between_s in rows:
        lines.append(f"{name:32}{first_s:9.3f} s{second_s:10.3f} s{between_s * 1e3:7.1f} ms")
        if name in {published[0] for published in PUBLISHED}:
            continue
        for other, *values in PUBLISHED:
            pairs = zip((first_s, second_s, between_s), values, strict=True)
            shares = "".join(f"{ours / theirs - 1.0:+11.1%}" for ours, theirs in pairs)
            lines.append(f"  to {other:27}{shares}")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profiles", nargs="*", default=DEFAULT, metavar="PROFILE")
    parser.add_argument("--splitwise", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    profiles = [(name, load_profile(name)) for name in arguments.profiles]
    if arguments.splitwise:
        converted = IMPORTERS["splitwise"](arguments.splitwise, "llama-2-70b", "a100-80g", 2)
        profiles.append(("llmd on Splitwise's table", converted))
    rows = list(PUBLISHED)
    for name, profile in profiles:
        (first_s, between_s), (second_s, later_s) = (isolated(profile, n) for n in PROMPTS)
        rows.append((name, first_s, second_s, (between_s + later_s) / 2))
    print(report(rows))


if __name__ == "__main__":
    main()
