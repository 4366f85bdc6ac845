"""Strings that tokenizers are known to differ about, the same ones each time."""

import random
from collections.abc import Callable, Sequence

_WORDS = [
    "the",
    "owl",
    "don't",
    "I'll",
    "we've",
    "they'd",
    "IT'S",
    "y'all",
    "o'clock",
    "naïve",
    "café",
    "coöperate",
    "Straße",
    "ǅ",
    "ŉ",
    "İstanbul",
    "HelloWorld",
    "camelCase",
    "snake_case",
    "SCREAMING_CASE",
    "x86_64",
    "v1.2.3-rc1",
    "e-mail",
    "don’t",
    "ʼn",
]
_LETTERS = "aZéßÿøĄłšžΑβγЖщЇאבגשةعربيहिन्दीตภาษาไทย漢字かなカナ한국어ⅣⅫªº𝔘𝟘𐍈"
_MARKS = "\u0301\u0308\u0327\u20dd\u0e31\u093f\u064b\u05b0\u200d\u200c\ufe0f\u1ab0"
_SPACES = " \t\n\r\u00a0\u2003\u2028\u3000\u200b\x0b\x0c\x85\u1680"
_DIGITS = "0123456789٣४५௨Ⅷ½²₃①𝟗"
_SIGNS = "!?.,;:'\"`´“”‘’«»()[]{}<>|/\\@#$%^&*-+=~_…—–·•。、，！？「」؟،۔§©®™€£¥±×÷√∞≠"
_EMOJI = "🙂 👩‍👩‍👧‍👦 🇩🇪 👍🏽 ❤️ ⌚ 1️⃣ 🤷‍♀️".split()  # noqa: SIM905
_CODE = (
    "def f(x):\n    return x**2  # ok\n",
    "if (a&&b||!c) {\n\t\tx->y = z[0]++;\n}\n\n\n",
    "SELECT * FROM t WHERE a='b''c';--",
    '<div class="a">&nbsp;</div>\r\n',
    "https://example.org/a?b=c&d=%20e#f",
    "\\begin{eq} x_{ij}^2 \\end{eq}",
    '{"a": [1, 2.5e-10, null]}',
    "\x00\x01\x1b[0m\x7f",
)
_PLANES = (*range(0xD7FF), *range(0xE000, 0x2FFFF))
_RUNS = (
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "a",
    "0",
    ".",
    "-",
    "=",
    "é",
    "漢",
    "\u0301",
    "🙂",
    "'",
    "▁",
)


def hard_strings(count: int, special: Sequence[str] = ()) -> list[str]:
    """Random strings, with the texts of `special` tokens among them, whole and cut."""
    chooser = random.Random(20261128)
    kinds: list[Callable[[], str]] = [
        lambda: chooser.choice(_WORDS),
        lambda: " " + chooser.choice(_WORDS).swapcase(),
        lambda: "".join(chooser.choices(_LETTERS, k=chooser.randint(1, 6))),
        lambda: (
            chooser.choice(_LETTERS) + "".join(chooser.choices(_MARKS, k=chooser.randint(1, 3)))
        ),
        lambda: chooser.choice(_MARKS),
        lambda: "".join(chooser.choices(_SPACES, k=chooser.randint(1, 5))),
        lambda: chooser.choice((" ", "\n", "\t", "\u3000")) * chooser.randint(1, 40),
        lambda: "".join(chooser.choices(_DIGITS, k=chooser.randint(1, 9))),
        lambda: "".join(chooser.choices("0123456789", k=chooser.randint(1, 12))),
        lambda: "".join(chooser.choices(_SIGNS, k=chooser.randint(1, 5))),
        lambda: chooser.choice(_EMOJI),
        lambda: chooser.choice(_CODE),
        lambda: chooser.choice(_RUNS) * chooser.randint(2, 20),
        lambda: chr(chooser.choice(_PLANES)),
        lambda: chooser.choice("'’") + chooser.choice("sStTmMdDrReEvVlL") * chooser.randint(1, 2),
    ]
    if special:
        kinds += [
            lambda: chooser.choice(special),
            lambda: chooser.choice(special)[: chooser.randint(1, 4)],
        ]
    made = ["", " ", "\n", "a", " a", "a ", "  a  ", *special, "".join(special)]
    while len(made) < count:
        made.append("".join(chooser.choice(kinds)() for _ in range(chooser.randint(1, 12))))
    return made[:count]
