"""From a typed request to what the runtime generates: checks, templates, tokens.

Runs in a thread, since tokenizing a long prompt takes longer than the event loop may wait.
"""

from typing import Any, cast

import msgspec

from daemon.api.replies.errors import ApiError, invalid, shown
from daemon.api.request.response_format import wanted
from daemon.api.request.sampling import (
    check_unsupported,
    given,
    num_choices,
    sampling_params,
    stop_strings,
)
from daemon.api.request.schema import (
    ChatRequest,
    Common,
    CompletionRequest,
    Message,
    TokenizeRequest,
)
from daemon.api.sandbox.conversation import Rendered, TemplateConversation, template_message
from daemon.api.text.detokenizer import Detokenizer
from daemon.api.text.echo import Echo
from daemon.api.text.offsets import offsets_of_tokens
from daemon.api.text.text import Prompt, Text, too_long
from daemon.api.tools.choice import Toolbox, offered, toolbox
from daemon.api.tools.history import check_messages
from daemon.protocol.api import Serving
from daemon.state.request import SamplingParams

MAX_PROMPTS = 128
MAX_CHOICES = 1024
COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for a plain completion; a chat may fill the context."""
TAKEN = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""Variables of chat templates whose values come from fields of their own."""
DECODED_TOKENS = 256
"""Tokens of a prompt of token ids that are decoded for predictors."""


class Work(msgspec.Struct, frozen=True):
    """A prepared request: everything known before its first token."""

    prompts: tuple[Prompt, ...]
    n: int
    max_tokens: tuple[int, ...]  # of each prompt's answers
    priority: int
    deadline_s: float  # from the request's headers to the end of all answers; 0: none
    sampling: SamplingParams
    stops: tuple[str, ...]
    tools: Toolbox | None = None  # what an answer may call
    thoughts: str = ""  # how an answer may begin with them, as in `Rendered`; empty: none
    opens_thought: bool = False  # its prompt has begun one
    echoes: tuple[Echo, ...] = ()  # of each prompt that its answers begin with
    prompt_only: bool = False  # generated text is not shown
    shows_special: bool = False  # special tokens are text, too
    field: str = "prompt"  # that its prompts come from
    bound_by: str = ""  # the field that an answer's grammar comes from, if it has one
    slo_scale: float = 0.0  # of its key
    max_repeated_tokens: int = 0  # of an answer that repeats one piece; 0: no bound

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(len(prompt.tokens) for prompt in self.prompts)


def conversation(request: ChatRequest, serving: Serving) -> bytes:
    """The input of a chat's template: a `TemplateConversation`, as JSON. Raises ApiError."""
    check_unsupported(request)
    check_messages(request.messages)
    _check_limit(*_chat_limit(request), serving.max_len)
    values = template_values(request.chat_template_kwargs)
    if request.reasoning_effort is not None:
        values = {"reasoning_effort": request.reasoning_effort, **values}
    return msgspec.json.encode(
        TemplateConversation(
            request.messages,
            offered(request),
            begins_answer(request),
            values,
            bool(request.continue_final_message),
        )
    )


def begins_answer(request: ChatRequest | TokenizeRequest) -> bool:
    """Whether an answer begins after the conversation. Raises ApiError 400."""
    if request.continue_final_message and request.add_generation_prompt:
        what = "`continue_final_message` and `add_generation_prompt` cannot both be true"
        raise invalid(what, "continue_final_message")
    return not request.continue_final_message and request.add_generation_prompt is not False


def prepare_chat(request: ChatRequest, rendered: Rendered, text: Text, serving: Serving) -> Work:
    """The work of a conversation that was `rendered`. Raises ApiError."""
    tokens = text.encode(rendered.text, False, serving, "messages")
    prompt = text.prompt(tokens, serving.block_size, words=_asked(request.messages))
    default = serving.defaults.max_tokens
    work = _work(request, [prompt], _chat_limit(request), default, serving, "messages")
    markers = text.markers.below(serving.vocab_size)
    work = _with_tools(work, toolbox(request, offered(request), rendered.calls, markers))
    if not rendered.thoughts or work.sampling.grammar:  # a grammar has no room for thoughts
        return work
    return msgspec.structs.replace(
        work, thoughts=rendered.thoughts, opens_thought=rendered.opens_thought
    )


def prepare_completion(request: CompletionRequest, text: Text, serving: Serving) -> Work:
    """The work of one or several prompts. Raises ApiError."""
    check_unsupported(request)
    limit = request.max_tokens, "max_tokens"
    prompt_only = request.max_tokens == 0
    if prompt_only and not request.echo:
        raise invalid("`max_tokens` may be 0 only with `echo`", "max_tokens")
    _check_limit(*limit, serving.max_len)
    sources = _separate(request.prompt)
    prompts = [_prompt(prompt, request, text, serving) for prompt in sources]
    # An engine samples a token after every prompt that it computes.
    work = _work(request, prompts, limit, COMPLETION_MAX_TOKENS, serving, "prompt")
    if not request.echo:
        return work
    scored = work.sampling.prompt_logprobs >= 0
    echoes = tuple(
        Echo(prompt, _offsets(source, prompt, work, text) if scored else [], text.token_bytes)
        for source, prompt in zip(sources, prompts, strict=True)
    )
    return msgspec.structs.replace(work, echoes=echoes, prompt_only=prompt_only)


def _prompt(
    source: str | list[int], request: CompletionRequest, text: Text, serving: Serving
) -> Prompt:
    if isinstance(source, str):
        words, tokens = source, text.encode(source, True, serving, "prompt")
    else:
        tokens = _token_ids(source, request.max_tokens, serving)
        decoded = tokens if request.echo else tokens[:DECODED_TOKENS]
        words = text.decode(decoded, with_special=request.skip_special_tokens is False)
    echo = words if request.echo else ""
    return text.prompt(tokens, serving.block_size, echo, words)


def _offsets(source: str | list[int], prompt: Prompt, work: Work, text: Text) -> list[int]:
    """The offsets of a prompt's tokens in its text, in letters."""
    if isinstance(source, str):
        return text.offsets(source, special=True)
    detokenizer = Detokenizer(text.token_bytes, text.hidden(work.shows_special))
    return offsets_of_tokens(prompt.text, source, detokenizer)


def template_values(given: dict[str, Any] | None) -> dict[str, Any]:
    """`chat_template_kwargs`. Raises ApiError for a variable of `TAKEN`."""
    for name in given or {}:
        if name in TAKEN:
            message = (
                f"`chat_template_kwargs` cannot set `{name}`, which the request's own fields do"
            )
            raise invalid(message, "chat_template_kwargs")
    return given or {}


def _with_tools(work: Work, tools: Toolbox | None) -> Work:
    if tools is None:
        return work
    sampling = work.sampling
    if tools.grammar:
        sampling = msgspec.structs.replace(sampling, grammar=tools.grammar)
    return msgspec.structs.replace(work, tools=tools, sampling=sampling)


def _asked(messages: list[Message]) -> str:
    """The user's last message: earlier text is mostly alike in every request, or an answer."""
    spoken = [message for message in messages if message.role == "user"]
    content: str = template_message((spoken or messages)[-1])["content"]
    return content


def _separate(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """The prompts of a request, in any of the four forms."""
    if isinstance(prompt, str):
        return [prompt]
    kind = type(prompt[0])
    if any(type(item) is not kind for item in prompt):
        raise invalid("`prompt` mixes text and token ids", "prompt", "invalid_type")
    if kind is int:
        return [cast("list[int]", prompt)]
    if len(prompt) > MAX_PROMPTS:
        raise invalid(
            f"`prompt` may have at most {MAX_PROMPTS} prompts, not {len(prompt)}", "prompt"
        )
    return cast("list[str | list[int]]", prompt)


def _token_ids(tokens: list[int], limit: int | None, serving: Serving) -> list[int]:
    if len(tokens) >= serving.max_len:
        raise _no_room(len(tokens), (limit, "max_tokens"), serving.max_len, "prompt")
    if tokens and max(tokens) >= serving.vocab_size:
        raise invalid(f"`prompt` has token ids outside of 0..{serving.vocab_size - 1}", "prompt")
    return tokens


def _chat_limit(request: ChatRequest) -> tuple[int | None, str]:
    """The most tokens of an answer, and the field that sets it."""
    if request.max_completion_tokens is not None:
        return request.max_completion_tokens, "max_completion_tokens"
    return request.max_tokens, "max_tokens"


def _check_limit(limit: int | None, name: str, max_len: int) -> None:
    if limit is not None and limit >= max_len:
        raise too_long(name, max_len, f"asks for {shown(limit)} beside at least one of the prompt")


def _check_least(least: int | None, most: int, name: str) -> None:
    """`least` is the request's `min_tokens`, and `most` the limit that the field `name` sets."""
    if least is not None and least > most:
        what = f"`min_tokens` asks for at least {least}, and `{name}` allows {most}"
        raise invalid(what, "min_tokens")


def _no_room(num_tokens: int, limit: tuple[int | None, str], max_len: int, param: str) -> ApiError:
    """The error of a prompt and answer that are too long together. `limit`: the most tokens of the
    answer, and the field that sets it.

    After every prompt one token is sampled, whether it is wanted or not.
    """
    wanted, name = limit
    if wanted is None or num_tokens >= max_len:
        return too_long(param, max_len, f"has {num_tokens}, and needs room for one more")
    request = f"`{name}` asks for {shown(wanted)} more"
    return too_long(param, max_len, f"has {num_tokens} and {request}: {shown(num_tokens + wanted)}")


def _work(
    request: Common,
    prompts: list[Prompt],
    limit: tuple[int | None, str],
    default: int,
    serving: Serving,
    param: str,
) -> Work:
    n = num_choices(request)
    if n * len(prompts) > MAX_CHOICES:
        what = f"`n` times the prompts are {n * len(prompts)} choices, and may be {MAX_CHOICES}"
        raise invalid(what, "n")
    limits = []
    for prompt in prompts:
        num_tokens = len(prompt.tokens)
        if num_tokens == 0:
            raise invalid(f"`{param}` has no tokens", param)
        room = serving.max_len - num_tokens
        wanted = _wanted(limit[0], room, default)
        if room < 1 or wanted > room:
            raise _no_room(num_tokens, limit, serving.max_len, param)
        _check_least(request.min_tokens, wanted if limit[0] is None else limit[0], limit[1])
        limits.append(wanted)
    most = min(limits, default=0)
    return Work(
        prompts=tuple(prompts),
        n=n,
        max_tokens=tuple(limits),
        priority=given(request.priority, 0),
        deadline_s=given(request.deadline_s, 0.0),
        sampling=sampling_params(request, serving.defaults, serving.vocab_size, most),
        stops=stop_strings(request, serving.defaults),
        field=param,
        bound_by=_bound_by(request),
        shows_special=request.skip_special_tokens is False,
    )


def _wanted(limit: int | None, room: int, default: int) -> int:
    """The most tokens of an answer. A request's own limit must fit; a default one is cut to fit,
    and where it is 0 an answer may fill the room.
    """
    if limit is not None:
        return max(limit, 1)
    return min(room, default or room)


def _bound_by(request: Common) -> str:
    """The field that a grammar comes from, if there is one."""
    wanted_form = wanted(request)
    return "tools" if wanted_form is None else wanted_form.field
