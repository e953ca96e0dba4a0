"""A short chat template in the format of gpt-oss, with its demands: one text before a call, and tools described."""

SPECIAL_TOKENS = ("<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>")
TEMPLATE = """<|start|>system<|message|>Reasoning: {{ reasoning_effort or 'medium' }}
{%- for tool in tools or [] %} {{ tool.function.name + ': ' + tool.function.description }}{% endfor %}<|end|>
{%- for message in messages %}
{%- if message.tool_calls %}
    {%- if message.content and message.thinking %}{{ raise_exception('two texts') }}{% endif %}
    {%- if message.content or message.thinking -%}
        <|start|>assistant<|channel|>analysis<|message|>{{ message.content or message.thinking }}<|end|>
    {%- endif -%}
    <|start|>assistant to=functions.{{ message.tool_calls[0].function.name }}<|channel|>commentary json<|message|>
    {{- message.tool_calls[0].function.arguments | tojson }}<|call|>
{%- elif message.role == 'tool' -%}
    <|start|>functions to=assistant<|channel|>commentary<|message|>{{ message.content | tojson }}<|end|>
{%- elif message.role == 'assistant' -%}
    <|start|>assistant<|channel|>final<|message|>{{ message.content }}<|end|>
{%- else -%}
    <|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""
