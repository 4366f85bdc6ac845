"""Streams one chat answer with the official OpenAI client: openai_chat.py "Your question"."""

import os
import sys

from openai import OpenAI

url = os.environ.get("LLMD_URL", "http://127.0.0.1:8000")
client = OpenAI(base_url=f"{url}/v1", api_key="unused")
question = sys.argv[1] if len(sys.argv) > 1 else "Tell me about owls in two sentences."

stream = client.chat.completions.create(
    model=client.models.list().data[0].id,
    messages=[{"role": "user", "content": question}],
    max_tokens=200,
    temperature=0.0,
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
