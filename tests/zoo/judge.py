"""The verdict on a variant: equal or refused, or a fault of the daemon's or of the zoo's."""

import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch

from daemon.models.shape import ModelError
from tests.zoo.build import build, build_stand_in
from tests.zoo.mutants import NoMutantError, mutate
from tests.zoo.oracle import TOLERANCE, Oracle, Served, reference, serve, serve_shortly
from tests.zoo.variant import Variant

EQUAL, REFUSED, WRONG, RAW = "equal", "refused", "wrong", "raw exception"
HOLE, IDLE, UNMADE = "hole", "no effect", "not a model"
"""A mutant passed; a change that changes no logits of transformers' own; none that transformers
makes."""
_ALWAYS = ("keys", "layers")
"""Mutants of variants whose own ones cannot be made: what is taken back has no weights then."""
FAULTS = (WRONG, RAW, HOLE)


@dataclass(frozen=True)
class Outcome:
    """A line of the zoo's result."""

    model_type: str
    variant: str
    what: str
    why: str = ""
    fused: bool = False
    made: bool = True
    """False: weights of no model stood in, since transformers does not make it, or not tiny."""
    distance: float = 0.0
    mutants: tuple[str, ...] = ()
    """Those that were caught."""


def outcome(variant: Variant) -> Outcome:
    """Make a variant's folder, serve it and its mutants, and say what came of it."""
    with tempfile.TemporaryDirectory(prefix="zoo-") as place:
        folder = Path(place, "m")
        told = (variant.model_type, variant.name)
        made, unmade = True, ""
        try:
            build(variant, folder)
        except Exception as error:  # noqa: BLE001 - whatever transformers raises
            made, unmade = False, _line(error)
            try:
                build_stand_in(variant, folder)
            except Exception as second:  # noqa: BLE001
                return Outcome(*told, UNMADE, _line(second), made=False)
        try:
            served = serve(folder, variant.dtype)
        except ModelError as error:
            return _refused(error, folder, told, made)
        except Exception as error:  # noqa: BLE001
            return Outcome(*told, RAW, _line(error), made=made)
        if not made:
            return Outcome(*told, UNMADE, unmade, made=False)
        try:
            return _held(variant, folder, served)
        except Exception as error:  # noqa: BLE001
            return Outcome(*told, WRONG, f"served, and transformers: {_line(error)}")


def _refused(error: ModelError, folder: Path, told: tuple[str, str], made: bool) -> Outcome:
    """A refusal is one sentence, in one line."""
    said = str(error).replace(f"{folder} ", "").replace(f"{folder}: ", "")
    said = said.replace(f"{folder}/", "")
    if "\n" in said or not said.strip():
        return Outcome(*told, RAW, f"no sentence: {said!r}", made=made)
    return Outcome(*told, REFUSED, said, made=made)


def _held(variant: Variant, folder: Path, served: Served) -> Outcome:
    told = (variant.model_type, variant.name)
    oracle = Oracle(folder, variant.dtype)
    verdict = oracle.judge(served)
    fused = served.fused
    if not verdict.equal:
        where = f"{verdict.distance:.1e} at position {verdict.position} of text {verdict.slot}"
        return Outcome(*told, WRONG, where, fused, distance=verdict.distance)
    caught: list[str] = []
    missed: list[str] = []
    for name in dict.fromkeys((*variant.mutants, *_ALWAYS)):
        if name not in variant.mutants and (caught or missed):
            break
        broken = folder.with_name(name)
        try:
            mutate(name, variant, folder, broken)
            short = serve_shortly(broken, variant.dtype)
        except (NoMutantError, ModelError):
            continue
        if oracle.judge(short).equal:
            missed.append(name)
        else:
            caught.append(name)
    line = (fused, True, verdict.distance, tuple(caught))
    if missed:
        if all(_idle(folder, folder.with_name(name)) for name in missed):
            return Outcome(*told, IDLE, f"without it the same: {', '.join(missed)}", *line)
        return Outcome(*told, HOLE, f"passed: {', '.join(missed)}", *line)
    if not caught:
        return Outcome(*told, HOLE, "no mutant could be made", *line)
    return Outcome(*told, EQUAL, "", *line)


def _idle(folder: Path, broken: Path) -> bool:
    """Whether transformers itself computes the same without the feature."""
    pairs = zip(reference(folder, torch.float32), reference(broken, torch.float32), strict=True)
    return all(
        bool((one - other).abs().max() <= TOLERANCE * one.abs().max()) for one, other in pairs
    )


def _line(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text} ({Path(last.filename).name}:{last.lineno})"
