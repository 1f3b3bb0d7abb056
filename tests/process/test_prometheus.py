"""Debian's Prometheus scrapes an appliance under load: every rule and every query of the dashboard must find data."""
import json
import os
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request

import pytest
from conftest import Appliance

SHIPPED = os.path.join(os.path.dirname(__file__), "../../packaging/prometheus")
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
LOAD_SECONDS = 20


def promtool(*args):
    done = subprocess.run([PROMTOOL, *args], capture_output=True, text=True, cwd=SHIPPED)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_accepts_what_is_shipped():
    assert PROMTOOL, "promtool is missing: packaging/install_deps test"
    assert "SUCCESS" in promtool("check", "config", "prometheus.yml")
    assert "SUCCESS" in promtool("test", "rules", "tandem.rules.test.yml")


def test_promtool_notices_a_planted_fault(tmp_path):
    for name in ["tandem.rules.yml", "tandem.rules.test.yml"]:
        shutil.copy(os.path.join(SHIPPED, name), tmp_path)
    rules = (tmp_path / "tandem.rules.yml").read_text()
    (tmp_path / "tandem.rules.yml").write_text(rules.replace("tandem:kv_usage:ratio > 0.8", "tandem:kv_usage:ratio > 8"))
    assert subprocess.run([PROMTOOL, "test", "rules", "tandem.rules.test.yml"], cwd=tmp_path, capture_output=True).returncode != 0


class Prometheus:
    def __init__(self, folder, target):
        config = open(os.path.join(SHIPPED, "prometheus.yml"), encoding="utf-8").read()
        assert "127.0.0.1:8080" in config
        config = config.replace("127.0.0.1:8080", target).replace("15s", "1s")
        (folder / "prometheus.yml").write_text(config)
        rules = open(os.path.join(SHIPPED, "tandem.rules.yml"), encoding="utf-8").read()
        (folder / "tandem.rules.yml").write_text(rules)
        self.log = open(folder / "prometheus.log", "wb")
        self.process = subprocess.Popen([PROMETHEUS, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                                         "--web.listen-address=127.0.0.1:0", "--log.level=info"], stderr=self.log, stdout=self.log)
        self.url = None
        end = time.time() + 30
        while not self.url:
            assert time.time() < end and self.process.poll() is None, open(folder / "prometheus.log").read()
            if m := re.search(r'msg="Listening on" address=(127\.0\.0\.1:[1-9]\d*)', open(folder / "prometheus.log").read()):
                self.url = "http://" + m.group(1)
            time.sleep(0.05)

    def api(self, path, **query):
        url = f"{self.url}/api/v1/{path}?" + urllib.parse.urlencode(query)
        with urllib.request.urlopen(url, timeout=10) as r:
            reply = json.load(r)
        assert reply["status"] == "success", reply
        return reply["data"]

    def find(self, query):
        """Series that the query finds now."""
        return self.api("query", query=query)["result"]

    def stop(self):
        self.process.terminate()
        self.process.wait(20)
        self.log.close()


def dashboard_queries():
    with open(os.path.join(SHIPPED, "tandem.dashboard.json"), encoding="utf-8") as f:
        board = json.load(f)
    return [(p["title"], t["expr"]) for p in board["panels"] for t in p["targets"]]


def substituted(query):
    query = query.replace("$__rate_interval", "15s")
    assert "$" not in query, f"only $__rate_interval may stand in a query: {query}"
    return query


def compared(expression):
    """An alert's figure without its threshold."""
    m = re.fullmatch(r"\s*(.+?)\s*(<|>|<=|>=|==|!=)\s*[0-9.e+-]+\s*", expression, re.S)
    assert m, f"an alert must compare one figure with a number: {expression}"
    return m.group(1)


def without_data(prometheus, queries):
    return [(title, q) for title, q in queries if not prometheus.find(q)]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """An appliance under load and a Prometheus that has watched it; a worker is killed on the way."""
    assert PROMETHEUS, "prometheus is missing: packaging/install_deps test"
    a = Appliance(tmp_path_factory.mktemp("state"), settings=["log.flush_ms=50"])
    p = Prometheus(tmp_path_factory.mktemp("prometheus"), a.address)
    stop, counts = threading.Event(), {"done": 0, "failed": 0, "scrapes": 0, "slowest": 0.0, "falls": []}

    def client():
        while not stop.is_set():
            status, _, _ = a.post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 24, "ignore_eos": True})
            counts["done" if status == 200 else "failed"] += 1

    def scraper():  # about a hundred scrapes a second
        last = {}
        while not stop.is_set():
            begin = time.time()
            now = a.metrics()
            counts["slowest"] = max(counts["slowest"], time.time() - begin)
            counts["scrapes"] += 1
            for name, value in now.items():
                if re.search(r"_(total|count|sum|bucket)\b", name):
                    if value < last.get(name, 0):
                        counts["falls"].append((name, last[name], value))
                    last[name] = value
            time.sleep(max(0.0, 0.01 - (time.time() - begin)))

    threads = [threading.Thread(target=client) for _ in range(4)] + [threading.Thread(target=scraper)]
    for t in threads:
        t.start()
    time.sleep(LOAD_SECONDS / 2)
    killed = a.kill_worker()
    time.sleep(LOAD_SECONDS / 2)
    yield a, p, counts, killed
    stop.set()
    for t in threads:
        t.join(60)
    p.stop()
    assert a.stop() == 0


def test_every_rule_is_evaluated_and_finds_data(loaded):
    _, p, _, _ = loaded
    rules = [r for g in p.api("rules")["groups"] for r in g["rules"]]
    assert len(rules) == open(os.path.join(SHIPPED, "tandem.rules.yml")).read().count("expr:")
    assert [r["name"] for r in rules if r["health"] != "ok" or r.get("lastError")] == []
    figures = [(r["name"], r["name"] if r["type"] == "recording" else compared(r["query"])) for r in rules]
    assert without_data(p, figures) == []
    assert {r["name"] for r in rules if r["type"] == "alerting"} >= {
        "TandemKvPoolFull", "TandemFirstTokenSlow", "TandemWorkerRestarts", "TandemLogRowsDropped", "TandemDiskLow", "TandemHot"}


def test_every_query_of_the_dashboard_finds_data(loaded):
    _, p, _, _ = loaded
    queries = [(title, substituted(q)) for title, q in dashboard_queries()]
    assert len(queries) > 20
    assert without_data(p, queries) == []


def test_a_query_without_data_and_a_foreign_variable_are_noticed(loaded):
    _, p, _, _ = loaded
    planted = [("planted", "llm_no_such_metric"), ("planted label", 'llm_requests_total{outcome="sideways"}')]
    assert without_data(p, planted) == planted
    with pytest.raises(AssertionError, match="only"):
        substituted("rate(llm_requests_total[$__interval])")


def test_scraping_changes_nothing_and_waits_for_nothing(loaded):
    a, _, counts, killed = loaded
    assert killed == 1 and counts["done"] > 10 and counts["failed"] == 0
    assert counts["falls"] == []  # not even over the worker's death
    assert counts["scrapes"] > 20 * LOAD_SECONDS
    assert counts["slowest"] < 1.0
    text = a.get("/metrics")[1]
    for name in ["llm_inference_latency_seconds", "llm_inference_kv_cache_usage_ratio", "llm_batch_size_current",
                 "llm_time_to_first_token_seconds", "llm_inter_token_latency_seconds", "llm_requests_waiting", "llm_requests_running",
                 "llm_requests_total", "llm_prompt_tokens_total", "llm_generation_tokens_total", "llm_prefix_cache_hit_tokens_total",
                 "llm_preemptions_total", "llm_kv_pages", "llm_worker_restarts_total", "llm_worker_up", "llm_request_log_dropped_total",
                 "llm_readiness", "llm_disk_free_bytes", "llm_temperature_celsius"]:
        assert f"# TYPE {name} " in text, name
