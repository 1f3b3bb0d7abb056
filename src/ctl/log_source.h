// Where `tandem log` gets its rows: a server's /v1/requests, or the database file.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "ctl/verbs.h"
#include "ipc/request_record.h"

namespace tandem::ctl {

Result<std::vector<ipc::RequestRecord>> rows_from_server(const ServerOptions& server,
                                                         const ipc::RecordQuery& query);
// Opens the file read-only; a server may be writing to it.
Result<std::vector<ipc::RequestRecord>> rows_from_database(const std::string& path,
                                                           const ipc::RecordQuery& query);
// Parses the body of /v1/requests.
Result<std::vector<ipc::RequestRecord>> rows_from_json(const std::string& body);
// One JSON document: {"data": [...]} with the field names of /v1/requests.
std::string rows_to_json(const std::vector<ipc::RequestRecord>& rows);

}  // namespace tandem::ctl
