"""The `openai` package against the appliance and a real model: what an application developer does first."""
import asyncio
import json
import math
import re
import threading
import time

import openai
import pytest
from conftest import sse_events

ASK = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


def chat(a, **more):
    return a.client().chat.completions.create(**{"model": a.model_name, "messages": ASK, "temperature": 0,
                                                 "max_tokens": 40, **more})


def test_models_and_chat(appliance):
    models = appliance.client().models.list().data
    assert [m.id for m in models] == ["SmolLM2-135M-Instruct.Q4_1"] and models[0].object == "model"
    assert appliance.client().models.retrieve(models[0].id) == models[0]
    with pytest.raises(openai.NotFoundError):
        appliance.client().models.retrieve("gpt-4o")
    reply = chat(appliance)
    assert "Paris" in reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "stop" and reply.choices[0].message.role == "assistant"
    assert reply.object == "chat.completion" and reply.id.startswith("chatcmpl-")
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


@pytest.mark.parametrize("more", [{}, {"stop": ["France"]}, {"max_tokens": 3}, {"n": 2, "temperature": 0.9, "seed": 11},
                                  {"logprobs": True, "top_logprobs": 2}])
def test_streamed_equals_plain(appliance, more):
    plain = chat(appliance, **more)
    texts, finishes, logprobs, usage, n_usage = {}, {}, {}, None, 0
    for chunk in chat(appliance, stream=True, stream_options={"include_usage": True}, **more):
        if not chunk.choices:
            usage, n_usage = chunk.usage, n_usage + 1
        for c in chunk.choices:
            assert usage is None, "a choice after the usage chunk"
            texts[c.index] = texts.get(c.index, "") + (c.delta.content or "")
            if c.logprobs:
                logprobs.setdefault(c.index, []).extend(c.logprobs.content)
            if c.finish_reason:
                assert c.index not in finishes
                finishes[c.index] = c.finish_reason
    assert n_usage == 1 and usage.model_dump() == plain.usage.model_dump()
    for c in plain.choices:
        assert texts[c.index] == c.message.content and finishes[c.index] == c.finish_reason
        if "logprobs" in more:
            assert [(t.token, t.logprob) for t in logprobs[c.index]] == [(t.token, t.logprob) for t in c.logprobs.content]
    assert len(texts) == len(plain.choices) == more.get("n", 1)


def test_usage_is_the_log_and_the_metrics(start):
    a = start(settings=["log.flush_ms=50"])
    before = a.metrics()
    totals = [0, 0]
    for more in ({}, {"stop": "capital"}, {"n": 3, "temperature": 1.0, "seed": 5}, {"max_tokens": 1}):
        usage = chat(a, **more).usage
        totals = [totals[0] + usage.prompt_tokens, totals[1] + usage.completion_tokens]
    rows = a.wait_for_rows(4)
    assert sum(r["prompt_tokens"] for r in rows) == totals[0] and sum(r["completion_tokens"] for r in rows) == totals[1]
    after = a.metrics()
    assert after["llm_prompt_tokens_total"] - before["llm_prompt_tokens_total"] == totals[0]
    assert after["llm_generation_tokens_total"] - before["llm_generation_tokens_total"] == totals[1]
    assert sum(v for k, v in after.items() if k.startswith("llm_requests_total")) == len(rows) == 4


def test_completions_in_all_prompt_forms(appliance):
    c, name = appliance.client(), appliance.model_name
    text = "The capital of France is"
    ids = json.loads(appliance.post("/tokenize", {"content": text})[1])["tokens"]
    assert ids == [504, 3575, 282, 4649, 314]
    one = c.completions.create(model=name, prompt=text, max_tokens=8, temperature=0)
    assert one.choices[0].text.startswith(" Paris") and one.usage.prompt_tokens == len(ids)
    assert c.completions.create(model=name, prompt=ids, max_tokens=8, temperature=0).choices[0].text == one.choices[0].text
    both = c.completions.create(model=name, prompt=[text, "Water boils at"], max_tokens=8, temperature=0)
    assert [x.index for x in both.choices] == [0, 1] and both.choices[0].text == one.choices[0].text
    lists = c.completions.create(model=name, prompt=[ids, ids], max_tokens=8, temperature=0, n=2)
    assert [x.index for x in lists.choices] == [0, 1, 2, 3] and len({x.text for x in lists.choices}) == 1
    echo = c.completions.create(model=name, prompt=text, max_tokens=3, temperature=0, echo=True, logprobs=1)
    assert echo.choices[0].text.startswith(text + " Paris")
    assert len(echo.choices[0].logprobs.tokens) == len(ids) + 3
    assert echo.choices[0].logprobs.token_logprobs[0] is None and echo.choices[0].logprobs.text_offset[:2] == [0, 3]
    score = c.completions.create(model=name, prompt=text, max_tokens=0, echo=True, logprobs=0)
    assert score.choices[0].text == text and score.usage.completion_tokens == 0


def test_logprobs_are_the_models_own(appliance):
    golden = {7042: -0.25808, 260: -2.74075, 4528: -4.38437}
    for temperature in (0, 0.8, 2):
        reply = appliance.client().completions.create(model=appliance.model_name, prompt="The capital of France is",
                                                      max_tokens=1, temperature=temperature, seed=1, logprobs=5)
        top = reply.choices[0].logprobs.top_logprobs[0]
        by_id = {json.loads(appliance.post("/tokenize", {"content": t})[1])["tokens"][0]: v for t, v in top.items()}
        for token, logprob in golden.items():
            assert abs(by_id[token] - logprob) < 0.05
    chat_reply = chat(appliance, logprobs=True, top_logprobs=3, max_tokens=12)
    content = chat_reply.choices[0].logprobs.content
    assert len(content) == chat_reply.usage.completion_tokens
    for t in content:
        assert t.logprob <= 0 and math.isfinite(t.logprob) and len(t.top_logprobs) == 3
        assert bytes(t.bytes).decode("utf-8", "replace") == t.token or "\ufffd" in t.token
        assert t.top_logprobs[0].logprob >= t.top_logprobs[1].logprob


def test_seeded_sampling_repeats_alone_and_in_company(appliance):
    import concurrent.futures
    def story(seed):
        return chat(appliance, messages=[{"role": "user", "content": "Tell a short story."}], temperature=0.9, seed=seed,
                    top_p=0.95, max_tokens=48).choices[0].message.content
    alone = [story(s) for s in range(4)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        together = list(pool.map(story, [s % 4 for s in range(16)]))
    assert together == [alone[s % 4] for s in range(16)] and len(set(alone)) == 4


def test_logit_bias_and_penalties(appliance):
    c, name = appliance.client(), appliance.model_name
    banned = c.completions.create(model=name, prompt="The capital of France is", max_tokens=4, temperature=0,
                                  logit_bias={"7042": -100}).choices[0].text
    assert not banned.startswith(" Paris")
    forced = c.completions.create(model=name, prompt="Hello", max_tokens=3, temperature=0, logit_bias={"7042": 100})
    assert forced.choices[0].text == " Paris Paris Paris"
    varied = c.completions.create(model=name, prompt="a a a a a a a a", max_tokens=12, temperature=0,
                                  extra_body={"repetition_penalty": 1.8}).choices[0].text
    plain = c.completions.create(model=name, prompt="a a a a a a a a", max_tokens=12, temperature=0).choices[0].text
    assert varied != plain
    ask = {"model": name, "prompt": "Say it again and again:", "max_tokens": 40, "temperature": 0, "logprobs": 1, "extra_body": {"ignore_eos": True}}

    def n_different(**more):
        return len(set(c.completions.create(**ask, **more).choices[0].logprobs.tokens))

    assert max(n_different(presence_penalty=-2), n_different(frequency_penalty=-2)) < min(n_different(presence_penalty=2), n_different(frequency_penalty=2))


@pytest.mark.parametrize("more,param", [
    ({"temperature": 2.5}, "temperature"), ({"top_p": 0}, "top_p"), ({"top_p": 1.7}, "top_p"), ({"n": 0}, "n"), ({"n": 129}, "n"),
    ({"max_tokens": -1}, "max_tokens"), ({"top_logprobs": 2}, "top_logprobs"), ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"stop": [""]}, "stop"), ({"stream_options": {"include_usage": True}}, "stream_options"), ({"presence_penalty": 3}, "presence_penalty"),
    ({"logit_bias": {"99999999": 1}}, "logit_bias"), ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"response_format": {"type": "json_object"}}, "response_format"), ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
])
def test_bad_values_are_refused_by_name(appliance, more, param):
    with pytest.raises(openai.BadRequestError) as e:
        chat(appliance, **more)
    assert e.value.body["param"].startswith(param) and param.split("[")[0] in e.value.body["message"]
    assert e.value.body["type"] == "invalid_request_error"
    if isinstance(more[param], (int, float)) and more != {"top_logprobs": 2}:
        assert re.search(r"must be .*\d.*, got ", e.value.body["message"]), e.value.body


def test_other_refusals(appliance):
    with pytest.raises(openai.NotFoundError) as e:
        chat(appliance, model="gpt-4o")
    assert e.value.body["code"] == "model_not_found"
    with pytest.raises(openai.BadRequestError) as e:
        chat(appliance, messages=[{"role": "user", "content": "word " * 9000}])
    assert e.value.body["code"] == "context_length_exceeded" and "8192" in e.value.body["message"]
    assert appliance.get("/nope")[0] == 404 and appliance.get("/v1/chat/completions")[0] == 405
    status, _, headers = appliance.post("/v1/chat/completions", {"messages": ASK, "max_tokens": 2, "zebra": 1})
    assert status == 200 and headers["X-Tandem-Ignored"] == "zebra"


def test_text_parts_and_raw_stream_shape(appliance):
    parts = [{"role": "user", "content": [{"type": "text", "text": "What is the capital of France?"},
                                          {"type": "text", "text": " Answer in one sentence."}]}]
    assert chat(appliance, messages=parts).choices[0].message.content == chat(appliance).choices[0].message.content
    status, body, headers = appliance.post("/v1/chat/completions", {"messages": ASK, "stream": True, "max_tokens": 5})
    assert status == 200 and headers["Content-Type"].startswith("text/event-stream")
    events = list(sse_events(body))
    assert events[-1] == "[DONE]" and events.count("[DONE]") == 1
    finish = [e for e in events[:-1] if e["choices"] and e["choices"][0]["finish_reason"]]
    assert len(finish) == 1 and "tandem" in finish[0] or "tandem" in finish[0]["choices"][0]


def test_tokenize_detokenize_template(appliance):
    text = "héllo 🙂 <|im_end|>"
    ids = json.loads(appliance.post("/tokenize", {"content": text})[1])["tokens"]
    assert 2 not in ids
    assert json.loads(appliance.post("/detokenize", {"tokens": ids})[1])["content"] == text
    assert 2 in json.loads(appliance.post("/tokenize", {"content": text, "parse_special": True})[1])["tokens"]
    prompt = json.loads(appliance.post("/apply-template", {"messages": ASK})[1])["prompt"]
    assert prompt.startswith("<|im_start|>system\n") and prompt.endswith("<|im_start|>assistant\n")


def test_async_client(appliance):
    async def both():
        async with openai.AsyncOpenAI(base_url=appliance.url + "/v1", api_key="none", max_retries=0) as client:
            async def story(i):
                stream = await client.chat.completions.create(model=appliance.model_name, messages=ASK, temperature=0, max_tokens=12 + i, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

            return await asyncio.gather(*[story(i) for i in range(8)])

    for i, text in enumerate(asyncio.run(both())):
        assert text == chat(appliance, max_tokens=12 + i).choices[0].message.content


def test_the_client_comes_back_when_it_was_told_to(start):
    a = start(settings=["log.flush_ms=50"])
    assert a.post("/admin/degrade", {"rung": "shed", "pin": "on"})[0] == 200
    low = {"model": a.model_name, "messages": ASK, "max_tokens": 2, "extra_body": {"priority": "low"}}
    with pytest.raises(openai.RateLimitError) as e:
        a.client().chat.completions.create(**low)
    wait_s = int(e.value.response.headers["Retry-After"])
    assert e.value.body["code"] == "overloaded" and wait_s >= 1
    begin = time.time()
    threading.Timer(wait_s / 2, lambda: a.post("/admin/degrade", {"rung": "shed", "pin": "clear"})).start()
    reply = a.client().with_options(max_retries=1).chat.completions.create(**low)
    assert reply.usage.completion_tokens == 2 and time.time() - begin >= 0.9 * wait_s
    assert [r["http_status"] for r in a.wait_for_rows(3)] == [200, 429, 429]
