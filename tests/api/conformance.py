"""schemathesis against a running server: it asks what the server's own description allows."""

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",  # each event of a stream included
    "unsupported_method",
    "allow_header_conformance",
)
ACCEPTED_CHECKS = ("positive_data_acceptance",)
"""Only for a description that is narrowed to what no model refuses."""
REFUSED_CHECKS = ("negative_data_rejection", "missing_required_header")
"""Only for the description as it is: a narrowed one calls good requests bad."""

RARELY_SERVED = {
    *("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_grammar"),
    *("stop_token_ids", "logit_bias", "max_tokens", "max_completion_tokens", "tool_choice"),
}
"""Fields whose values depend on the model, or are programs: random ones mostly make a 400; or make
an answer of any length."""


class Verdict(NamedTuple):
    """The findings of a run."""

    num_cases: int
    said: str  # empty where everything conforms


async def described(url: str) -> dict[str, Any]:
    """The server's description, in which answers have the fields that it names and no others."""
    async with aiohttp.ClientSession(url) as session, session.get("/openapi.json") as got:
        assert got.status == 200
        document: dict[str, Any] = await got.json()
    for schema in document["components"]["schemas"].values():
        if schema.get("type") == "object":
            schema.setdefault("additionalProperties", False)
    return document


def served(document: dict[str, Any], model: str) -> dict[str, Any]:
    """The same, with every request naming the served model."""
    schemas = document["components"]["schemas"]
    for name in ("ChatRequest", "CompletionRequest", "TokenizeRequest", "DetokenizeRequest"):
        schemas[name]["properties"]["model"] = {"enum": [model, None, ""]}  # nothing: that one
    return document


def of_types(document: dict[str, Any], model: str) -> dict[str, Any]:
    """As `served`, without what the fields of a completion ask of each other: all of it together is
    too much for schemathesis, which makes no request then.
    """
    schemas = served(document, model)["components"]["schemas"]
    for name in ("ChatRequest", "CompletionRequest"):
        del schemas[name]["allOf"]
    return document


def answered(document: dict[str, Any], model: str, max_tokens: int = 4) -> dict[str, Any]:
    """The same, narrowed so that every request is answered: most completions as streams."""
    schemas = served(document, model)["components"]["schemas"]
    for name in ("ChatRequest", "CompletionRequest"):
        request = schemas[name]
        for field in RARELY_SERVED & set(request["properties"]):
            del request["properties"][field]
        request["properties"]["max_tokens"] = {"type": "integer", "enum": [1, 2, max_tokens]}
        request["properties"]["n"] = {"enum": [1, 3]}
        request["properties"]["min_tokens"] = {"enum": [0, 1, None]}  # no more than `max_tokens`
        request["properties"]["stream"] = {"enum": [True, True, True, False]}
        request["required"] = [*request["required"], "stream", "max_tokens"]
        request["properties"].pop("tools", None)  # whose description alone may fill the context
    text = {"type": "string", "minLength": 1, "maxLength": 20}
    schemas["CompletionRequest"]["properties"]["prompt"] = text
    schemas["ChatRequest"]["properties"]["messages"] |= {"maxItems": 3}
    schemas["Message"]["properties"] |= {
        **{field: {"type": "null"} for field in ("reasoning_content", "reasoning", "name")},
        "content": {"anyOf": [text, {"type": "null"}]},
    }
    schemas["CalledFunction"]["properties"]["name"] = text
    schemas["CalledFunction"]["properties"]["arguments"] = {"enum": ["", "{}", None, "no JSON"]}
    schemas["ToolCall"]["properties"]["id"] = text
    tokens = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 30}}
    schemas["DetokenizeRequest"]["properties"]["tokens"] = {**tokens, "maxItems": 50}
    schemas["TokenizeRequest"]["properties"]["prompt"] = {"anyOf": [text, {"type": "null"}]}
    # Functions of one name are refused, which no schema says.
    schemas["TokenizeRequest"]["properties"]["tools"]["anyOf"][0]["maxItems"] = 1
    paths = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")
    document["paths"] = {path: document["paths"][path] for path in paths}
    return document


async def run(document: dict[str, Any], url: str, folder: Path, *flags: str) -> Verdict:
    """Let schemathesis ask `url` what `document` allows; `flags` are its own."""
    file = folder / "openapi.json"
    file.write_text(json.dumps(document))
    command = [sys.executable, "-m", "schemathesis.cli", "run", str(file), "--url", url]
    process = await asyncio.create_subprocess_exec(
        *(*command, "--no-color", "--warnings", "off", *flags),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output = (await process.communicate())[0].decode()
    cases = re.search(r"(\d+) generated", output)
    assert cases, output
    return Verdict(int(cases[1]), output if process.returncode else "")
