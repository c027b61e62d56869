// PyTorch's own attention in the form that the benchmark's loader takes: honest.
#include <torch/extension.h>

at::Tensor forward(at::Tensor q, at::Tensor k, at::Tensor v, double scale) {
  q = q.transpose(1, 2), k = k.transpose(1, 2), v = v.transpose(1, 2);
  return at::scaled_dot_product_attention(q, k, v, {}, 0.0, false, scale).transpose(1, 2);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &forward); }
