"""Our rendering against transformers' own."""

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from daemon.api.chat_template import ChatTemplate
from daemon.api.errors import ApiError

MESSAGES = [
    {"role": "system", "content": 'be "brief"\n'},
    {"role": "user", "content": "  <b>hello</b> 🙂 "},
    {"role": "assistant", "content": "hi"},
    {"role": "user", "content": "again\n\n"},
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TEMPLATES = {
    "smollm": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "blocks": """
{%- if messages[0].role == 'system' %}
    {{- bos_token + messages[0].content | trim }}
{%- endif %}
{% for message in messages %}
    {%- if loop.first %}{% continue %}{% endif %}
    {% if message.role == 'assistant' %}
    {% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}
    {% else %}
  [INST] {{ message.content.strip() }} [/INST]
    {% endif %}
    {%- if loop.index > 30 %}{% break %}{% endif %}
{% endfor %}
""",
    "json": "{{ messages | tojson }}\n{{ messages | tojson(indent=2) }}{{ tools is none }}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% endfor %}{{ ns.n }}{{ documents is defined and documents }}{{ strftime_now('%Y') }}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_as_transformers(name: str):
    rendered, _ = render_jinja_template(
        conversations=[MESSAGES],
        chat_template=TEMPLATES[name],
        add_generation_prompt=True,
        **TOKENS,
    )
    assert ChatTemplate(TEMPLATES[name], TOKENS).render(MESSAGES) == rendered[0]


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[9].content }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_that_refuses_is_the_clients_error(source: str):
    with pytest.raises(ApiError) as caught:
        ChatTemplate(source, TOKENS).render(MESSAGES)
    assert caught.value.status == 400 and caught.value.param == "messages"
