"""What one request computed the next one reuses: counted truly, and without a change of any answer."""
import json

import pytest

CHAT = "/v1/chat/completions"
PAGE = 16
SYSTEM = "You are the librarian of a small town. " + " ".join(
    f"Shelf {i} holds books about {topic}." for i, topic in enumerate(
        ["birds", "rivers", "clocks", "bread", "ships", "stars", "glass", "bees", "roads", "music", "stones", "paper"]))
QUESTIONS = ["Which shelf is about birds?", "And where do I find ships?", "Tell me about the shelf of bees.", "Thank you. What was my first question?"]


def converse(a):
    """A chat of four turns, greedy: [(answer, usage)] and the messages sent in each turn."""
    messages, turns, sent = [{"role": "system", "content": SYSTEM}], [], []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        sent.append(list(messages))
        status, text, _ = a.post(CHAT, {"messages": messages, "temperature": 0, "max_tokens": 40, "ignore_eos": True})
        assert status == 200, text
        body = json.loads(text)
        answer = body["choices"][0]["message"]["content"]
        turns.append((answer, body["usage"]))
        messages.append({"role": "assistant", "content": answer})
    return turns, sent


def rendered(a, messages):
    status, text, _ = a.post("/apply-template", {"messages": messages, "add_generation_prompt": True})
    assert status == 200, text
    return json.loads(text)["prompt"]


def ids(a, text):
    return json.loads(a.post("/tokenize", {"content": text, "parse_special": True})[1])["tokens"]


def cached(usage):
    return usage["prompt_tokens_details"]["cached_tokens"]


def n_common(x, y):
    n = 0
    while n < min(len(x), len(y)) and x[n] == y[n]:
        n += 1
    return n


@pytest.fixture(scope="module")
def conversation(appliance):
    return converse(appliance)


def test_a_chat_prefills_only_what_is_new(appliance, conversation):
    turns, sent = conversation
    assert cached(turns[0][1]) == 0
    for i in range(1, len(turns)):
        before, now = rendered(appliance, sent[i - 1]) + turns[i - 1][0], rendered(appliance, sent[i])
        now_ids = ids(appliance, now)
        assert len(now_ids) == turns[i][1]["prompt_tokens"]
        n_known = turns[i - 1][1]["prompt_tokens"] + 40 - 1  # the last token was drawn, not computed
        # As far as the two turns have the same tokens; the answer as text may come apart in other ones.
        expected = min(n_common(ids(appliance, before), now_ids), n_known) // PAGE * PAGE
        assert cached(turns[i][1]) == expected
        assert expected > turns[i - 1][1]["prompt_tokens"], "its own answer is reused too"


def test_counters_say_the_same_as_the_answers(appliance, conversation):
    usages = [u for _, u in conversation[0]]
    rows = appliance.wait_for_rows(len(usages))
    assert sorted(r["cached_tokens"] for r in rows) == sorted(cached(u) for u in usages)
    m = appliance.wait_idle()  # cached pages count as free
    assert m["llm_prefix_cache_hit_tokens_total"] == sum(r["cached_tokens"] for r in rows) > 0
    assert m["llm_inference_kv_cache_usage_ratio"] == 0 and m['llm_kv_pages{state="used"}'] == 0


def test_the_same_text_without_the_cache(start, conversation):
    a = start(settings=["cache.prefix=false", "log.flush_ms=50"])
    turns, _ = converse(a)
    assert [answer for answer, _ in turns] == [answer for answer, _ in conversation[0]]
    assert [cached(u) for _, u in turns] == [0] * len(turns)
    assert a.metrics()["llm_prefix_cache_hit_tokens_total"] == 0


def test_c03_chat_and_completions_share_the_cache(appliance):
    messages = [{"role": "user", "content": "Name three rivers of Europe and the towns at their mouths, one line each, please."}]
    chat = json.loads(appliance.post(CHAT, {"messages": messages, "temperature": 0, "max_tokens": 12})[1])
    prompt = ids(appliance, rendered(appliance, messages))
    # As ids: in a completion's text, as in a message's, markers of the template are text (C-01).
    body = json.loads(appliance.post("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 12})[1])
    assert body["usage"]["prompt_tokens"] == chat["usage"]["prompt_tokens"] == len(prompt)
    assert cached(body["usage"]) == (len(prompt) - 1) // PAGE * PAGE > 0
    assert body["choices"][0]["text"].strip() == chat["choices"][0]["message"]["content"].strip()


def test_c27_neither_warm_ups_nor_their_ends_change_the_answer(start):
    cold, warm = start(settings=["cache.prefix=false"]), start()
    text = ids(cold, SYSTEM)[:70]
    for i, n_shared in enumerate((0, 1, PAGE - 1, PAGE, PAGE + 1, len(text) - 1, len(text))):
        prompt = [1000 + i] + text[1:]  # shares nothing with those before
        ask = {"prompt": prompt, "temperature": 0, "max_tokens": 12, "ignore_eos": True}
        expected = json.loads(cold.post("/v1/completions", ask)[1])["choices"][0]["text"]
        warm_up = dict(ask, prompt=prompt[:n_shared] + [905] * (len(prompt) - n_shared), stop=["e"] if i % 2 else None)
        assert warm.post("/v1/completions", warm_up)[0] == 200
        for n_known in (n_shared, len(prompt)):
            body = json.loads(warm.post("/v1/completions", ask)[1])
            assert cached(body["usage"]) == min(n_known, len(prompt) - 1) // PAGE * PAGE
            assert body["choices"][0]["text"] == expected, n_shared


def test_scores_of_a_prompt_are_those_of_a_cold_run(appliance):
    ask = {"prompt": ids(appliance, SYSTEM), "temperature": 0, "max_tokens": 1, "echo": True, "logprobs": 1}
    first, second = (json.loads(appliance.post("/v1/completions", ask)[1]) for _ in range(2))
    assert first["choices"][0]["logprobs"] == second["choices"][0]["logprobs"]
    assert len(second["choices"][0]["logprobs"]["tokens"]) == len(ask["prompt"]) + 1
    assert cached(second["usage"]) == 0
