"""Makes chat_templates.json: chat templates of 12 model families and small templates, rendered by transformers' Jinja environment.

    python3 chat_templates.py > chat_templates.json
        needs transformers and jinja2 (transformers 5.24, jinja2 3.1.6 made the file)
    python3 chat_templates.py render < cases.json
        renders [{"template", "variables"}...], and writes [{"text"} or {"error"}...]

The templates follow the documented prompt format of each family, with the statements of its published template. "text" is
null if Jinja refuses the case.
"""

import json
import os
import sys

sys.path = [p for p in sys.path if os.path.abspath(p or ".") != os.path.dirname(os.path.abspath(__file__))]
from transformers.utils.chat_template_utils import _compile_jinja_template

LLAMA2 = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}\
{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}\
{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}\
{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}\
{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""

LLAMA3 = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined and use_today is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system message is the first one, or a default. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}

{#- This block checks for alternating user/assistant messages, skipping tool calling messages #}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {%- if not message.tool_call_id is defined or message.tool_call_id|length != 9 %}
            {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
        {%- endif %}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
"""

MIXTRAL = """{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}\
{{ message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"""

QWEN2 = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful assistant.<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

QWEN25 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nYou may call one or more functions.\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

QWEN3 = """{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
"""

PHI3 = """{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'user' %}{{'<|user|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>
' + message['content'] + '<|end|>
'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>
' }}{% else %}{{ eos_token }}{% endif %}"""

SMOLLM2 = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

DEEPSEEK = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}\
{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='') %}\
{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}\
{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}\
{{'<\uff5cUser\uff5c>' + message['content']}}{%- endif %}\
{%- if message['role'] == 'assistant' and message['content'] is none %}{%- set ns.is_tool = false -%}\
{%- for tool in message['tool_calls']%}{%- if not ns.is_first %}{{'<\uff5cAssistant\uff5c><\uff5ctool\u2581calls\u2581begin\uff5c>' + tool['type'] + '\
<\uff5ctool\u2581sep\uff5c>' + tool['function']['name'] + '\\n' + '```json' + '\\n' + tool['function']['arguments']|tojson + '\\n' + '```' + '<\uff5ctool\u2581call\u2581end\uff5c>'}}\
{%- set ns.is_first = true -%}{%- else %}{{'\\n' + tool['type'] + tool['function']['name']}}{%- endif %}{%- endfor %}{%- endif %}\
{%- if message['role'] == 'assistant' and message['content'] is not none %}{% set content = message['content'] %}\
{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}\
{{'<\uff5cAssistant\uff5c>' + content + '<\uff5cend\u2581of\u2581sentence\uff5c>'}}{%- endif %}\
{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{{'<\uff5ctool\u2581outputs\u2581begin\uff5c>' + message['content']}}{%- endif %}\
{%- endfor -%}{% if add_generation_prompt and not ns.is_tool %}{{'<\uff5cAssistant\uff5c><think>\\n'}}{% endif %}"""

CHATML = """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

OLMO = """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>
' + message['content'] + '
' }}{% elif message['role'] == 'user' %}{{ '<|user|>
' + message['content'] + '
' }}{% elif message['role'] == 'assistant' %}{% if not loop.last %}{{ '<|assistant|>
'  + message['content'] + eos_token + '
' }}{% else %}{{ '<|assistant|>
'  + message['content'] + eos_token }}{% endif %}{% endif %}{% if loop.last and add_generation_prompt %}{{ '<|assistant|>
' }}{% endif %}{% endfor %}"""

FAMILIES = {"llama2": LLAMA2, "llama3": LLAMA3, "mistral": MISTRAL, "mixtral": MIXTRAL, "qwen2": QWEN2, "qwen2.5": QWEN25,
            "qwen3": QWEN3, "gemma": GEMMA, "phi3": PHI3, "smollm2": SMOLLM2, "deepseek": DEEPSEEK, "chatml": CHATML,
            "zephyr": ZEPHYR, "olmo": OLMO}

CALL = {"role": "assistant", "content": None, "tool_calls": [
    {"id": "abcdefghi", "type": "function", "function": {"name": "speed", "arguments": {"wagon": 7, "unit": "m/s", "exact": True}}}]}
TOOLS = [{"type": "function", "function": {"name": "speed", "description": "Speed of a wagon \u2014 \"now\"", "parameters": {
    "type": "object", "properties": {"wagon": {"type": "integer", "minimum": -1.5}}, "required": ["wagon"], "more": None, "none": [], "empty": {}}}}]


def message(role, content):
    return {"role": role, "content": content}


CONVERSATIONS = {
    "question": [message("user", "Which track?")],
    "answered": [message("user", "Which track? "), message("assistant", " Track 3.\n")],
    "system": [message("system", "Be brief."), message("user", "Gr\u00fc\u00dfe, \u4f60\u597d \U0001f682"), message("assistant", "Hallo.")],
    "turns": [message("user", "One"), message("assistant", "1"), message("user", "Two"), message("assistant", "2"), message("user", "Three")],
    "system_turns": [message("system", " S "), message("user", "<b>'One'</b> & {{ two }}"), message("assistant", "{% 1 %}"), message("user", "\u00a0Two\u3000")],
    "reasoned": [message("user", "2+2"), message("assistant", "<think>\nadd\n</think>\n\n4"), message("user", "and 3"),
                 message("assistant", "<think>\nadd 3\n</think>\n\n7")],
    "tool": [message("user", "How fast?"), CALL, {"role": "tool", "content": "7.5", "tool_call_id": "abcdefghi"}],
    "parts": [message("user", [{"type": "text", "text": " see "}, {"type": "image"}])],
    "twice": [message("user", "a"), message("user", "b")],
    "empty": [],
}

SMALL = [
    "{{ 1 + 2 * 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 1.0 }} {{ 1e20 }} {{ 0.1 + 0.2 }} {{ 1e-7 }} {{ 100000.5 }}",
    "{{ 'a' ~ 1 ~ none ~ true ~ x ~ 1.5 }} {{ 'ab' * 3 }} {{ [1, 2] + [3] }} {{ (1, 2) + (3,) }} {{ [1] * 2 }}",
    "{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' in 'abc' }} {{ 4 not in [1] }} {{ 'k' in {'k': 1} }}",
    "{{ not x }} {{ x or 'y' }} {{ 0 or '' or [] }} {{ 1 and 2 }} {{ not not 1 }} {{ 'a' if x else 'b' }} {{ 'a' if x }}|",
    "{{ [1, 2, 3, 4][1:3] }} {{ 'abcdef'[::-1] }} {{ 'abc'[-2:] }} {{ 'h\u00e9llo'[1] }} {{ [1, 2][-1] }} {{ [1][5] }}| {{ (1, 2, 3)[::2] }} {{ 'abc'[:-1] }} {{ [1,2,3][5:] }} {{ 'abcdef'[4:1:-2] }}",
    "{{ {'a': 1, 'b': [true, none]} }} {{ [1, 'a\\'b', \"c\\n\"] }} {{ () }} {{ (1,) }} {{ {} }} {{ {'items': 3}['items'] }} {{ {'a': 1}.a }} {{ {1: 'x'}[1] }}",
    "{{ d.items() | list }} {{ d.keys() | list }} {{ d.values() | list }} {{ d.get('a') }} {{ d.get('zz', 5) }} {{ d['a'] }} {{ d.zz }}| {{ d | length }} {{ d | tojson }}",
    "{% for k, v in d.items() %}{{ k }}={{ v }}{{ ',' if not loop.last }}{% endfor %}",
    "{% for i in range(5) if i % 2 == 0 %}{{ loop.index }}/{{ loop.length }}:{{ i }}:{{ loop.revindex }}:{{ loop.previtem }}:{{ loop.nextitem }} {% else %}none{% endfor %}",
    "{% for i in [] %}x{% else %}empty{% endfor %}{% for c in 'h\u00e9' %}<{{ c }}>{% endfor %}{% for i in x %}y{% endfor %}",
    "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% set a = 1 %}{% for i in range(3) %}{{ a }}{% set a = i %}{{ a }}{% endfor %}{{ a }}",
    "{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}{{ ns.zz }}",
    "{% for i in [1, 2] %}{% for j in [3, 4] %}{{ loop.index }}{{ i }}{{ j }} {% endfor %}{{ loop.index }};{% endfor %}",
    "{% macro m(a, b='B', c=a) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(b=3, a=4) }}{{ m() }}{{ m(1) | length }}",
    "{% set outer = 'o' %}{% macro m(a) %}{{ outer }}{{ a }}{% if a > 0 %}{{ m(a - 1) }}{% endif %}{% endmacro %}{{ m(3) }}",
    "{% set block %}  a {{ 1 + 1 }}\n{% endset %}[{{ block }}]{{ block | trim }}|",
    "  {% if true %}\n    a\n  {% else %}\n    b\n  {% endif %}\n  c {# comment #}\n{# line #}\n  {%+ if true %}x{% endif +%}\ny\n\n",
    "a  {%- if true -%}  b  {%- endif -%}  c\n {{- ' d ' -}} \n e\n{%- set x = 1 %}\n\nf\n",
    "{% if x is not defined %}\n{% if true %}\n1\n{% endif %}\n\n{% endif %}\n2\r\n3\r{{ 4 }}\n",
    "{% raw %}{{ x }} {% if %}{% endraw %} {%- raw -%} {# y #} {%- endraw %}",
    "{{ '%}' }}{{ '}}' }}{{ {'a': {'b': {'c': 1}}}['a']['b']['c'] }}{{ \"it's\" }}{{ 'tab\\tnew\\nline\\\\ \\x41\\u00e9' }}",
    "{{ x is defined }} {{ d is mapping }} {{ 'a' is string }} {{ none is none }} {{ [] is iterable }} {{ 1 is number }} {{ true is number }} {{ 1 is integer }} {{ 1.5 is float }} {{ true is boolean }} {{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ 1 is eq 1 }} {{ 2 is gt(1) }} {{ 'a' is in ['a'] }} {{ d is sequence }} {{ 'a' is lower }} {{ false is false }} {{ x is undefined and true }} {{ 'a' is string or x.y }} {{ none is sameas none }}",
    "{{ ' a b ' | trim }}| {{ 'xxaxx' | trim('x') }} {{ 'a\u00df' | upper }} {{ 'A\u00c4' | lower }} {{ 'heLLo wOrld-wide' | title }} {{ 'heLLo' | capitalize }} {{ [1, 2] | join('-') }} {{ [1, 2] | join }} {{ x | default('D') }} {{ '' | default('D') }} {{ '' | default('D', true) }} {{ none | d('x') }}",
    "{{ [3, 1, 2] | sort }} {{ ['b', 'A', 'c'] | sort }} {{ [3, 1] | max }} {{ ['b', 'A'] | min }} {{ [1, 2] | sum }} {{ [1, 2] | first }} {{ [1, 2] | last }} {{ [] | first }}| {{ [1, 2] | reverse | list }} {{ 'abc' | reverse }} {{ [1, 1, 2] | unique | list }} {{ 'abc' | list }} {{ {'b': 1, 'a': 2} | dictsort }} {{ d | items | list }}",
    "{{ m | map(attribute='r') | join(',') }} {{ m | selectattr('r', 'equalto', 'u') | list | length }} {{ m | rejectattr('r', 'eq', 'u') | map(attribute='c') | list }} {{ m | selectattr('c') | list | length }} {{ ['a', 'b'] | map('upper') | join }} {{ [1, 2, 3] | select('odd') | list }} {{ [1, 2, 3] | reject('gt', 1) | list }} {{ [0, 1] | select | list }}",
    "{{ 'a.b.c' | replace('.', '-') }} {{ 'a.b.c' | replace('.', '-', 1) }} {{ '42' | int }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ '1.5' | float }} {{ 3.9 | int }} {{ 5 | string }} {{ -3 | abs }} {{ 'a\nb\n\nc' | indent(2) }} {{ 'a\nb' | indent(2, true) }} {{ '<a&b>' | e }}",
    "{{ '  a '.strip() }}| {{ 'xax'.strip('x') }} {{ 'xax'.lstrip('x') }} {{ 'xax'.rstrip('x') }} {{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'a,b,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ ' a  b '.split() }} {{ ' a  b c '.split(none, 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'a\nb\r\nc\n'.splitlines() }} {{ 'abab'.replace('a', 'x') }} {{ 'aB'.upper() }} {{ 'aB'.lower() }} {{ 'ab c'.title() }} {{ 'abc'.find('c') }} {{ 'abc'.find('z') }} {{ 'aab'.count('a') }} {{ '-'.join(['a', 'b']) }} {{ '12'.isdigit() }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }}",
    "{{ d | tojson(indent=2) }} {{ m | tojson }} {{ 'a\"\\\\\n\u00e9\u4f60\U0001f682</script>' | tojson }} {{ [1.0, 1e20, none, true] | tojson }} {{ {'b': 1, 'a': [] } | tojson(sort_keys=true) }} {{ {'a': {}} | tojson(indent=4) }} {{ '\u00e9\U0001f682' | tojson(ensure_ascii=true) }} {{ [1, 2] | tojson(separators=(',', ':')) }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = a, b %}{{ c }}{% for a, b in [(1, 2)] %}{{ a }}{{ b }}{% endfor %}",
    "{{ range(3) | list }} {{ range(1, 7, 2) | list }} {{ range(3, 0, -1) | list }} {{ dict(a=1, b=2) }} {{ loop }}| {{ loop is defined }}",
    "{% generation %}{% set g = 1 %}a{{ g }}{% endgeneration %}{{ g }}",
    "{{ messages[0].content.upper() if messages else 'no' }}{{ x | length }}{{ x is none }}{{ none }}{{ true }}{{ x }}",
    "{% for a in [1, 2, 3] %}{{ loop.cycle('x', 'y') }}{{ loop.first }}{{ loop.index0 }}{% endfor %}{% if 1 %}{% elif y.z %}{% endif %}{{ 'a' 'b' }}{{ -1 }}{{ - -1 }}{{ +1 }}{{ 2 - 1 }}",
    "{%- set q = 'a' -%}\n\n{{ q }}{% if q == 'a' %} {% endif %}\n{{ q }}  \n  {{ q }}\n\t{% if q %}\n\t b\n\t{% endif %}\n",
    # Errors.
    "{{ x.y }}", "{{ x['y'] }}", "{{ x() }}", "{{ 1 + 'a' }}", "{{ x + 1 }}", "{{ 1 / 0 }}", "{{ 1 < 'a' }}", "{% for i in 5 %}{% endfor %}", "{{ raise_exception('no') }}",
    "{% if %}{% endif %}", "{{ 1 ", "{% for i in [1] %}", "{{ 'a }}", "{% endif %}", "{{ | trim }}", "{{ a b }}", "{{ 'a' | nofilter }}", "{{ 'a' is notest }}", "{{ (1 }}", "{% set = 1 %}", "{% set a.b = 1 %}",
    "{{ none + 'a' }}", "{{ [1].append(2) }}", "{{ 5 | length }}", "{% break %}", "{{ range(1000000000) }}", "{% set a, b = [1] %}", "{{ 'a' % }}", "{{ x < 1 }}", "{{ none | tojson | nofilter }}", "{{ x | tojson }}",
    "{% if m | selectattr('r', 'equalto', 'z') %}always{% endif %}{% set g = m | map(attribute='r') %}{{ 'u' in g }}{{ g | join }}{{ g | list }}|{% set g = m | reverse %}{{ (g | first).r }}{% for x in g %}{{ x.r }}{% endfor %}{% for x in g %}!{% endfor %}{{ g is iterable }}{{ g is sequence }}",
    "{{ m | map(attribute='r') | length }}",
    "{{ m | selectattr('c') + [1] }}",
    "{{ [{'k': 'a'}, {'k': 'A'}, {'k': 'b'}] | unique(attribute='k') | list }} {{ ['a', 'A'] | unique(true) | list }}",
    "{% for v in m %}{% set s = '|' %}{% macro show(p) %}{{ p }}{{ s }}{{ v.r }}{{ loop is defined }}{% endmacro %}{{ show('>') }}{% endfor %}{% macro f(a) %}{% macro g() %}{{ a }}{% endmacro %}{{ g() }}{% endmacro %}{{ f(5) }}",
    "A{% raw %}\nX{% endraw %}\nB{% raw -%}\nY{% endraw %}",
    "a {{ 1 -}}\u3000b\u00a0{{- 2 }}\n\u3000{% if true %}c{% endif %}",
    "{{ 'tool_call x2y'.title() }} {{ \"they're\".title() }} {{ \"they're\" | title }} {{ 'a\\r\\nb\\u2028c\\n'.splitlines(true) }} {{ 'a\\x0bb\\x0cc'.splitlines() }}",
    "{{ 'a\\r\\nb\\n\\nc\\n' | indent(2) }}|{{ 'a\\n\\nb' | indent(2, true, true) }}|{{ '' | indent }}|{{ 'a\\u2028b' | indent(1) }}",
    "{{ '\\033[1m\\0\\1234' }}",
    "{% if d['items'] %}method{% endif %} {{ d['items'] is defined }} {{ d['keys'] is callable }} {{ d['zz'] is defined }} {{ d | attr('a') is defined }} {{ d | attr('items') is callable }}",
]
VARIABLES = {"d": {"a": 1, "b": "two", "c": [1.5, None]}, "m": [{"r": "u", "c": 1}, {"r": "a", "c": 0}], "messages": []}


def render(template, variables):
    try:
        return {"text": _compile_jinja_template(template).render(**variables)}
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"}


def main():
    if sys.argv[1:] == ["render"]:
        json.dump([render(c["template"], c["variables"]) for c in json.load(sys.stdin)], sys.stdout)
        return
    result = {"families": FAMILIES, "conversations": CONVERSATIONS, "renderings": [], "small": []}
    for family, template in FAMILIES.items():
        for name, messages in CONVERSATIONS.items():
            for prompt in (False, True):
                for tools in ([None, TOOLS] if name in ("tool", "question") else [None]):
                    variables = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": prompt,
                                 "bos_token": "<s>", "eos_token": "</s>"}
                    variables = {k: v for k, v in variables.items() if v is not None}
                    result["renderings"].append({"family": family, "conversation": name, "prompt": prompt, "tools": tools is not None,
                                                 "text": render(template, variables).get("text")})
    result["tools"] = TOOLS
    result["variables"] = VARIABLES
    for template in SMALL:
        result["small"].append({"template": template, "text": render(template, VARIABLES).get("text")})
    json.dump(result, sys.stdout, indent=0)
    print()


if __name__ == "__main__":
    main()
