#!/usr/bin/env python3
"""Writes the hand-made seeds into corpus/: small, valid, and one of each kind of thing. (Those of fuzz_ipc come
from make_ipc_seeds.)"""

import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent
corpus = HERE / "corpus"


def save(target, name, data):
    folder = corpus / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


# GGUF: 8 dimensions, one layer, ten tokens.

def text(s):
    raw = s.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name, kind, payload):
    return text(name) + struct.pack("<I", kind) + payload


def strings(name, values):
    return key(name, 9, struct.pack("<IQ", 8, len(values)) + b"".join(map(text, values)))


def numbers(name, kind, form, values):
    return key(name, 9, struct.pack("<IQ", kind, len(values)) + struct.pack(f"<{len(values)}{form}", *values))


def gguf(keys, tensors, version=3):
    infos, data = b"", b""
    for name, dims in tensors:
        infos += text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        infos += struct.pack("<IQ", 0, len(data))
        count = 1
        for d in dims:
            count *= d
        data += struct.pack(f"<{count}f", *[0.5] * count)
        data += b"\0" * (-len(data) % 32)
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join(keys) + infos
    return head + b"\0" * (-len(head) % 32) + data


def model_keys(arch):
    u32 = lambda name, value: key(f"{arch}.{name}", 4, struct.pack("<I", value))
    keys = [key("general.architecture", 8, text(arch)), u32("block_count", 1), u32("embedding_length", 8),
            u32("context_length", 64), u32("feed_forward_length", 8), u32("attention.head_count", 2),
            u32("attention.head_count_kv", 1),
            key(f"{arch}.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-6))]
    return keys + ([u32("attention.sliding_window", 8)] if arch == "gemma3" else [])


def model_tensors(arch):
    p = "blk.0."
    tensors = [("token_embd.weight", (8, 10)), ("output_norm.weight", (8,)), (p + "attn_norm.weight", (8,)),
               (p + "ffn_norm.weight", (8,)), (p + "attn_output.weight", (8, 8)), (p + "ffn_down.weight", (8, 8)),
               (p + "attn_q.weight", (8, 8)), (p + "attn_k.weight", (8, 4)), (p + "attn_v.weight", (8, 4)),
               (p + "ffn_gate.weight", (8, 8)), (p + "ffn_up.weight", (8, 8))]
    if arch == "gemma3":
        tensors += [(p + "attn_q_norm.weight", (4,)), (p + "attn_k_norm.weight", (4,)),
                    (p + "post_attention_norm.weight", (8,)), (p + "post_ffw_norm.weight", (8,))]
    return tensors


def vocabulary_keys(model):
    tokens = ["<unk>", "<s>", "</s>", "<0x41>", "\u2581a", "b", "c", "d", "e", "f"]
    keys = [key("tokenizer.ggml.model", 8, text(model)), strings("tokenizer.ggml.tokens", tokens),
            numbers("tokenizer.ggml.token_type", 5, "i", [2, 3, 3, 6, 1, 1, 1, 1, 1, 1]),
            key("tokenizer.ggml.bos_token_id", 4, struct.pack("<I", 1)),
            key("tokenizer.ggml.eos_token_id", 4, struct.pack("<I", 2)),
            key("tokenizer.ggml.add_bos_token", 7, b"\1"),
            key("tokenizer.chat_template", 8, text("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"))]
    if model == "llama":
        return keys + [numbers("tokenizer.ggml.scores", 6, "f", [float(-i) for i in range(10)])]
    return keys + [strings("tokenizer.ggml.merges", ["b c", "d e"]), key("tokenizer.ggml.pre", 8, text("gpt-2"))]


def write_gguf():
    for arch, model in (("llama", "llama"), ("gemma3", "llama"), ("qwen2", "gpt2")):
        save("fuzz_gguf", f"{arch}.gguf", gguf(model_keys(arch) + vocabulary_keys(model), model_tensors(arch)))
    save("fuzz_gguf", "version2.gguf", gguf(model_keys("llama"), model_tensors("llama")[:2], version=2))
    every = [key("k%d" % kind, kind, payload) for kind, payload in (
        (0, b"\1"), (1, b"\xff"), (2, b"\1\2"), (3, b"\1\2"), (4, b"\1\2\3\4"), (5, b"\1\2\3\4"), (6, b"\0\0\0\0"),
        (7, b"\1"), (8, text("text")), (10, b"\1" * 8), (11, b"\1" * 8), (12, b"\0" * 8))]
    save("fuzz_gguf", "every_type.gguf", gguf(every, []))
    save("fuzz_gguf", "page.html", "<!DOCTYPE html><html></html>")


def write_tokenizer():
    samples = {"plain": "hello the aaaa 12", "markers": "<|im_start|>user\nhello<|im_end|></s><s>", "unicode": "é▁🙂\u2028 x",
               "spaces": "  \t\n\n  a  ", "digits": "1234567 3.14", "broken": b"ok \xff\xf0\x9f\x99"}
    for i, (name, sample) in enumerate(samples.items()):
        raw = sample if isinstance(sample, bytes) else sample.encode()
        save("fuzz_tokenizer", f"bpe_{name}", bytes([(i % 4) << 2 | i % 4]) + raw)
        save("fuzz_tokenizer", f"spm_{name}", bytes([4 << 2 | (i & 1) << 2 | i % 4]) + raw)


def write_templates():
    for path in sorted((HERE.parent / "jinja" / "templates").glob("*.jinja")):
        # One seed a line of the long lists of constructs; whole files for the rest.
        lines = path.read_text().splitlines() if path.stem in ("expressions", "filters", "strings", "tests") else None
        if lines is None:
            save("fuzz_template", path.stem, path.read_text() + "\0<|im_end|> a,b é🙂 \n x")
        else:
            for i in range(0, len(lines), 4):
                save("fuzz_template", f"{path.stem}_{i:02}", "\n".join(lines[i:i + 4]) + "\0content")


def write_http():
    message = '{"messages":[{"role":"user","content":"hi"}]'
    bodies = {
        "chat": (0, message + ',"model":"m","temperature":0.5,"top_p":0.9,"n":2,"stop":["a","b"],"stream":true,'
                    '"stream_options":{"include_usage":true},"logit_bias":{"5":-1},"seed":1,"max_tokens":3}'),
        "parts": (0, '{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url"}]}]}'),
        "logprobs": (0, message + ',"logprobs":true,"top_logprobs":5,"priority":"low","timeout":2}'),
        "completion": (1, '{"prompt":["a","b"],"echo":true,"logprobs":3,"suffix":null,"best_of":1}'),
        "ids": (1, '{"prompt":[[1,2,3],[4]],"max_tokens":0}'),
        "tokenize": (2, '{"content":"x\\u00e9\\ud83d\\ude42","add_special":true,"parse_special":false}'),
        "detokenize": (3, '{"tokens":[1,2,3]}'),
        "template": (4, message + ',"add_generation_prompt":false}'),
        "numbers": (0, message + ',"temperature":1e309,"n":-1,"seed":18446744073709551616,"top_p":0.0}'),
        "nested": (0, "[" * 70 + "]" * 70),
        "get": (5, "GET /v1/models?x=%20 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
        "post": (5, "POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n{}"),
        "chunked": (5, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n folded\r\n\r\n"),
    }
    for name, (kind, body) in bodies.items():
        save("fuzz_http_body", name, bytes([kind]) + body.encode())


def write_settings():
    ladder = (HERE.parents[1] / "firmware_config" / "degrade_ladder.toml").read_text()
    rows = "\n".join(line.split("  #")[0] for line in ladder.splitlines() if line and line[0] != "#")
    digest = "0123456789abcdef" * 4
    files = {
        "config": (0, '[server]\nlisten = "127.0.0.1:8080"\n[batch]\nmax_batch_size = 8\n[degrade]\nenabled = false\n[cpu]\nthreads = 2\n'),
        "wrong": (0, '[server]\nlisten = 5\n[batch]\nmax_batch_size = 99999999999999999999\n'),
        "ladder": (1, rows),
        "rung": (1, '[[rung]]\nname = "shed"\ncauses = ["kv"]\nenter = 0.9\nleave = 0.5\nleave_hold_s = 3\n'),
        "letter": (0, "[server]\nstraße = 1\n"),
        "header": (1, '[[*ung]]\nname = "shed"\n'),
        "words": (2, "# words\nstraße\nnew york\nre:^a(b|c)+$\n\0The STRASSE to New  York, abcb"),
        "scripts": (2, "日本\ne\u0301t\u00e9\n\0x 日本 été"),
        "keys": (3, f"# users\nann:{digest}:high:filtered:running=3\nbob:{digest}:per_minute=7:low\n"),
        "admin": (4, f"{digest}\n"),
        "processors": (5, "0-3,6;7,8-9"),
        "edit": (6, '# a\n[server]\n# listen = "x"\nport = 1\n[log]\n'),
    }
    for name, (kind, text) in files.items():
        save("fuzz_settings", name, bytes([kind]) + text.encode())


def write_replies():
    event = 'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
    urls = '{"urls":[{"packagetype":"bdist_wheel","filename":"a-1-py3-none-any.whl","url":"https://a/b","size":5,"digests":{"sha256":"' + "0" * 64 + '"}}]}'
    status = ('{"readiness":{"state":"ready","cause":""},"version":"1","uptime_seconds":3.5,"model":{"name":"m","layers":30},"kv":{"pages_used":1,'
              '"pages_free":3},"load":{"kv":{"value":0.1}},"ladder":[{"rung":"shed","is_active":true,"pinned":"on"}],"workers":[{"role":"both",'
              '"state":"ready","pid":5,"rss_bytes":1e9,"device_layers":3}],"sensors":{"clock_hertz":{"state":"late","value":3e9}},"history":'
              '{"ttft_seconds":[null,0.1]},"faults":[{"at":"t","what":"w","count":2,"action":"a"}]}')
    bodies = {
        "chat": (0, ": keep-alive\n\n" + event + event.replace("null", '"length"').replace("\n", "\r\n") + "data: [DONE]\n\n"),
        "broken_off": (0, event + 'data: {"error":{"message":"worker lost"}}\n\n'),
        "no_object": (0, 'data: {"error":null}\n\ndata: {"choices":[7,{"delta":5}]}\n\n'),
        "index": (1, urls), "index_types": (1, urls.replace('"bdist_wheel"', "3").replace(":5,", ":1e99,")),
        "rows": (2, '{"data":[{"id":"r","received":"2026-11-29T12:34:56.5Z","total_ms":1.5,"seed":18446744073709551615,"prompt_tokens":1e300},7]}'),
        "status": (3, status), "status_types": (3, status.replace('"ready"', "[]").replace("3.5", '"x"')),
        "refusal": (4, '{"error":{"message":"too long \\u001b[31m","type":"x"}}'),
    }
    for name, (kind, body) in bodies.items():
        save("fuzz_reply", name, bytes([kind]) + body.encode())


def write_all(folder):
    global corpus
    corpus = pathlib.Path(folder)
    write_gguf()
    write_tokenizer()
    write_templates()
    write_http()
    write_settings()
    write_replies()


if __name__ == "__main__":
    write_all(corpus)
