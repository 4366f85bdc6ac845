"""instructor: an object of a type, by a forced call and by a JSON schema."""

import os
from importlib.metadata import version
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field

URL = f"{os.environ['LLMD_URL']}/v1"
QUESTION = "Anna Smith is 31 years old and lives in Oslo. Who is she?"
MODES = (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA)


class Person(BaseModel):
    """Somebody."""

    name: str = Field(max_length=40)
    age: int = Field(ge=0, le=150)
    kind: Literal["adult", "child"]
    email: str | None = Field(default=None, max_length=40)


def main() -> None:
    """Ask once in each mode, without a second try: what does not parse is an exception."""
    client = OpenAI(base_url=URL, api_key="unused", max_retries=0)
    asked = {
        "model": client.models.list().data[0].id,
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 120,
    }
    print(f"instructor {version('instructor')}")
    for mode in MODES:
        create = instructor.from_openai(client, mode=mode).chat.completions.create
        person = create(**asked, response_model=Person, max_retries=1)
        assert isinstance(person, Person)
        print(f"  {mode.name}: {person!r}")


main()
