"""A real llama.cpp server over a hand-made model: one-hot embeddings, an output matrix of bigram logits, no training, 4 MB.

Under llama.cpp's grammar its noise becomes valid calls with absurd arguments, seed by seed. `bigram_server()` gives the address of
one, or skips the test when its wheels are missing (and fails it where CI is set: there they must not be).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

DIM, CONTEXT, FFN, KV = 512, 4096, 32, 64
TEMPLATE = """{%- if tools %}<|im_start|>system
{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}

{% endif %}The functions below may be called; their JSON signatures stand within <tools></tools> XML tags:
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
A call is one JSON object within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% elif m.role == 'assistant' and m.tool_calls %}<|im_start|>assistant
{%- if m.content %}
{{ m.content }}{% endif %}
{%- for c in m.tool_calls %}
{%- if c.function is defined %}{% set c = c.function %}{% endif %}
<tool_call>
{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% elif not (m.role == 'system' and loop.first and tools) %}<|im_start|>{{ m.role }}
{{ m.content or '' }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@contextmanager
def bigram_server(n_predict: int = 400) -> Iterator[str]:
    """The base URL of a running server (`.../v1`)."""
    xllamacpp = wheel("xllamacpp")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "bigram.gguf"
        write(model)
        params = xllamacpp.CommonParams()
        params.model.path, params.n_ctx, params.n_predict, params.n_parallel = str(model), CONTEXT, n_predict, 1
        params.warmup, params.hostnames, params.port, params.use_jinja = False, ["127.0.0.1"], 0, True
        server = xllamacpp.Server(params)
        try:
            yield server.listening_address + "/v1"
        finally:
            del server


def wheel(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{name} is missing: install the dev group")
        pytest.skip(f"{name} is missing: install the dev group")


def write(path: Path) -> None:
    """The model as a GGUF file: attention and feed-forward are zero, so only the output matrix speaks."""
    gguf, np = wheel("gguf"), wheel("numpy")
    tokens, kinds = _vocabulary(gguf.TokenType)
    out = gguf.GGUFWriter(str(path), "llama")
    _parameters(out, gguf, tokens, kinds)
    zeros, ones = (lambda *shape: np.zeros(shape, np.float32)), np.ones(DIM, np.float32)
    out.add_tensor("token_embd.weight", np.eye(len(tokens), DIM, dtype=np.float32))
    out.add_tensor("output_norm.weight", ones)
    out.add_tensor("output.weight", _bigrams(np, tokens))
    shapes = {"attn_q": (DIM, DIM), "attn_k": (KV, DIM), "attn_v": (KV, DIM), "attn_output": (DIM, DIM)}
    shapes |= {"ffn_gate": (FFN, DIM), "ffn_up": (FFN, DIM), "ffn_down": (DIM, FFN)}
    for name, shape in shapes.items():
        out.add_tensor(f"blk.0.{name}.weight", zeros(*shape))
    for name in ("attn_norm", "ffn_norm"):
        out.add_tensor(f"blk.0.{name}.weight", ones)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _parameters(out: Any, gguf: Any, tokens: list[bytes], kinds: list[Any]) -> None:
    out.add_name("bigram")
    out.add_context_length(CONTEXT)
    out.add_embedding_length(DIM)
    out.add_block_count(1)
    out.add_feed_forward_length(FFN)
    out.add_head_count(8)
    out.add_head_count_kv(1)
    out.add_layer_norm_rms_eps(1e-6)
    out.add_rope_dimension_count(KV)
    out.add_vocab_size(len(tokens))
    out.add_file_type(gguf.LlamaFileType.ALL_F32)
    out.add_tokenizer_model("llama")
    out.add_token_list(tokens)
    out.add_token_scores([0.0] * len(tokens))
    out.add_token_types(kinds)
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_eot_token_id(tokens.index(b"<|im_end|>"))
    out.add_unk_token_id(0)
    out.add_add_bos_token(True)
    out.add_add_space_prefix(False)
    out.add_chat_template(TEMPLATE)


def _byte(i: int) -> bytes:
    return f"<0x{i:02X}>".encode()


def _vocabulary(kind: Any) -> tuple[list[bytes], list[Any]]:
    tokens = [(b"<unk>", kind.UNKNOWN), (b"<s>", kind.CONTROL), (b"</s>", kind.CONTROL)] + [(_byte(i), kind.BYTE) for i in range(256)]
    tokens += [("▁".encode() if c == 32 else chr(c).encode(), kind.NORMAL) for c in range(32, 127)]
    marks = (b"<tool_call>", b"</tool_call>", b"<|im_start|>", b"<|im_end|>")
    tokens += [(t, kind.USER_DEFINED if b"tool" in t else kind.CONTROL) for t in marks]
    return [t for t, _ in tokens], [k for _, k in tokens]


def _bigrams(np: Any, tokens: list[bytes]) -> Any:
    """W[next, previous] = logit. The RMS norm scales a one-hot row by sqrt(DIM), hence the division.

    A line feed makes `<tool_call>` likely: without that the grammar is never entered.
    """
    place, scale, n = {t: i for i, t in enumerate(tokens)}, np.sqrt(DIM), len(tokens)
    W = np.zeros((n, DIM), np.float32)
    for t in tokens:
        W[place[b'"'], place[t]] += 2 / scale  # strings close soon
        W[place[b"</s>"], place[t]] -= 2 / scale
    never = [_byte(i) for i in (*range(32), *range(127, 256))] + [b"<tool_call>", b"<|im_start|>", b"<|im_end|>", b"<unk>", b"<s>"]
    for t in never:
        W[place[t], :n] -= 12 / scale  # no control characters, no broken UTF-8, no stray marks
    likely = (
        (_byte(10), b"<tool_call>", 40.0),
        (b"<tool_call>", _byte(10), 20.0),
        (b"</tool_call>", b"</s>", 40.0),
        (b"</tool_call>", b"<|im_end|>", 30.0),
        (b"}", _byte(10), 18.0),
    )
    for before, after, logit in likely:
        W[place[after], place[before]] += logit / scale
    return W
