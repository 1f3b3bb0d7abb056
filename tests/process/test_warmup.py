"""`warmup.prompts`: configured system prompts are computed before ready and stay, whatever the box does and whichever worker lives."""
import os
import re
import subprocess
import time

from conftest import BIN, SMOLLM2

FIRST = "You are the assistant of a pumping station. Answer in one short sentence. " * 8
SECOND = "You translate every message from English into French, and say nothing else. " * 8


def cached(a, system, user):
    reply = a.client().chat.completions.create(model=a.model_name, max_tokens=4, temperature=0,
                                               messages=[{"role": "system", "content": system}, {"role": "user", "content": user}])
    return reply.usage.prompt_tokens_details.cached_tokens, reply.usage.prompt_tokens


def test_the_first_request_with_a_configured_prompt_finds_it_also_after_a_restart_and_a_full_cache(start):
    a = start(settings=[f"warmup.prompts={FIRST}\n---\n{SECOND}", "cache.kv_pool_bytes=40000000", "log.flush_ms=50"], wait_ready=False)
    seen = set()
    end = time.time() + 60
    while (answer := a.get("/ready"))[0] != 200:
        seen.update(re.findall(r"prefilling system prompt \d of 2", answer[1]))
        assert time.time() < end, a.log()
    while not (line := re.search(r"system prompts are prefilled.*prompts=2.*pinned_tokens=(\d+)", a.log())):
        assert time.time() < end, a.log()  # the log is written behind
        time.sleep(0.05)
    pinned = int(line.group(1))
    assert seen, "progress of the prompts was never shown by /ready"
    for system in (FIRST, SECOND):
        n_cached, n_prompt = cached(a, system, "Is the valve open?")
        assert n_cached > 0 and n_prompt - n_cached < 16 + 20, (n_cached, n_prompt)  # all full pages but the user's own
    assert a.metrics()['llm_kv_pages{state="used"}'] * 16 >= pinned - 32  # the two share a page or two
    for i in range(8):  # far more than the pool of 1,700 tokens holds
        cached(a, f"Number {i}. " + "Count the ships in the harbour and tell me about each of them. " * 45, "Go")
    assert cached(a, FIRST, "And the second one?")[0] > 0
    generation = a.status()["workers"][0]["generation"]
    assert a.kill_worker() == 1
    end = time.time() + 60
    while a.status()["workers"][0]["generation"] == generation or a.get("/ready")[0] != 200:
        assert time.time() < end
        time.sleep(0.05)
    assert cached(a, SECOND, "Good morning")[0] > 0 and cached(a, FIRST, "Good morning")[0] > 0


def test_the_answer_is_the_same_as_without(start):
    texts = []
    for settings in ([f"warmup.prompts={FIRST}"], []):
        a = start(settings=settings)
        texts.append(a.client().chat.completions.create(
            model=a.model_name, max_tokens=24, temperature=0,
            messages=[{"role": "system", "content": FIRST}, {"role": "user", "content": "What is a pump?"}]).choices[0].message.content)
        a.stop()
    assert texts[0] == texts[1]


def test_prompts_that_do_not_fit_are_refused_with_both_numbers(tmp_path):
    for setting, more, word in ((f"warmup.prompts={FIRST * 20}", "cache.kv_pool_bytes=40000000", "half of the KV pool"),
                                (f"warmup.prompts={FIRST * 80}", "model.context_tokens=1024", "at most the context less two, 1022")):
        log = open(tmp_path / "log", "w+")
        p = subprocess.Popen([os.path.join(BIN, "tandem"), "serve", "--model", SMOLLM2, "--port", "0", "--state", str(tmp_path / "s"),
                              "--set", setting, "--set", more], stderr=log, stdout=subprocess.DEVNULL)
        try:
            end = time.time() + 60
            while word not in (text := open(tmp_path / "log").read()):
                assert time.time() < end, text[-2000:]
                time.sleep(0.1)
            assert "warmup.prompts: " in text
        finally:
            p.terminate()
            p.wait(20)
    done = subprocess.run([os.path.join(BIN, "tandem"), "serve", "--model", SMOLLM2, "--port", "0", "--state", str(tmp_path / "s"),
                           "--set", "warmup.prompts=hello", "--set", "cache.prefix=false"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 78 and "cache.prefix = true" in done.stderr
