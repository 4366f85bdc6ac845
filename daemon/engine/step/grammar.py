"""Which tokens may come next in the slots whose sequences follow a grammar.

A slot's matcher starts behind the sequence's known outputs, gives a mask before each token and
takes the sampled one, so that recompute, swap and preemption continue exactly where the answer was.
Slots without a grammar cost nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from daemon.engine.sampler.allowed import Allowed
from daemon.engine.sampler.edits import end_ids
from daemon.models.grammar import BROKEN_OFF, Compiler, GrammarError, check
from daemon.protocol.worker import Join, RowErrors

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

Integers = npt.NDArray[np.integer]
Mask = npt.NDArray[np.int32]

_ANY_TOKEN = -1


@dataclass(slots=True)
class _Follower:
    """One slot's place in its grammar."""

    grammar: str
    num_prompt_tokens: int
    min_tokens: int
    ends: list[int]  # the tokens that end the sequence
    outputs: list[int]  # those that the matcher has consumed
    matcher: "LLMatcher | None" = None
    ended: bool = False  # a step in flight may still sample a token for it, which is dropped
    error: str = ""

    @property
    def follows(self) -> bool:
        """Whether the grammar still binds its tokens."""
        return self.matcher is not None and not self.ended and not self.error

    def catch_up(self, matcher: "LLMatcher") -> None:
        """Continue with another matcher, which stands at the grammar's beginning."""
        self.matcher = matcher
        if self.outputs:
            matcher.consume_tokens(self.outputs)

    def see_to_ends(self, mask: Mask) -> None:
        """Set or clear the ends in its mask [W]: they are allowed where the grammar is complete.

        Before `min_tokens` they wait while the grammar allows anything else. Where nothing else is
        left they are allowed in any case: an answer must be able to end.
        """
        assert self.matcher is not None
        octets = mask.view(np.uint8)
        for token in self.ends:
            octets[token >> 3] &= 0xFF ^ (1 << (token & 7))
        early = len(self.outputs) < self.min_tokens
        if not mask.any() or (not early and self.matcher.is_accepting()):
            for token in self.ends:
                octets[token >> 3] |= 1 << (token & 7)


class SlotGrammars:
    """The grammars of an engine's slots; `load` is called when the first of them comes."""

    def __init__(
        self, load: Callable[[], Compiler], vocab_size: int, eos_ids: tuple[int, ...]
    ) -> None:
        self._load = load
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids
        self._followers: dict[int, _Follower] = {}
        self._compiler: Compiler | None = None
        self._executor: LLExecutor | None = None

    @property
    def any(self) -> bool:
        """Whether any slot's sequence follows one."""
        return bool(self._followers)

    def join(self, join: Join) -> None:
        """A sequence takes a slot. A fault of its grammar is reported at its first token."""
        sampling = join.sampling
        if not sampling.grammar:
            return
        known = [end for end in end_ids(sampling, self._eos_ids) if 0 <= end < self._vocab_size]
        outputs = join.history[join.num_prompt_tokens :].tolist()
        follower = _Follower(
            sampling.grammar, join.num_prompt_tokens, sampling.min_tokens, known, outputs
        )
        self._followers[join.slot] = follower
        try:
            if not known:
                raise GrammarError("a grammar needs a token that ends the answer")
            follower.catch_up(self._loaded().matcher(sampling.grammar))
        except GrammarError as error:
            follower.error = str(error)

    def leave(self, slot: int) -> None:
        """Forget the slot's sequence."""
        self._followers.pop(slot, None)

    def allowed(self, slots: Integers, positions: Integers) -> Allowed | None:
        """Tokens that these rows [R] may sample at their positions; None if no row has a grammar.

        Raises ValueError if the tokens before a position are not all known.
        """
        if not self._followers:
            return None
        found = ((row, self._followers.get(slot)) for row, slot in enumerate(slots.tolist()))
        bound = [
            (row, follower) for row, follower in found if follower is not None and follower.follows
        ]
        if not bound:
            return None
        for row, follower in bound:
            num_known = follower.num_prompt_tokens + len(follower.outputs)
            if positions[row] != num_known:
                raise ValueError(f"the token at {positions[row]} follows {num_known} known tokens")
        masks = np.zeros((len(bound), self._loaded().mask_words), np.int32)
        self._fill([follower for _row, follower in bound], masks)
        return Allowed(np.array([row for row, _one in bound]), masks)

    def take(self, slots: Integers, tokens: Integers) -> RowErrors:
        """Advance by the tokens that rows [R] sampled. Returns the rows that cannot, and why."""
        if not self._followers:
            return ()
        errors = []
        for row, (slot, token) in enumerate(zip(slots.tolist(), tokens.tolist(), strict=True)):
            follower = self._followers.get(slot)
            if follower is None:
                continue
            if follower.error:
                errors.append((row, BROKEN_OFF + follower.error))
            elif token in follower.ends:
                follower.ended = True
            elif follower.matcher is not None and not follower.ended:
                follower.outputs.append(token)
                follower.matcher.consume_token(token)  # if it fails, its next mask shows it
        return tuple(errors)

    def _loaded(self) -> Compiler:
        if self._compiler is None:
            self._compiler = self._load()
        return self._compiler

    def _fill(self, followers: list[_Follower], masks: Mask) -> None:
        """Write each follower's mask into its row of `masks` [G, W]."""
        if len(followers) > 1:
            if self._executor is None:
                from llguidance import LLExecutor

                self._executor = LLExecutor()
            pairs = [
                (follower.matcher, row)
                for row, follower in enumerate(followers)
                if follower.matcher
            ]
            self._executor.unsafe_compute_mask_ptr(
                pairs, masks.ctypes.data, masks.strides[0], len(masks)
            )
        else:
            _ask(followers[0].matcher, masks[0])
        for follower, mask in zip(followers, masks, strict=True):
            try:
                self._settle(follower, mask)
            except GrammarError as error:
                follower.error = str(error)
                mask[:] = _ANY_TOKEN

    def _settle(self, follower: _Follower, mask: Mask) -> None:
        """Once the matcher has answered: try again where it failed, then settle the ends."""
        if follower.matcher is not None and follower.matcher.is_error():
            # Others of the same grammar may have used up the limits that they share.
            follower.catch_up(self._loaded().matcher_anew(follower.grammar))
            _ask(follower.matcher, mask)
            check(follower.matcher)
        follower.see_to_ends(mask)


def _ask(matcher: "LLMatcher | None", mask: Mask) -> None:
    if matcher is not None:
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
