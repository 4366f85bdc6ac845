"""Settings that a daemon can change while requests run, and the orders that lead to them."""

from collections.abc import Iterator, Sequence

import msgspec

from daemon.core.values.events import (
    BudgetChosen,
    Event,
    FlipOrdered,
    PolicyChosen,
    RolesChosen,
)
from daemon.lab.planner.candidate import CandidatePool, Knobs, PlanCandidate
from daemon.protocol.control import ChooseBudget, ChoosePolicy, ChooseRoles, Flip
from daemon.state.role import AUTO, Role

LiveOrder = ChoosePolicy | ChooseBudget | ChooseRoles | Flip
"""The orders that `llmd ctl policy`, `budget`, `roles` and `flip` send."""
LEAST_BUDGET = 64
"""The smallest token budget of a step that is tried: below it a step's own cost is most of it."""


class LiveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The policy, the roles and the token budget of a step of all instances."""

    policy: str
    roles: tuple[Role, ...]  # of each instance, in their order
    mode: str = Role.MIXED.value  # who sets roles: mixed (an operator) | auto (the load)
    budget: int = 0  # tokens; 0: as configured

    @property
    def text(self) -> str:
        """A few words, such as `sarathi, 1 prefill and 2 decode`."""
        parts = [self.policy, *([f"budget {self.budget}"] if self.budget else [])]
        counts = [(role, self.roles.count(role)) for role in Role]
        if self.mode == AUTO and len(self.roles) > 1:
            parts.append("roles by the load")
        elif len(self.roles) > 1:
            parts.append(" and ".join(f"{n} {role.value}" for role, n in counts if n))
        return ", ".join(parts)

    def candidate(self, unit: CandidatePool, knobs: Knobs = Knobs()) -> PlanCandidate:  # noqa: B008
        """These settings on equal instances, for a simulation."""
        roles = [Role.MIXED] * len(self.roles) if self.mode == AUTO else list(self.roles)
        pools = tuple(
            msgspec.structs.replace(unit, count=roles.count(role), role=role.value)
            for role in Role
            if role in roles
        )
        budget = self.budget or knobs.max_batch_tokens
        own = msgspec.structs.replace(knobs, policy=self.policy, max_batch_tokens=budget)
        return PlanCandidate(pools=pools, knobs=own, roles=self.mode)


def smaller_budgets(most: int) -> tuple[int, ...]:
    """A half, a quarter and an eighth of a configured token budget; none below `LEAST_BUDGET`."""
    return tuple(part for part in (most // 2, most // 4, most // 8) if part >= LEAST_BUDGET)


def neighbours(
    present: LiveSettings, policies: Sequence[str], may_split: bool, budgets: Sequence[int] = ()
) -> Iterator[LiveSettings]:
    """All settings to choose from, the present ones first: policies and roles with the present
    budget, then budgets (and the configured one) with the present policy and roles. Roles change at
    as few instances as can be, and at none unless they `may_split`.
    """
    yield present
    count = len(present.roles)
    layouts: list[tuple[tuple[Role, ...], str]] = [(present.roles, present.mode)]
    if may_split and count > 1:
        layouts = [((Role.MIXED,) * count, mode) for mode in (Role.MIXED.value, AUTO)]
        layouts += [(_split(present.roles, n), Role.MIXED.value) for n in range(1, count)]
    for policy in policies:
        for roles, mode in layouts:
            found = LiveSettings(policy=policy, roles=roles, mode=mode, budget=present.budget)
            if found != _named(present):
                yield found
    for budget in dict.fromkeys((0, *budgets)):
        if budget != present.budget:
            yield msgspec.structs.replace(_named(present), budget=budget)


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
    if after.budget != before.budget:
        found.append(ChooseBudget(after.budget))
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
        case ChooseBudget():
            return BudgetChosen(now, order.tokens)
        case ChooseRoles():
            return RolesChosen(now, order.mode)
        case Flip():
            return FlipOrdered(now, list(names).index(order.instance), Role(order.role), "plan")
