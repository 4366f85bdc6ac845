"""Whether JSON fits what a worker would make of a schema: llguidance's matcher, token by token."""

import json
from pathlib import Path
from typing import Any

from llguidance import LLMatcher
from tokenizers import Tokenizer

from daemon.models.grammar import Compiler


class Grammars:
    """Tries texts on the grammars of schemas."""

    def __init__(self, folder: Path, words: Tokenizer) -> None:
        self._compiler = Compiler(folder, words.get_vocab_size())
        self._words = words

    def fits(self, schema: dict[str, Any], value: Any) -> bool:
        """Whether an answer may be `value`: text as it is, or else its JSON."""
        return self.takes(schema, json.dumps(value))

    def takes(self, schema: dict[str, Any], text: str) -> bool:
        """Whether an answer may be this text. Raises GrammarError."""
        grammar = LLMatcher.grammar_from_json_schema(
            json.dumps(schema), defaults={"whitespace_pattern": "[ ]?"}
        )
        matcher = self._compiler.matcher(grammar)
        tokens = self._words.encode(text, add_special_tokens=False).ids
        return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())
