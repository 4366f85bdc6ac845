"""Who gives instances their roles and what the last look came to, in a few lines."""

from daemon.protocol.control import RolesStatus
from daemon.state.role import AUTO


def roles_lines(roles: RolesStatus) -> list[str]:
    """The mode and the choice that is in force, then what every choice is expected to come to."""
    if roles.mode != AUTO:
        return ["roles are as configured, or as llmd ctl flip chose them"]
    pinned = f"; {', '.join(roles.pinned)} pinned" if roles.pinned else ""
    lines = [f"roles by the load: {roles.present}{pinned}", f"  {roles.decision}"]
    if roles.num_measured:
        kept = f"{roles.measured:.0%} of {roles.num_measured} answers"
        lines.append(f"  of this load {kept} kept both promises under it")
    for one in roles.expected:
        if one.ttft_s < 0:
            lines.append(f"  {one.choice:>6}: more comes than it can do")
            continue
        lines.append(
            f"  {one.choice:>6}: {one.attainment:.0%} expected (TTFT {one.ttft_s * 1e3:.0f} ms, "
            f"TPOT {one.tpot_s * 1e3:.1f} ms, KV {one.kv_share:.0%})"
        )
    return lines
