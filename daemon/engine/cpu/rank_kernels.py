"""The CPU kernels of ranks that compute one model together: sums and gathers over shared memory.

The memory begins with 64 bytes for each rank, `LINE` int64 each: how many operations it has begun,
what each of its last two is (a number that all ranks must have alike), whether it has left, and
what it waits for. So ranks that wait for each other, which would never end, are found at once.
Behind them lie two areas for each rank. A rank writes its part to one of them, counts up, and reads
those of the others when they have counted as far. It writes the same area again two operations
later: by then all others have begun the one between, and so have read it.
"""

# numba infers the types of what follows; Python's annotations mean nothing to it.
# mypy: ignore-errors

from numba import njit, types

from daemon.engine.cpu.quantised_kernels import ITEM
from daemon.engine.cpu.team import count_up, float_pointer, int8_pointer, int64_pointer, read_now

LINE = 8
"""int64 of a rank's line."""
LATE, LEFT, OTHERWISE, STUCK = 1, 2, 3, 4
"""Faults of a rank: it is late, has left, does another operation, or waits for this one."""
WORLD = 16
"""A fault, times this, and the rank, are one number."""

_DOES = 1  # column of a line
IS_GONE = 3
"""The column of a line that says that its rank has left."""
_NUM_WAITS, _FOR, _AT, _NUMBER = 4, 5, 6, 7
"""Columns of a line: how many waits its rank has begun and ended; the rank that it waits for, the
place of the counter behind the first line (bytes), and the number that it has to reach."""
_SUM, _GATHER = 1 << 60, 1 << 61
_SPINS, YIELDS, _NAP_US = 4000, 4000, 50
"""Looks of a rank before it lets others have its core, such looks (two milliseconds where nobody
wants it) before it naps, and a nap."""
_MONOTONIC = 1
_sched_yield = types.ExternalFunction("sched_yield", types.int32())
_usleep = types.ExternalFunction("usleep", types.int32(types.uint32))
_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.int64))
_strictly = njit(cache=True, fastmath=False, error_model="numpy")


@_strictly
def _now_ns(clock):
    """The time, by way of two int64 at `clock`."""
    _clock_gettime(_MONOTONIC, clock)
    return int64_pointer(clock)[0] * 1_000_000_000 + int64_pointer(clock)[1]


@_strictly
def waits(lines, own, rank, counter, number, yields, limit_ns, clock):
    """The fault of a `rank` whose counter, at an address, has not reached `number`; 0 once it has.

    `lines`: the address of those of all ranks, of which this is the `own`-th. Most waits are short:
    a rank spins, then lets others have the core (`yields` times), then naps.
    """
    for _ in range(_SPINS):
        if read_now(int64_pointer(counter)) >= number:
            return 0
    for _ in range(yields):
        if read_now(int64_pointer(counter)) >= number:
            return 0
        _sched_yield()
    line = lines + 8 * LINE * own
    int64_pointer(line)[_FOR] = rank
    int64_pointer(line)[_AT] = counter - lines
    int64_pointer(line)[_NUMBER] = number
    count_up(int64_pointer(line + 8 * _NUM_WAITS), 1)
    wrong = _naps(lines, own, rank, counter, number, limit_ns, clock)
    count_up(int64_pointer(line + 8 * _NUM_WAITS), 1)
    return wrong


@_strictly
def _naps(lines, own, rank, counter, number, limit_ns, clock):
    """The slow part of `waits`."""
    since_ns = _now_ns(clock)
    while read_now(int64_pointer(counter)) < number:
        if read_now(int64_pointer(lines + 8 * (LINE * rank + IS_GONE))) != 0:
            return LEFT
        if _now_ns(clock) - since_ns > limit_ns:
            return LATE
        if _is_stuck(lines, own):
            return STUCK
        _usleep(_NAP_US)
    return 0


@_strictly
def _is_stuck(lines, own):
    """Whether the rank that this one waits for waits too, and so on in a circle back to this one.

    A rank may go on while others of the circle are looked at. One that was still seen to wait after
    the rank that it waits for cannot: so a circle is gone round as often as it may have ranks.
    """
    for _ in range(WORLD):
        rank = own
        for _ in range(WORLD):
            line = lines + 8 * LINE * rank
            count = read_now(int64_pointer(line + 8 * _NUM_WAITS))
            rank = read_now(int64_pointer(line + 8 * _FOR))
            counter = lines + read_now(int64_pointer(line + 8 * _AT))
            number = read_now(int64_pointer(line + 8 * _NUMBER))
            if count & 1 == 0 or read_now(int64_pointer(counter)) >= number:
                return False
            if read_now(int64_pointer(line + 8 * _NUM_WAITS)) != count:
                return False
            if rank == own:
                break
        if rank != own:
            return False
    return True


@_strictly
def _meet(a, does):
    """Count this rank's operation, and wait for all others to begin theirs; the fault, or 0.

    a[5] lines, a[6] areas, a[7] bytes of an area, a[8] rank, a[9] ranks, a[10] int64 [4]: the
    fault, nanoseconds that a rank may be late, and the time.
    """
    own = a[5] + 8 * LINE * a[8]
    number = int64_pointer(own)[0] + 1
    int64_pointer(own)[_DOES + (number & 1)] = does
    count_up(int64_pointer(own), 1)
    for rank in range(a[9]):
        line = a[5] + 8 * LINE * rank
        limit_ns, clock = int64_pointer(a[10])[1], a[10] + 16
        wrong = waits(a[5], a[8], rank, line, number, YIELDS, limit_ns, clock)
        if wrong == 0 and int64_pointer(line)[_DOES + (number & 1)] != does:
            wrong = OTHERWISE
        if wrong != 0:
            int64_pointer(a[10])[0] = wrong * WORLD + rank
            return wrong
    return 0


@_strictly
def _area(a, rank, number):
    """The address of a rank's area for operation `number`."""
    return a[6] + ((number & 1) * a[9] + rank) * a[7]


@_strictly
def _add_up(a, number, first, count):
    """`count` numbers from the `first` on, of all ranks, in the order of their ranks."""
    states, part = float_pointer(a[11] + 4 * first), float_pointer(_area(a, 0, number))
    for index in range(count):
        states[index] = part[index]
    for rank in range(1, a[9]):
        part = float_pointer(_area(a, rank, number))
        for index in range(count):
            states[index] += part[index]


@ITEM
def sum_item(a, _item):
    """The sum of all ranks' numbers, in place, the same bits on each: a[11] float32, a[12] how
    many. The other arguments are `_meet`'s. Once something is wrong, nothing is done any more.
    """
    at_once = a[7] // 4
    first = 0
    while first < a[12] and int64_pointer(a[10])[0] == 0:
        count = min(at_once, a[12] - first)
        number = int64_pointer(a[5] + 8 * LINE * a[8])[0] + 1
        own = float_pointer(_area(a, a[8], number))
        states = float_pointer(a[11] + 4 * first)
        for index in range(count):
            own[index] = states[index]
        if _meet(a, _SUM + count) == 0:
            _add_up(a, number, first, count)
        first += count


@_strictly
def copy_bytes(source, target, size_bytes):
    """Bytes from one address to another; eight at a time where both lie so."""
    whole = 0
    if (source | target) & 7 == 0:
        whole = size_bytes // 8
        for index in range(whole):
            int64_pointer(target)[index] = int64_pointer(source)[index]
    for index in range(8 * whole, size_bytes):
        int8_pointer(target)[index] = int8_pointer(source)[index]


@ITEM
def gather_item(a, _item):
    """All ranks' rows side by side: a[11] own rows, dense, a[12] how many, a[13] int64 [ranks + 1],
    the byte of a whole row at which each rank's begins, a[14] whole rows, dense; 0: not read here,
    a[15] rows at once. The other arguments are `_meet`'s.
    """
    begins = int64_pointer(a[13])
    own_bytes, all_bytes = begins[a[8] + 1] - begins[a[8]], begins[a[9]]
    first = 0
    while first < a[12] and int64_pointer(a[10])[0] == 0:
        count = min(a[15], a[12] - first)
        number = int64_pointer(a[5] + 8 * LINE * a[8])[0] + 1
        copy_bytes(a[11] + first * own_bytes, _area(a, a[8], number), count * own_bytes)
        if _meet(a, _GATHER + count * all_bytes) == 0 and a[14] != 0:
            for rank in range(a[9]):
                part, size_bytes = _area(a, rank, number), begins[rank + 1] - begins[rank]
                for row in range(count):
                    target = a[14] + (first + row) * all_bytes + begins[rank]
                    copy_bytes(part + row * size_bytes, target, size_bytes)
        first += count
