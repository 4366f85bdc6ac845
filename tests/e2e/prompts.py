"""Thirty prompts: questions in chat form, and stretches of the licence from 10 to 1,500 tokens."""

from pathlib import Path

QUESTIONS = (
    "What is an owl?",
    "Name three rivers of Europe and say one sentence about each of them.",
    "Why is the sky blue?",
    "Write a limerick about a lighthouse keeper.",
    "Translate to French: the cat sleeps on the warm roof.",
    "How do I boil an egg? Give numbered steps.",
    "Explain what a queue is to a child of seven.",
    "List the planets from the sun outwards.",
    "Was ist der Unterschied zwischen Wetter und Klima?",
    "Write a Python function that reverses a string, and explain it line by line.",
    "Give me a recipe for soup from potatoes, leeks and cream, in at most 120 words.",
    "Compare bicycles and trains for a journey of thirty kilometres: time, cost, comfort.",
)
LENGTHS = (10, 16, 17, 31, 32, 33, 48, 64, 65, 100, 128, 200, 257, 333, 512, 700, 1000, 1500)
LICENCE = Path(__file__).resolve().parents[2] / "LICENSE"


def licence_ids(token_ids: list[int]) -> list[list[int]]:
    """Stretches of a long text's tokens, of the lengths above, from different places."""
    spread = len(token_ids) - max(LENGTHS) - 1
    starts = [(37 * index * index) % max(spread, 1) for index in range(len(LENGTHS))]
    return [token_ids[s : s + n] for s, n in zip(starts, LENGTHS, strict=True)]
