"""What the search for repetition costs: `python -m benchmarks.repetition`.

Processor time for each token of an answer, the best of three, of kinds that cost most and least.
"""

import random
import time

from daemon.api.answer.repetition import MAX_PERIOD, RepetitionDetector

NUM_TOKENS = 64_000
BLOCK = 16
NEVER = 10**9


def answers() -> dict[str, list[int]]:
    chance = random.Random(1)
    words = [min(49_151, int(chance.paretovariate(0.8))) for _ in range(NUM_TOKENS)]
    almost = [7] * (MAX_PERIOD - 1)
    return {
        "as frequent as words": words,
        "two tokens by chance": [chance.randrange(2) for _ in range(NUM_TOKENS)],
        "one token": [7] * NUM_TOKENS,
        "a phrase of 30": list(range(30)) * (NUM_TOKENS // 30),
        "runs one token too short": ([*almost, 8, *almost, 9] * NUM_TOKENS)[:NUM_TOKENS],
        "a piece too long": ([7] * 300 + [8]) * (NUM_TOKENS // 301),
    }


def cost_us(tokens: list[int]) -> float:
    """Microseconds a token."""
    detector = RepetitionDetector(NEVER)
    began_s = time.thread_time()
    for begin in range(0, len(tokens), BLOCK):
        detector.push(tokens[begin : begin + BLOCK])
    return 1e6 * (time.thread_time() - began_s) / len(tokens)


def main() -> None:
    for name, tokens in answers().items():
        print(f"{name:28}{min(cost_us(tokens) for _ in range(3)):6.2f} us a token")


if __name__ == "__main__":
    main()
