"""What `llmd ctl status` and llmd-top tell of rules: placement, decodes, deadlines, 8 bits, pools.

The text of the first, that of `llmd-top -1`, and llmd-top's cards and table.
"""

import msgspec

from daemon.cli.status import as_json, as_text
from daemon.protocol.control import Due, Snapshot
from daemon.state.role import Role
from tests.tui import scenario
from tui.cards import card_lines, card_news
from tui.instances import InstancesTable
from tui.plain import frame


def ruled() -> Snapshot:
    """Two instances, of which the first does other work too, and keeps room in several ways."""
    known = scenario.snapshot(10)
    first, second, *_ = known.instances
    first = msgspec.structs.replace(
        first,
        role=Role.PREFILL,
        pool="mixed",
        decode_admission="reserve_dynamic",
        burst_blocks=12,
        host_blocks=400,
        host_held=40,
    )
    second = msgspec.structs.replace(second, decode_admission="greedy", host_blocks=0)
    counters = msgspec.structs.replace(known.counters, due=(Due(5.0, 18, 2), Due(0.0, 3, 1)))
    return msgspec.structs.replace(
        known, instances=(first, second), placement="jsq", compress=True, counters=counters
    )


def test_status_tells_of_each_in_words() -> None:
    text = as_text(ruled())
    name = ruled().instances[0].name
    assert "placement jsq" in text
    assert "deadlines, 5 times an answer's time alone: 18 of 20 kept (90.0%)" in text
    assert "deadlines, requests' own: 3 of 4 kept (75.0%)" in text
    assert (
        f"{name}: decode admission reserve_dynamic; 12 blocks kept for bursts; 40/400 blocks in "
        "RAM, packed into 8 bits"
    ) in text
    assert "prefill, mixed" in text
    assert '"compress": true' in as_json(ruled()) and '"pool": "mixed"' in as_json(ruled())


def test_the_plain_report_tells_the_same() -> None:
    text = frame(ruled())
    for words in ("placement   jsq", "decodes reserve_dynamic, 12 blocks kept for bursts", "mixed"):
        assert words in text
    assert "host memory packed into 8 bits" in text and "5 x: 18 kept, 2 missed" in text


def test_a_card_and_the_table_show_the_pool_and_the_rules() -> None:
    known = ruled()
    card = "\n".join(line.plain for line in card_lines(card_news(known)[0], 60, 5))
    assert "prefill in mixed" in card
    table = InstancesTable()
    table.show = lambda rows: None  # type: ignore[method-assign]
    table.hide = lambda keys: None  # type: ignore[method-assign]
    table.update_from(known)
    for words in ("placement jsq", "decodes reserve_dynamic", "RAM in 8 bits"):
        assert words in str(table.border_subtitle)
