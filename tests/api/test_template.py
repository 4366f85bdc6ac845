"""Our rendering against transformers' own."""

import json
from pathlib import Path

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from daemon.api.replies.errors import ApiError
from daemon.api.sandbox.chat_template import ChatTemplate, read_template, unused_templates
from daemon.api.sandbox.template_process import what_is_wrong, what_it_refuses

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


PARTS = (
    "{% for m in messages %}<|{{ m.role }}|>{% for part in m.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}\n{% endfor %}"
)
BY_MACRO = (
    "{% macro say(content) %}{% for one in content %}{{ one['text'] }}{% endfor %}{% endmacro %}"
    "{% for m in messages %}{{ say(m['content']) }}\n{% endfor %}"
)
USERS_ALONE = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ m.content[0].text }}{% else %}"
    "{{ m.content + '' }}{% endif %}\n{% endfor %}"
)
EITHER = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endif %}\n{% endfor %}"
)
STRICT = (
    "{% if messages | length != 3 or messages[0].role != 'system' %}{{ raise_exception('no') }}"
    "{% endif %}{{ messages[-1].content }}"
)


@pytest.mark.parametrize("source", [PARTS, BY_MACRO, USERS_ALONE, EITHER])
def test_words_reach_the_prompt_whatever_form_a_template_wants(source: str):
    template = ChatTemplate(source, TOKENS)
    assert template.shows_words
    said = template.render(MESSAGES)
    for message in MESSAGES:
        assert message["content"].strip() in said
    assert "[" not in said and "{" not in said, "text comes as text where both are taken"


@pytest.mark.parametrize("role", ["system", "assistant", "tool"])
def test_each_roles_words_reach_the_prompt(role: str):
    template = ChatTemplate(PARTS, TOKENS)
    said = {"role": role, "content": "an owl", "tool_call_id": "call12345"}
    assert "an owl" in template.render([MESSAGES[1], said, MESSAGES[3]])
    assert template.render([{"role": "user", "content": ""}]) == "<|user|>"


def test_a_template_that_hides_what_a_user_says_is_found():
    assert not ChatTemplate("{% for m in messages %}{{ m.role }}{% endfor %}", TOKENS).shows_words
    assert ChatTemplate(STRICT, TOKENS).shows_words, "it refuses what was tried, and hides nothing"


def test_a_folder_whose_template_hides_words_is_refused(tmp_path: Path):
    (tmp_path / "chat_template.jinja").write_text("{{ messages | length }} said something")
    assert "what a user says does not come out of it" in what_is_wrong(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(PARTS)
    assert what_is_wrong(tmp_path) == ""


def test_a_template_that_refuses_all_that_is_tried_is_noted(tmp_path: Path):
    (tmp_path / "chat_template.jinja").write_text(STRICT)
    assert what_it_refuses(tmp_path).endswith("refuses every conversation that was tried: no")
    assert what_is_wrong(tmp_path) == "", "it may be used all the same"
    (tmp_path / "chat_template.jinja").write_text("{{ a_function_of_tomorrow() }}")
    assert "'a_function_of_tomorrow' is undefined" in what_it_refuses(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(PARTS)
    assert what_it_refuses(tmp_path) == ""


def named(*names: str) -> list[dict[str, str]]:
    """Several templates, each of which shows its name and what is said."""
    return [{"name": one, "template": one + SHOWS} for one in names]


SHOWS = " {% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("files", "shown", "unused"),
    [
        ({"tokenizer_config.json": named("default", "tool_use")}, "default hi", ["tool_use"]),
        ({"chat_template.json": named("rag", "default")}, "default hi", ["rag"]),
        ({"chat_template.json": f"old{SHOWS}"}, "old hi", []),
        (
            {"tokenizer_config.json": f"new{SHOWS}", "chat_template.json": f"old{SHOWS}"},
            "new hi",
            [],
        ),
    ],
)
def test_of_several_templates_the_default_is_used_and_the_others_are_named(
    files: dict[str, object], shown: str, unused: list[str], tmp_path: Path
) -> None:
    for name, template in files.items():
        (tmp_path / name).write_text(json.dumps({"chat_template": template}))
    template = read_template(tmp_path)
    assert template is not None and what_is_wrong(tmp_path) == ""
    assert template.render([{"role": "user", "content": "hi"}]) == shown
    assert unused_templates(tmp_path) == unused
    further = tmp_path / "additional_chat_templates"
    further.mkdir()
    (further / "thinks.jinja").write_text(SHOWS)
    assert unused_templates(tmp_path) == sorted([*unused, "thinks"])


def test_templates_none_of_which_is_the_default_are_told(tmp_path: Path) -> None:
    said = {"chat_template": named("tool_use", "rag")}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
    assert "none of its templates is named default: tool_use, rag" in what_is_wrong(tmp_path)


@pytest.mark.parametrize(
    "said", [7, {"a": 1}, ["x"], [{}], [{"name": "default", "template": 7}], [{"name": []}]]
)
def test_templates_that_are_none_are_told_in_a_sentence(said: object, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": said}))
    wrong = what_is_wrong(tmp_path)
    assert "its chat_template is neither a text nor a list of texts with names: " in wrong
