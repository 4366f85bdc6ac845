"""Queues in closed form: the wait of prompts, and batches of decoding answers."""

import math

import msgspec


def erlang_c(servers: int, offered: float) -> float:
    """The chance of a wait for `servers` servers with the load `offered`; 1 where it is more than
    they can do.
    """
    if offered >= servers:
        return 1.0
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = offered * blocked / (count + offered * blocked)
    return servers * blocked / (servers - offered * (1.0 - blocked))


class Waiting(msgspec.Struct, frozen=True):
    """A wait in line: none with `1 - chance`, else exponential with a mean."""

    chance: float
    mean_s: float  # where there is a wait

    def within(self, limit_s: float) -> float:
        """The share that waits no longer than the limit."""
        if limit_s < 0.0 or self.mean_s == math.inf:
            return 0.0
        if self.mean_s <= 0.0:
            return 1.0
        return 1.0 - self.chance * math.exp(-limit_s / self.mean_s)

    @property
    def overall_s(self) -> float:
        """The mean wait of all."""
        return self.chance * self.mean_s


def waiting(rate: float, work_s: float, work_squares: float, servers: int = 1) -> Waiting:
    """The wait before `servers` servers with one line, that get `rate` jobs a second with these
    moments of work: Pollaczek and Khinchine's formula; for several servers Lee and Longton's.
    """
    offered = rate * work_s
    if offered >= servers:
        return Waiting(1.0, math.inf)
    if work_s <= 0.0:
        return Waiting(0.0, 0.0)
    return Waiting(erlang_c(servers, offered), work_squares / (2.0 * work_s) / (servers - offered))


def waiting_for_room(places: float, num: float, stay_s: float) -> Waiting:
    """The wait for a place where `num` on average stay for `stay_s` each, in `places`: Halfin and
    Whitt's approximation of Erlang's formula, in closed form for thousands of places.
    """
    if num >= places:
        return Waiting(1.0, math.inf)
    if num <= 0.0:
        return Waiting(0.0, 0.0)
    beta = (places - num) / math.sqrt(num)
    density = math.exp(-beta * beta / 2.0) / math.sqrt(2.0 * math.pi)
    chance = density / (density + beta * below(beta, 0.0, 1.0))
    return Waiting(chance, stay_s / (places - num))


class Decoding(msgspec.Struct, frozen=True):
    """Answers that decode together, a token each in every step, in a steady state.

    A step takes `base_s` and `row_s` for each decode; more decodes make longer steps, and so all
    stay longer. The number of decodes wanders about its mean.
    """

    step_s: float  # inf: overloaded
    num: float  # mean number of decodes, at all instances
    deviation: float  # of that number
    per_one_s: float  # time that a further decode adds to a step
    memory_s: float  # time that the number takes to wander elsewhere

    def deviation_s(self, span_s: float) -> float:
        """The deviation of the mean step time over a span: it averages out over long spans."""
        if self.memory_s <= 0.0:
            return 0.0
        ratio = span_s / self.memory_s
        kept = 1.0 if ratio < 1e-3 else 2.0 * (ratio - 1.0 + math.exp(-ratio)) / (ratio * ratio)
        return self.per_one_s * self.deviation * math.sqrt(kept)


def decoding(rate: float, tokens: float, base_s: float, row_s: float, instances: int) -> Decoding:
    """The steady state of `instances` that share `rate` answers a second of `tokens` on average.

    By Little's law `rate * tokens * step_s` decode. That number is taken as a birth and death
    process, linear about its mean: departures at `num / (tokens * step_s(num))`.
    """
    share = rate * tokens * row_s / instances
    if share >= 1.0:
        return Decoding(math.inf, math.inf, math.inf, row_s / instances, math.inf)
    step_s = base_s / (1.0 - share)
    num = rate * tokens * step_s
    slowness = step_s / base_s if base_s > 0.0 else 1.0
    deviation = math.sqrt(num * slowness)
    return Decoding(step_s, num, deviation, row_s / instances, tokens * step_s * slowness)


def below(limit: float, mean: float, deviation: float) -> float:
    """The share of a normal distribution that is not above a limit."""
    if mean == math.inf:
        return 0.0
    if deviation <= 0.0:
        return 1.0 if mean <= limit else 0.0
    return 0.5 * (1.0 + math.erf((limit - mean) / (deviation * math.sqrt(2.0))))
