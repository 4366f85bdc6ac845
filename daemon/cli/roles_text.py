"""How instances get their roles and what was decided last, in a few lines."""

from daemon.protocol.control import RolesStatus
from daemon.state.role import TRANSITIONS, WATCHED


def roles_lines(roles: RolesStatus) -> list[str]:
    """The mode and the choice in force, then the forecast of every choice."""
    if roles.mode not in WATCHED:
        return ["roles are as configured, or as llmd ctl flip chose them"]
    pinned = f"; {', '.join(roles.pinned)} pinned" if roles.pinned else ""
    by = f"the rule {roles.mode}" if roles.mode in TRANSITIONS else "the load"
    lines = [f"roles by {by}: {roles.present}{pinned}"]
    if roles.decision:
        lines.append(f"  {roles.decision}")
    if roles.num_measured:
        kept = f"{roles.measured:.0%} of {roles.num_measured} answers"
        lines.append(f"  of this load {kept} kept both promises under it")
    for forecast in roles.expected:
        if forecast.ttft_s < 0:
            lines.append(f"  {forecast.choice:>6}: overloaded")
            continue
        lines.append(
            f"  {forecast.choice:>6}: {forecast.attainment:.0%} expected "
            f"(TTFT {forecast.ttft_s * 1e3:.0f} ms, TPOT {forecast.tpot_s * 1e3:.1f} ms, "
            f"KV {forecast.kv_share:.0%})"
        )
    return lines
