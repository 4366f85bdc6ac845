"""Added tokens of a model folder: those of tokenizer.json, and those that files beside it add.

They are found in a text as they stand, before it is cut into words. transformers adds what
tokenizer_config.json says (`added_tokens_decoder`, tokens with a name such as `eos_token`, the list
of further special ones); where that has no `added_tokens_decoder`, what the older
special_tokens_map.json and added_tokens.json say, too. The same is done here, in the same order: a
tokenizer counts the ids of added tokens itself, whatever a file says of them.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from daemon.models.shape import ModelError, read_json

_CONFIG, _NAMED_FILE, _ADDED_FILE = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
_LISTED, _OLDER_LISTED, _BY_ID = (
    "extra_special_tokens",
    "additional_special_tokens",
    "added_tokens_decoder",
)
_NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""The names that every tokenizer has, in the order in which their tokens are added."""
_NO_ID = -1
"""The id of a token that no file gives an id."""


class AddedToken(msgspec.Struct, frozen=True):
    """A token that is found in a text as it stands."""

    id: int
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = False


class _Said(msgspec.Struct, frozen=True):
    """A token as a file beside tokenizer.json says it."""

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool | None = None  # as it is not special
    special: bool = False

    def with_id(self, number: int) -> AddedToken:
        """The same as tokenizer.json would have it."""
        said = msgspec.structs.asdict(self)
        if self.normalized is None:
            said["normalized"] = not self.special
        return AddedToken(number, **said)


class _Beside:
    """Tokens in the files beside tokenizer.json. Raises ModelError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._config = _read(folder / _CONFIG)
        self.older = self._config.get(_BY_ID) is None
        """Whether the older files count, as transformers has it."""
        if self.older:
            self._config |= _read(folder / _NAMED_FILE)

    def named(self) -> dict[str, _Said]:
        """Tokens with a name, in the order in which they are added."""
        found = dict[str, _Said]()
        for name in _NAMES:
            if self._config.get(name) is not None:
                found[name] = self._said(self._config[name], name)
        own = {
            name: value
            for name, value in self._config.items()
            if name.endswith("_token") and name not in _NAMES
        }
        listed = self._config.get(_LISTED)
        for kind in (dict, str):  # in transformers' order
            for name, value in own.items():
                if isinstance(value, kind):
                    found[name] = self._said(value, name)
        if isinstance(listed, dict):
            for name, value in listed.items():
                found[name] = self._said(value, f"{_LISTED}.{name}")
        return found

    def listed(self) -> list[_Said]:
        """Special tokens without a name."""
        value = self._config.get(_LISTED) or self._config.get(_OLDER_LISTED) or []
        if isinstance(value, dict):
            return []
        if not isinstance(value, list):
            raise self._wrong(_LISTED, value)
        return [self._said(item, _LISTED) for item in value]

    def by_id(self, named: Mapping[str, _Said]) -> list[AddedToken]:
        """Tokens with the ids that the files give them, in their order."""
        if not self.older:
            said = self._converted(self._config[_BY_ID], dict[int, _Said], _BY_ID)
            return [said[number].with_id(number) for number in sorted(said)]
        ids = self.aside()
        special = {token.content for token in (*named.values(), *self.listed())}
        found = [_Said(text, special=text in special).with_id(ids[text]) for text in ids]
        return sorted(found, key=lambda token: token.id)

    def aside(self) -> dict[str, int]:
        """The ids of added_tokens.json."""
        ids: dict[str, int] = self._converted(
            _read(self._folder / _ADDED_FILE), dict[str, int], _ADDED_FILE
        )
        return ids

    def _said(self, value: Any, name: str) -> _Said:
        """A token as a text, which is special, or with its properties."""
        if isinstance(value, str):
            return _Said(value, special=True)
        whole = {"special": True, **value} if isinstance(value, dict) else value
        said: _Said = self._converted(whole, _Said, name)
        is_named = name not in (_LISTED, _BY_ID)
        return msgspec.structs.replace(said, special=said.special or is_named)

    def _converted(self, value: Any, kind: Any, name: str) -> Any:
        try:
            return msgspec.convert(value, kind, str_keys=True)
        except (msgspec.ValidationError, ValueError):
            raise self._wrong(name, value) from None

    def _wrong(self, name: str, value: Any) -> ModelError:
        return ModelError(f"{self._folder}: {name} is no token: {str(value)[:60]!r}")


def named_tokens(folder: Path) -> dict[str, str]:
    """The texts of the tokens that have a name, as a chat template may use them.

    Raises ModelError.
    """
    return {name: token.content for name, token in _Beside(folder).named().items()}


def end_texts(folder: Path) -> list[str]:
    """The texts of tokens that a file beside tokenizer.json names as the end. Raises ModelError."""
    found = list[str]()
    for name in (_CONFIG, _NAMED_FILE):
        value = _read(folder / name).get("eos_token")
        text = value.get("content") if isinstance(value, dict) else value
        found += [text] if isinstance(text, str) and text not in found else []
    return found


def all_added(
    folder: Path, own: Iterable[AddedToken], vocabulary: Mapping[str, int]
) -> list[AddedToken]:
    """A folder's added tokens in the order in which a tokenizer takes them, with the ids that it
    gives them. `own`: those of tokenizer.json; `vocabulary`: without any of them.

    Raises ModelError, naming the token, where a file gives one another id.
    """
    beside = _Beside(folder)
    named, mine = beside.named(), list(own)
    by_id = beside.by_id(named)
    if beside.older:  # there tokenizer.json's own properties count
        texts = {token.content for token in mine}
        by_id = [*mine, *(token for token in by_id if token.content not in texts)]
    names = {token.content for token in named.values()}
    numbered = [
        msgspec.structs.replace(token, special=token.special or token.content in names)
        for token in by_id
    ]
    known = {token.content for token in (*mine, *numbered)}
    unnumbered = [
        token.with_id(_NO_ID)
        for token in (*named.values(), *beside.listed())
        if token.content not in known
    ]
    found = _numbered(folder, [*mine, *numbered, *unnumbered], vocabulary)
    for text, number in beside.aside().items():
        own_id = found[text].id if text in found else vocabulary.get(text)
        if own_id != number:
            raise _disagree(folder, text, number, own_id)
    return list(found.values())


def _numbered(
    folder: Path, tokens: Iterable[AddedToken], vocabulary: Mapping[str, int]
) -> dict[str, AddedToken]:
    """Tokens by their texts with the ids that a tokenizer counts, and with their last properties.

    It ignores the ids of a file: a token has that of the vocabulary, else the next one behind all.
    """
    found, behind = dict[str, AddedToken](), len(vocabulary)
    texts = {number: text for text, number in vocabulary.items()}
    for token in tokens:
        text = token.content
        if not text:
            continue
        number = found[text].id if text in found else vocabulary.get(text, behind)
        behind = max(behind, number + 1)
        if token.id not in (_NO_ID, number):
            raise _disagree(folder, text, token.id, number)
        if texts.setdefault(number, text) != text:
            said = f"two tokens of the id {number}: {texts[number]!r} and {text!r}"
            raise ModelError(f"{folder}: its tokenizer has {said}")
        found[text] = msgspec.structs.replace(token, id=number)
    return found


def _disagree(folder: Path, text: str, other_id: int, own_id: int | None) -> ModelError:
    counted = "no tokenizer has it" if own_id is None else f"a tokenizer gives it {own_id}"
    return ModelError(
        f"{folder}: its files do not agree on the token {text!r}: one says that its id is "
        f"{other_id}, and {counted}"
    )


def _read(file: Path) -> dict[str, Any]:
    return read_json(file) if file.exists() else {}
