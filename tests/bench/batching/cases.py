"""The cases of run.py. Each takes a Bench and returns rows (what, value, unit, goal text, reached or None)."""
import asyncio
import functools
import json
import os
import signal
import statistics
import time
import urllib.request

import runners
import setup_peers
import traces
from http_load import complete, open_loop, percentile

LANES, PAGE = 16, 16


class Bench:
    """What every case needs: the model, its copy with a longer context, the programs."""

    def __init__(self, args, tandem, scratch):
        self.model, self.threads, self.seconds, self.target_ms = args.model, args.threads, args.seconds, args.target_gap_ms
        self.tandem, self.scratch, self.work, self.build = tandem, scratch, args.work, args.build

    @functools.cached_property
    def llama(self):
        return runners.Llama("llama.cpp", self.work, setup_peers.LLAMA_CPP)

    def gap_settings(self):
        """The product's default unless the benchmark is told otherwise."""
        return (f"batch.target_inter_token_latency_ms={self.target_ms}",) if self.target_ms is not None else ()

    @functools.lru_cache
    def step_times(self):
        return measure_step_times(self)

    @functools.lru_cache
    def kv_bytes_per_token(self):
        with self.serve() as server:
            return status(server)["kv"]["bytes_per_token"]

    def serve(self, *settings, model=None):
        """Without the ladder, whose shed requests would be no figure of a scheduler; ../overload is about it."""
        return self.tandem.serve(model or self.model, self.threads, ("degrade.enabled=false", *settings))

    def long_model(self):
        path = os.path.join(self.scratch, "context-8192.gguf")
        return path if os.path.exists(path) else traces.with_context(self.model, path, 8192)


def status(server):
    with urllib.request.urlopen(server.address + "/status.json") as r:
        return json.load(r)


def metric(server, name):
    """Sum over the series that begin with `name`."""
    with urllib.request.urlopen(server.address + "/metrics") as r:
        lines = r.read().decode().splitlines()
    found = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name)]
    if not found:
        raise RuntimeError(f"no metric {name}")
    return sum(found)


# --- ways of batching -------------------------------------------------------------------------------------

def way_settings(way):
    return (f"batch.batching={way}", f"batch.max_batch_size={LANES}", "batch.form_ms=50", "cache.prefix=false",
            "batch.target_inter_token_latency_ms=0")  # whole chunks: best for throughput, in every way


async def tokens_per_second(url, way, seconds):
    """Continuous batching in the steady state: a window after the lanes are mixed. The others start from an empty batch each
    time: whole batches of a trace in which as many of them have a long answer as on average."""
    if way != "continuous":
        trace = traces.typical(160, 8, 8, 1024, 16, LANES)
        arrivals = [0.0] * LANES + traces.poisson(len(trace) - LANES, 40, 7)  # no first batch of the few that 50 ms bring
        replies = await open_loop(url, trace, arrivals, 64)
        return sum(new for _, new in trace) / (max(r.ended for r in replies) - replies[0].sent)
    trace = traces.mixed(4000, 200, 8, 1024, 16, 5)
    return await window(url, trace, seconds)


async def window(url, trace, seconds):
    """Tokens a second between 1/3 and the end of `seconds` under arrivals that keep every lane busy."""
    times, stop, started = [], asyncio.Event(), time.monotonic()
    room, tasks, whole = asyncio.Semaphore(64), [], []

    async def one(prompt, n_new):
        try:
            reply = await complete(url, prompt, n_new, stop)
            times.extend(reply.token_times)
            if not stop.is_set():
                whole.append((n_new, len(reply.token_times)))
        finally:
            room.release()

    for (prompt, n_new), at in zip(trace, traces.poisson(len(trace), 40, 7)):
        await asyncio.sleep(max(0.0, started + at - time.monotonic()))
        await room.acquire()
        if time.monotonic() - started > seconds:
            break
        tasks.append(asyncio.ensure_future(one(prompt, n_new)))
    ended = time.monotonic()
    stop.set()
    await asyncio.gather(*tasks)
    since = started + seconds / 3
    per_event = sum(n for n, _ in whole) / sum(n for _, n in whole)  # a token inside a character has no event of its own
    return per_event * sum(since <= t <= ended for t in times) / (ended - since)


def batching_way(way):
    def case(bench):
        with bench.serve(*way_settings(way)) as server:
            value = asyncio.run(tokens_per_second(server.address, way, 2 * bench.seconds))
        return [(f"{way}: output tokens/s, 95 % 8-token and 5 % 1,024-token answers", value, "tokens/s", "", None)]
    return case


def simulate(bench, *options):
    """Rows of the simulator, with the step times that `tandem bench` measures here now."""
    return [json.loads(line) for line in runners.output_of(
        [os.path.join(bench.build, "tests/simulator/simulate"), *bench.step_times(), "--json", "--lanes", str(LANES), "--target-ms", "0",
         "--no-prefix-cache", "--kv-tokens", "65536", *options]).splitlines()]


def measure_step_times(bench):
    paths = []
    for name, options in (("batches", ["--batch", "1,4,8,16", "--prompt", "64"]), ("depth", ["--batch", "1,8", "--prompt", "768"]),
                          ("chunk:32", ["--batch", "1", "--prompt", "256", "--chunk", "32"])):
        path = os.path.join(bench.scratch, name.split(":")[0] + ".json")
        with open(path, "w") as f:
            f.write(runners.output_of([os.path.join(bench.build, "bin/tandem"), "bench", "--model", bench.model, "--gen", "48",
                                       "--repeat", "1", "--threads", str(bench.threads), "--json", *options]))
        paths += ["--bench", path + (":32" if ":" in name else "")]
    return paths


def predicted(bench):
    """What the simulator says of the same traffic."""
    rows = simulate(bench, "--compare", "--requests", "4000", "--rate", "40", "--max-queue", "48", "--long-share", "0.05",
                    "--short-prompt", "16", "--long-prompt", "16", "--short-output", "8", "--long-output", "1024")
    speeds = {row["batching"]: row["tokens_per_s"] for row in rows}
    return [("the simulator's ratio, continuous against static with ended lanes dropped", speeds["continuous"] / speeds["static"], "x", "", None),
            ("the simulator's ratio, continuous against static with ended lanes computed", speeds["continuous"] / speeds["static-padded"],
             "x", "", None),
            ("the simulator's ratio, dynamic against static with ended lanes computed", speeds["dynamic"] / speeds["static-padded"],
             "x", "", None)]


def short_trace(bench):
    """One request in ten has a long answer; Poisson arrivals both ways can follow."""
    n = int(bench.seconds * 1.5)
    return traces.mixed(n, n // 10, 8, 512, 16, 11), traces.poisson(n, 1.5, 12)


def short_latency(way):
    def case(bench):
        trace, arrivals = short_trace(bench)
        with bench.serve(*way_settings(way)) as server:
            replies = asyncio.run(open_loop(server.address, trace, arrivals, 200))
        short = [r.latency for r, (_, new) in zip(replies, trace) if new == 8]
        return [(f"{way}: P99 latency of short requests, one long in ten", 1e3 * percentile(short, 99), "ms", "", None)]
    return case


def predicted_p99(bench):
    """The simulator's word on the trace of p99-continuous and p99-dynamic."""
    path = os.path.join(bench.scratch, "short_trace.txt")
    with open(path, "w") as f:
        for (prompt, n_new), at in zip(*short_trace(bench)):
            print(f"{1e3 * at:.0f} {len(prompt)} {n_new}", file=f)
    return [(f"the simulator's P99 latency of the same short requests, {way}", row["short_p99_ms"], "ms", "", None)
            for way in ("continuous", "dynamic") for row in simulate(bench, "--trace", path, "--batching", way)]


# --- memory -----------------------------------------------------------------------------------------------

KV_PROMPT, KV_NEW, KV_RATE = 600, 300, 0.5


def kv_pressure(name, *settings, pool_tokens=None):
    """Answers that grow by half their prompts, which are long enough that to compute one again costs; arrivals that the box
    serves with room for all."""
    def case(bench):
        n = int(2 * bench.seconds * KV_RATE)
        trace = [(traces.ids(KV_PROMPT, 7000 + i), KV_NEW) for i in range(n)]
        pool = (f"cache.kv_pool_bytes={pool_tokens * bench.kv_bytes_per_token()}",) if pool_tokens else ()
        with bench.serve("cache.prefix=false", f"batch.max_batch_size={LANES}", *settings, *pool) as server:
            replies = asyncio.run(open_loop(server.address, trace, traces.poisson(n, KV_RATE, 13), 200))
            preempted = metric(server, "llm_preemptions_total")
        gaps = [max(r.gaps(), default=0.0) for r in replies]
        return [(f"P99 latency, {name}", 1e3 * percentile([r.latency for r in replies], 99), "ms", "", None),
                (f"median latency, {name}", 1e3 * percentile([r.latency for r in replies], 50), "ms", "", None),
                (f"P99 of a request's worst gap, {name}", 1e3 * percentile(gaps, 99), "ms", "", None),
                (f"preemptions, {name}", preempted, "", "", None)]
    return case


SMALL_POOL = 4 * (KV_PROMPT + KV_NEW)  # tokens: a quarter of what 16 such sequences need


def kv_waste(bench):
    """64 sequences of 100 to 700 prompt tokens, all decoding: tokens held against pages held, at one moment."""
    async def measure(server):
        streams = [asyncio.ensure_future(complete(server.address, traces.ids(100 + (i * 577) % 601, 9000 + i), 1200)) for i in range(64)]
        while True:
            await asyncio.sleep(0.3)
            state = await asyncio.to_thread(status, server)
            running = [r for r in state["requests"] if r["completion_tokens"] > 0]
            if len(running) == 64:
                break
            if any(s.done() for s in streams):
                raise RuntimeError("a sequence ended before all 64 ran")
        for s in streams:
            s.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        return sum(r["prompt_tokens"] + r["completion_tokens"] for r in running), state["kv"]["pages_used"]
    with bench.serve("cache.prefix=false", "batch.max_batch_size=64", "batch.adaptive_limit=false") as server:
        tokens, pages = asyncio.run(measure(server))
    waste = 100 * (1 - tokens / (pages * PAGE))
    return [(f"KV memory allocated and not used, 64 mixed sequences of {tokens / 64:.0f} tokens on average", waste, "%", "< 4", waste < 4)]


# --- long prompts among streams ---------------------------------------------------------------------------

def worst_gap(replies, since, until):
    return max((g for r in replies for g in r.gaps(since, until)), default=0.0)


def usual_gaps(replies, since, until):
    """Median and 99th percentile: what one hiccup of the machine does not decide."""
    gaps = [g for r in replies for g in r.gaps(since, until)]
    return percentile(gaps, 50), percentile(gaps, 99)


async def long_prompt_among_streams(url, n_prompt):
    """Eight streams; alone first, then a long prompt arrives. Returns worst gap before and during, TTFT alone and among them,
    and median and 99th percentile of the gaps before and during."""
    lone = await complete(url, traces.ids(n_prompt, 501), 1)
    stop = asyncio.Event()
    streams = [asyncio.ensure_future(complete(url, traces.ids(32, 600 + i), 1900, stop)) for i in range(8)]
    await asyncio.sleep(3)
    calm_since = time.monotonic()
    await asyncio.sleep(5)
    calm_until = time.monotonic()
    guest = await complete(url, traces.ids(n_prompt, 502), 1)
    stop.set()
    replies = await asyncio.gather(*streams)
    if any(r.ended < guest.ended for r in replies):
        raise RuntimeError("a stream ended before the long prompt was answered")
    during = max([worst_gap(replies, calm_until, guest.ended)] + [guest.ended - r.token_times[-1] for r in replies])
    return (worst_gap(replies, calm_since, calm_until), during, lone.ttft, guest.ttft,
            usual_gaps(replies, calm_since, calm_until), usual_gaps(replies, calm_until, guest.ended))


def long_prompt(bench):
    with bench.serve("cache.prefix=false", *bench.gap_settings(), model=bench.long_model()) as server:
        calm, during, lone, guest, usual, usual_during = asyncio.run(long_prompt_among_streams(server.address, 6000))
    return [("8 streams: worst gap alone", 1e3 * calm, "ms", "", None),
            ("8 streams: worst gap while a 6,000-token prompt is computed", 1e3 * during, "ms", "< 2x alone", during < 2 * calm),
            ("the 6,000-token prompt alone: TTFT", lone, "s", "", None),
            ("the 6,000-token prompt among 8 streams: TTFT", guest, "s", "< 1.5x alone", guest < 1.5 * lone),
            ("8 streams: median gap alone", 1e3 * usual[0], "ms", "", None),
            ("8 streams: median gap while the prompt is computed", 1e3 * usual_during[0], "ms", "", None),
            ("8 streams: 99th percentile of gaps alone", 1e3 * usual[1], "ms", "", None),
            ("8 streams: 99th percentile of gaps while the prompt is computed", 1e3 * usual_during[1], "ms", "< 2x alone",
             usual_during[1] < 2 * usual[1])]


def long_prompt_llama(bench):
    with bench.llama.serve(bench.long_model(), bench.threads, 9, 9 * 8192) as server:
        calm, during, lone, guest, *_ = asyncio.run(long_prompt_among_streams(server.address, 6000))
    return [("llama.cpp: worst gap alone", 1e3 * calm, "ms", "", None),
            ("llama.cpp: worst gap while the prompt is computed", 1e3 * during, "ms", "", None),
            ("llama.cpp: TTFT of the prompt alone", lone, "s", "", None),
            ("llama.cpp: TTFT of the prompt among 8 streams", guest, "s", "", None)]


SQL = " ".join(f"SELECT t{i}.id, t{i}.name, SUM(o{i}.total) FROM table_{i} AS t{i} LEFT JOIN orders_{i} AS o{i} ON o{i}.t_id = t{i}.id "
               f"WHERE t{i}.state IN ('open', 'held') GROUP BY t{i}.id, t{i}.name UNION ALL" for i in range(400))


async def sql_among_chats(url, sql):
    """Six chats, one short question after another each; in the middle the statement comes."""
    stop, replies = asyncio.Event(), []

    async def chat(c):
        turn = 0
        while not stop.is_set():
            replies.append(await complete(url, traces.ids(24, 3000 + 100 * c + turn), 48))
            turn += 1
    chats = [asyncio.ensure_future(chat(c)) for c in range(6)]
    await asyncio.sleep(3)
    since = time.monotonic()
    await asyncio.sleep(8)
    until = time.monotonic()
    guest = await complete(url, sql, 16)
    stop.set()
    await asyncio.gather(*chats)
    return worst_gap(replies, since, until), worst_gap(replies, until, guest.ended)


def sql_statement(bench):
    with bench.serve("cache.prefix=false", *bench.gap_settings(), model=bench.long_model()) as server:
        tokens = runners.post(server.address + "/tokenize", {"content": SQL})["tokens"][:5000]
        if len(tokens) < 5000:
            raise RuntimeError(f"the statement has {len(tokens)} tokens only")
        normal, during = asyncio.run(sql_among_chats(server.address, tokens))
    return [("short chats: worst gap", 1e3 * normal, "ms", "", None),
            ("short chats beside a 5,000-token SQL statement: worst gap", 1e3 * during, "ms", "<= 2x normal", during <= 2 * normal)]


# --- peers, prefix cache ----------------------------------------------------------------------------------

def clients_ratio(bench):
    ours, theirs = [], []
    for _ in range(2):
        with bench.llama.serve(bench.model, bench.threads, 16, 4096) as server:
            theirs.append(runners.clients(server.address, 16))
        with bench.serve() as server:
            ours.append(runners.clients(server.address, 16))
    ours, theirs = statistics.median(ours), statistics.median(theirs)
    return [("llama.cpp's server, 16 clients x (128 + 64)", theirs, "tokens/s", "", None),
            ("Tandem, the same", ours, "tokens/s", ">= 3x", ours >= 3 * theirs)]


def shared_prefix(bench):
    """A shared prompt of 1,008 tokens (whole pages) and a few of one's own, against those alone; taking turns. What is left to
    pay is the attention of one's own tokens to the cached ones: about 72 Mflop a token for SmolLM2."""
    async def measure(url, own):
        shared = traces.ids(1008, 4000)
        await complete(url, shared + traces.ids(own, 4100), 1)
        warm, alone = [], []
        for i in range(15):
            warm.append((await complete(url, shared + traces.ids(own, 4200 + own + i), 1)).ttft)
            alone.append((await complete(url, traces.ids(own, 4400 + own + i), 1)).ttft)
        return 1e3 * statistics.median(warm), 1e3 * statistics.median(alone)
    rows = []
    with bench.serve() as server:
        for own in (8, 16, 64):
            warm, alone = asyncio.run(measure(server.address, own))
            rows += [(f"TTFT of a {own}-token prompt alone", alone, "ms", "", None),
                     ("TTFT of the same behind a cached 1,008-token system prompt", warm, "ms", "<= alone + 5", warm <= alone + 5)]
    return rows


# --- resumed text -----------------------------------------------------------------------------------------

def resumed_text(bench):
    """Eight texts with room, then with a pool that forces recomputation, with one that forces swapping, and with the worker
    killed in the middle."""
    prompts = [f"Question {i}: what should an engineer check first on a pump that vibrates? Answer:" for i in range(8)]

    async def texts(server, kill=False):
        tasks = [asyncio.ensure_future(complete(server.address, p, 400, keep_text=True)) for p in prompts]
        if kill:
            await asyncio.sleep(4)
            os.kill(status(server)["workers"][0]["pid"], signal.SIGKILL)
        return [r.text for r in await asyncio.gather(*tasks)]

    def run(*settings, counter=None, kill=False):
        with bench.serve("batch.max_batch_size=8", *settings) as server:
            found = asyncio.run(texts(server, kill))
            return found, metric(server, counter) if counter else 0

    wanted, _ = run()
    pool = f"cache.kv_pool_bytes={1200 * bench.kv_bytes_per_token()}"  # 8 x about 420 tokens want 3,360
    rows = []
    for name, result in (
            ("preemption by recompute", run(pool, "batch.adaptive_limit=false", counter='llm_preemptions_total{kind="recompute"}')),
            ("swap", run(pool, "batch.adaptive_limit=false", "cache.swap_pool_bytes=268435456", counter='llm_preemptions_total{kind="swap"}')),
            ("crash", run(counter="llm_worker_restarts_total", kill=True))):
        found, count = result
        same = found == wanted and count > 0
        rows.append((f"texts identical after {name} (it happened {count:.0f} times)", sum(a == b for a, b in zip(found, wanted)), "of 8",
                     "8", same))
    return rows


CASES = {
    "predicted": predicted,
    "continuous": batching_way("continuous"),
    "dynamic": batching_way("dynamic"),
    "static": batching_way("static"),
    "static-padded": batching_way("static-padded"),
    "p99-predicted": predicted_p99,
    "p99-continuous": short_latency("continuous"),
    "p99-dynamic": short_latency("dynamic"),
    "kv-room": kv_pressure("KV room for all"),
    "kv-fixed": kv_pressure("a quarter of it, batch limit fixed", "batch.adaptive_limit=false", pool_tokens=SMALL_POOL),
    "kv-adapting": kv_pressure("a quarter of it, batch limit adapting", "batch.adaptive_limit=true", pool_tokens=SMALL_POOL),
    "kv-waste": kv_waste,
    "sql": sql_statement,
    "long-prompt": long_prompt,
    "long-prompt-llama": long_prompt_llama,
    "clients": clients_ratio,
    "prefix": shared_prefix,
    "resumed": resumed_text,
}
