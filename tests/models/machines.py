"""Real machines with several cards, as people have published them: `machines/NAME.txt`.

The first line says where it is from; then each card's MiB, bandwidth and PCIe link (1e9 bytes/s),
whether it reads the others' memory, and its name; then what `nvidia-smi topo -m` printed.
"""

from itertools import combinations
from pathlib import Path

from daemon.config.card_links import NVLINK_BYTES_PER_S, CardLink, CardSeat
from daemon.config.cuda import Card, Devices

FOLDER = Path(__file__).parent / "machines"
NAMES = sorted(path.stem for path in FOLDER.glob("*.txt"))


def machine(name: str) -> Devices:
    """The devices of one of `NAMES`, with nothing else in their memory."""
    _source, *lines = (FOLDER / f"{name}.txt").read_text(encoding="ascii").splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith(" "))
    sizes = [line.split(None, 4) for line in lines[:head]]
    rows = [line.split() for line in lines[head + 1 :]]
    cards, links = [], []
    for mib, bandwidth, pcie, _peers, model in sizes:
        seat = CardSeat(1e9 * float(bandwidth), 1e9 * float(pcie))
        total_bytes = int(mib) << 20
        cards.append(Card(f"NVIDIA {model}", "", (8, 9), total_bytes, total_bytes, seat=seat))
    for one, other in combinations(range(len(cards)), 2):
        path = rows[one][1 + other]
        rate = min(cards[one].seat.pcie_bytes_per_s, cards[other].seat.pcie_bytes_per_s)
        if path.startswith("NV"):
            rate = int(path[2:]) * NVLINK_BYTES_PER_S[3]
        links.append(CardLink(one, other, path, rate, sizes[one][3] == sizes[other][3] == "1"))
    return Devices(tuple(cards), links=tuple(links))
