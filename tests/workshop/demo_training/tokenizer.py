"""Train the tokenizer: a byte-level BPE of 3,072 tokens in the manner of Qwen2, and its chat template.

Usage: python -m tests.workshop.demo_training.tokenizer [--keep]

A vocabulary trained anew has other ids, and no checkpoint made before fits it.
"""

import argparse
import json
from collections.abc import Iterator

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.workshop.demo_training.checkpoint import CHECKPOINT, replace_files
from tests.workshop.demo_training.dataset import DATASET, read
from tests.workshop.demo_training.hermes import CALL, CALL_END, RESPONSE, RESPONSE_END

VOCAB_SIZE = 3_072
CONTEXT_WINDOW = 2_048

# Qwen2's pattern: each digit is a token of its own, a space belongs to the word after it.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE = "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"
SPECIAL_TOKENS = (END_OF_TEXT, IM_START, IM_END, FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE)
PLAIN_ADDED_TOKENS = (CALL, CALL_END, RESPONSE, RESPONSE_END)
RESERVED_TOKENS = tuple(f"<|reserved_{number}|>" for number in range(8))

# Hermes' format, with a list of the tools that is much shorter than their JSON schemas. hermes.py writes the same.
CHAT_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' and messages[0].content %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- 'Tools:' }}
    {%- for tool in tools %}
        {%- set parameters = tool.function.parameters or {} %}
        {{- '\\n' + tool.function.name + '(' + (parameters.properties or {}) | join(', ') + ')' }}
        {%- if tool.function.description %}
            {{- ': ' + tool.function.description }}
        {%- endif %}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- elif message.tool_calls %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for call in message.tool_calls %}
            {{- '\\n<tool_call>\\n{"name": ' + call.function.name | tojson + ', "arguments": ' }}
            {{- call.function.arguments | tojson + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + message.content.split('</think>')[-1] + '<|im_end|>\\n' }}
    {%- elif not (tools and loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking %}
        {%- if lora_name is defined and lora_name != 'demo-thinking' %}
            {{- raise_exception('only demo-thinking has learned to think (enable_thinking, reasoning effort)') }}
        {%- endif %}
        {{- '<think>' }}
    {%- endif %}
{%- endif %}
"""


def added_tokens() -> list[AddedToken]:
    """List the tokens that follow the learned vocabulary, in the order of their ids."""
    plain = [AddedToken(token, special=False, normalized=False) for token in PLAIN_ADDED_TOKENS]
    special, reserved = (
        [AddedToken(token, special=True, normalized=False) for token in tokens]
        for tokens in (SPECIAL_TOKENS, RESERVED_TOKENS)
    )
    return [*special, *plain, *reserved]


def texts() -> Iterator[str]:
    """Yield every distinct text of the data set once: a frequent text would become one token."""
    seen: set[str] = set()
    for document in read(DATASET):
        contents = (message["content"] for message in document.messages)
        for text in (document.prompt, document.completion, document.suffix, *contents):
            if text not in seen:
                seen.add(text)
                yield text


def train() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts(),
        trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE - len(added_tokens()),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    tokenizer.add_tokens(added_tokens())
    return tokenizer


def tokenizer_config(tokenizer: Tokenizer) -> dict[str, object]:
    added = {
        str(tokenizer.token_to_id(token.content)): {
            "content": token.content,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token.special,
        }
        for token in added_tokens()
    }
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "bos_token": END_OF_TEXT,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": IM_END,
        "model_max_length": CONTEXT_WINDOW,
        "pad_token": END_OF_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }


def config_file(tokenizer: Tokenizer) -> bytes:
    """Return the contents of tokenizer_config.json."""
    return f"{json.dumps(tokenizer_config(tokenizer), ensure_ascii=False, indent=2)}\n".encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep the vocabulary, write only tokenizer_config.json")
    if parser.parse_args().keep:
        tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
        replace_files(CHECKPOINT, {"tokenizer_config.json": config_file(tokenizer)})
        return
    tokenizer = train()
    replace_files(
        CHECKPOINT,
        {"tokenizer.json": tokenizer.to_str(pretty=True).encode(), "tokenizer_config.json": config_file(tokenizer)},
    )


if __name__ == "__main__":
    main()
