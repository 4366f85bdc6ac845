"""langchain-openai: a chat streamed, against the same chat whole."""

import os
from importlib.metadata import version

from langchain_openai import ChatOpenAI
from openai import OpenAI

URL = f"{os.environ['LLMD_URL']}/v1"
QUESTION = "Name three rivers of Europe."


def main() -> None:
    """Ask twice; the texts must be one."""
    model = OpenAI(base_url=URL, api_key="unused").models.list().data[0].id
    chat = ChatOpenAI(
        base_url=URL, api_key="unused", model=model, temperature=0, max_tokens=24, stream_usage=True
    )
    whole = chat.invoke(QUESTION)
    pieces = list(chat.stream(QUESTION))
    assert whole.content and "".join(piece.content for piece in pieces) == whole.content
    used = [piece.usage_metadata for piece in pieces if piece.usage_metadata]
    assert used[-1]["output_tokens"] == whole.usage_metadata["output_tokens"] == 24
    name = f"langchain-openai {version('langchain-openai')}"
    print(f"{name}: {len(pieces)} pieces, {whole.content!r}")


main()
