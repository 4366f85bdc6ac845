"""`/tokenize` and `/detokenize`, in vLLM's shape. Both run in a thread, as tokenizing does."""

import msgspec

from daemon.api.answer.prepare import begins_answer, template_values
from daemon.api.replies.answers import Detokenized, Tokenized
from daemon.api.replies.errors import invalid
from daemon.api.request.sampling import given
from daemon.api.request.schema import DetokenizeRequest, TokenizeRequest
from daemon.api.sandbox.conversation import Rendered, TemplateConversation
from daemon.api.text.text import Text, too_long
from daemon.api.tools.choice import check_tools
from daemon.api.tools.history import check_messages
from daemon.protocol.api import Serving


def asked_conversation(request: TokenizeRequest) -> bytes | None:
    """The `TemplateConversation` whose tokens are wanted, as JSON; None for a plain text.

    Raises ApiError 400.
    """
    if (request.prompt is None) == (request.messages is None):
        raise invalid("one of `prompt` and `messages` must be given, and not both", "prompt")
    if request.messages is None:
        if request.add_generation_prompt is not None:
            raise invalid("`add_generation_prompt` needs `messages`", "add_generation_prompt")
        if request.tools is not None:
            raise invalid("`tools` needs `messages`", "tools")
        if request.continue_final_message is not None:
            raise invalid("`continue_final_message` needs `messages`", "continue_final_message")
        return None
    check_messages(request.messages)
    check_tools(request.tools or [])
    values = template_values(request.chat_template_kwargs)
    return msgspec.json.encode(
        TemplateConversation(
            request.messages,
            request.tools or [],
            begins_answer(request),
            values,
            bool(request.continue_final_message),
        )
    )


def tokenize(
    request: TokenizeRequest, rendered: Rendered | None, text: Text, serving: Serving
) -> Tokenized:
    """The tokens of a text or of a rendered conversation, more than fit the model included.

    Raises ApiError 400 for a text that is too long for any tokenizer to make it fit.
    """
    if rendered is not None:
        special = given(request.add_special_tokens, False)
        tokens = text.encode(rendered.text, special, serving, "messages")
    else:
        prompt, special = request.prompt or "", given(request.add_special_tokens, True)
        tokens = text.encode(prompt, special, serving, "prompt")
    names = text.names(tokens) if request.return_token_strs else None
    return Tokenized(len(tokens), serving.max_len, tokens, names)


def detokenize(request: DetokenizeRequest, text: Text, serving: Serving) -> Detokenized:
    """The text of tokens, special ones included. Raises ApiError 400."""
    tokens = request.tokens
    if len(tokens) > serving.max_len:
        raise too_long("tokens", serving.max_len, f"has {len(tokens)}")
    if tokens and max(tokens) >= serving.vocab_size:
        raise invalid(f"`tokens` has ids outside of 0..{serving.vocab_size - 1}", "tokens")
    return Detokenized(text.decode(tokens, with_special=True))
