// usage: gpu_prediction: what gpu_bench says where there is no card.
#include "tests/bench/gpu/shapes.h"

int main() { tandem::bench::print_prediction(); }
