// tandem log: what was asked of the appliance, newest first.
#include <cstdio>

#include "base/clock.h"
#include "ctl/log_rows.h"
#include "ctl/log_source.h"
#include "ctl/verbs.h"

namespace tandem::ctl {

namespace {

Status print_rows(const LogOptions& options) {
  ipc::RecordQuery query;
  query.status = options.status;
  query.client = options.client;
  query.limit = options.limit;
  if (!options.since.empty()) {
    CHECK_ASSIGN(query.since_us, parse_since(options.since, utc_us()));
  }
  CHECK_ASSIGN(const auto rows, options.database.empty()
                                    ? rows_from_server(options.server, query)
                                    : rows_from_database(options.database, query));
  if (options.json) return std::puts(rows_to_json(rows).c_str()), Status();
  if (rows.empty()) return std::fputs("no request matches\n", stderr), Status();
  std::fputs(format_table(rows).c_str(), stdout);
  return {};
}

}  // namespace

int verb_log(const LogOptions& options) {
  const Status status = print_rows(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "tandem log: %s\n", status.message().c_str());
  return 1;
}

}  // namespace tandem::ctl
