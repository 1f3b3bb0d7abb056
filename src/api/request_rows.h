// Rows of the request log as JSON. Pure.
#pragma once

#include <string>
#include <vector>

#include "ipc/request_record.h"

namespace tandem::api {

// {"object":"list","data":[…]}; texts only where a row has them.
std::string request_rows_json(const std::vector<ipc::RequestRecord>& rows);

}  // namespace tandem::api
