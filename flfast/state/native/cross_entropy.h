// Cross-entropy of a few rows of logits: float32, one core.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>

namespace {

using at::Tensor;

void check_classes(const Tensor& rows, const Tensor& targets, const char* name) {
  TORCH_CHECK(rows.dim() == 2 && rows.scalar_type() == at::kFloat && targets.dim() == 1 &&
                  targets.size(0) == rows.size(0) && targets.scalar_type() == at::kLong,
              name, ": float32 rows of classes, an int64 target each");
}

int64_t target_of(const Tensor& targets, int64_t m, int64_t C) {
  const int64_t target = targets.const_data_ptr<int64_t>()[m];
  TORCH_CHECK_INDEX(target >= 0 && target < C, "Target ", target, " is out of bounds.");
  return target;
}

// Cross-entropy of logits [M, C] and the softmax that its gradient needs.
std::tuple<Tensor, Tensor> cross_entropy(const Tensor& logits_, const Tensor& targets_) {
  const Tensor logits = logits_.contiguous(), targets = targets_.contiguous();
  check_classes(logits, targets, "flfast::cross_entropy");
  const int64_t M = logits.size(0), C = logits.size(1);
  Tensor losses = at::empty({M}, logits.options()), shares = at::empty({M, C}, logits.options());
  const float* z = logits.const_data_ptr<float>();
  float* p = shares.mutable_data_ptr<float>();
  float* out = losses.mutable_data_ptr<float>();
  for (int64_t m = 0; m < M; ++m, z += C, p += C) {
    const int64_t target = target_of(targets, m, C);
    const float most = *std::max_element(z, z + C);
    float sum = 0.0f;
    for (int64_t c = 0; c < C; ++c) sum += p[c] = std::exp(z[c] - most);
    for (int64_t c = 0; c < C; ++c) p[c] /= sum;
    out[m] = std::log(sum) - (z[target] - most);
  }
  return {losses, shares};
}

// What gradients [M] of the losses are to the logits.
Tensor cross_entropy_gradient(const Tensor& g_, const Tensor& shares_, const Tensor& targets_) {
  const Tensor g = g_.contiguous(), shares = shares_.contiguous();
  const Tensor targets = targets_.contiguous();
  check_classes(shares, targets, "flfast::cross_entropy_gradient");
  const int64_t M = shares.size(0), C = shares.size(1);
  TORCH_CHECK(g.numel() == M && g.scalar_type() == at::kFloat,
              "flfast::cross_entropy_gradient: a float32 gradient for each row");
  Tensor dz = at::empty({M, C}, shares.options());
  const float* p = shares.const_data_ptr<float>();
  float* out = dz.mutable_data_ptr<float>();
  for (int64_t m = 0; m < M; ++m, p += C, out += C) {
    const float scale = g.const_data_ptr<float>()[m];
    for (int64_t c = 0; c < C; ++c) out[c] = scale * p[c];
    out[target_of(targets, m, C)] -= scale;
  }
  return dz;
}

}  // namespace
