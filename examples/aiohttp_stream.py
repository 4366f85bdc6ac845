"""Streams several answers at once with aiohttp alone: aiohttp_stream.py "One?" "Two?"."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator

import aiohttp

URL = os.environ.get("LLMD_URL", "http://127.0.0.1:8000")


async def stream(session: aiohttp.ClientSession, question: str) -> AsyncIterator[str]:
    """The pieces of one answer, as the server sends them."""
    body = {
        "messages": [{"role": "user", "content": question}],
        "model": await first_model(session),
        "max_tokens": 200,
        "stream": True,
    }
    async with session.post("/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.content:
            data = line.decode().strip().removeprefix("data: ")
            if not data.startswith("{"):  # an empty line, a comment, or [DONE]
                continue
            event = json.loads(data)
            if "error" in event:  # the answer ends here
                raise RuntimeError(event["error"]["message"])
            for choice in event["choices"]:
                yield choice["delta"].get("content") or ""


async def first_model(session: aiohttp.ClientSession) -> str:
    """The name of the model that is served."""
    async with session.get("/v1/models") as response:
        return str((await response.json())["data"][0]["id"])


async def answer(session: aiohttp.ClientSession, question: str) -> None:
    """Print one answer when it is complete."""
    pieces = [piece async for piece in stream(session, question)]
    print(f"> {question}\n{''.join(pieces)}\n")


async def main(questions: list[str]) -> None:
    """Ask all questions at once over one session; an error ends all."""
    try:
        async with aiohttp.ClientSession(URL) as session, asyncio.TaskGroup() as group:
            for question in questions:
                group.create_task(answer(session, question))
    except* RuntimeError as errors:
        sys.exit("\n".join(map(str, errors.exceptions)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or ["What is an owl?", "What is a heron?"]))
