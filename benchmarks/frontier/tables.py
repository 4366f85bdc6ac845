"""Tables of cells, for a terminal and for documents: every measure beside the better baseline."""

from collections.abc import Iterator

from benchmarks.frontier.measures import GAP, MEASURES, CellFigures, Measure, Results, WayFigures


def table(done: CellFigures) -> Iterator[str]:
    """A row for each way: each measure, its ratio to the better baseline and `!` if it misses."""
    yield f"{'policy':<24}" + "".join(f"{one.title:>18}" for one in MEASURES) + f"{'longest':>10}"
    for way in done.ways:
        missed = done.misses(way)
        row = f"{way.name:<24}"
        for one in MEASURES:
            value = way.value(one)
            row += f"{value:>10.3f} {value / done.base(one):>6.2f}{'!' if one in missed else ' '}"
        unfinished = f"  {way.unfinished} unfinished" if way.unfinished else ""
        yield f"{row}{way.longest_gap_s:>10.1f}{unfinished}"


def shown(done: CellFigures) -> Iterator[str]:
    """A cell in full."""
    drawn = ", ".join(f"{load:.2f}" for load in done.drawn)
    yield f"\n{done.cell} at {done.load:g}: {done.label}; drawn at {drawn} and stretched"
    yield from table(done)
    for way in done.others:
        yield f"  {way.name}: {_verdict(done.misses(way))}"
    yield f"  {done.processor_s:.0f} s of processor"


def markdown(results: Results) -> Iterator[str]:
    """Ratios to the better baseline by cell, load and way, and how many cells each way holds."""
    titles = [one.title for one in MEASURES]
    yield f"| Cell | Load | Policy | {' | '.join(titles)} |"
    yield "|---|---|---|" + "---|" * len(titles)
    for done in results.cells:
        for number, way in enumerate(done.others):
            place = f"{done.cell} | {done.load:g}" if number == 0 else " | "
            ratios = " | ".join(_ratio(done, way, one) for one in MEASURES)
            yield f"| {place} | {way.name} | {ratios} |"
    yield ""
    yield f"| Policy | All bounds hold in | {' | '.join(f'{title} missed' for title in titles)} |"
    yield "|---|---|" + "---|" * len(titles)
    for name, missed in held(results).items():
        holds = sum(not measures for measures in missed)
        counts = (sum(one in measures for measures in missed) for one in MEASURES)
        yield f"| {name} | {holds} of {len(missed)} | {' | '.join(map(str, counts))} |"


def held(results: Results) -> dict[str, list[list[Measure]]]:
    """By way: what it misses in each cell that it ran in."""
    found: dict[str, list[list[Measure]]] = {}
    for done in results.cells:
        for way in done.others:
            found.setdefault(way.name, []).append(done.misses(way))
    return found


def _ratio(done: CellFigures, way: WayFigures, measure: Measure) -> str:
    """Gaps in seconds too: so many are never too long."""
    value = way.value(measure)
    text = f"{value / done.base(measure):.2f}"
    if measure == GAP:
        text = f"{value:.1f} s ({text})"
    return f"**{text}**" if measure in done.misses(way) else text


def _verdict(missed: list[Measure]) -> str:
    return f"misses {', '.join(one.title for one in missed)}" if missed else "holds"
