"""openai-python, 2.x and 3.x: a chat streamed, plain and asyncio, against the same chat whole."""

import asyncio
import os

import openai
from openai import AsyncOpenAI, OpenAI

URL = f"{os.environ['LLMD_URL']}/v1"
MESSAGES = [{"role": "user", "content": "Name three rivers of Europe."}]


async def pieces(asked: dict[str, object]) -> list[str]:
    """The streamed text by the asyncio client."""
    async with AsyncOpenAI(base_url=URL, api_key="unused") as client:
        stream = await client.chat.completions.create(**asked, stream=True)
        chunks = [chunk async for chunk in stream]
    return [c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content]


def main() -> None:
    """Ask three times; the texts must be one."""
    client = OpenAI(base_url=URL, api_key="unused")
    model = client.models.list().data[0].id
    asked = {"model": model, "messages": MESSAGES, "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**asked).choices[0].message.content
    usage = {"include_usage": True}
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options=usage))
    streamed = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert whole and "".join(streamed) == whole == "".join(asyncio.run(pieces(asked)))
    assert chunks[-1].usage.completion_tokens == 24
    print(f"openai {openai.__version__}: {len(streamed)} pieces, {whole!r}")


main()
