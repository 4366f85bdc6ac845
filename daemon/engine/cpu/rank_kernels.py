"""The CPU kernels of ranks that compute one model together: sums and gathers over shared memory.

The memory begins with 64 bytes for each rank, `LINE` int64 each: how many operations it has begun,
what each of its last two is (a number that all ranks must have alike), and whether it has left.
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
LATE, LEFT, OTHERWISE = 1, 2, 3
"""Faults of a rank: it is late, it has left, or it does another operation."""
WORLD = 16
"""A fault, times this, and the rank, are one number."""

_DOES = 1  # column of a line
IS_GONE = 3
"""The column of a line that says that its rank has left."""
_SUM, _GATHER = 1 << 60, 1 << 61
_SPINS, _YIELDS, _NAP_US = 4000, 4000, 50
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
def waits(begun, left, number, limit_ns, clock):
    """The fault of a rank that has not begun operation `number`; 0 once it has.

    `begun` and `left`: addresses of its columns. Most waits are short: a rank spins, then lets
    others have the core, then naps.
    """
    for _ in range(_SPINS):
        if read_now(int64_pointer(begun)) >= number:
            return 0
    for _ in range(_YIELDS):
        if read_now(int64_pointer(begun)) >= number:
            return 0
        _sched_yield()
    since_ns = _now_ns(clock)
    while read_now(int64_pointer(begun)) < number:
        if read_now(int64_pointer(left)) != 0:
            return LEFT
        if _now_ns(clock) - since_ns > limit_ns:
            return LATE
        _usleep(_NAP_US)
    return 0


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
        wrong = waits(line, line + 8 * IS_GONE, number, int64_pointer(a[10])[1], a[10] + 16)
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
