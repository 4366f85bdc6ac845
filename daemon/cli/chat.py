"""`llmd chat`: talk to a running daemon, or to any server that speaks OpenAI's API."""

import argparse
import asyncio
import os
import sys
from io import StringIO, TextIOWrapper

from daemon.chat.conversation import ChatOptions, Conversation
from daemon.chat.endpoint import ChatError, Endpoint
from daemon.chat.prompt import converse
from daemon.chat.screen import Screen
from daemon.chat.talk import Talk
from daemon.cli.argument_parser import add_flags
from daemon.cli.exit_status import is_signalled
from daemon.client.address import AddressError, base_url
from daemon.runtime.greeting import DEFAULT_URL


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmd chat`."""
    parser.description = (
        "With a question: one answer, as plain text on stdout; what is piped in follows the "
        "question. Without: a conversation. /help lists its orders."
    )
    parser.add_argument("question", nargs="*", metavar="WORD", help="the question, if only one")
    seed = "the same seed gives the same answer (default: another each time)"
    add_flags(
        parser,
        ("--url", str, "", "URL", f"the server (default: LLMD_URL if set, else {DEFAULT_URL})"),
        ("--api-key", str, "", "K", "the server's key (default: LLMD_API_KEY if set)"),
        ("--model", str, "", "M", "which one (default: the first)"),
        ("--system", str, "", "TEXT", "system prompt (default: none)"),
        ("--max-tokens", int, None, "N", "of an answer (default: as many as fit)"),
        ("--temperature", float, None, "T", "0: always the same answer (default: the server's)"),
        ("--seed", int, None, "S", seed),
    )
    parser.add_argument("--stats", action="store_true", help="tokens/s of one answer, on stderr")


def chat(arguments: argparse.Namespace) -> int:
    """Ask one question, or hold a conversation. 0: answered, or ended by the user; 1: it failed."""
    screen = _screen()
    try:
        talk = _talk(arguments)
        if question := _question(arguments.question):
            timing = talk.say(question, screen)
            if arguments.stats:
                screen.tell(str(timing))
        elif sys.stdin is not None and sys.stdin.isatty():
            _converse(talk, screen)
        else:
            raise ChatError("there is no question: give one, or pipe it in")
    except (ChatError, AddressError) as error:
        print(f"llmd: {error}", file=sys.stderr)
        return 1
    return 0


def _screen() -> Screen:
    """A screen on this process's streams; `?` replaces what one cannot encode."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    nowhere = StringIO()
    return Screen(sys.stdout or nowhere, sys.stderr or nowhere)


def _talk(arguments: argparse.Namespace) -> Talk:
    """A conversation with the server and model of the flags. Raises ChatError, AddressError."""
    url = base_url(arguments.url or os.environ.get("LLMD_URL") or DEFAULT_URL)
    api_key = (arguments.api_key or os.environ.get("LLMD_API_KEY", "")).strip()
    if not api_key.isprintable():
        raise ChatError("the API key has a character that no key can have")
    endpoint = Endpoint(url, api_key)
    model = arguments.model
    if not model:
        served = asyncio.run(endpoint.models())
        if not served:
            raise ChatError(f"{url} serves no model")
        model = served[0]
    options = ChatOptions(
        model,
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        seed=arguments.seed,
    )
    return Talk(endpoint, options, Conversation(_text(arguments.system)))


def _question(words: list[str]) -> str:
    """The question from the command line and from a pipe; empty: start a conversation."""
    question = _text(" ".join(words))
    if sys.stdin is None or sys.stdin.isatty():
        return question
    piped = sys.stdin.read().strip()
    return "\n\n".join(part for part in (question, piped) if part)


def _text(given: str) -> str:
    """A word of the command line as text: U+FFFD for bytes that are not UTF-8."""
    return given.encode(errors="surrogateescape").decode(errors="replace")


def _converse(talk: Talk, screen: Screen) -> None:
    import readline  # `input` edits lines with it

    # A paste is one text, its line ends included: Python leaves that off, as for its own prompt.
    readline.parse_and_bind("set enable-bracketed-paste on")
    screen.tell("/help lists what can be done here; Ctrl-D ends it.")
    converse(talk, screen, _line)


def _line(before: str) -> str:
    if is_signalled():  # in mid-answer
        raise KeyboardInterrupt
    return input(before)
