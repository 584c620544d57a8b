// Products of a few rows with a matrix of weights: float32, one core, weights read once a tile.
//
// Shapes, all contiguous, with the same leading dimensions S (clients of a stack) or none:
// x [S, M, K] inputs, w [S, N, K] weights, bias [S, N], y [S, M, N] outputs, g [S, M, N] gradients
// of outputs.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "lanes.h"

namespace {

using at::Tensor;

// Accumulators stay in registers: ROWS * COLUMNS of them in products, 2 * UPDATED in updates.
#if defined(__AVX512F__)
constexpr int ROWS = 5, COLUMNS = 4, UPDATED = 8;
#elif defined(__AVX2__)
constexpr int ROWS = 5, COLUMNS = 2, UPDATED = 4;
#else
constexpr int ROWS = 5, COLUMNS = 4, UPDATED = 8;
#endif

// sums[r][c] += x[r, k:] . w[c, k:]
template <int L, int R, int C>
inline void dot(const float* x, const float* w, int64_t k, int64_t K, float (&sums)[R][C]) {
  using V = Lanes<L>;
  if (k + L <= K) {
    typename V::Vector acc[R][C] = {};
    for (; k + L <= K; k += L) {
      typename V::Vector column[C];
      UNROLLED for (int c = 0; c < C; ++c) column[c] = V::load(w + c * K + k);
      UNROLLED for (int r = 0; r < R; ++r) {
        auto row = V::load(x + r * K + k);
        KEEP(row);
        UNROLLED for (int c = 0; c < C; ++c) acc[r][c] += row * column[c];
      }
    }
    UNROLLED for (int r = 0; r < R; ++r) {
      if constexpr (C == 4 && L >= 4)
        V::add_sums(acc[r], sums[r]);
      else
        UNROLLED for (int c = 0; c < C; ++c) sums[r][c] += V::sum(acc[r][c]);
    }
  }
  if constexpr (L > 1) dot<L / 2, R, C>(x, w, k, K, sums);
}

template <int R, int C>
inline void outputs(const float* x, const float* w, const float* bias, float* y, int64_t n,
                    int64_t K, int64_t N, bool relu) {
  float sums[R][C] = {};
  dot<WIDTH, R, C>(x, w + n * K, 0, K, sums);
  // Vectors have no branch: signs of outputs cannot be predicted. NaN stays.
  using V = Lanes<C>;
  const typename V::Vector least =
      typename V::Vector{} - (relu ? 0.0f : std::numeric_limits<float>::infinity());
  const typename V::Vector added = bias ? V::load(bias + n) : typename V::Vector{};
  for (int r = 0; r < R; ++r) {
    const typename V::Vector value = V::load(sums[r]) + added;
    V::store(y + r * N + n, value < least ? least : value);
  }
}

// dx[r, k:k + C * L] = g[r, :] w[:, k:k + C * L], where active
template <int L, int R, int C>
inline void gradients(const float* g, const float* w, const float* active, float* dx, int64_t k,
                      int64_t K, int64_t N) {
  using V = Lanes<L>;
  typename V::Vector acc[R][C] = {};
  for (int64_t n = 0; n < N; ++n) {
    typename V::Vector part[C];
    for (int c = 0; c < C; ++c) part[c] = V::load(w + n * K + k + c * L);
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c) acc[r][c] += part[c] * g[r * N + n];
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) {
      const int64_t at = r * K + k + c * L;
      if (active) {
        const auto value = V::load(active + at);
        acc[r][c] = value > 0.0f ? acc[r][c] : typename V::Vector{};
      }
      V::store(dx + at, acc[r][c]);
    }
}

template <int L, int R>
inline void gradient_rows(const float* g, const float* w, const float* active, float* dx,
                          int64_t k, int64_t K, int64_t N) {
  for (; k + COLUMNS * L <= K; k += COLUMNS * L)
    gradients<L, R, COLUMNS>(g, w, active, dx, k, K, N);
  for (; k + L <= K; k += L) gradients<L, R, 1>(g, w, active, dx, k, K, N);
  if constexpr (L > 1) gradient_rows<L / 2, R>(g, w, active, dx, k, K, N);
}

// What an update adds to weights beside the product: share * (anchor - w).
struct Pull {
  const float* anchor;  // null is no pull
  float share;

  Pull from(int64_t at) const { return {anchor ? anchor + at : nullptr, share}; }
};

// w[c, k:k + B * L] = beta * w + pull + sum over r of scaled[r][c] * x[r, ...]
// Keep `PULLED` a template parameter and inline the tile: a branch or a call in the inner loop costs
// 40 to 100 % (784 x 200: 34 µs, with a branch 69, with a call 48).
template <bool PULLED, int L, int C, int B>
INLINED void updates(float* w, const float* scaled, const float* x, int64_t k, int64_t M,
                     int64_t K, float beta, Pull pull) {
  using V = Lanes<L>;
  typename V::Vector acc[C][B];
  UNROLLED for (int c = 0; c < C; ++c)
    UNROLLED for (int b = 0; b < B; ++b) {
      acc[c][b] = V::load(w + c * K + k + b * L);
      if (beta == 0.0f) acc[c][b] = typename V::Vector{};  // whatever is there
      else if (beta != 1.0f) acc[c][b] *= beta;
    }
  for (int64_t r = 0; r < M; ++r) {
    typename V::Vector part[B];
    UNROLLED for (int b = 0; b < B; ++b) part[b] = V::load(x + r * K + k + b * L);
    UNROLLED for (int c = 0; c < C; ++c)
      UNROLLED for (int b = 0; b < B; ++b) acc[c][b] += part[b] * scaled[r * UPDATED + c];
  }
  if constexpr (PULLED)
    UNROLLED for (int c = 0; c < C; ++c)
      UNROLLED for (int b = 0; b < B; ++b) {
        const auto start = V::load(w + c * K + k + b * L);
        acc[c][b] += pull.share * (V::load(pull.anchor + c * K + k + b * L) - start);
      }
  UNROLLED for (int c = 0; c < C; ++c)
    UNROLLED for (int b = 0; b < B; ++b) V::store(w + c * K + k + b * L, acc[c][b]);
}

template <bool PULLED, int L, int C>
inline void update_rows(float* w, const float* scaled, const float* x, int64_t k, int64_t M,
                        int64_t K, float beta, Pull pull) {
  for (; k + 2 * L <= K; k += 2 * L) updates<PULLED, L, C, 2>(w, scaled, x, k, M, K, beta, pull);
  for (; k + L <= K; k += L) updates<PULLED, L, C, 1>(w, scaled, x, k, M, K, beta, pull);
  if constexpr (L > 1) update_rows<PULLED, L / 2, C>(w, scaled, x, k, M, K, beta, pull);
}

// Rows n to n + num of w, at most UPDATED.
template <bool PULLED>
inline void update_tile(float* w, const float* scaled, const float* x, int64_t n, int64_t num,
                        int64_t M, int64_t K, float beta, Pull pull) {
  if (num == UPDATED)
    update_rows<PULLED, WIDTH, UPDATED>(w + n * K, scaled, x, 0, M, K, beta, pull.from(n * K));
  else
    for (int64_t c = 0; c < num; ++c)
      update_rows<PULLED, WIDTH, 1>(w + (n + c) * K, scaled + c, x, 0, M, K, beta,
                                    pull.from((n + c) * K));
}

// Calls fn<R>(first row) over M rows in tiles of nearly equal size, at most ROWS each.
template <int R, class Fn>
inline void tile(int64_t rows, int64_t first, Fn&& fn) {
  if (rows >= R)
    fn(std::integral_constant<int, R>{}, first);
  else if constexpr (R > 1)
    tile<R - 1>(rows, first, fn);
}

template <class Fn>
inline void tiles(int64_t M, Fn&& fn) {
  const int64_t num = (M + ROWS - 1) / ROWS;
  for (int64_t i = 0; i < num; ++i) {
    const int64_t first = M * i / num;
    tile<ROWS>(M * (i + 1) / num - first, first, fn);
  }
}

struct Shape {
  int64_t S, M, K, N;
};

Shape shape_of(const Tensor& rows, const Tensor& w, const char* name) {
  const auto dim = w.dim();
  TORCH_CHECK(rows.dim() == dim && (dim == 2 || dim == 3), name, ": 2 or 3 dimensions of both");
  TORCH_CHECK(w.is_contiguous() && w.scalar_type() == at::kFloat &&
                  rows.scalar_type() == at::kFloat,
              name, ": contiguous float32 weights and float32 rows");
  TORCH_CHECK(dim == 2 || rows.size(0) == w.size(0), name, ": as many clients of both");
  return {dim == 3 ? w.size(0) : 1, rows.size(-2), w.size(-1), w.size(-2)};
}

Tensor like(const Tensor& rows, int64_t columns) {
  auto sizes = rows.sizes().vec();
  sizes.back() = columns;
  return at::empty(sizes, rows.options());
}

const float* read(const std::optional<Tensor>& tensor) {
  return tensor.has_value() ? tensor->const_data_ptr<float>() : nullptr;
}

Tensor linear(const Tensor& x_, const Tensor& w, const std::optional<Tensor>& bias_, bool relu) {
  const auto [S, M, K, N] = shape_of(x_, w, "flfast::linear");
  const Tensor x = x_.contiguous();
  std::optional<Tensor> bias;
  if (bias_.has_value()) bias = bias_->contiguous();
  TORCH_CHECK(x.size(-1) == K && (!bias || bias->numel() == S * N), "flfast::linear: shapes");
  Tensor y = like(x, N);
  for (int64_t s = 0; s < S; ++s) {
    const float* xs = x.const_data_ptr<float>() + s * M * K;
    const float* ws = w.const_data_ptr<float>() + s * N * K;
    const float* bs = bias ? read(bias) + s * N : nullptr;
    float* ys = y.mutable_data_ptr<float>() + s * M * N;
    tiles(M, [&, N = N, K = K](auto R, int64_t first) {
      const float* rows = xs + first * K;
      float* out = ys + first * N;
      int64_t n = 0;
      for (; n + COLUMNS <= N; n += COLUMNS)
        outputs<R.value, COLUMNS>(rows, ws, bs, out, n, K, N, relu);
      for (; n < N; ++n) outputs<R.value, 1>(rows, ws, bs, out, n, K, N, relu);
    });
  }
  return y;
}

Tensor input_gradient(const Tensor& g_, const Tensor& w, const std::optional<Tensor>& active_) {
  const auto [S, M, K, N] = shape_of(g_, w, "flfast::input_gradient");
  const Tensor g = g_.contiguous();
  std::optional<Tensor> active;
  if (active_.has_value()) active = active_->contiguous();
  TORCH_CHECK(g.size(-1) == N && (!active || active->numel() == S * M * K),
              "flfast::input_gradient: shapes");
  Tensor dx = like(g, K);
  for (int64_t s = 0; s < S; ++s) {
    const float* gs = g.const_data_ptr<float>() + s * M * N;
    const float* ws = w.const_data_ptr<float>() + s * N * K;
    const float* as = active ? read(active) + s * M * K : nullptr;
    float* out = dx.mutable_data_ptr<float>() + s * M * K;
    tiles(M, [&, N = N, K = K](auto R, int64_t first) {
      gradient_rows<WIDTH, R.value>(gs + first * N, ws, as ? as + first * K : nullptr,
                                    out + first * K, 0, K, N);
    });
  }
  return dx;
}

// w = beta * w + alpha * g^T x + share * (anchor - w). The share is 1 by default, and without an
// anchor there is no pull.
Tensor& weight_update_(Tensor& w, const Tensor& g_, const Tensor& x_, double beta, double alpha,
                       const std::optional<Tensor>& anchor,
                       const std::optional<Tensor>& share) {
  const auto [S, M, K, N] = shape_of(x_, w, "flfast::weight_update_");
  const Tensor g = g_.contiguous(), x = x_.contiguous();
  TORCH_CHECK(g.size(-1) == N && g.size(-2) == M && x.size(-1) == K,
              "flfast::weight_update_: shapes");
  TORCH_CHECK(!anchor || (anchor->is_contiguous() && anchor->sizes() == w.sizes() &&
                          anchor->scalar_type() == at::kFloat),
              "flfast::weight_update_: contiguous float32 of the weights' shape");
  const auto part = static_cast<float>(share ? share->item<double>() : 1.0);
  std::vector<float> scaled(M * UPDATED);
  for (int64_t s = 0; s < S; ++s) {
    const float* gs = g.const_data_ptr<float>() + s * M * N;
    const float* xs = x.const_data_ptr<float>() + s * M * K;
    float* ws = w.mutable_data_ptr<float>() + s * N * K;
    const Pull pull = Pull{read(anchor), part}.from(s * N * K);
    for (int64_t n = 0; n < N; n += UPDATED) {
      const int64_t num = std::min<int64_t>(UPDATED, N - n);
      for (int64_t r = 0; r < M; ++r)
        for (int64_t c = 0; c < num; ++c)
          scaled[r * UPDATED + c] = static_cast<float>(alpha) * gs[r * N + n + c];
      if (pull.anchor)
        update_tile<true>(ws, scaled.data(), xs, n, num, M, K, beta, pull);
      else
        update_tile<false>(ws, scaled.data(), xs, n, num, M, K, beta, pull);
    }
  }
  return w;
}

// bias += alpha * sum of g's rows
Tensor& bias_update_(Tensor& bias, const Tensor& g_, double alpha) {
  const Tensor g = g_.contiguous();
  const int64_t N = g.size(-1), M = g.size(-2), S = g.numel() / (M * N);
  TORCH_CHECK(bias.is_contiguous() && bias.numel() == S * N &&
                  bias.scalar_type() == at::kFloat && g.scalar_type() == at::kFloat,
              "flfast::bias_update_: contiguous float32 of matching shapes");
  std::vector<float> sums(N);
  for (int64_t s = 0; s < S; ++s) {
    const float* gs = g.const_data_ptr<float>() + s * M * N;
    float* bs = bias.mutable_data_ptr<float>() + s * N;
    std::fill(sums.begin(), sums.end(), 0.0f);
    for (int64_t r = 0; r < M; ++r)
      for (int64_t n = 0; n < N; ++n) sums[n] += gs[r * N + n];
    for (int64_t n = 0; n < N; ++n) bs[n] += static_cast<float>(alpha) * sums[n];
  }
  return bias;
}

}  // namespace
