// RequestRecord <-> row of table `requests`: one list of columns for writing and for reading.
#pragma once

#include <string>

#include "ipc/request_record.h"
#include "requestlog/database.h"

namespace tandem {

std::string insert_sql();
std::string select_sql();  // without WHERE
void bind_record(const ipc::RequestRecord& record, Statement* statement);
ipc::RequestRecord read_record(const Statement& statement);

// Cuts texts that are too long, with a mark that tells how long they were. Cheap: looks at no byte.
// max_text_bytes: for prompt and completion each.
void cut_record(size_t max_text_bytes, ipc::RequestRecord* record);
// Invalid UTF-8 and NUL become U+FFFD.
void clean_record(ipc::RequestRecord* record);
// Bytes that the row takes, roughly.
size_t record_bytes(const ipc::RequestRecord& record);

}  // namespace tandem
