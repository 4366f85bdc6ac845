"""Grammars of calls: what they allow is what the reader reads."""

import json
import random
from functools import cache

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer

from daemon.api.answer.channels import ChannelReader
from daemon.api.request.tool_schema import Function
from daemon.api.text.markers import (
    CLOSING,
    CONSTRAIN,
    MESSAGE,
    MESSAGE_ENDS,
    OPENING,
    PYTHON,
    MarkerTokens,
    marker_tokens,
)
from daemon.api.tools.format import LLAMA, QWEN, SMOLLM
from daemon.api.tools.grammar import channelled, either, forced, held
from daemon.api.tools.reader import CallReader
from tests.api.folder import EOS, tokenizer
from tests.soak import tries

PLACE = {
    "type": "object",
    "properties": {
        "place": {"$ref": "#/$defs/Place"},
        "unit": {"enum": ["C", "F"]},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 1}, "maxItems": 2},
    },
    "required": ["place", "unit"],
    "additionalProperties": False,
    "$defs": {"Place": {"type": "string", "maxLength": 4}},
}
FUNCTIONS = [Function("weather", parameters=PLACE, strict=True), Function("now")]
FORMATS = {"qwen": QWEN, "smollm": SMOLLM, "llama": LLAMA}
GOOD = ("weather", {"place": "Rom", "unit": "C"})
BAD = ("weather", {"place": "Rom", "unit": "K"})
NOW: tuple[str, dict[str, str]] = ("now", {})


class Words:
    """A tokenizer as the API and as llguidance know it."""

    def __init__(self, made: Tokenizer) -> None:
        self.made = made
        self.markers: MarkerTokens = marker_tokens(made)
        self.guide = LLTokenizer(made.to_str(), eos_token=EOS)

    def follow(self, grammar: str, text: str) -> tuple[bool, bool]:
        """Whether the grammar allows a text, and whether it may end there."""
        matcher = self.matcher(grammar)
        ids = self.made.encode(text, add_special_tokens=False).ids
        allowed = matcher.try_consume_tokens(ids) == len(ids)
        return allowed, allowed and matcher.is_accepting()

    def matcher(self, grammar: str) -> LLMatcher:
        matcher = LLMatcher(self.guide, grammar, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        return matcher

    def walk(self, grammar: str, rng: random.Random) -> str:
        """An answer of tokens drawn at random from those that the grammar allows."""
        matcher = self.matcher(grammar)
        drawn: list[int] = []
        while not matcher.is_stopped():
            mask = matcher.compute_bitmask()
            allowed = [t for t in range(self.guide.vocab_size) if mask[t // 8] >> t % 8 & 1]
            if EOS in allowed and rng.random() < 0.5:
                break
            allowed = [token for token in allowed if token != EOS]
            drawn.append(rng.choice(allowed))
            assert matcher.consume_token(drawn[-1])
        text: str = self.made.decode(drawn, skip_special_tokens=False)
        return text


@cache
def plain() -> Words:
    return Words(tokenizer())


@cache
def marked() -> Words:
    """As Qwen's and Llama's: markers and thinking are tokens of their own."""
    made = tokenizer()
    made.add_tokens([AddedToken(one) for one in (OPENING, CLOSING, "<think>", "</think>")])
    made.add_special_tokens([PYTHON])
    return Words(made)


@cache
def channelling() -> Words:
    """As gpt-oss's."""
    made = tokenizer()
    made.add_special_tokens([AddedToken(one) for one in (MESSAGE, CONSTRAIN, *MESSAGE_ENDS)])
    return Words(made)


@pytest.fixture(params=[plain, marked], ids=["plain", "marked"])
def words(request: pytest.FixtureRequest) -> Words:
    made: Words = request.param()
    return made


@pytest.fixture(params=FORMATS.values(), ids=FORMATS)
def form(request: pytest.FixtureRequest):
    return request.param


def test_markers_are_found_in_the_tokenizer() -> None:
    assert plain().markers == MarkerTokens({}, {}, ())
    markers, made = marked().markers, marked().made
    assert markers.ids == {one: made.token_to_id(one) for one in (OPENING, CLOSING, PYTHON)}
    assert markers.hidden == {made.token_to_id(PYTHON): PYTHON}
    assert [made.id_to_token(token) for token in markers.others] == ["<think>", "</think>"]


def test_forced_answers_are_calls_that_fit(words: Words, form) -> None:
    several = forced(FUNCTIONS, form, words.markers, several=True)
    assert words.follow(several, form.write([GOOD])) == (True, True)
    assert words.follow(several, form.write([GOOD, NOW, GOOD])) == (True, True)
    assert words.follow(several, form.write([BAD])) == (False, False)
    assert words.follow(several, form.write([("later", {})])) == (False, False)
    assert words.follow(several, form.write([GOOD])[:-1])[1] is False
    assert words.follow(several, "Words") == (False, False)
    one = forced(FUNCTIONS, form, words.markers, several=False)
    assert words.follow(one, form.write([NOW])) == (True, True)
    assert words.follow(one, form.write([NOW, NOW])) == (False, False)


def test_held_answers_are_free_but_for_strict_calls(words: Words, form) -> None:
    grammar = held(FUNCTIONS, form, words.markers, several=True)
    before = "" if form.bare else "Let me < see <tool>.\n"
    assert words.follow(grammar, "Only words, {} or <b>.") == (True, True)
    assert words.follow(grammar, "") == (True, True)
    assert words.follow(grammar, before + form.write([GOOD, NOW])) == (True, True)
    assert words.follow(grammar, before + form.write([BAD])) == (False, False)
    assert words.follow(grammar, "<think>Hm {.</think>\nWords.") == (True, True)
    if not form.bare:
        assert words.follow(grammar, f"{form.write([NOW])} and {form.write([GOOD])}.")[1]
        assert words.follow(grammar, f"<think>Hm.</think>{form.write([BAD])}") == (False, False)
    loose = held([Function("weather", parameters=PLACE)], form, words.markers, several=True)
    assert words.follow(loose, form.write([BAD])) == (True, True)


def test_a_single_call_ends_the_answer(words: Words, form) -> None:
    grammar = held(FUNCTIONS, form, words.markers, several=False)
    before = "" if form.bare else "<think>Hm.</think>Well. "
    assert words.follow(grammar, "<think>Hm.</think>Only words.") == (True, True)
    assert words.follow(grammar, before + form.write([GOOD])) == (True, True)
    assert words.follow(grammar, form.write([NOW, NOW])) == (False, False)
    assert words.follow(grammar, f"{form.write([NOW])} and") == (False, False)


def test_calls_or_else_an_answer_that_fits_a_schema(words: Words) -> None:
    answer = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    for form in (QWEN, SMOLLM):
        grammar = either(FUNCTIONS, form, words.markers, True, answer)
        assert words.follow(grammar, '{"ok": true}') == (True, True)
        assert words.follow(grammar, '{"ok": 1}') == (False, False)
        assert words.follow(grammar, form.write([GOOD, NOW])) == (True, True)
        assert words.follow(grammar, form.write([BAD])) == (False, False)
        assert words.follow(grammar, "Words") == (False, False)


def test_whatever_a_forced_answer_says_is_read(words: Words, form) -> None:
    grammar = forced(FUNCTIONS, form, words.markers, several=True)
    rng = random.Random(5)
    for _ in range(6):
        text = words.walk(grammar, rng)
        reader = CallReader(frozenset({"weather", "now"}), form.bare)
        pieces = reader.push(text) + reader.finish()
        assert reader.num_calls >= 1, text
        assert not any(piece.kind == "text" for piece in pieces), text
        for piece in pieces:
            if piece.kind == "arguments" and piece.text != "{}":
                found = json.loads(piece.text)
                assert found["unit"] in {"C", "F"} and len(found["place"]) <= 4


IN_CHANNELS = channelled(FUNCTIONS, channelling().markers)
HEADS = (
    "<|channel|>commentary to=functions.{}<|message|>",
    "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>",
    " to=functions.{}<|channel|>commentary json<|message|>",
)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("thinks", [False, True])
def test_calls_in_channels_fit_their_schema(head: str, thinks: bool) -> None:
    thought = "<|channel|>analysis<|message|>Is it {warm}?<|end|><|start|>assistant" * thinks
    words = channelling()
    for layout in ({}, {"separators": (",", ":")}):
        written = thought + head.format(GOOD[0]) + json.dumps(GOOD[1], **layout)
        for end in ("", "<|call|>"):
            assert words.follow(IN_CHANNELS, written + end) == (True, True)
        assert words.follow(IN_CHANNELS, written[:-1]) == (True, False)
        assert words.follow(IN_CHANNELS, written + "<|end|><|start|>") == (False, False)
        reader = ChannelReader(frozenset({"weather", "now"}))
        split = reader.push(written + "<|call|>")
        assert split.thought == "Is it {warm}?" * thinks
        assert f'"name": "weather", "arguments": {json.dumps(GOOD[1], **layout)}' in split.answer
    assert not words.follow(IN_CHANNELS, thought + head.format(BAD[0]) + json.dumps(BAD[1]))[0]
    assert not words.follow(IN_CHANNELS, thought + head.format("later") + "{}")[0]
    assert words.follow(IN_CHANNELS, thought + head.format("now") + '{"any": [1]}') == (True, True)


def test_words_in_channels_are_free() -> None:
    words = channelling()
    said = "<|channel|>{}<|message|>Let me see: {{ to=functions.weather"
    for name in ("analysis", "commentary", "final"):
        assert words.follow(IN_CHANNELS, said.format(name)) == (True, True)
    assert words.follow(IN_CHANNELS, said.format("final") + "<|return|>") == (True, True)
    assert words.follow(IN_CHANNELS, said.format("other")) == (False, False)
    assert words.follow(IN_CHANNELS, "Words") == (False, False)


def test_what_is_drawn_in_channels_is_read() -> None:
    read = 0
    for seed in range(tries(12, 100)):
        text = channelling().walk(IN_CHANNELS, random.Random(seed))
        reader = ChannelReader(frozenset({"weather", "now"}))
        called = reader.push(text).answer + reader.finish().answer
        read += OPENING in called
        assert ("to=functions." in text.partition("<|message|>")[0]) <= (OPENING in called)
    assert read, "no call was drawn"


def test_a_tokenizer_without_channels_has_no_grammar_of_them() -> None:
    assert channelled(FUNCTIONS, plain().markers) == ""
