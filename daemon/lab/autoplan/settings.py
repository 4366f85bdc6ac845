"""Settings that a daemon can change while requests run, and the orders that lead to them."""

from collections.abc import Iterator, Sequence

import msgspec

from daemon.core.values.events import Event, FlipOrdered, PolicyChosen, RolesChosen
from daemon.lab.planner.candidate import CandidatePool, Knobs, PlanCandidate
from daemon.protocol.control import ChoosePolicy, ChooseRoles, Flip
from daemon.state.role import AUTO, Role

LiveOrder = ChoosePolicy | ChooseRoles | Flip
"""The orders that `llmd ctl policy`, `roles` and `flip` send."""


class LiveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The policy and the roles of all instances."""

    policy: str
    roles: tuple[Role, ...]  # of each instance, in their order
    mode: str = Role.MIXED.value  # who sets roles: mixed (an operator) | auto (the load)

    @property
    def text(self) -> str:
        """A few words, such as `sarathi, 1 prefill and 2 decode`."""
        if len(self.roles) < 2:
            return self.policy
        if self.mode == AUTO:
            return f"{self.policy}, roles by the load"
        counts = [(role, self.roles.count(role)) for role in Role]
        return f"{self.policy}, " + " and ".join(f"{n} {role.value}" for role, n in counts if n)

    def candidate(self, unit: CandidatePool, knobs: Knobs = Knobs()) -> PlanCandidate:  # noqa: B008
        """These settings on equal instances, for a simulation."""
        roles = [Role.MIXED] * len(self.roles) if self.mode == AUTO else list(self.roles)
        pools = tuple(
            msgspec.structs.replace(unit, count=roles.count(role), role=role.value)
            for role in Role
            if role in roles
        )
        own = msgspec.structs.replace(knobs, policy=self.policy)
        return PlanCandidate(pools=pools, knobs=own, roles=self.mode)


def neighbours(
    present: LiveSettings, policies: Sequence[str], may_split: bool
) -> Iterator[LiveSettings]:
    """All settings to choose from, the present ones first; roles change at as few instances as can
    be, and at none unless they `may_split`.
    """
    yield present
    count = len(present.roles)
    layouts: list[tuple[tuple[Role, ...], str]] = [(present.roles, present.mode)]
    if may_split and count > 1:
        layouts = [((Role.MIXED,) * count, mode) for mode in (Role.MIXED.value, AUTO)]
        layouts += [(_split(present.roles, n), Role.MIXED.value) for n in range(1, count)]
    for policy in policies:
        for roles, mode in layouts:
            found = LiveSettings(policy=policy, roles=roles, mode=mode)
            if found != _named(present):
                yield found


def _named(settings: LiveSettings) -> LiveSettings:
    """Settings without the roles that the load has chosen so far."""
    if settings.mode != AUTO:
        return settings
    return msgspec.structs.replace(settings, roles=(Role.MIXED,) * len(settings.roles))


def _split(present: Sequence[Role], num_prefill: int) -> tuple[Role, ...]:
    """Roles with so many for prefill and the rest for decode."""
    likeliest = sorted(
        range(len(present)), key=lambda i: (present[i] is not Role.PREFILL, present[i] == "decode")
    )
    chosen = set(likeliest[:num_prefill])
    return tuple(Role.PREFILL if i in chosen else Role.DECODE for i in range(len(present)))


def orders(before: LiveSettings, after: LiveSettings, names: Sequence[str]) -> list[LiveOrder]:
    """The orders that lead from one to the other, for instances of these names."""
    found: list[LiveOrder] = []
    if after.policy != before.policy:
        found.append(ChoosePolicy(after.policy))
    if after.mode != before.mode:
        found.append(ChooseRoles(after.mode))
    if after.mode != AUTO:
        stays = after.mode == before.mode
        for name, old, new in zip(names, before.roles, after.roles, strict=True):
            if not (stays and old is new):
                found.append(Flip(name, new.value, wait_s=0.0))
    return found


def event_of(order: LiveOrder, names: Sequence[str], now: float) -> Event:
    """The Core's event of an order, as the daemon makes it."""
    match order:
        case ChoosePolicy():
            return PolicyChosen(now, order.policy)
        case ChooseRoles():
            return RolesChosen(now, order.mode)
        case Flip():
            return FlipOrdered(now, list(names).index(order.instance), Role(order.role), "plan")
