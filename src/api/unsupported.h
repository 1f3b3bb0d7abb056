// Parameters that clients know and this API does not serve: refused by name unless the value changes nothing.
#pragma once

#include "api/json_fields.h"

namespace tandem::api {

// Takes every known unsupported member of `fields`; fails with "unsupported_parameter" on the first whose
// value is not without effect. `n_choices`: best_of equal to it is.
void refuse_unsupported(JsonFields* fields, int n_choices);

}  // namespace tandem::api
