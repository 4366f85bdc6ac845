"""Faults on purpose, for tests: `LLMD_FAULT=site:probability:seed[,site:...]`, in test mode alone.

Every process of a daemon reads the same variable and asks for its own sites. Where none is named
nothing is built and nothing asked: a site then costs nothing.
"""

import os
import random
from collections.abc import Mapping

VARIABLE = "LLMD_FAULT"
TEST_MODE = "LLMD_TEST_MODE"

SITES = {
    "worker.crash_before": "a worker ends by SIGABRT instead of computing a step",
    "worker.crash_after": "a worker ends by SIGABRT when it has computed a step, unanswered",
    "worker.poison": "a worker ends by SIGABRT at a step that is fed the token whose id is `seed`",
    "worker.hang": "a worker computes for ever instead of a step",
    "worker.absent": "the rank `seed` of an instance computes for ever where the others sum",
    "worker.slow": "a step takes `seed` milliseconds longer",
    "worker.oom": "a device has no memory for a forward pass",
    "worker.nan": "the logits of a step's first sampled row are not numbers",
    "worker.copy": "a swap copy that a step needs has failed",
    "worker.link_flip": "of each `seed`th block that leaves over shared memory a byte is wrong",
    "worker.link_slow": "a worker's message to another about blocks takes `seed` milliseconds more",
    "worker.link_break": "a link to another worker breaks at stage `seed`: 0 as its ends meet, "
    "1 as a transfer opens, 2 as its blocks are announced, 3 as all have arrived",
    "api.crash": "the API process ends by SIGABRT instead of passing a request on",
    "api.hang": "the API process computes for ever instead of passing a request on",
    "journal.full": "the disk is full when the journal is written",
    "journal.stall": "the disk takes `seed` milliseconds more to write the journal",
}
"""The faults that may be injected, by site; a site is visited once per event that it names."""


class FaultError(Exception):
    """A variable for tests is set outside test mode, or has an invalid value."""


class Fault:
    """One site's fault. Equal seeds and lives strike at the same visits."""

    def __init__(self, probability: float, seed: int, life: int = 0) -> None:
        self.probability = probability
        self.seed = seed
        self._chance = random.Random(f"{seed} {life}")  # noqa: S311 - repeatable, not secret

    def strikes(self) -> bool:
        """Whether this visit fails."""
        return self._chance.random() < self.probability


class Faults(dict[str, Fault]):
    """Faults by site."""

    def strikes(self, site: str) -> bool:
        """Whether this visit of a site fails; never without a fault for it."""
        return site in self and self[site].strikes()


def faults(prefix: str = "", life: int = 0, environment: Mapping[str, str] = os.environ) -> Faults:
    """The faults of the sites with this prefix; empty where none are to be injected.

    `life` counts the earlier processes of this kind, so that a successor does not die at the same
    visit. Raises FaultError outside test mode, and where the variable cannot be read.
    """
    text = in_test_mode(VARIABLE, environment)
    found = Faults()
    if not text:
        return found
    for entry in text.split(","):
        site, fault = _read(entry.strip(), life)
        if site.startswith(prefix):
            found[site] = fault
    return found


def in_test_mode(variable: str, environment: Mapping[str, str] = os.environ) -> str:
    """A variable's value, empty where it is not set. Raises FaultError outside test mode."""
    text = environment.get(variable, "")
    if text and environment.get(TEST_MODE) != "1":
        raise FaultError(f"{variable} is set, but {TEST_MODE}=1 is not: no faults are injected")
    return text


def _read(entry: str, life: int) -> tuple[str, Fault]:
    site, *numbers = entry.split(":")
    if site not in SITES:
        raise FaultError(f"{VARIABLE}: no site {site!r}; there are {', '.join(SITES)}")
    try:
        probability, seed = numbers
        fault = Fault(float(probability), int(seed), life)
    except ValueError:
        raise FaultError(f"{VARIABLE}: {entry!r} is not site:probability:seed") from None
    if not 0.0 <= fault.probability <= 1.0:
        raise FaultError(f"{VARIABLE}: {entry!r}: a probability is between 0 and 1")
    return site, fault
