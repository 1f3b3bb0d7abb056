// The status page as HTML and as a stream of its sections; /admin/*.
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "api/status_page.h"
#include "server_fixture.h"
#include "temp_file.h"

namespace tandem::api {
namespace {

constexpr const char* kStatus = R"({"version":"1.2","uptime_seconds":4000,
 "readiness":{"state":"degraded","cause":"<b>hot</b> & slow","remedy":"cool \"it\""},
 "model":{"name":"m","architecture":"llama","quantization":"Q4_1","layers":32,"context_tokens":8192,"weight_bytes":98000000,"weight_sets":{"full_bytes":98000000,"lean_bytes":52000000,"full_step_ms":20,"lean_step_ms":12.5,"full_perplexity":14.25,"lean_perplexity":15.5,"no_lean_reason":""},"sha256":"ab12"},
 "workers":[{"role":"both","state":"ready","batch":3,"restarts":2,"rss_bytes":250000000,"device":"cpu","isa":"avx2","device_layers":0,"last_end":"crash: x"},
            {"role":"decode","state":"ready","device":"gpu","isa":"sm_89 avx2","device_layers":20}],
 "queue":{"running":3,"limit":256,"waiting":{"high":1,"normal":2,"low":4}},
 "kv":{"pages_used":90,"pages_free":10,"pages_shared":30,"pool_bytes":47000000,"pool_tokens":1600,"bytes_per_token":46080,"preemptions":5},
 "recent":[{"finished":"2026-11-29T12:34:56.1Z","status":"rejected","error_code":"queue_full","prompt_tokens":12,"completion_tokens":0,
            "ttft_ms":0,"total_ms":1.5,"endpoint":"chat","priority":"low","degradation":"","id":"req_1"}],
 "faults":[{"at":"2026-11-29T12:00:00.0Z","what":"worker ended: <crash>","action":"restarted","count":3}],
 "history":{"span_seconds":900,"age_seconds":[20,15,10,5],"ttft_seconds":[0.5,null,0.25,null],
            "inter_token_seconds":[null,null,null,null],"tokens_per_second":[0,0,120.5,80]},
 "sensors":{"temperature_celsius":{"state":"ok","value":78,"note":"zone0"},"trip_celsius":{"state":"ok","value":85,"note":"zone0"},
            "clock_hertz":{"state":"absent","value":null,"note":""},"memory_pressure_ratio":{"state":"broken","value":null,"note":"PSI reads x"},
            "memory_available_bytes":{"state":"late","value":1000000000,"note":""},
            "disk_free_bytes":{"state":"ok","value":500000000,"note":""},"disk_total_bytes":{"state":"ok","value":64000000000,"note":""}},
 "load":{"queue":{"value":0.25,"note":""},"heat":{"value":null,"note":"absent"}},
 "ladder":[{"rung":"logprobs","causes":"queue compute","enter":0.7,"is_active":true,"pinned":"on","skipped":""},
           {"rung":"weights-4bit","causes":"heat","enter":0.7,"is_active":false,"pinned":"","skipped":"no <lean> set"}],
 "box":{"cpu":"Some CPU","cores":4},
 "request_log":{"rows_written":10,"rows_dropped":1,"file_bytes":20480,"budget_bytes":268435456,"bytes_written":40960,"problem":""}})";

std::string section(const PageSections& sections, const std::string& name) {
  for (const auto& [key, html] : sections)
    if (key == name) return html;
  FAIL("no section " << name);
  return "";
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }


}  // namespace

TEST_CASE("status page: each section says what the status says, escaped") {
  PageSections s = render_sections(json(kStatus));
  CHECK(section(s, "title") == "degraded");
  CHECK(has(section(s, "state"), "&lt;b&gt;hot&lt;/b&gt; &amp; slow"));
  CHECK(has(section(s, "state"), "What helps: cool &quot;it&quot;"));
  CHECK(has(section(s, "kv"), "90 of 100 pages used, 30 of them shared"));
  CHECK(has(section(s, "kv"), "class=\"warn\">90.0 %"));
  CHECK(has(section(s, "queue"), "<dt>Waiting, low</dt><dd>4</dd>"));
  CHECK(has(section(s, "queue"), "7 of 256 taken"));
  CHECK(has(section(s, "load"), "<dt>queue</dt><dd><svg class=\"bar\""));
  CHECK(has(section(s, "load"), "aria-label=\"25 %\""));
  CHECK(has(section(s, "load"), "not known: absent"));
  CHECK(has(section(s, "load"), "<li class=\"lit\">▲ active: <b>logprobs</b>"));
  CHECK(has(section(s, "load"), "at 0.70 of queue or compute, pinned on"));
  CHECK(has(section(s, "load"), "<li>off: <b>weights-4bit</b> <span class=\"soft\">skipped: no &lt;lean&gt; set"));
  CHECK(has(section(s, "workers"), "<td class=\"n\">250 MB</td>"));
  CHECK(has(section(s, "workers"), "Last end: crash: x"));
  CHECK(has(section(s, "workers"), "<td>cpu avx2</td>"));
  CHECK(has(section(s, "workers"), "<td>gpu sm_89 avx2, 20 of 32 layers on the device</td>"));
  CHECK(has(section(s, "about"), "<dt>8-bit set</dt><dd>98.0 MB, 50.0 tokens/s alone, perplexity 14.2 on a built-in text"));
  CHECK(has(section(s, "about"), "<dt>4-bit set</dt><dd>52.0 MB, 80.0 tokens/s alone, perplexity 15.5 on a built-in text"));
  std::string with_file = kStatus;
  with_file.insert(with_file.find(R"("no_lean_reason")"), R"("lean_file":"/m/<q4>.gguf",)");
  const std::string about = section(render_sections(json(with_file)), "about");
  CHECK(has(about, "<dt>Full set</dt><dd>98.0 MB, 50.0 tokens/s alone, perplexity 14.2"));
  CHECK(has(about, "<dt>Lean set</dt><dd>52.0 MB, 80.0 tokens/s alone, perplexity 15.5 on a built-in text (/m/&lt;q4&gt;.gguf)"));
  CHECK(has(section(s, "machine"), "class=\"warn\">78 °C</span>, throttles at 85 °C"));
  CHECK(has(section(s, "machine"), "<dt>Clock</dt><dd>no sensor</dd>"));
  CHECK(has(section(s, "machine"), "broken sensor</span>: PSI reads x"));
  CHECK(has(section(s, "machine"), "(late)"));
  CHECK(has(section(s, "recent"), ">12:34:56</time>"));
  CHECK(has(section(s, "recent"), "rejected (queue_full)"));
  CHECK(has(section(s, "faults"), "worker ended: &lt;crash&gt; (3 times). <span class=\"soft\">Done: restarted."));
  CHECK(has(section(s, "disk"), "class=\"warn\">500 MB</span> of 64.0 GB"));
  CHECK(has(section(s, "disk"), "class=\"bad\">1 dropped"));
  CHECK(has(section(s, "about"), "1.2, up 66 min"));
  CHECK(has(section(s, "about"), "ab12"));
  CHECK(has(section(s, "plots"), "Time to first token: <b>latest 0.25 s, highest 0.5 s</b>"));
  CHECK(has(section(s, "plots"), "Between tokens: <b>nothing measured yet</b>"));
  CHECK(has(section(s, "plots"), "latest 80/s, highest 120/s"));
  // Two measured points with a gap between them: two lines, nothing drawn across the gap.
  std::string ttft = section(s, "plots").substr(0, section(s, "plots").find("Between tokens"));
  CHECK(std::count(ttft.begin(), ttft.end(), 'y') >= 2);
  CHECK(ttft.find("<polyline") != ttft.rfind("<polyline"));
}

TEST_CASE("status page: what is not known is said to be so, never zero") {
  for (const char* status : {"{}", R"({"workers":7,"kv":{"pages_used":"x"},"history":{"age_seconds":[1]}})"}) {
    PageSections s = render_sections(json(status));
    CHECK(has(section(s, "disk"), "not known"));
    CHECK(has(section(s, "kv"), "No worker holds a pool now"));
    CHECK(has(section(s, "recent"), "None yet"));
    CHECK(has(section(s, "machine"), "no sensor"));
    CHECK(!has(section(s, "machine"), "0 °C"));
  }
}

TEST_CASE("status page: one file without outside assets, under a strict policy") {
  ServerFixture f;
  f.service.status = kStatus;
  int port = f.start();
  RawReply page = fetch(port, get("/status"));
  REQUIRE(page.status == 200);
  CHECK(page.headers["content-type"] == "text/html; charset=utf-8");
  std::string policy = page.headers["content-security-policy"];
  CHECK(has(policy, "default-src 'none'"));
  CHECK(!has(policy, "unsafe"));
  std::string nonce = policy.substr(policy.find("nonce-") + 6, 28);
  CHECK(has(page.body, "<script nonce=\"" + nonce + "\">"));
  CHECK(!has(page.body, "{{"));
  for (const char* outside : {"http:", "https:", "<link", "@import", "url(", "src=", " style=", "onclick"}) {
    INFO(outside);
    CHECK(!has(page.body, outside));
  }
  CHECK(has(page.body, "<noscript><meta http-equiv=\"refresh\""));
  CHECK(has(page.body, "&lt;b&gt;hot"));
  CHECK(page.body.size() < 64 * 1024);
  RawReply again = fetch(port, get("/status"));
  CHECK(again.headers["content-security-policy"] != policy);  // a fresh nonce each time
}

TEST_CASE("status page: the event stream sends all sections, then only those that changed") {
  ServerFixture f;
  f.service.status = kStatus;
  int port = f.start();
  RawClient viewer(port);
  REQUIRE(viewer.send(get("/status/events")));
  std::string first = viewer.read_until("\n\n");
  std::vector<std::string> events = sse_events(first.substr(first.find("data: ")));
  REQUIRE(events.size() == 1);
  JsonValue all = json(events[0]);
  for (const auto& [name, html] : render_sections(json(kStatus))) CHECK(str(all, name.c_str()) == html);
  std::string changed = kStatus;
  changed.replace(changed.find("\"running\":3"), 11, "\"running\":4");
  f.service.set_status(changed);
  viewer.read_until("<dt>Running</dt><dd>4</dd>");
  std::string second = viewer.read_until("the rest", 300);  // all that came; the last event counts
  events = sse_events(second.substr(second.rfind("data: ")));
  REQUIRE(events.size() == 1);
  JsonValue part = json(events[0]);
  CHECK(part.as_object()->size() == 1);
  CHECK(has(str(part, "queue"), "<dt>Running</dt><dd>4</dd>"));
}

TEST_CASE("status page: viewers are bounded, and one that leaves or never reads frees its place") {
  ServerFixture f;
  f.service.status = kStatus;
  int port = f.start();
  std::vector<std::unique_ptr<RawClient>> viewers;
  for (int i = 0; i < 8; ++i) {
    viewers.push_back(std::make_unique<RawClient>(port));
    REQUIRE(viewers.back()->send(get("/status/events")));
    REQUIRE(has(viewers.back()->read_until("\n\n"), "data: "));
  }
  RawReply ninth = fetch(port, get("/status/events"));
  CHECK(ninth.status == 503);
  CHECK(ninth.headers.count("retry-after") == 1);
  CHECK(fetch(port, get("/status")).status == 200);  // the page itself is always there
  viewers.pop_back();
  bool is_free = false;
  for (int i = 0; i < 100 && !is_free; ++i) {
    usleep(20'000);
    RawClient again(port);
    again.send(get("/status/events"));
    is_free = has(again.read_until("\n\n", 2000), "200 OK");
  }
  CHECK(is_free);
  f.server->stop();  // ends the streams that are open
  CHECK(viewers[0]->is_closed(3000));
}

TEST_CASE("status page: by its own setting it wants a key, which a browser gives as a password") {
  TempFile users("alice:" + sha256_of_text("alice-key") + "\n"), admin(sha256_of_text("admin-key") + "\n");
  ServerFixture f;
  f.config.auth_user_keys_file = users.path;
  f.config.auth_admin_key_file = admin.path;
  f.config.server_status_need_key = GENERATE(false, true);
  int open = f.config.server_status_need_key ? 401 : 200;
  int port = f.start();
  RawReply refused = fetch(port, get("/status"));
  CHECK(refused.status == open);
  if (open == 401) CHECK(has(refused.headers["www-authenticate"], "Basic realm="));
  auto basic = [](const char* code) { return "Authorization: Basic " + std::string(code) + "\r\n"; };
  CHECK(fetch(port, get("/status", basic("eDphZG1pbi1rZXk="))).status == 200);           // x:admin-key
  CHECK(fetch(port, get("/status", "Authorization: Bearer alice-key\r\n")).status == 200);
  for (const char* wrong : {"eDphZG1pbi1rZXg=", "YWRtaW4ta2V5", "", "====", "!!!!", "eDo="})
    CHECK(fetch(port, get("/status", basic(wrong))).status == open);
  // Nowhere else: a browser sends it by itself, also when a foreign page asks.
  CHECK(fetch(port, get("/status.json", basic("eDphZG1pbi1rZXk="))).status == 401);
  CHECK(fetch(port, post("/admin/drain", "{}", basic("eDphZG1pbi1rZXk="))).status == 401);
  CHECK(fetch(port, get("/status", "Origin: https://evil.example\r\n")).status == 403);
}

TEST_CASE("admin: only the admin key, each action once, errors as they are") {
  TempFile users("alice:" + sha256_of_text("alice-key") + "\n"), admin(sha256_of_text("admin-key") + "\n");
  ServerFixture f;
  f.config.auth_user_keys_file = users.path;
  f.config.auth_admin_key_file = admin.path;
  int port = f.start();
  const std::string key = "Authorization: Bearer admin-key\r\n";
  struct Row {
    const char* path;
    AdminCommand::Action action;
  };
  using Action = AdminCommand::Action;
  for (const Row& row : {Row{"/admin/drain", Action::kDrain}, Row{"/admin/undrain", Action::kUndrain},
                         Row{"/admin/reload", Action::kReload}, Row{"/admin/restart-worker", Action::kRestartWorker}}) {
    INFO(row.path);
    f.service.commands.clear();
    CHECK(fetch(port, post(row.path, "{}")).status == 401);
    CHECK(fetch(port, post(row.path, "{}", "Authorization: Bearer alice-key\r\n")).status == 403);
    CHECK(fetch(port, post(row.path, "{}", key + "Origin: https://evil.example\r\n")).status == 403);
    CHECK(fetch(port, get(row.path, key)).status == 405);
    CHECK(fetch(port, post(row.path, R"({"now":true})", key)).status == 400);
    CHECK(fetch(port, post(row.path, "[]", key)).status == 400);
    CHECK(f.service.commands.empty());
    CHECK(str(json(fetch(port, post(row.path, "{}", key)).body), "done") == "done");
    CHECK(fetch(port, post(row.path, "", key)).status == 200);
    REQUIRE(f.service.commands.size() == 2);
    CHECK(f.service.commands[0].action == row.action);
  }
  CHECK(fetch(port, post("/admin/restart-worker", R"({"pid":77})", key)).status == 200);
  CHECK(f.service.commands.back().pid == 77);
  CHECK(fetch(port, post("/admin/restart-worker", R"({"pid":-1})", key)).status == 400);
  f.service.commands.clear();
  for (const char* bad : {"", "{}", R"({"rung":"shed"})", R"({"rung":"shed","pin":"maybe"})", R"({"pin":"on","rung":7})"})
    CHECK(fetch(port, post("/admin/degrade", bad, key)).status == 400);
  CHECK(f.service.commands.empty());
  CHECK(fetch(port, post("/admin/degrade", R"({"rung":"shed","pin":"on"})")).status == 401);
  for (const char* pin : {"on", "off", "clear"})
    CHECK(fetch(port, post("/admin/degrade", std::string(R"({"rung":"shed","pin":")") + pin + "\"}", key)).status == 200);
  REQUIRE(f.service.commands.size() == 3);
  CHECK(f.service.commands[0].rung == "shed");
  CHECK(f.service.commands[0].pin == std::optional(true));
  CHECK(f.service.commands[1].pin == std::optional(false));
  CHECK(!f.service.commands[2].pin);
  f.service.admin_error = api_error("admin_failed", "no worker runs");
  RawReply failed = fetch(port, post("/admin/restart-worker", "{}", key));
  CHECK(failed.status == 409);
  CHECK(str(json(failed.body), "error", "message") == "no worker runs");
  CHECK(fetch(port, post("/admin/nonsense", "{}", key)).status == 404);
  CHECK(fetch(port, get("/admin/config")).status == 401);
  CHECK(has(fetch(port, get("/admin/config", key)).body, "[server]"));
  CHECK(fetch(port, get("/admin/bundle")).status == 401);
  RawReply bundle = fetch(port, get("/admin/bundle", key));
  CHECK(bundle.status == 200);
  CHECK(bundle.body.substr(0, 2) == "\x1f\x8b");
  CHECK(f.service.rejected().empty());
}

}  // namespace tandem::api
