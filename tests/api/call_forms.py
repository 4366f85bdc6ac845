"""Small chat templates with the markers of gpt-oss's channels and of Gemma 4's turns."""

CHANNELS_LIKE = """\
{%- if tools %}
    {{- '<|start|>developer<|message|># Tools\\n## functions' }}
    {%- for tool in tools %}{{ '\\ntype ' + tool.function.name }}{% endfor %}
    {{- '<|end|>' }}
{%- endif %}
{%- set last = namespace(name='') %}
{%- for message in messages %}
    {%- if message.role == 'assistant' and message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}{{ raise_exception('one call') }}{% endif %}
        {%- if message.content and message.thinking %}{{ raise_exception('both') }}{% endif %}
        {%- set thought = message.thinking or message.content %}
        {%- if thought %}
            {{- '<|start|>assistant<|channel|>analysis<|message|>' + thought + '<|end|>' }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {%- set last.name = call.name %}
        {{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json' }}
        {{- '<|message|>' + (call.arguments | tojson) + '<|call|>' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
    {%- elif message.role == 'tool' %}
        {%- if not last.name %}{{ raise_exception('no call') }}{% endif %}
        {{- '<|start|>functions.' + last.name + ' to=assistant<|channel|>commentary<|message|>' }}
        {{- (message.content | tojson) + '<|end|>' }}
    {%- else %}
        {{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}
"""

TURNS_LIKE = """\
{%- macro value(it) %}
    {%- if it is string %}{{ '<|"|>' + it + '<|"|>' }}
    {%- elif it is mapping %}{{ '{' + fields(it) + '}' }}
    {%- else %}{{ it | tojson }}{% endif %}
{%- endmacro %}
{%- macro fields(of) %}
    {%- for key in of %}{{ ('' if loop.first else ',') + key + ':' + value(of[key]) }}{% endfor %}
{%- endmacro %}
{%- for tool in tools or [] %}{{ '<|tool>declaration:' + tool.function.name }}{% endfor %}
{%- set last = namespace(kind='') %}
{%- for message in messages %}
    {%- set last.kind = '' %}
    {{- '<|turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}
    {%- for call in message.tool_calls or [] %}
        {{- '<|tool_call>call:' + call.function.name + '{' + fields(call.function.arguments) }}
        {{- '}<tool_call|>' }}
    {%- endfor %}
    {%- for result in message.tool_responses or [] %}
        {%- set last.kind = 'result' %}
        {%- set said = result.response %}
        {{- '<|tool_response>response:' + result.name + '{' }}
        {{- (fields(said) if said is mapping else 'value:' + value(said)) + '}<tool_response|>' }}
    {%- endfor %}
    {{- message.content.split('<channel|>')[-1] }}
    {%- if message.content or not message.tool_responses %}{{ '<turn|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '' if last.kind == 'result' else '<|turn>model\\n' }}
    {{- '' if enable_thinking else '<|channel>thought\\n<channel|>' }}
{%- endif %}
"""
