"""A card's first use: kernels that fail in every way, by the real child; what is kept and told."""

import errno
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from daemon.engine.families import ALL, FAMILIES
from daemon.engine.sampler.ops import TorchSamplerOps
from daemon.engine.verify.kernels import choose_families, kept, tries
from daemon.engine.verify.kernels.bench import Bench
from daemon.engine.verify.kernels.compare import WrongError
from daemon.engine.verify.kernels.kept import CardStack, Verdict
from daemon.engine.verify.kernels.messages import Message, Request, Tried, Trying, Untried
from daemon.engine.verify.kernels.run import DEADLINES_S, SelfTestError, TriedFamilies, run
from tests.engine.verify.kernels.subject import SUBJECT

ROOT = Path(__file__).parents[4]
CARD = CardStack("NVIDIA Fake 9000", "9.0", "580.1", "2.9", "3.5", "13.0")
FAULTY = (sys.executable, "-m", "tests.engine.verify.kernels.faulty_child")
SHORT = {**DEADLINES_S, "decode": 1.0}


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """In child processes alone: this one has Triton imported, or will."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def test_every_kind_of_fault_costs_its_own_family_alone() -> None:
    told: list[str] = []
    found = run(SUBJECT, told.append, command=FAULTY, deadlines_s=SHORT)
    # That all is imported; then of each family the beginning and the end, of a late one twice.
    assert list(dict.fromkeys(told)) == ["", *FAMILIES]
    assert all(told.count(family) == (4 if family == "decode" else 2) for family in FAMILIES)
    whys = {
        "norm": "RuntimeError: CUDA error: an illegal instruction was encountered",
        "activation": "no such card",
        "qkv": "queries: row ",
        "write": "keys and values: row ",
        "decode": "it was not done within 1 s",
        "prefill": f"its process died of signal {int(signal.SIGSEGV)}",
        "blocks": "numbers of Q4_K as torch.float32: 1 of 9472 numbers differ",
        "experts": "experts of Q4_0 by 1: row ",
        "draw": f"its process died of signal {int(signal.SIGABRT)}",
        "graphs": "torch computes decode, qkv, write, which no graph can hold",
    }
    assert found.faults.keys() == whys.keys()
    for family, why in whys.items():
        assert why in found.faults[family]
    assert not found.passing


FORKS = """
import os, signal, time
from daemon.engine.verify.kernels import forks
from daemon.engine.verify.kernels.messages import Request, Tried, Trying
from tests.engine.verify.kernels.subject import SUBJECT

reading, writing = os.pipe()
os.write(writing, b"x")
os.close(writing)

def work(request, tell):
    for family in request.families:
        tell(Trying(family))
        if family == "slow" and os.read(reading, 1):
            time.sleep(1000)
        if family == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        tell(Tried(family))

deadlines_s = {"slow": 0.5, "killed": 60.0, "right": 60.0}
forks.try_in_forks(Request(SUBJECT, tuple(deadlines_s), deadlines_s), work, print)
"""


def test_what_was_late_once_or_killed_from_outside_is_no_lasting_verdict() -> None:
    # A process without threads, as a fork wants it.
    done = subprocess.run(
        [sys.executable, "-c", FORKS], cwd=ROOT, capture_output=True, text=True, check=False
    )
    told = done.stdout.splitlines()
    slow = ["Trying(family='slow')", "Late(family='slow')", "Trying(family='slow')"]
    assert told[:4] == [*slow, "Tried(family='slow', fault='', passing=False)"], done.stderr
    killed = "Tried(family='killed', fault='its process died of signal 9', passing=True)"
    assert told[5] == killed and told[-1] == "Tried(family='right', fault='', passing=False)"


def test_a_card_is_tried_once_and_again_where_anything_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = {"decode": "it was not done within 60 s"}
    kept.keep(tmp_path, Verdict(CARD, SUBJECT, kept.code(), faults))
    told: list[tuple[str, str]] = []

    def trusted(card: CardStack = CARD, subject: Any = SUBJECT) -> frozenset[str]:
        told.clear()
        nothing = (sys.executable, "-c", "pass")
        return choose_families.trusted(
            tmp_path, card, subject, lambda _: None, lambda *said: told.append(said), nothing
        )

    assert trusted() == {"decode"}
    assert told == [*faults.items()]
    # A child that tells nothing: whatever is not known is not trusted, and not kept.
    for card, subject in (
        (msgspec.structs.replace(CARD, driver="581.0"), SUBJECT),
        (CARD, msgspec.structs.replace(SUBJECT, head_dim=32)),
    ):
        assert trusted(card, subject) == ALL
        assert {family for family, _ in told} == ALL
        assert all("process ended" in why for _, why in told)
    monkeypatch.setattr(kept, "code", lambda: "of another day")
    assert trusted() == ALL
    assert len(list((tmp_path / "kernels").iterdir())) == 1


def test_what_says_nothing_of_a_card_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = {"products": "OutOfMemoryError: a full card"}
    told: dict[str, str] = {}
    for passing in (True, False):
        found = TriedFamilies(faults, passing)
        monkeypatch.setattr(choose_families, "run", lambda *_, found=found, **__: found)
        by_torch = choose_families.trusted(
            tmp_path, CARD, SUBJECT, lambda _: None, told.__setitem__
        )
        assert by_torch == {"products"} and told == faults
        assert bool(list(kept.all_kept(tmp_path))) is not passing


def test_a_file_that_holds_no_verdict_is_not_believed(tmp_path: Path) -> None:
    kept.keep(tmp_path, Verdict(CARD, SUBJECT, kept.code(), {}))
    (path,) = (tmp_path / "kernels").iterdir()
    assert [one for one, _ in kept.all_kept(tmp_path)] == [path]
    whole = path.read_bytes()
    for damaged in (whole[:-40], b"", whole.replace(b'"faults": {}', b'"faults": {"nom": "x"}')):
        assert damaged != whole
        path.write_bytes(damaged)
        assert kept.read(tmp_path, CARD, SUBJECT) is None
        assert not list(kept.all_kept(tmp_path))


def test_a_child_that_cannot_start_says_why() -> None:
    with pytest.raises(SelfTestError, match="no child process"):
        run(SUBJECT, lambda _: None, command=("/nonexistent/python",))
    with pytest.raises(SelfTestError, match="process ended"):
        run(SUBJECT, lambda _: None, command=(sys.executable, "-c", "raise SystemExit(3)"))


def tried(work: Any, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> list[Message]:
    """What a fork would say, if `work` tried its families."""
    monkeypatch.setattr(tries, "_try", work)
    said: list[Message] = []
    subject = msgspec.structs.replace(SUBJECT, **changes)
    tries.try_all(Request(subject, ("norm", "qkv"), {}), said.append)
    return said


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (torch.OutOfMemoryError("a full card"), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), True),
        (RuntimeError("Failed to find C compiler. Please specify via CC"), True),
        (subprocess.CalledProcessError(1, ["gcc"]), True),
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (RuntimeError("out of resource: shared memory, Required: 131072"), False),
        (RuntimeError("an illegal memory access was encountered"), False),
    ],
)
def test_what_lacks_on_the_machine_says_nothing_of_a_card(
    error: Exception, passing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*_: Any) -> None:
        raise error

    begun, ended, *_ = tried(raises, monkeypatch)
    assert begun == Trying("norm")
    assert isinstance(ended, Tried) and ended.fault and ended.passing is passing


def test_draws_from_edited_logits_are_tried_in_their_own_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sampling_cases = pytest.importorskip("daemon.engine.verify.kernels.sampling_cases")

    class Wrong(TorchSamplerOps):
        def choose(self, logits: torch.Tensor, params: Any, positions: Any) -> torch.Tensor:
            drawn = super().choose(logits, params, positions)
            return drawn + (logits.dtype == torch.float32)

    monkeypatch.setattr(sampling_cases, "CudaSamplerOps", lambda vocab, _device: Wrong(vocab))
    with pytest.raises(WrongError, match="float32"):
        sampling_cases.try_draws(Bench(msgspec.structs.replace(SUBJECT, dtype="bfloat16")))


def test_nothing_is_tried_on_a_device_that_answers_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*_: Any) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(tries, "_answers", lambda _device: False)
    said = tried(raises, monkeypatch)
    assert [type(one) for one in said] == [Trying, Tried]


def test_a_device_that_cannot_be_opened_is_one_that_nothing_is_known_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = tried(lambda *_: None, monkeypatch, device="cuda:0")
    assert len(said) == 1 and isinstance(said[0], Untried)
