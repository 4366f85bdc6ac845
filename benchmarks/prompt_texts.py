"""Prompts of many kinds, made from templates by seed: short and long answers, alike and unlike."""

import random
from collections.abc import Callable, Iterator

TOPICS = (
    "photosynthesis", "the Roman aqueducts", "black holes", "sourdough bread", "chess openings",
    "the water cycle", "electric cars", "volcanoes", "the French Revolution", "honey bees",
    "machine learning", "jazz music", "glaciers", "the human heart", "solar panels", "tea",
    "the printing press", "coral reefs", "vaccines", "inflation", "the Silk Road", "penguins",
    "gravity", "the Renaissance", "recycling", "sleep", "marathon running", "origami",
    "the stock market", "earthquakes", "beekeeping", "ancient Egypt", "wind turbines", "dreams",
    "the periodic table", "lighthouses", "bicycles", "chocolate", "the moon landing", "batteries",
    "migration of birds", "medieval castles", "compilers", "the immune system", "rainforests",
    "public libraries", "cheese", "satellites", "handwriting", "the piano", "deserts", "tides",
)  # fmt: skip
PLACES = (
    "France", "Japan", "Brazil", "Kenya", "Canada", "Norway", "Egypt", "India", "Peru", "Vietnam",
    "Greece", "Mexico", "Poland", "Turkey", "Chile", "Nepal", "Iceland", "Morocco", "Cuba", "Italy",
    "Australia", "Finland", "Thailand", "Ireland", "Spain", "Hungary", "Ghana", "Portugal",
)  # fmt: skip
PEOPLE = (
    "a retired sailor", "a young inventor", "two rival bakers", "a lost robot",
    "a lighthouse keeper", "a shy dragon", "a night nurse", "a street musician", "an honest thief",
    "a talking cat", "a mountain guide", "a time traveller", "three sisters", "an old clockmaker",
)  # fmt: skip
SETTINGS = (
    "in a small harbour town", "on a train at night", "during a long winter", "on Mars",
    "in a library without books", "under the sea", "in a desert city", "at the end of summer",
    "in a busy kitchen", "on a deserted island", "behind an old theatre", "in a storm",
)  # fmt: skip
SENTENCES = (
    "The train was late, so we walked home in the rain.",
    "She has been learning to play the violin for three years.",
    "Please close the window before you leave the office.",
    "Our neighbours grow tomatoes and beans behind the house.",
    "The meeting was moved to Thursday because nobody had time.",
    "He forgot his keys again and had to call his brother.",
    "Most of the paintings in this room are very old.",
    "If the weather is good, we will go to the lake on Sunday.",
    "The new bridge makes the way to work much shorter.",
    "I would like a table for four near the window.",
    "The children found a small boat on the beach.",
    "Nobody knew why the lights in the tower were on.",
    "This recipe needs two eggs, some flour and a little salt.",
    "The doctor told him to sleep more and to drink less coffee.",
    "They sold the old farm and moved to the city last spring.",
    "A quiet voice answered from the other side of the door.",
)
LANGUAGES = ("French", "Spanish", "German", "Italian", "Portuguese", "Dutch")
TONES = ("formal", "friendly", "very simple", "polite", "humorous", "dramatic")
CODE_TASKS = (
    "reverses a string", "checks whether a number is prime", "sorts a list with merge sort",
    "counts the words of a file", "finds the largest value of a list", "removes duplicates",
    "computes Fibonacci numbers", "checks whether a word is a palindrome", "parses a CSV line",
    "converts Celsius to Fahrenheit", "merges two dictionaries", "does a binary search",
    "validates an e-mail address", "transposes a matrix", "counts vowels", "flattens a nested list",
)  # fmt: skip
CODE_LANGUAGES = ("Python", "JavaScript", "C", "Java", "Go", "Rust")
THINGS = (
    "facts about {}", "reasons to learn about {}", "questions a child might ask about {}",
    "common mistakes people make about {}", "titles for a book about {}", "words related to {}",
)  # fmt: skip
NUMBERS = ("three", "five", "seven", "ten", "fifteen", "twenty")

Make = Callable[[random.Random], str]


def one_word(chance: random.Random) -> str:
    """Answers of a word or two."""
    place, topic = chance.choice(PLACES), chance.choice(TOPICS)
    return chance.choice(
        (
            f"What is the capital of {place}? Answer with one word.",
            f"On which continent is {place}? Just the name.",
            f"Is {topic} older than the internet? Answer yes or no.",
            f"True or false: {place} has a coast. One word only.",
            f"Name one thing related to {topic}. One word.",
            f"Which language do most people speak in {place}? Only name the language.",
        )
    )


def question(chance: random.Random) -> str:
    """Answers of a sentence or a few."""
    topic, place = chance.choice(TOPICS), chance.choice(PLACES)
    return chance.choice(
        (
            f"What is {topic}?",
            f"Why does {topic} matter?",
            f"Who first wrote about {topic}?",
            f"What do visitors to {place} eat for breakfast?",
            f"In one sentence, what is {topic}?",
            f"Explain {topic} briefly.",
            f"When is the best time to travel to {place}?",
        )
    )


def listing(chance: random.Random) -> str:
    """Lists of a stated length."""
    thing = chance.choice(THINGS).format(chance.choice(TOPICS))
    verb = chance.choice(("List", "Give me", "Write down", "Name"))
    return f"{verb} {chance.choice(NUMBERS)} {thing}."


def essay(chance: random.Random) -> str:
    """Long explanations, of a stated length or not."""
    topic = chance.choice(TOPICS)
    return chance.choice(
        (
            f"Write a detailed essay about {topic}.",
            f"Explain {topic} step by step to a beginner.",
            f"Write {chance.choice((2, 3, 4))} paragraphs about {topic}.",
            f"Describe {topic} in {chance.choice((30, 50, 100, 200))} words.",
            f"Compare {topic} with {chance.choice(TOPICS)} in detail.",
            f"Write a blog post about {topic} and {chance.choice(TOPICS)}.",
        )
    )


def story(chance: random.Random) -> str:
    """Stories and poems."""
    who, where = chance.choice(PEOPLE), chance.choice(SETTINGS)
    form = chance.choice(("story", "short story", "poem", "fairy tale", "dialogue", "haiku"))
    return f"Write a {form} about {who} {where}."


def code(chance: random.Random) -> str:
    """Programs, with or without an explanation."""
    task, language = chance.choice(CODE_TASKS), chance.choice(CODE_LANGUAGES)
    end = chance.choice(("", " Only show the code.", " Explain every line.", " Add two tests."))
    return f"Write a {language} function that {task}.{end}"


def translation(chance: random.Random) -> str:
    """About as long as the sentence that is given."""
    sentences = " ".join(chance.sample(SENTENCES, chance.choice((1, 1, 2, 4))))
    return f"Translate into {chance.choice(LANGUAGES)}: {sentences}"


def rewriting(chance: random.Random) -> str:
    """About as long as the text that is given."""
    sentences = " ".join(chance.sample(SENTENCES, chance.choice((1, 2, 4, 6))))
    verb = chance.choice(("Rewrite", "Rephrase", "Paraphrase"))
    return f"{verb} this text in a {chance.choice(TONES)} tone:\n\n{sentences}"


def summary(chance: random.Random) -> str:
    """Long prompts, short answers."""
    text = " ".join(chance.sample(SENTENCES, chance.choice((6, 9, 12, 16))))
    how = chance.choice(("in one sentence", "in a few words", "in two sentences", "as a title"))
    return f"Summarize the following text {how}.\n\n{text}"


def arithmetic(chance: random.Random) -> str:
    """A number, or the way to it."""
    a, b, c = (chance.randint(2, 999) for _ in range(3))
    return chance.choice(
        (
            f"What is {a} + {b}?",
            f"Compute {a} * {b} - {c}. Only give the result.",
            f"A shop sells {a} apples a day at {b} cents. What does it earn in {c} days?"
            " Show your steps.",
            f"Solve for x: {a}x + {b} = {c}. Explain each step.",
        )
    )


KINDS: dict[str, Make] = {
    "one-word": one_word,
    "question": question,
    "list": listing,
    "essay": essay,
    "story": story,
    "code": code,
    "translation": translation,
    "rewriting": rewriting,
    "summary": summary,
    "arithmetic": arithmetic,
}


def generated(count: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """`count` different prompts as (kind, text), every kind in turn."""
    chance = random.Random(seed)
    seen: set[str] = set()
    kinds = list(KINDS.items())
    tries = 0
    while len(seen) < count:
        kind, make = kinds[tries % len(kinds)]
        tries += 1
        text = make(chance)
        if text not in seen:
            seen.add(text)
            yield kind, text
