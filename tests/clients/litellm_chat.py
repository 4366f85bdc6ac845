"""litellm: a chat streamed by its provider for OpenAI's API, against the same chat whole."""

import os
from importlib.metadata import version

import litellm

URL = f"{os.environ['LLMD_URL']}/v1"


def main() -> None:
    """Ask twice; the texts must be one."""
    models = litellm.get_valid_models(
        check_provider_endpoint=True,
        custom_llm_provider="openai",
        api_key="unused",
        api_base=os.environ["LLMD_URL"],
    )
    asked = {
        "model": f"openai/{models[-1].removeprefix('openai/')}",
        "messages": [{"role": "user", "content": "Name three rivers of Europe."}],
        "api_base": URL,
        "api_key": "unused",
        "temperature": 0,
        "max_tokens": 24,
    }
    whole = litellm.completion(**asked).choices[0].message.content
    chunks = litellm.completion(**asked, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert whole and "".join(pieces) == whole
    print(f"litellm {version('litellm')}: {len(pieces)} pieces, {whole!r}")


main()
