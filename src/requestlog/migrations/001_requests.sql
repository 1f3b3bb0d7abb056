-- One row a finished request. `n` grows in the order of writing, whatever the clock does: retention goes by it.
-- No index: the file is bounded, queries walk back from the newest row, and every index would cost flash writes.
CREATE TABLE requests (
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL,
  received_us INTEGER NOT NULL,          -- UTC, microseconds since 1970
  finished_us INTEGER NOT NULL,
  client TEXT NOT NULL,                  -- name of the API key
  endpoint TEXT NOT NULL,
  model TEXT NOT NULL,
  priority TEXT NOT NULL,
  prompt_tokens INTEGER NOT NULL,
  completion_tokens INTEGER NOT NULL,
  cached_tokens INTEGER NOT NULL,
  queue_ms REAL NOT NULL,
  prefill_ms REAL NOT NULL,
  decode_ms REAL NOT NULL,
  total_ms REAL NOT NULL,
  ttft_ms REAL NOT NULL,
  status TEXT NOT NULL,                  -- stop length deadline aborted failed cancelled rejected
  finish_reason TEXT NOT NULL,
  http_status INTEGER NOT NULL,
  degradation TEXT NOT NULL,
  weights TEXT NOT NULL,
  seed TEXT NOT NULL,                    -- unsigned 64 bit, decimal
  worker_generation INTEGER NOT NULL,
  n_dispatches INTEGER NOT NULL,
  error TEXT NOT NULL,
  prompt_text TEXT NOT NULL,             -- empty unless log.text = true
  completion_text TEXT NOT NULL
) STRICT;
