#include "tests/bench/onednn_matmul.h"

#include <omp.h>

#include <dnnl.hpp>
#include <unordered_map>

namespace tandem {

using dnnl::memory;

struct OneDnnMatmul::Impl {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul primitive;
  std::unordered_map<int, memory> arguments;
};

OneDnnMatmul::OneDnnMatmul(int64_t M, int64_t N, int64_t K, const float* x, const float* w,
                           bool as_bf16)
    : impl_(std::make_unique<Impl>()), y_(static_cast<size_t>(M * N)) {
  omp_set_num_threads(1);  // of the calling thread
  using Type = memory::data_type;
  const Type type = as_bf16 ? Type::bf16 : Type::f32;
  const memory::desc plain_x({M, K}, Type::f32, memory::format_tag::ab);
  const memory::desc plain_w({K, N}, Type::f32, memory::format_tag::ba);  // [N][K] in memory
  const memory::desc y({M, N}, Type::f32, memory::format_tag::ab);
  const dnnl::matmul::desc wanted({{M, K}, type, memory::format_tag::ab},
                                  {{K, N}, type, memory::format_tag::any}, y);
  const dnnl::matmul::primitive_desc chosen(wanted, impl_->engine);
  impl_->primitive = dnnl::matmul(chosen);
  const auto store = [&](const memory::desc& from, const float* data, const memory::desc& to) {
    memory source(from, impl_->engine, const_cast<float*>(data)), stored(to, impl_->engine);
    dnnl::reorder(source, stored).execute(impl_->stream, source, stored);
    impl_->stream.wait();
    return stored;
  };
  impl_->arguments = {{DNNL_ARG_SRC, store(plain_x, x, chosen.src_desc())},
                      {DNNL_ARG_WEIGHTS, store(plain_w, w, chosen.weights_desc())},
                      {DNNL_ARG_DST, memory(y, impl_->engine, y_.data())}};
}

OneDnnMatmul::~OneDnnMatmul() = default;

void OneDnnMatmul::run() {
  impl_->primitive.execute(impl_->stream, impl_->arguments);
  impl_->stream.wait();
}

}  // namespace tandem
