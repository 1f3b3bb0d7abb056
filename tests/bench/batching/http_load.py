"""Clients for load tests: one asyncio loop that reads streams line by line and costs the machine little beside the server."""
import asyncio
import json
import time
from dataclasses import dataclass, field


@dataclass
class Reply:
    sent: float                                   # monotonic seconds
    token_times: list = field(default_factory=list)  # a time for each event before the last one
    first: float = 0.0                            # time of the first event
    ended: float = 0.0
    status: int = 0
    text: str = ""

    @property
    def latency(self):
        return self.ended - self.sent

    @property
    def ttft(self):
        return self.first - self.sent

    def gaps(self, since=0.0, until=float("inf")):
        """Seconds between two events, of those that end in the given span of time."""
        return [b - a for a, b in zip(self.token_times, self.token_times[1:]) if since <= b <= until]


async def complete(url, prompt, n_new, stop=None, keep_text=False, **fields):
    """One streamed completion at temperature 0, exactly n_new tokens. `stop`: an asyncio.Event that ends it early."""
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps({"prompt": prompt, "max_tokens": n_new, "temperature": 0, "ignore_eos": True, "stream": True, **fields}).encode()
    reply = Reply(time.monotonic())
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
    try:
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nConnection: close\r\n"
                     b"Content-Length: %d\r\n\r\n" % (host.encode(), len(body)) + body)
        reply.status = int((await reader.readline()).split()[1])
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                if b'"error"' in line[:20]:
                    raise RuntimeError(line.decode())
                now = time.monotonic()
                reply.first = reply.first or now
                if b'"finish_reason":null' in line:
                    reply.token_times.append(now)
                if keep_text:
                    reply.text += "".join(c.get("text", "") for c in json.loads(line[6:])["choices"])
                if stop and stop.is_set():
                    break
            elif line.startswith(b"data: [DONE]"):
                break
    finally:
        writer.close()
    reply.ended = time.monotonic()
    if reply.status != 200:
        raise RuntimeError(f"the server answered {reply.status}")
    return reply


async def open_loop(url, trace, arrivals, most_waiting):
    """Sends trace[i] = (prompt, n_new) at arrivals[i] seconds, later where `most_waiting` are unanswered already."""
    started, room, tasks = time.monotonic(), asyncio.Semaphore(most_waiting), []

    async def one(prompt, n_new):
        try:
            return await complete(url, prompt, n_new)
        finally:
            room.release()

    for (prompt, n_new), at in zip(trace, arrivals):
        await asyncio.sleep(max(0.0, started + at - time.monotonic()))
        await room.acquire()
        tasks.append(asyncio.ensure_future(one(prompt, n_new)))
    return await asyncio.gather(*tasks)


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * p / 100))]
