"""The table of an operator's orders: how each is checked, and the method that carries it out."""

from collections.abc import Callable
from inspect import isawaitable
from typing import Any, NamedTuple

import msgspec

from daemon.base.nearest import unknown
from daemon.placement import PLACEMENTS
from daemon.protocol.control import (
    FLIP_WAIT_S,
    ChooseCap,
    ChoosePlacement,
    ChoosePolicy,
    ChooseRole,
    ChooseRoles,
    Drain,
    DrainInstance,
    Migrate,
    Order,
    OrderAnswer,
    Reload,
    Resume,
    ResumeInstance,
)
from daemon.scheduler.policies import POLICIES
from daemon.state.role import ROLES_MODES


class RefusalError(Exception):
    """A viewer asked for what it cannot have; its text is the answer."""


class Rule(NamedTuple):
    """How an order is carried out: a method that takes the message's fields, and a check of them.

    The method does the whole order or raises RefusalError; it may be a coroutine, and may return
    an answer. The check returns a fault, or "".
    """

    method: str
    check: Callable[[Any], str] = lambda _order: ""


def _wait_fault(order: ChooseRole) -> str:
    return "" if 0 <= order.wait_s <= FLIP_WAIT_S else f"wait_s must be 0 .. {FLIP_WAIT_S}"


def _policy_fault(order: ChoosePolicy) -> str:
    return "" if order.policy in POLICIES else unknown("policy", order.policy, POLICIES)


def _placement_fault(order: ChoosePlacement) -> str:
    name = order.placement
    return "" if name in PLACEMENTS else unknown("placement", name, PLACEMENTS)


def _mode_fault(order: ChooseRoles) -> str:
    return "" if order.mode in ROLES_MODES else unknown("mode of roles", order.mode, ROLES_MODES)


ORDERS: dict[type[Order], Rule] = {
    ChoosePolicy: Rule("choose_policy", _policy_fault),
    ChoosePlacement: Rule("choose_placement", _placement_fault),
    ChooseRoles: Rule("choose_roles", _mode_fault),
    ChooseRole: Rule("flip", _wait_fault),
    ChooseCap: Rule("cap"),
    Migrate: Rule("migrate"),
    Drain: Rule("drain"),
    Resume: Rule("resume"),
    DrainInstance: Rule("drain_instance"),
    ResumeInstance: Rule("resume_instance"),
    Reload: Rule("reload"),
}


async def carry_out(operator: object, order: Order) -> OrderAnswer | None:
    """Do what an order says by its method of `operator`; the order's own answer, if it has one.

    Raises RefusalError.
    """
    rule = ORDERS[type(order)]
    if fault := rule.check(order):
        raise RefusalError(fault)
    answer = getattr(operator, rule.method)(*msgspec.structs.astuple(order))
    if isawaitable(answer):
        answer = await answer
    given: OrderAnswer | None = answer
    return given
