"""`/tokenize` and `/detokenize`, in vLLM's shape. Both run in a thread, as tokenizing does."""

from daemon.api.answers import Detokenized, Tokenized
from daemon.api.errors import invalid
from daemon.api.prepare import template_message
from daemon.api.sampling import given
from daemon.api.schema import DetokenizeRequest, TokenizeRequest
from daemon.api.text import Text, too_long
from daemon.api.tools.choice import check_tools
from daemon.api.tools.history import check_messages, described
from daemon.runtime.protocol import Serving


def tokenize(request: TokenizeRequest, text: Text, serving: Serving) -> Tokenized:
    """The tokens of a text or a conversation, more than fit the model included.

    Raises ApiError 400, also for a text that is too long for any tokenizer to make it fit.
    """
    if (request.prompt is None) == (request.messages is None):
        raise invalid("give either `prompt` or `messages`", "prompt")
    if request.messages is not None:
        check_messages(request.messages)
        check_tools(request.tools or [])
        tokens = text.chat(
            [template_message(message) for message in request.messages],
            serving.max_len,
            given(request.add_generation_prompt, True),
            given(request.add_special_tokens, False),
            described(request.tools or []),
        )
    elif request.add_generation_prompt is not None:
        raise invalid("`add_generation_prompt` needs `messages`", "add_generation_prompt")
    elif request.tools is not None:
        raise invalid("`tools` needs `messages`", "tools")
    else:
        prompt, special = request.prompt or "", given(request.add_special_tokens, True)
        tokens = text.complete(prompt, serving.max_len, special)
    names = text.names(tokens) if request.return_token_strs else None
    return Tokenized(len(tokens), serving.max_len, tokens, names)


def detokenize(request: DetokenizeRequest, text: Text, serving: Serving) -> Detokenized:
    """The text of tokens, special ones included. Raises ApiError 400."""
    tokens = request.tokens
    if len(tokens) > serving.max_len:
        raise too_long(str(len(tokens)), 0, serving.max_len, "tokens")
    if tokens and max(tokens) >= serving.vocab_size:
        raise invalid(f"`tokens` has ids outside of 0..{serving.vocab_size - 1}", "tokens")
    return Detokenized(text.decode(tokens, with_special=True))
