"""The status page in a real browser, at phone and desktop size: live, whole without scripts, usable by keyboard."""
import hashlib
import json
import os
import re
import tarfile
import time

import pytest
from conftest import SMOLLM2
from playwright.sync_api import sync_playwright

CHROMIUM = os.environ.get("TANDEM_CHROMIUM", "/usr/bin/chromium")
SIZES = {"phone": {"width": 360, "height": 740}, "small phone": {"width": 320, "height": 568}, "desktop": {"width": 1280, "height": 900}}
SECTIONS = ["state", "plots", "kv", "queue", "load", "workers", "machine", "recent", "faults", "disk", "about"]


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as p:
        b = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield b
        b.close()


@pytest.fixture
def open_page(browser, tmp_path):
    """open_page(url, **context options) -> page; afterwards: no script error, no policy violation, no outside request."""
    opened = []

    def make(url, **options):
        context = browser.new_context(**options)
        page = context.new_page()
        problems, hosts = [], set()
        page.on("pageerror", lambda e: problems.append(str(e)))
        page.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None)
        page.on("request", lambda r: hosts.add(re.sub(r"^(\w+:(//[^/]*)?).*", r"\1", r.url)))
        page.goto(url + "/status", wait_until="domcontentloaded")
        opened.append((context, problems, hosts, url))
        return page

    yield make
    for context, problems, hosts, url in opened:
        context.close()
        refusals = [p for p in problems if "status of 4" in p]  # refused buttons, wanted by the test
        assert [p for p in problems if p not in refusals] == []
        assert hosts <= {url, "blob:"}, hosts


def wait_for(page, expression, timeout=30):
    """By asking again and again from outside: Playwright's own waiting evaluates text in the page, which its policy forbids."""
    end = time.time() + timeout
    while not page.evaluate(expression):
        assert time.time() < end, expression
        time.sleep(0.05)


def overflow(page):
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def chat(appliance, text="Say something.", n=20):
    return appliance.client().chat.completions.create(model=appliance.model_name, temperature=0, max_tokens=n,
                                                      messages=[{"role": "user", "content": text}])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_every_screen(appliance, open_page, tmp_path, size, scheme):
    chat(appliance)
    page = open_page(appliance.url, viewport=SIZES[size], color_scheme=scheme, is_mobile=size != "desktop")
    wait_for(page, "document.getElementById('live').textContent === 'live'")
    assert overflow(page) <= 0
    for name in SECTIONS:
        box = page.locator("#" + name).bounding_box()
        assert box["width"] > 200 and box["height"] > 10 and box["x"] >= 0, (name, box)
        assert box["x"] + box["width"] <= SIZES[size]["width"] + 1, (name, box)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = sum(int(x) for x in re.findall(r"\d+", background)[:3]) > 382
    assert light == (scheme == "light")
    page.screenshot(path=tmp_path / f"{size}-{scheme}.png", full_page=True)
    if keep := os.environ.get("TANDEM_SCREENSHOTS"):
        page.screenshot(path=os.path.join(keep, f"{size}-{scheme}.png".replace(" ", "-")), full_page=True)


# WCAG's contrast of every text against what is behind it.
CONTRAST = """() => {
  const channel = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = rgb => { const [r, g, b] = rgb.match(/[0-9.]+/g).map(Number).map(channel); return .2126*r + .7152*g + .0722*b; };
  const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (c !== 'rgba(0, 0, 0, 0)') return c; } return 'rgb(255,255,255)'; };
  const bad = [];
  for (const e of document.querySelectorAll('body *')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) || !e.offsetParent) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
    if ((a + .05) / (b + .05) < 4.5) bad.push(e.outerHTML.slice(0, 80));
  }
  return bad; }"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_accessible(appliance, open_page, scheme):
    page = open_page(appliance.url, color_scheme=scheme)
    wait_for(page, "document.getElementById('live').textContent === 'live'")
    assert page.evaluate(CONTRAST) == []
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("h1").count() == 1
    assert page.evaluate("[...document.querySelectorAll('svg')].every(s => s.getAttribute('aria-label'))")
    assert page.evaluate("[...document.querySelectorAll('input, select')].every(i => i.labels.length)")
    assert page.evaluate("[...document.querySelectorAll('section')].every(s => s.getAttribute('aria-label') || "
                         "document.getElementById(s.getAttribute('aria-labelledby')))")
    assert page.evaluate("new Set([...document.querySelectorAll('[id]')].map(e => e.id)).size === "
                         "document.querySelectorAll('[id]').length")
    # Fingers are large: every button is at least 44 px high.
    assert page.evaluate("[...document.querySelectorAll('button, input, select')].every(b => b.getBoundingClientRect().height >= 44)")


def test_it_is_live(appliance, open_page):
    page = open_page(appliance.url, viewport=SIZES["phone"])
    wait_for(page, "document.getElementById('live').textContent === 'live'")
    before = page.locator("#recent").inner_text()
    done = chat(appliance, "Count to five.", 17)
    wait_for(page, f"document.getElementById('recent').innerText !== {json.dumps(before)}")
    row = f"{done.usage.prompt_tokens}+{done.usage.completion_tokens}"
    assert row in page.locator("#recent tbody tr").first.inner_text()
    wait_for(page, "document.querySelectorAll('#plots polyline').length >= 3", timeout=15)
    assert "highest" in page.locator("#plots").inner_text()


def test_it_says_what_is_wrong_and_what_was_done(appliance, open_page):
    page = open_page(appliance.url)
    wait_for(page, "document.getElementById('live').textContent === 'live'")
    assert appliance.kill_worker() == 1
    wait_for(page, "document.getElementById('faults').innerText.includes('signal 9')")
    assert "requests go on there" in page.locator("#faults").inner_text()
    appliance.wait_ready()
    wait_for(page, "document.getElementById('state').innerText.includes('ready')")
    assert "ready" in page.title()


def test_without_scripts_the_page_is_whole(appliance, open_page):
    chat(appliance)
    page = open_page(appliance.url, viewport=SIZES["phone"], java_script_enabled=False)
    for name in SECTIONS:
        assert page.locator("#" + name).inner_text().strip(), name
    assert "● ready" in page.locator("#state").inner_text()
    assert "pages" in page.locator("#kv").inner_text()
    assert page.locator("#recent tbody tr").count() >= 1
    assert page.locator("#plots svg").count() == 3
    assert page.locator("text=The buttons need JavaScript").is_visible()
    assert 'http-equiv="refresh"' in page.content()
    hash_ = hashlib.sha256(open(SMOLLM2, "rb").read()).hexdigest()
    end = time.time() + 20
    while hash_ not in page.locator("#about").inner_text():
        assert time.time() < end, page.locator("#about").inner_text()
        time.sleep(0.5)
        page.reload(wait_until="domcontentloaded")


def test_it_works_by_keyboard_alone(appliance, open_page):
    page = open_page(appliance.url)
    wait_for(page, "document.getElementById('live').textContent === 'live'")
    reached = []
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
        if reached[-1] == "Clear pin":
            break
        assert page.evaluate("document.activeElement === document.body || "
                             "getComputedStyle(document.activeElement).outlineStyle !== 'none'"), reached[-1]
    assert reached == ["workers", "recent", "key", "Drain", "Undrain", "Reload configuration", "Restart worker",
                       "Download support bundle", "rung", "Pin on", "Pin off", "Clear pin"]
    page.locator("button", has_text=re.compile("^Drain$")).focus()
    page.keyboard.press("Enter")
    wait_for(page, "document.getElementById('state').innerText.includes('draining')")
    assert "refused with 503" in page.locator("#answer").inner_text()
    assert appliance.get("/ready")[0] == 503
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    wait_for(page, "document.getElementById('state').innerText.includes('ready')")
    assert appliance.get("/ready")[0] == 200
    assert page.evaluate("document.activeElement.textContent") == "Undrain"  # updates steal no focus


def test_the_buttons_want_the_admin_key(start, open_page, tmp_path):
    keys, admin = tmp_path / "keys", tmp_path / "admin"
    keys.write_text("app:" + hashlib.sha256(b"app-key").hexdigest() + "\n")
    admin.write_text(hashlib.sha256(b"admin-key").hexdigest() + "\n")
    a = start(settings=["log.text=true", "log.flush_ms=20", f"auth.user_keys_file={keys}", f"auth.admin_key_file={admin}"])
    assert a.post("/v1/completions", {"prompt": "A heron in private", "max_tokens": 2}, {"Authorization": "Bearer app-key"})[0] == 200
    page = open_page(a.url)
    (pid,) = a.worker_pids()
    for wrong in ["", "app-key"]:
        page.fill("#key", wrong)
        page.click("text=Restart worker")
        wait_for(page, "document.getElementById('answer').textContent.startsWith('Not done: this path needs')")
        page.evaluate("document.getElementById('answer').textContent = ''")
    assert a.worker_pids() == [pid]
    page.fill("#key", "admin-key")
    page.click("text=Restart worker")
    wait_for(page, "document.getElementById('answer').textContent.startsWith('the worker was ended')")
    end = time.time() + 20
    while a.worker_pids() in ([], [pid]):
        assert time.time() < end
        time.sleep(0.05)
    a.wait_ready()
    with page.expect_download() as download:
        page.click("text=Download support bundle")
    path = tmp_path / "bundle.tar.gz"
    download.value.save_as(path)
    with tarfile.open(path) as tar:
        assert {os.path.basename(n) for n in tar.getnames()} == {"README.txt", "config.toml", "status.json", "metrics.txt", "requests.json"}
        everything = b"".join(tar.extractfile(name).read() for name in tar.getnames())
    assert b'"completions"' in everything
    for secret in ("heron", "app-key", "admin-key", hashlib.sha256(b"app-key").hexdigest(), hashlib.sha256(b"admin-key").hexdigest()):
        assert secret.encode() not in everything, secret
    page.fill("#key", "")


def test_a_pinned_rung_lights_up(appliance, open_page):
    page = open_page(appliance.url, viewport=SIZES["phone"])
    wait_for(page, "document.getElementById('live').textContent === 'live'")
    assert page.locator("#load .lit").count() == 0
    page.select_option("#rung", "logprobs")
    page.click("text=Pin on")
    wait_for(page, "document.querySelector('#load .lit b')?.textContent === 'logprobs'")
    wait_for(page, "document.getElementById('state').innerText.includes('degraded: quality is reduced: logprobs')")
    assert appliance.get("/ready")[0] == 200 and overflow(page) <= 0
    page.click("text=Clear pin")
    wait_for(page, "document.querySelectorAll('#load .lit').length === 0")
    page.select_option("#rung", "weights-4bit")
    page.click("text=Pin on")
    wait_for(page, "document.getElementById('answer').textContent.includes('there is no lean weight set')")


FETCHES = """async (url) => {
  const simple = {method: 'POST', headers: {'Content-Type': 'text/plain'}, body: JSON.stringify({prompt: 'Once', max_tokens: 1})};
  const outcome = {};
  for (const [name, path, options] of [
      ['simple', '/v1/completions', simple], ['blind', '/v1/completions', {...simple, mode: 'no-cors'}],
      ['json', '/v1/completions', {...simple, headers: {'Content-Type': 'application/json'}}],
      ['models', '/v1/models', {}], ['log', '/v1/requests', {}], ['drain', '/admin/drain', {method: 'POST', mode: 'no-cors'}]]) {
    try { const r = await fetch(url + path, options); outcome[name] = r.type + ' ' + (await r.text()).length; } catch (e) { outcome[name] = 'refused'; }
  }
  return outcome;
}"""


def test_a_page_of_another_origin_gets_and_does_nothing(start, browser, tmp_path):
    import http.server
    import threading
    (tmp_path / "index.html").write_text("<!doctype html><title>x</title>")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), lambda *a: http.server.SimpleHTTPRequestHandler(*a, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page = browser.new_context().new_page()
    page.goto(f"http://localhost:{server.server_address[1]}/")
    a = start(settings=["log.flush_ms=50"])
    outcome = page.evaluate(FETCHES, a.url)
    # A blind call is sent, and its answer hidden from the page; the appliance refuses it all the same.
    assert outcome == {"simple": "refused", "blind": "opaque 0", "json": "refused", "models": "refused", "log": "refused", "drain": "opaque 0"}
    assert a.get("/ready")[0] == 200
    assert {r["http_status"] for r in a.wait_for_rows(1)} == {403} and a.metrics()["llm_generation_tokens_total"] == 0
    # The owner lets this origin in; by another name of the box it still gets nothing (a name that was bound anew).
    b = start(settings=[f"server.cors_origin=http://localhost:{server.server_address[1]}"])
    outcome = page.evaluate(FETCHES, b.url)
    assert outcome["models"].startswith("cors ") and outcome["json"].startswith("cors ")
    rebound = browser.browser_type.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--host-resolver-rules=MAP evil.example 127.0.0.1"])
    page = rebound.new_page()
    answer = page.goto(b.url.replace("127.0.0.1", "evil.example") + "/v1/models")
    assert answer.status == 403 and "host_not_allowed" in answer.text()
    rebound.close()
    server.shutdown()
