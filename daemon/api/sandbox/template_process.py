"""`python -m daemon.api.sandbox.template_process --fd N --folder F`: renders conversations.

A chat template is a program of the model's maker, and its run depends on clients' text: it may
hang, or take all memory. So conversations are rendered in forks of this process, and the template
itself is compiled in one first, since constant expressions are computed then.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from daemon.api.replies.errors import ApiError
from daemon.api.sandbox.chat_template import ChatTemplate, read_template
from daemon.api.sandbox.conversation import Rendered, TemplateConversation, template_message
from daemon.api.sandbox.forking import Forks, QuestionLimits, QuestionOutcome, begin
from daemon.api.tools.history import described

LIMITS = QuestionLimits(
    cpu_s=0.06,  # a usual one takes 0.2 to 3 ms
    waiting_s=5.0,  # for memory or a disk: nothing in a template can sleep
    memory_bytes=256 << 20,
    answer_bytes=64 << 20,
    cpu_s_per_byte=1e-6,  # ten times that of the slowest usual template, with many tool calls
    most_cpu_s=2.0,
    num_answers=256,
)
COMPILE_LIMITS = LIMITS._replace(cpu_s=0.4)
NO_TEMPLATE = "this model has no usable chat template; use /v1/completions"
_HIDES_WORDS = "what a user says does not come out of it, as text or in parts"
_GIVEN_UP = {
    QuestionOutcome.LATE: "it takes too long to compile",
    QuestionOutcome.DIED: "it takes too much memory to compile, or is too deep",
    QuestionOutcome.TOO_LONG: "it is too large",
}

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(TemplateConversation).decode


def main() -> int:
    """Answer until the socket ends; return the exit status."""
    parser = argparse.ArgumentParser(prog="daemon.api.sandbox.template_process")
    parser.add_argument("--fd", type=int, required=True, help="one end of a socketpair")
    parser.add_argument("--folder", type=Path, required=True, help="the model's")
    arguments = parser.parse_args()
    channel = begin(arguments.fd)
    wrong = what_is_wrong(arguments.folder)
    template = None if wrong else read_template(arguments.folder)
    if template is None:
        channel.send((wrong or NO_TEMPLATE).encode())
        return 0
    Forks(lambda question: render(template, question), LIMITS).serve(channel)
    return 0


def what_is_wrong(folder: Path) -> str:
    """Why a folder's template cannot even be compiled; empty: it can."""

    wrong = _tried(folder, lambda template: "" if template.shows_words else _HIDES_WORDS)
    return (
        f"this model's chat template cannot be used: {wrong}; use /v1/completions" if wrong else ""
    )


def what_it_refuses(folder: Path) -> str:
    """Why a folder's template, which can be compiled, refuses every conversation; empty: it does
    not. One that wants values of its own may still take them from a request.
    """
    why = _tried(folder, lambda template: template.refuses)
    return (
        f"this model's chat template refuses every conversation that was tried: {why}"
        if why
        else ""
    )


def _tried(folder: Path, ask: Callable[[ChatTemplate], str]) -> str:
    """A fork's answer about a folder's template, or why it could not compile it; empty: nothing."""

    def compiled(_question: bytes) -> bytes:
        try:
            template = read_template(folder)
            return b"" if template is None else ask(template).encode(errors="replace")
        except Exception as error:  # noqa: BLE001 - a program of the model's maker
            return str(error).encode(errors="replace") or type(error).__name__.encode()

    forks = Forks(compiled, COMPILE_LIMITS)
    outcome, answer = forks.ask(b"")
    forks.close()
    return answer.decode() if outcome == QuestionOutcome.ANSWERED else _GIVEN_UP[outcome]


def render(template: ChatTemplate, question: bytes) -> bytes:
    """A conversation's text, or why there is none."""
    conversation = _decode(question)
    messages = [template_message(message) for message in conversation.messages]
    try:
        text = template.render(
            messages,
            conversation.begin_answer,
            described(conversation.tools),
            conversation.values,
            continue_last=conversation.continue_last,
        )
        return _encode(Rendered(text, template.calls, thoughts=template.thoughts))
    except ApiError as error:
        return _encode(Rendered("", template.calls, error.message))
    except UnicodeEncodeError:
        what = "the model's chat template makes no text of these `messages`: half a character"
        return _encode(Rendered("", template.calls, what))


if __name__ == "__main__":
    sys.exit(main())
