"""llguidance's messages about a grammar, in plain words.

They name parts of a library that no client knows of.
"""

import re

_LONGEST_MESSAGE = 300
_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
_SOURCE = re.compile(r" \d+ \| .*", re.DOTALL)
"""The faulty lines, which the client has: in a single line with the message they are unreadable."""
_IN_WORDS = {
    "NoExtension": "nothing may follow what the answer has so far",
    "NoExtensionBias": "there is no text that it allows",
    "ParserTooComplex": "it is too complex to follow",
    "LexerTooComplex": "it is too complex to follow",
    "InternalError": "it cannot be followed",
    "Empty grammar": "it is empty",
    "empty grammars array": "it is empty",
}
"""Half sentences of llguidance, and names of its stop reasons where it says nothing else."""
_TOO_COMPLEX = re.compile(r"^(?:lexer|parser) error: (.*)")
_NO_SYMBOL = re.compile(r"^(line \d+, column \d+): lexer error$")
_RANGE = re.compile(
    r"Failed to generate regex for (?:integer|float) range: min=(\w+)(?:\((.*?)\))?, "
    r"max=(\w+)(?:\((.*?)\))?"
)
_UNKNOWN_KEYS = re.compile(r"Unimplemented keys: \[(.*)\]")
_PLACE_IN_REGEX = re.compile(
    r"(?:invalid regex \".*\" \(in regex\): )?lookarounds not supported yet; (\w+) in regex .*"
)
_NO_REGEX = re.compile(r"regex parse error: .*error: (.*)")
_REWRITTEN = (
    (re.compile(r"oneOf constraints are not supported.*"), "`oneOf` cannot be followed where "
     "several of its branches might fit the same text; use `anyOf`"),
    (re.compile(r"Expected f64 for '(.*?)', got (.*)"), r"`\1` must be a number, and is \2"),
    (re.compile(r"Expected positive integer for '(.*?)', got (.*)"),
     r"`\1` must be a whole number, 0 or more, and is \2"),
    (re.compile(r"Expected (array|object|string) for '(.*?)'( item)?, got (.*)"),
     r"`\2`\3 must be of type \1, and is \4"),
    (re.compile(r"Value for 'multipleOf' has too many digits: (.*)"),
     r"`multipleOf` has too many digits: \1"),
    (re.compile(r"Unsatisfiable schema: (.*)"), r"nothing fits the schema: \1"),
    (re.compile(r"circular references with sibling keys are not supported.*"),
     "a `$ref` leads back to its own place, and cannot be followed there"),
    (re.compile(r"failed to compile JSON schema: (.*)"), r"\1"),
    (re.compile(r"invalid regex \".*\" \(in regex\): (the regular expression .*)"), r"\1"),
    (re.compile(r"nothing fits the schema: (?:any|one)Of is empty"),
     "nothing fits the schema: it has an empty `type`, `enum`, `anyOf` or `oneOf`"),
    (re.compile(r"nothing fits the schema: Regex is empty: .*"),
     "nothing fits the schema: no text has all that it asks of one"),
    (re.compile(r"nothing fits the schema: Constant (.*) doesn't match length constraints"),
     r"nothing fits the schema: \1 has another length"),
    (re.compile(r"nothing fits the schema: range .* does not contain a multiple of (.*)"),
     r"nothing fits the schema: no multiple of \1 is within its bounds"),
    (re.compile(r"Invalid type: (.*)"), r"`type` is \1, which JSON does not have"),
    (re.compile(r"type must be a string or array of strings"),
     "`type` must be a string or a list of strings"),
    (re.compile(r"Unknown format: (.*)"),
     r"`format` is \1, which cannot be followed; a `pattern` may say it"),
    (re.compile(r"^(\w+) must be an (array|object)$"), r"`\1` must be of type \2"),
    (re.compile(r"schema must be an object or boolean"),
     "a schema in it is neither an object nor true or false"),
    (re.compile(r"patternProperty regexes (.*) and (.*) are not disjoint"),
     r"`patternProperties` cannot be followed: \1 and \2 fit the same names"),
    (re.compile(r"Resource '(?:json-schema:///)?(.*?)' is not present in a registry.*"),
     r"`$schema` is \1, which is not known"),
    (re.compile(r"unknown field (`\w+`), expected one of ((?:`\w+`, )*`whitespace_pattern`.*)"),
     r"`x-guidance` has no field \1, and has \2"),
    (re.compile(r"unknown special token: (\".*?\"); .*"), r"the model has no token \1"),
    (re.compile(r"Token range end too large: (\d+)"), r"the model has no token \1"),
    (re.compile(r"Too many items .*"), "too much is possible at once"),
    (re.compile(r"expected struct \w+"), "expected an object"),
    (re.compile(r"Expected token ('.*'), found ('.*?')(?: \(at .*)?"),
     r"\1 is expected, and \2 stands there"),
    (re.compile(r"panic: .*"), "it cannot be followed"),
)  # fmt: skip
"""Sentences of llguidance that name its own parts or options."""


def in_words(said: str) -> str:
    """llguidance's message about a grammar, in a line of plain words."""
    said = " ".join(said.replace("<non-verbose/>", "").split())
    said = _PLACE.sub(r"line \1, column \2: ", _SOURCE.sub("", said))
    said = _TOO_COMPLEX.sub(r"it is too complex to follow: \1", said)
    said = _NO_SYMBOL.sub(r"what stands at \1 begins no symbol", said)
    said = _IN_WORDS.get(said, said)
    said = _RANGE.sub(_of_range, said)
    said = _UNKNOWN_KEYS.sub(_of_keywords, said)
    said = _NO_REGEX.sub(r"the regular expression cannot be read: \1", said)
    said = _PLACE_IN_REGEX.sub(_of_place, said)
    for pattern, words in _REWRITTEN:
        said = pattern.sub(words, said)
    return said if len(said) <= _LONGEST_MESSAGE else f"{said[:_LONGEST_MESSAGE]} ..."


def _of_range(found: re.Match[str]) -> str:
    least, most = (found[2], found[4])
    bounds = [f"`minimum` {least}"] * bool(least) + [f"`maximum` {most}"] * bool(most)
    return f"numbers cannot be held to {' and '.join(bounds)}: too many digits"


def _of_place(found: re.Match[str]) -> str:
    """A regular expression asks where it stands, by a name of `regex_syntax::hir::Look`."""
    if found[1].startswith("Word"):
        sign = "\\B" if found[1].endswith("Negate") else "\\b"
    else:
        sign = "^" if found[1].startswith("Start") else "$"
    return f"the regular expression has a `{sign}` that cannot be followed"


def _of_keywords(found: re.Match[str]) -> str:
    names = ", ".join(f"`{name.strip().strip(chr(34))}`" for name in found[1].split(","))
    return f"the schema has keywords that cannot be followed: {names}"
