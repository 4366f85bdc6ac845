"""Numbers for people: short, aligned, with their units."""

BAR_FULL, BAR_HALF, BAR_EMPTY = "━", "╸", "─"


def count(value: float) -> str:
    """A count in three digits: 7, 950, 1.24 k, 31.0 k, 2.50 M."""
    for unit in ("", " k", " M", " G"):
        if abs(value) < 999.5 or unit == " G":
            break
        value /= 1000
    if not unit:
        return f"{value:.0f}"
    return f"{_three_digits(value)}{unit}"


def rate(value: float | None) -> str:
    """A rate as `count`, with one decimal below ten; a dash where it is unknown."""
    if value is None:
        return "–"
    return f"{value:.1f}" if 0 < value < 9.95 else count(value)


def size(num_bytes: float) -> str:
    """A size in binary units: 512 B, 1.38 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(num_bytes) < 999.5 or unit == "TiB":
            break
        num_bytes /= 1024
    return f"{num_bytes:.0f} B" if unit == "B" else f"{_three_digits(num_bytes)} {unit}"


def latency(seconds: float | None) -> str:
    """A latency: 850 us, 12.5 ms, 1.24 s; a dash where it is unknown."""
    if seconds is None:
        return "–"
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 0.9995:
        return f"{_three_digits(seconds * 1e3)} ms"
    return f"{_three_digits(seconds)} s"


def duration(seconds: float) -> str:
    """A stretch of time: 4.2 s, 48 s, 3m 04s, 2h 07m, 5d 03h."""
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02}h"


def percent(fraction: float) -> str:
    """A share, four wide: " 45 %"."""
    return f"{round(100 * fraction):3} %"


def bar(fraction: float, width: int) -> str:
    """A bar of `width` cells, heavy to `fraction` in halves of a cell, light after it."""
    full, half = divmod(round(min(max(fraction, 0.0), 1.0) * width * 2), 2)
    filled = BAR_FULL * full + BAR_HALF * half
    return filled + BAR_EMPTY * (width - len(filled))


def share(part: float, whole: float) -> float:
    """`part / whole`, 0 where there is no whole."""
    return part / whole if whole else 0.0


def printable(text: str, width: int = 0) -> str:
    """`text` without control characters, cut to `width` cells (0: uncut) with an ellipsis."""
    clean = "".join(c if c.isprintable() else "�" for c in text)
    return clean[: width - 1] + "…" if 0 < width < len(clean) else clean


def ending(text: str, width: int) -> str:
    """`text`; where it is too long, its end, which tells neighbouring ids apart."""
    return text if len(text) <= width else "…" + text[len(text) + 1 - width :]


def _three_digits(value: float) -> str:
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{decimals}f}"


def bubble_words(share: float | None) -> str:
    """The share of its steps in which a stage waits for another; "": it is no stage."""
    return "" if share is None else f"{percent(share).strip()} bubble"
