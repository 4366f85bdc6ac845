"""Answers at unknown addresses: what other servers have there, and the addresses served here."""

from collections.abc import Collection
from difflib import get_close_matches

from daemon.api.replies.errors import ApiError

_HERE = "/v1/chat/completions, /v1/completions, /v1/models, /tokenize and /detokenize"
_ELSEWHERE = {
    "embeddings": "embeddings are",
    "responses": "OpenAI's Responses API is",
    "conversations": "OpenAI's Conversations API is",
    "images": "images are",
    "videos": "videos are",
    "audio": "speech is",
    "chat": "what was stored of a chat is",
    "realtime": "the Realtime API is",
    "moderations": "moderation is",
    "files": "files are",
    "uploads": "files are",
    "batches": "batches are",
    "fine_tuning": "fine-tuning is",
    "fine-tunes": "fine-tuning is",
    "assistants": "the Assistants API is",
    "threads": "the Assistants API is",
    "vector_stores": "vector stores are",
    "containers": "containers are",
    "evals": "evals are",
    "edits": "edits are",
    "organization": "the Administration API is",
    "engines": "engines are",
    "rerank": "reranking is",
    "score": "scoring of pairs is",
    "classify": "classification is",
    "messages": "Anthropic's API is",
    "api": "Ollama's API is",
    "generate": "TGI's API is",
    "completion": "llama.cpp's own API is",
    "infill": "llama.cpp's own API is",
}
"""The first part of other APIs' paths, without `/v1`, and what they serve."""


def nothing_here(path: str, paths: Collection[str]) -> ApiError:
    """The 404 of a path without a route; `paths` are those with one."""
    parts = [part for part in path.split("/") if part]
    here = sorted(known for known in paths if _is_plain(known))
    meant = [known for known in here if _meant(parts, known)] or _spelled_like(parts, here)
    if meant:
        message = f"there is nothing at this address; did you mean {max(meant, key=len)}?"
        return ApiError(404, message, code="unknown_url")
    rest = [part for part in parts if part != "v1"]
    other = _ELSEWHERE.get(rest[0], "") if rest else ""
    what = f"{other} not served here" if other else "there is nothing at this address"
    return ApiError(404, f"{what}; this server has {_HERE}", code="unknown_url")


def _is_plain(path: str) -> bool:
    return bool(path[1:]) and not path.endswith("/") and "{" not in path


def _meant(parts: list[str], path: str) -> bool:
    """Whether the requested path ends with a known one, `/v1` aside."""
    plain = [part for part in path.split("/") if part and part != "v1"]
    requested = [part for part in parts if part != "v1"]
    return bool(plain) and requested[-len(plain) :] == plain


def _spelled_like(parts: list[str], paths: list[str]) -> list[str]:
    """The known path of the same depth that differs by a letter or two, if any."""
    as_deep = [path for path in paths if path.count("/") == len(parts)]
    return get_close_matches("/" + "/".join(parts), as_deep, 1, 0.9)
