"""The command line of `llmd ctl`: its verbs and their flags."""

import argparse
from pathlib import Path
from typing import TypeAlias

from daemon.cli.argument_parser import offer
from daemon.cli.defaults import PLACEMENTS_BELOW, POLICIES_BELOW, by_default
from daemon.placement import PLACEMENTS
from daemon.protocol.control import FLIP_WAIT_S
from daemon.scheduler.policies import POLICIES
from daemon.state.role import ROLES_MODES, Role

ATTACHED = "the one of a daemon that runs here"
Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_ctl(parser: argparse.ArgumentParser) -> None:
    """Add every verb with its flags."""
    socket_help = f"the daemon's control socket {by_default('control.socket', ATTACHED)}"
    parser.add_argument("--socket", type=Path, metavar="PATH", help=socket_help)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    status = verbs.add_parser("status", help="instances, queues and KV occupancy, once")
    status.add_argument("--json", action="store_true", help="one JSON object")
    policy, budget = _add_policy(verbs), _add_budget(verbs)
    placement = _add_placement(verbs)
    reload = verbs.add_parser(
        "reload",
        help="read the configuration again",
        description="As SIGHUP does. What can change while requests run does; what needs a "
        "restart is named and stays; a file with a fault changes nothing.",
    )
    moving = _add_moving(verbs)
    for verb in (status, policy, budget, placement, reload, *moving):
        # SUPPRESS: without the flag here, the subparser must not erase the one before the verb
        verb.add_argument(
            "--socket", type=Path, metavar="PATH", default=argparse.SUPPRESS, help=socket_help
        )


def _add_policy(verbs: Verbs) -> argparse.ArgumentParser:
    policy = verbs.add_parser(
        "policy",
        help="show the policies, or change to another one",
        description="Without a name: every policy, with a star where one is in use. With a name: "
        "sequences are ranked by that policy from now on, and none is lost. The token budget of "
        "a step stays as configured; what becomes of victims is the policy's own choice unless "
        "memory.swap is set. A restarted daemon has its configured policies again.",
    )
    policy.epilog = POLICIES_BELOW
    name = policy.add_argument("name", nargs="?", metavar="NAME", help="one of the policies below")
    offer(name, tuple(POLICIES))
    policy.add_argument(
        "--instance",
        metavar="NAME",
        help="rank the sequences of this one alone (default: of all)",
    )
    return policy


def _add_budget(verbs: Verbs) -> argparse.ArgumentParser:
    budget = verbs.add_parser(
        "budget",
        help="show the token budgets of steps, or change them",
        description="Without a number: what the steps of each instance are filled up to. With one: "
        "they have that many tokens at most from now on, and prompts fill them up to it, also "
        "where the policy would fill them up to the size of the device. A smaller budget makes "
        "steps shorter and prompts slower. With auto they are as configured again, as after a "
        "restart.",
    )
    budget.add_argument("tokens", nargs="?", metavar="TOKENS|auto", help="1 .. the configured one")
    budget.add_argument(
        "--instance", metavar="NAME", help="the steps of this one alone (default: of all)"
    )
    return budget


def _add_placement(verbs: Verbs) -> argparse.ArgumentParser:
    placement = verbs.add_parser(
        "placement",
        help="show the placements, or change to another one",
        description="Without a name: every placement, with a star at the one in use. With a name: "
        "it chooses the instance of all that is placed from now on; nothing is moved. A restarted "
        "daemon has its configured placement again.",
    )
    placement.epilog = PLACEMENTS_BELOW
    name = placement.add_argument("name", nargs="?", metavar="NAME", help="one of those below")
    offer(name, tuple(PLACEMENTS))
    return placement


def _add_moving(verbs: Verbs) -> list[argparse.ArgumentParser]:
    """Add the verbs about single instances and where work is done."""
    drain = verbs.add_parser(
        "drain",
        help="take no new requests, or use an instance no more",
        description="Without a name the daemon takes no new requests, finishes those that are "
        "here, and stays, not ready, until it is resumed or stopped. With an instance's name "
        "everything on it moves to others, with its KV, and it idles until it is resumed.",
    )
    resume = verbs.add_parser("resume", help="take requests, or use an instance again, after drain")
    for verb in (drain, resume):
        verb.add_argument("instance", nargs="?", metavar="INSTANCE", help="this one alone")
    flip = verbs.add_parser(
        "flip",
        help="give an instance another role",
        description="Nothing is drained and nothing computed again. Waits until the first work "
        f"that only the new role gets was sent, for {FLIP_WAIT_S:.0f} s at most. A restarted "
        "daemon has its configured roles again.",
    )
    flip.add_argument("instance", metavar="INSTANCE", help="its name")
    roles = tuple(role.value for role in Role)
    offer(flip.add_argument("role", metavar="ROLE", help=", ".join(roles)), roles)
    flip.add_argument(
        "--wait-clear", action="store_true", help="wait until nothing of the old role is left"
    )
    chosen = verbs.add_parser(
        "roles",
        help="show how instances get their roles, or choose that",
        description="auto: the load decides, for all instances, also for those with a configured "
        "role or one from llmd ctl flip. low_load: a prefill or decode instance that computed less "
        "than a tenth of the past minute gets the other role, idle: one with none, where "
        "those of the other role compute. mixed: they have their configured roles. Without a mode: "
        "what was decided last, and why.",
    )
    mode = chosen.add_argument(
        "mode", nargs="?", choices=ROLES_MODES, help="one of them (default: show the roles)"
    )
    offer(mode, ROLES_MODES)
    migrate = verbs.add_parser("migrate", help="migrate a sequence to another instance")
    migrate.add_argument("sequence", metavar="SEQUENCE", help="its number, as llmd-top shows it")
    migrate.add_argument("instance", metavar="INSTANCE", help="the one that it goes to")
    cap = verbs.add_parser(
        "cap",
        help="limit the power of an instance's card",
        description="Limit the card to this power, as near as it can, whatever its role; with "
        "auto its role chooses again. Needs llmd-powerd. A restarted daemon chooses by role.",
    )
    cap.add_argument("instance", metavar="INSTANCE", help="its name")
    cap.add_argument("watts", metavar="WATTS|auto", help="the limit in watts, or auto")
    for verb in (flip, migrate, cap):
        verb.add_argument("--json", action="store_true", help="one JSON object")
    return [drain, resume, flip, chosen, migrate, cap]
