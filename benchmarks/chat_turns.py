"""A chat of many turns on a live daemon: prompt tokens computed, beside the fewest possible.

    python -m benchmarks.chat_turns [--layers hybrid|full] [--turns 20] [--chats 1] [--thoughts]
                                    [-- FLAGS of llmd serve]

The model has random weights of Qwen3.5's kind, about 100 million without its vocabulary: three
layers of four are gated delta nets (`hybrid`), or none (`full`). It says whole words alone, which
have the same tokens when they come back. All chats have one system prompt, and take turns.
With `--thoughts` an answer begins with a thought that the next prompt no longer has.

The fewest possible tokens are those of each prompt behind what it has in common with an earlier
prompt and its answer. The last token of a prompt is always computed. Where the pool is too small
for all chats (`--chats 6 -- --kv-blocks 500`), what is let go is computed again.
"""

import argparse
import json
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from benchmarks.cached_prompts import wait_ready
from benchmarks.live import daemon
from daemon.config.paths import default_cache
from daemon.models.embedded import model_folder
from daemon.models.quantised_folder import beside_weights

NUM_WORDS = 500
SYSTEM_TOKENS, QUESTION_TOKENS, ANSWER_TOKENS, THOUGHT_TOKENS = 2000, 40, 40, 30
NAME = "chat"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(slots=True)
class Turn:
    """What one request said of itself."""

    prompt_tokens: int
    cached_tokens: int
    fewest: int
    ttft_s: float


@dataclass(slots=True)
class Chat:
    """The messages so far, and what a prefix cache may know of them."""

    messages: list[dict[str, str]]
    known: list[int] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)


class Words:
    """Whole words of a vocabulary: each is one token wherever it stands."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        found = sorted(
            token for word, token in vocabulary.items() if word[0] == "Ġ" and word[1:].isalpha()
        )
        words = [token for token in found if self.ids(tokenizer.decode([token])) == [token]]
        self.tokens = words[-NUM_WORDS:]

    def ids(self, text: str) -> list[int]:
        """The tokens of a text."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def text(self, start: int, count: int) -> str:
        """So many words, others for another start."""
        tokens = [self.tokens[(start + 7 * place) % len(self.tokens)] for place in range(count)]
        text: str = self.tokenizer.decode(tokens)
        return text


def make_model(folder: Path, layers: str) -> Words:
    """Write the model of random weights that says whole words alone."""
    embedded = model_folder("", default_cache())
    words = Words(Tokenizer.from_file(str(embedded / "tokenizer.json")))
    types = [
        "linear_attention" if layers == "hybrid" and layer % 4 != 3 else "full_attention"
        for layer in range(12)
    ]
    config = Qwen3_5TextConfig(
        vocab_size=words.tokenizer.get_vocab_size(),
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=len(types),
        num_attention_heads=12,
        num_key_value_heads=4,
        head_dim=64,
        layer_types=types,
        linear_num_key_heads=6,
        linear_num_value_heads=12,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        max_position_embeddings=16384,
        tie_word_embeddings=False,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    model = Qwen3_5ForCausalLM(config)
    head = model.lm_head.weight.data
    kept = head[words.tokens].clone()
    head.zero_()
    head[words.tokens] = kept
    model.save_pretrained(folder)
    for path in beside_weights(embedded):
        if path.name not in {"config.json", "generation_config.json", "gguf.json"}:
            (folder / path.name).write_bytes(path.read_bytes())
    told = json.loads((folder / "tokenizer_config.json").read_text())
    told.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return words


def prompt_of(chat: Chat, words: Words) -> list[int]:
    """The tokens of the next prompt, as the template makes them."""
    said = [f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in chat.messages]
    return words.ids("".join(said) + "<|im_start|>assistant\n")


def common(some: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    pairs = zip(some, others, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def ask(url: str, chat: Chat, words: Words, known: Sequence[Sequence[int]]) -> str:
    """One turn; the answer's text. `known`: what was computed before, of all chats."""
    prompt = prompt_of(chat, words)
    body: dict[str, Any] = {
        "model": NAME,
        "messages": chat.messages,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "max_repeated_tokens": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    began_s, ttft_s, text = time.perf_counter(), 0.0, ""
    usage: dict[str, Any] = {}
    with urllib.request.urlopen(request, timeout=600) as reply:
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                if choice["delta"].get("content"):
                    ttft_s = ttft_s or time.perf_counter() - began_s
                    text += choice["delta"]["content"]
    if usage["prompt_tokens"] != len(prompt):
        raise SystemExit(f"{usage['prompt_tokens']} tokens of a prompt of {len(prompt)}")
    shared = max((common(prompt, one) for one in known), default=0)
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    chat.turns.append(Turn(len(prompt), cached, max(1, len(prompt) - shared), ttft_s))
    chat.known = prompt + words.ids(text)
    return text


def converse(url: str, words: Words, options: argparse.Namespace) -> list[Chat]:
    """All turns of all chats, one request at a time."""
    system = words.text(0, SYSTEM_TOKENS)
    chats = [Chat([{"role": "system", "content": system}]) for _ in range(options.chats)]
    for turn in range(options.turns):
        for number, chat in enumerate(chats):
            question = words.text(97 * (turn * options.chats + number + 1), QUESTION_TOKENS)
            chat.messages.append({"role": "user", "content": question})
            text = ask(url, chat, words, [one.known for one in chats])
            if options.thoughts:
                text = words.tokenizer.decode(words.ids(text)[THOUGHT_TOKENS:])
            chat.messages.append({"role": "assistant", "content": text})
    return chats


def show(chats: Sequence[Chat]) -> None:
    """Print each turn, and all of them."""
    print(f"{'turn':>4}{'prompt':>8}{'computed':>10}{'fewest':>8}{'TTFT':>9}  (means of the chats)")
    for number, turns in enumerate(zip(*(chat.turns for chat in chats), strict=True), 1):
        prompt = statistics.mean(turn.prompt_tokens for turn in turns)
        computed = statistics.mean(turn.prompt_tokens - turn.cached_tokens for turn in turns)
        fewest = statistics.mean(turn.fewest for turn in turns)
        ttft_s = statistics.mean(turn.ttft_s for turn in turns)
        print(f"{number:>4}{prompt:>8.0f}{computed:>10.0f}{fewest:>8.0f}{1e3 * ttft_s:>6.0f} ms")
    every = [turn for chat in chats for turn in chat.turns]
    prompts = sum(turn.prompt_tokens for turn in every)
    computed = sum(turn.prompt_tokens - turn.cached_tokens for turn in every)
    fewest = sum(turn.fewest for turn in every)
    print(f"{prompts:,} prompt tokens, {computed:,} computed, {fewest:,} at the fewest: ", end="")
    print(f"{computed / fewest:.2f} times as many; without a cache {prompts / fewest:.2f} times")
    asked, found = prompts - fewest, prompts - computed
    print(f"hit rate {found / max(1, asked):.1%} of what a cache may know; its cost: ", end="")
    waited_s, again = sum(turn.ttft_s for turn in every), computed - fewest
    share_s = waited_s * again / max(1, computed)
    print(f"{again:,} tokens again, {share_s:.1f} of {waited_s:.1f} s until first tokens")
    second, last = (statistics.mean(chat.turns[at].ttft_s for chat in chats) for at in (1, -1))
    print(f"TTFT of the last turn {last / second:.2f} times that of the second")


def main() -> None:
    """Make the model, serve it, and chat."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", choices=("hybrid", "full"), default="hybrid")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--chats", type=int, default=1)
    parser.add_argument("--thoughts", action="store_true")
    parser.add_argument("flags", nargs="*", help="of llmd serve, after --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="llmd-chat-") as name:
        folder = Path(name, NAME)
        folder.mkdir()
        words = make_model(folder, options.layers)
        flags = ["--model", str(folder), "--dtype", "float32", *options.flags]
        with daemon(flags, Path(name)) as url:
            wait_ready(url)
            show(converse(url, words, options))


if __name__ == "__main__":
    main()
