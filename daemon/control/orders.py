"""The table of an operator's orders: how each is checked, and the method that carries it out."""

import re
from collections.abc import Callable
from inspect import isawaitable
from typing import Any

import msgspec

from daemon.base.nearest import unknown
from daemon.placement import PLACEMENTS
from daemon.protocol.control import (
    FLIP_WAIT_S,
    Cap,
    ChooseBudget,
    ChoosePlacement,
    ChoosePolicy,
    ChooseRoles,
    Drain,
    DrainInstance,
    Flip,
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


def _wait_fault(order: Flip) -> str:
    return "" if 0 <= order.wait_s <= FLIP_WAIT_S else f"wait_s must be 0 .. {FLIP_WAIT_S}"


def _policy_fault(order: ChoosePolicy) -> str:
    return "" if order.policy in POLICIES else unknown("policy", order.policy, POLICIES)


def _budget_fault(order: ChooseBudget) -> str:
    return "" if order.tokens >= 0 else "a budget is a number of tokens, or 0: as configured"


def _placement_fault(order: ChoosePlacement) -> str:
    name = order.placement
    return "" if name in PLACEMENTS else unknown("placement", name, PLACEMENTS)


def _mode_fault(order: ChooseRoles) -> str:
    return "" if order.mode in ROLES_MODES else unknown("mode of roles", order.mode, ROLES_MODES)


def _no_fault(_order: Order) -> str:
    return ""


ORDERS: dict[type[Order], Callable[[Any], str]] = {
    ChoosePolicy: _policy_fault,
    ChooseBudget: _budget_fault,
    ChoosePlacement: _placement_fault,
    ChooseRoles: _mode_fault,
    Flip: _wait_fault,
    Cap: _no_fault,
    Migrate: _no_fault,
    Drain: _no_fault,
    Resume: _no_fault,
    DrainInstance: _no_fault,
    ResumeInstance: _no_fault,
    Reload: _no_fault,
}
"""A check of each order's fields, which returns a fault, or ""."""


def method_of(order: type[Order]) -> str:
    """The name of the method that carries an order out: its own, as methods are written.

    The method takes the order's fields and does the whole order or raises RefusalError; it may be a
    coroutine, and may return an answer.
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "_", order.__name__).lower()


async def carry_out(operator: object, order: Order) -> OrderAnswer | None:
    """Do what an order says by its method of `operator`; the order's own answer, if it has one.

    Raises RefusalError.
    """
    if fault := ORDERS[type(order)](order):
        raise RefusalError(fault)
    answer = getattr(operator, method_of(type(order)))(*msgspec.structs.astuple(order))
    if isawaitable(answer):
        answer = await answer
    given: OrderAnswer | None = answer
    return given
