"""The daemon's client: leases, reads, refusals, and a helper that is not there, ends or hangs."""

import asyncio
import signal
from pathlib import Path

import pytest

from daemon.powerd.client import PowerClient
from daemon.powerd.frames import CapInForce, CardReading, PowerError, PowerLostError
from tests.hangs import HANG_S
from tests.powerd.fake_cards import ORIGINAL_MW, FakeCards, needs_compiler, uuid_of
from tests.powerd.live import Powerd

pytestmark = needs_compiler

LIMITS = {"min_watts": 100.0, "max_watts": 350.0, "default_watts": 300.0}


async def test_it_leases_and_reads(powerd: Powerd, cards: FakeCards) -> None:
    client = await PowerClient.connect(powerd.path)
    assert await client.lease(uuid_of(0), 250) == CapInForce(cap_watts=250.0, **LIMITS)
    reading = CardReading(watts=71.5, cap_watts=250, energy_j=12_345.678, binding=True, **LIMITS)
    assert await client.read(uuid_of(0)) == reading
    assert (await client.lease(uuid_of(0), None)).cap_watts == 300
    several = [client.lease(uuid_of(number), 110 + number) for number in range(4)]
    assert [told.cap_watts for told in await asyncio.gather(*several)] == [110, 111, 112, 113]
    client.close()
    await asyncio.to_thread(powerd.until, lambda: cards.limits_mw() == ORIGINAL_MW)
    await client.lost()
    with pytest.raises(PowerLostError, match="has ended"):
        await client.read(uuid_of(0))


async def test_what_is_refused_is_said_and_the_lease_before_it_holds(powerd: Powerd) -> None:
    client = await PowerClient.connect(powerd.path)
    await client.lease(uuid_of(0), 250)
    for watts in (float("nan"), float("inf"), -1.0):
        with pytest.raises(PowerError, match="not understood"):
            await client.lease(uuid_of(0), watts)
    with pytest.raises(PowerError, match="Not Found"):
        await client.lease("GPU-none", 250)
    with pytest.raises(PowerError, match="device"):
        await client.read("no\nUUID")
    assert (await client.read(uuid_of(0))).cap_watts == 250
    client.close()


async def test_who_waits_hears_of_the_helpers_end(powerd: Powerd) -> None:
    client = await PowerClient.connect(powerd.path)
    await client.lease(uuid_of(0), 250)
    lost = asyncio.create_task(client.lost())
    powerd.kill()
    async with asyncio.timeout(HANG_S):
        await lost
    with pytest.raises(PowerLostError):
        await client.lease(uuid_of(0), 200)
    with pytest.raises(PowerLostError, match=r"no llmd-powerd answers .* Connection refused"):
        await PowerClient.connect(powerd.path)


async def test_a_helper_that_hangs_is_given_up(powerd: Powerd, cards: FakeCards) -> None:
    client = await PowerClient.connect(powerd.path, timeout_s=0.2)
    await client.lease(uuid_of(0), 250)
    powerd.signal(signal.SIGSTOP)
    first, second = client.read(uuid_of(0)), client.read(uuid_of(1))
    told = await asyncio.gather(first, second, return_exceptions=True)
    assert all(isinstance(one, PowerLostError) for one in told)
    powerd.signal(signal.SIGCONT)
    await asyncio.to_thread(powerd.until, lambda: cards.limits_mw() == ORIGINAL_MW)


async def test_one_that_stopped_waiting_takes_nobodys_answer(powerd: Powerd) -> None:
    client = await PowerClient.connect(powerd.path)
    powerd.signal(signal.SIGSTOP)
    given_up = asyncio.create_task(client.lease(uuid_of(0), 111))
    await asyncio.sleep(0)
    reading = asyncio.create_task(client.read(uuid_of(1)))
    await asyncio.sleep(0)
    given_up.cancel()
    powerd.signal(signal.SIGCONT)
    assert (await reading).cap_watts == 250
    assert given_up.cancelled()
    client.close()


@pytest.mark.parametrize(
    "line", [b"[", b"{}", b'{"ok":true}', b'{"ok":true,"more":' + b"[" * 4000, b"x" * 5000]
)
async def test_who_answers_otherwise_is_no_helper(tmp_path: Path, line: bytes) -> None:
    """Some other program's socket, or another version: the daemon lives on without."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(line + b"\n")
        await reader.read()
        writer.close()

    path = tmp_path / "other.sock"
    async with await asyncio.start_unix_server(answer, path):
        client = await PowerClient.connect(path)
        error = PowerError if line == b"{}" else PowerLostError
        with pytest.raises(error):
            await client.read(uuid_of(0))
        client.close()


async def test_nobody_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(PowerLostError, match=r"none\.sock: No such file"):
        await PowerClient.connect(tmp_path / "none.sock")
