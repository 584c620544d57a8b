// Distances of weights: float32, one core, nothing of their size in memory.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>

#include "lanes.h"

namespace {

using at::Tensor;

constexpr int64_t BLOCK = 4096;  // of float32 sums, which are added up in float64

// Sum of the squares of left - right, shape [].
Tensor squared_distance(const Tensor& left, const Tensor& right) {
  TORCH_CHECK(left.is_contiguous() && right.is_contiguous() && left.sizes() == right.sizes() &&
                  left.scalar_type() == at::kFloat && right.scalar_type() == at::kFloat,
              "flfast::squared_distance: contiguous float32 of one shape");
  using V = Lanes<16>;
  const int64_t num = left.numel();
  const float* a = left.const_data_ptr<float>();
  const float* b = right.const_data_ptr<float>();
  double total = 0.0;
  for (int64_t start = 0; start < num; start += BLOCK) {
    const int64_t stop = std::min(start + BLOCK, num);
    typename V::Vector sums[2] = {};
    int64_t i = start;
    for (; i + 32 <= stop; i += 32)
      UNROLLED for (int j = 0; j < 2; ++j) {
        const auto way = V::load(a + i + 16 * j) - V::load(b + i + 16 * j);
        sums[j] += way * way;
      }
    float rest = 0.0f;
    for (; i < stop; ++i) rest += (a[i] - b[i]) * (a[i] - b[i]);
    total += V::sum(sums[0] + sums[1]) + rest;
  }
  Tensor found = at::empty({}, left.options());
  *found.mutable_data_ptr<float>() = static_cast<float>(total);
  return found;
}

}  // namespace
