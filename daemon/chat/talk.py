"""One exchange of a chat: a question is sent, its answer is shown as it comes, and timed."""

import asyncio
from time import perf_counter

import msgspec

from daemon.chat.conversation import ChatOptions, Conversation
from daemon.chat.endpoint import Endpoint
from daemon.chat.screen import Screen
from daemon.client.sse import Event

PATIENCE_S = 2.0
"""Time without a token after which people are told that the server is what they wait for."""


class Timing(msgspec.Struct):
    """The times of an answer, in seconds of a clock that only runs forward."""

    asked_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    num_tokens: int = 0
    num_prompt_tokens: int = 0

    def take(self, event: Event) -> None:
        """Note an event."""
        if event.has_tokens:
            self.last_s = perf_counter()
            self.first_s = self.first_s or self.last_s
        if event.usage is not None:
            self.num_tokens = event.usage.completion_tokens
            self.num_prompt_tokens = event.usage.prompt_tokens

    def __str__(self) -> str:
        parts = [f"{self.num_prompt_tokens} + {self.num_tokens} tokens"]
        if self.first_s:
            parts.append(f"first after {self.first_s - self.asked_s:.2f} s")
        if self.num_tokens > 1 and self.last_s > self.first_s:
            rate = (self.num_tokens - 1) / (self.last_s - self.first_s)
            parts.append(f"then {rate:.1f} tokens/s")
        return ", ".join(parts)


class Talk:
    """The exchanges of one conversation with one endpoint."""

    def __init__(self, endpoint: Endpoint, asked: ChatOptions, conversation: Conversation) -> None:
        self.conversation = conversation
        self._endpoint = endpoint
        self._asked = asked

    def say(self, text: str, screen: Screen) -> Timing:
        """Ask, and show the answer; blocks. Raises ChatError, and KeyboardInterrupt on Ctrl-C.

        The text of an answer that was cut short stays in the conversation.
        """
        said: list[str] = []
        self.conversation.ask(text)
        try:
            return asyncio.run(self._turn(said, screen))
        finally:
            screen.stop_waiting()
            self.conversation.answered("".join(said))

    async def _turn(self, said: list[str], screen: Screen) -> Timing:
        timing = Timing(perf_counter())
        loop = asyncio.get_running_loop()
        repeats = False
        hint = loop.call_later(PATIENCE_S, screen.wait, "waiting for the first token ...")
        try:
            async for event in self._endpoint.stream(self._asked.body(self.conversation.messages)):
                timing.take(event)
                delta = event.choices[0].delta if event.choices else None
                if delta is not None and delta.reasoning_content:
                    hint.cancel()
                    screen.think(delta.reasoning_content)
                if delta is not None and delta.content:
                    hint.cancel()
                    said.append(delta.content)
                    screen.answer(delta.content)
                repeats = repeats or event.repeats
        finally:
            hint.cancel()
        screen.answer("\n")
        if repeats:
            screen.tell("(the answer was ended, since it repeated itself)")
        return timing
