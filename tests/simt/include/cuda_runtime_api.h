// The C half of the API; here one with the other.
#pragma once

#include "cuda_runtime.h"
