// Elementwise operators on float32 tensors of one shape, strip by strip on one core: only what is
// named as a result goes to memory. Numbers are those of one operator after another.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "lanes.h"
#include "products.h"

namespace {

using at::IntArrayRef;
using at::Tensor;
using at::TensorList;

constexpr int64_t STRIP = 512;  // numbers of a strip: some strips fit in the first-level cache

enum : int64_t { ADD, SUB, MUL, DIV, COPY, ABS };  // as in graph/pointwise.py

// Loads before it stores: `to` may be an operand.
template <class Fn>
INLINED void each(float* to, const float* a, int64_t num, Fn fn) {
  using V = Lanes<WIDTH>;
  int64_t i = 0;
  UNROLLED for (; i + WIDTH <= num; i += WIDTH) V::store(to + i, fn(V::load(a + i), i));
  for (; i < num; ++i) to[i] = fn(a[i], i);
}

// The second operand is a number, or as many as there are.
template <class Fn>
INLINED void pairs(float* to, const float* a, const float* b, bool is_number, int64_t num, Fn fn) {
  using V = Lanes<WIDTH>;
  if (is_number)
    return each(to, a, num, [fn, number = *b](auto x, int64_t) { return fn(x, number); });
  each(to, a, num, [fn, b](auto x, int64_t i) {
    if constexpr (sizeof x == sizeof(float)) return fn(x, b[i]);
    else return fn(x, V::load(b + i));
  });
}

void calculate(int64_t op, float* to, const float* a, const float* b, bool is_number,
               int64_t num) {
  switch (op) {
    case ADD: return pairs(to, a, b, is_number, num, [](auto x, auto y) { return x + y; });
    case SUB: return pairs(to, a, b, is_number, num, [](auto x, auto y) { return x - y; });
    case MUL: return pairs(to, a, b, is_number, num, [](auto x, auto y) { return x * y; });
    case DIV: return pairs(to, a, b, is_number, num, [](auto x, auto y) { return x / y; });
    case COPY: return each(to, a, num, [](auto x, int64_t) { return x; });
    case ABS: return each(to, a, num, [](auto x, int64_t) { return x < 0.0f ? -x : x + 0.0f; });
  }
  TORCH_CHECK(false, "flfast::pointwise: no operator ", op);
}

// Products g^T x of a tile of UPDATED rows at a time; factors are g and x of each.
struct Products {
  std::vector<Tensor> factors;
  int64_t S = 1, N = 0, K = 0;

  explicit Products(TensorList given) {
    for (const Tensor& factor : given) factors.push_back(factor.contiguous());
    if (factors.empty()) return;
    K = factors[1].size(-1), N = factors[0].size(-1);
    S = factors[0].dim() == 3 ? factors[0].size(0) : 1;
    for (size_t i = 0; i < factors.size(); i += 2) {
      const Tensor &g = factors[i], &x = factors[i + 1];
      TORCH_CHECK(g.scalar_type() == at::kFloat && x.scalar_type() == at::kFloat &&
                      g.size(-1) == N && x.size(-1) == K && g.size(-2) == x.size(-2) &&
                      g.numel() == S * g.size(-2) * N && x.numel() == S * g.size(-2) * K,
                  "flfast::pointwise: factors of one shape");
    }
  }
  std::vector<int64_t> sizes() const {
    auto found = factors[1].sizes().vec();
    found[found.size() - 2] = N;
    return found;
  }
  // Rows n to n + num of client s's products, each where `out` says.
  void tile(float* const* out, int64_t s, int64_t n, int64_t num) const {
    for (size_t i = 0; i < factors.size(); i += 2) {
      const int64_t M = factors[i].size(-2);
      const float* g = factors[i].const_data_ptr<float>() + s * M * N + n;
      std::vector<float> part(M * UPDATED);
      for (int64_t r = 0; r < M; ++r) std::copy_n(g + r * N, num, &part[r * UPDATED]);
      update_tile<false>(out[i / 2], part.data(),
                         factors[i + 1].const_data_ptr<float>() + s * M * K, 0, num, M, K, 0.0f,
                         Pull{nullptr, 0.0f});
    }
  }
};

// Registers, in this order: results, `written`, `reads`, products, scratch, `scalars`, `numbers`.
// The first results are those of the first products. The code has four numbers for each operator:
// which one, and registers of its result and of its operands.
std::vector<Tensor> pointwise(TensorList reads, TensorList written, TensorList factors,
                              TensorList scalars, at::ArrayRef<double> numbers, IntArrayRef code,
                              int64_t num_results, int64_t num_kept, int64_t num_scratch) {
  const Products products(factors);
  const int64_t num_products = factors.size() / 2;
  Tensor like = !written.empty() ? written[0]
                : !reads.empty() ? reads[0]
                                 : at::empty(products.sizes(), factors[0].options());
  std::vector<Tensor> tensors;
  for (int64_t i = 0; i < num_results; ++i) tensors.push_back(at::empty_like(like));
  const std::vector<Tensor> results = tensors;
  for (const Tensor& tensor : written) tensors.push_back(tensor);
  for (const Tensor& tensor : reads)  // a copy of those in another layout
    tensors.push_back(tensor.strides() == like.strides() ? tensor
                                                         : at::empty_like(like).copy_(tensor));
  for (const Tensor& tensor : tensors)
    TORCH_CHECK(tensor.sizes() == like.sizes() && tensor.strides() == like.strides() &&
                    tensor.is_non_overlapping_and_dense() && tensor.scalar_type() == at::kFloat &&
                    (!num_products || (tensor.is_contiguous() &&
                                       tensor.sizes() == IntArrayRef(products.sizes()))),
                "flfast::pointwise: dense float32 of one shape and layout");

  const int64_t tile = UPDATED * products.K, whole = tensors.size(),
                moving = whole + num_products, fixed = moving + num_scratch;
  const std::unique_ptr<float[]> memory(new float[num_scratch * STRIP + num_products * tile]);
  std::vector<float> constants;
  for (const Tensor& scalar : scalars)
    constants.push_back(static_cast<float>(scalar.item<double>()));
  for (const double number : numbers) constants.push_back(static_cast<float>(number));
  std::vector<float*> at;
  for (const Tensor& tensor : tensors)
    at.push_back(const_cast<float*>(tensor.const_data_ptr<float>()));
  for (int64_t i = 0; i < num_products; ++i)
    at.push_back(memory.get() + num_scratch * STRIP + i * tile);
  for (int64_t i = 0; i < num_scratch; ++i) at.push_back(memory.get() + i * STRIP);
  for (float& constant : constants) at.push_back(&constant);

  const auto run = [&](int64_t start, int64_t stop) {
    for (int64_t i = start; i < stop; i += STRIP) {
      const auto place = [&](int64_t r) {
        return at[r] + (r < whole ? i : r < moving ? i - start : 0);
      };
      for (size_t c = 0; c < code.size(); c += 4)
        calculate(code[c], place(code[c + 1]), place(code[c + 2]), place(code[c + 3]),
                  code[c + 3] >= fixed, std::min(STRIP, stop - i));
    }
  };
  if (!num_products) run(0, like.numel());
  for (int64_t row = 0; num_products && row < products.S * products.N;) {
    const int64_t n = row % products.N, num = std::min<int64_t>(UPDATED, products.N - n);
    for (int64_t i = 0; i < num_kept; ++i) at[whole + i] = at[i] + row * products.K;
    products.tile(&at[whole], row / products.N, n, num);
    run(row * products.K, (row + num) * products.K);
    row += num;
  }
  return results;
}

}  // namespace
