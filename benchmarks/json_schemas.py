"""Two hundred JSON schemas, made by seed: nested objects, enums, arrays, numbers, options, $refs.

Every answer has an end that a small model reaches: objects are closed, strings and arrays have a
greatest length, numbers a range and a step. The longest has fewer than 500 letters in about a
hundred words, with at most 25 blanks between two of them: so no answer needs `MAX_TOKENS`.
"""

import random
from typing import Any

Json = dict[str, Any]

MAX_TOKENS = 3200

SUBJECTS = (
    ("person", ("name", "job", "city", "nickname"), ("age", "children", "pets")),
    ("book", ("title", "author", "publisher", "language"), ("pages", "year", "copies")),
    ("recipe", ("dish", "cuisine", "chef", "tip"), ("minutes", "servings", "calories")),
    ("house", ("street", "colour", "owner", "style"), ("rooms", "floors", "price")),
    ("trip", ("from", "to", "airline", "hotel"), ("days", "travellers", "cost")),
    ("product", ("label", "brand", "material", "colour"), ("stock", "weight", "price")),
    ("animal", ("species", "habitat", "food", "sound"), ("legs", "lifespan", "speed")),
    ("course", ("subject", "teacher", "room", "level"), ("weeks", "students", "credits")),
    ("match", ("home", "away", "stadium", "referee"), ("goals", "minutes", "fans")),
    ("song", ("title", "singer", "genre", "mood"), ("seconds", "year", "plays")),
)
CHOICES = (
    ("low", "medium", "high"),
    ("red", "green", "blue", "yellow"),
    ("draft", "published", "archived"),
    ("yes", "no", "unknown"),
)


def _text(chance: random.Random) -> Json:
    """A short string, or one of a pattern."""
    return chance.choice(
        (
            {"type": "string", "maxLength": chance.randint(6, 30)},
            {"type": "string", "minLength": 1, "maxLength": 16},
            {"type": "string", "pattern": "^[A-Z][a-z]{2,12}$"},
            {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}$"},
            {"type": "string", "format": "date"},
        )
    )


def _number(chance: random.Random) -> Json:
    """A whole number of a range, or one in quarters."""
    return chance.choice(
        (
            {"type": "integer", "minimum": 0, "maximum": chance.choice((9, 120, 5000))},
            {"type": "integer", "exclusiveMinimum": -50, "exclusiveMaximum": 50},
            {"type": "number", "minimum": 0, "maximum": 100, "multipleOf": 0.25},
        )
    )


def _value(chance: random.Random, depth: int) -> Json:
    """Any kind of value; nested ones while `depth` lasts."""
    kinds = ["text", "number", "enum", "bool", "nullable"] + (["list", "object"] if depth else [])
    match chance.choice(kinds):
        case "text":
            return _text(chance)
        case "number":
            return _number(chance)
        case "enum":
            return {"enum": list(chance.choice(CHOICES))}
        case "bool":
            return {"type": "boolean"}
        case "nullable":
            return {"anyOf": [{"type": "null"}, _text(chance)]}
        case "list":
            items = _value(chance, depth - 1)
            return {"type": "array", "items": items, "maxItems": chance.randint(1, 4)}
    fields = {f"part_{letter}": _value(chance, depth - 1) for letter in "abc"[: depth + 1]}
    return _closed(fields, list(fields))


def _closed(fields: dict[str, Json], required: list[str]) -> Json:
    return {
        "type": "object",
        "properties": fields,
        "required": required,
        "additionalProperties": False,
    }


def schema(seed: int) -> tuple[str, Json]:
    """What to ask for, and the schema of the answer."""
    chance = random.Random(seed)
    subject, texts, numbers = SUBJECTS[seed % len(SUBJECTS)]
    fields: dict[str, Json] = {texts[0]: {"type": "string", "maxLength": 24}}
    for name in chance.sample(texts[1:], 2):
        fields[name] = _text(chance)
    for name in chance.sample(numbers, 2):
        fields[name] = _number(chance)
    fields["state"] = {"enum": list(chance.choice(CHOICES))}
    fields["details"] = _value(chance, 2)
    fields["related"] = {
        "type": "array",
        "items": {"$ref": "#/$defs/link"},
        "minItems": chance.randint(0, 1),
        "maxItems": 3,
    }
    # What is left out is an option: the model may leave it out, too.
    required = [name for name in fields if chance.random() < 0.7 or name == texts[0]]
    made = _closed(fields, required)
    link = {"to": _text(chance), "kind": {"enum": list(chance.choice(CHOICES))}}
    made["$defs"] = {"link": _closed(link, ["to", "kind"])}
    return subject, made
