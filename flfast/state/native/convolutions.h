// A convolution, its 2x2 max pooling and ReLU in one: float32, one core, batches of any size.
//
// The forward pass adds in oneDNN's order, so it chooses the maxima that torch chooses. At least
// three of four gradients of the convolution's outputs are zero: the backward pass visits the
// others only.
//
// Shapes, all stored channels last: x [B, C, H, W] inputs, w [O, C, KH, KW] weights, y
// [B, O, PH, PW] results. A run is what an output reads of one row of x: KW * C numbers.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "lanes.h"

namespace {

using at::Tensor;

// Accumulators stay in registers: those of WINDOWS windows, and SUMS of a gradient.
#if defined(__AVX512F__)
constexpr int WINDOWS = 2, SUMS = 25;
#elif defined(__AVX2__)
constexpr int WINDOWS = 1, SUMS = 10;
#else
constexpr int WINDOWS = 1, SUMS = 10;
#endif
// Numbers that stay in the first-level cache, beside others.
constexpr int64_t CACHED = 7 * 1024;

struct Convolution {
  int64_t B, C, H, W, O, KH, KW;  // H and W with zeros around the images
  int64_t above, beside;          // rows and columns of zeros on each side

  int64_t row() const { return W * C; }
  int64_t run() const { return KW * C; }
  int64_t PH() const { return (H - KH + 1) / 2; }
  int64_t PW() const { return (W - KW + 1) / 2; }
  // Where the first output of a window begins to read.
  int64_t start(int64_t window) const {
    const int64_t w = window % PW(), h = window / PW() % PH(), b = window / PW() / PH();
    return (b * H + 2 * h) * row() + 2 * w * C;
  }
  // The same of the output at place 0 to 3 of the window, from there.
  int64_t offset(int64_t place) const { return place / 2 * row() + place % 2 * C; }

  // Calls fn(where in padded images, where without padding, length) for each row of pixels.
  template <class Fn>
  void rows(Fn&& fn) const {
    const int64_t high = H - 2 * above, wide = (W - 2 * beside) * C;
    for (int64_t b = 0; b < B; ++b)
      for (int64_t h = 0; h < high; ++h)
        fn((b * H + h + above) * row() + beside * C, (b * high + h) * wide, wide);
  }
};

// Zeros, aligned: vectors that cross a line of the cache take twice the time.
class Scratch {
  struct alignas(64) Line {
    float values[16];
  };
  std::vector<Line> lines;

 public:
  explicit Scratch(int64_t num) : lines((num + 15) / 16) {}
  float* data() { return lines.data()->values; }
};

// Images with zeros around them. With `room`, a vector may be read beyond the last run.
struct Images {
  std::optional<Scratch> copy;
  const float* data;

  Images(const Convolution& c, const Tensor& x, bool room) : data(x.const_data_ptr<float>()) {
    if (!c.above && !c.beside && !room) return;
    copy.emplace(c.B * c.H * c.row() + WIDTH);
    c.rows([&](int64_t to, int64_t from, int64_t num) {
      std::copy_n(data + from, num, copy->data() + to);
    });
    data = copy->data();
  }
};

template <class T, class Vector>
inline void store(T* to, const Vector& values, int64_t num) {
  if (num * sizeof(T) >= sizeof values)
    std::memcpy(to, &values, sizeof values);
  else if (num > 0)
    std::memcpy(to, &values, num * sizeof(T));
}

// N windows beside each other, and the first `num` of V vectors of channels. w [K, wide] is in the
// order of additions.
template <int L, int V, int N>
inline void window_tile(const Convolution& c, const float* x, const float* w, int64_t wide,
                        const float* bias, float* y, int32_t* at, int64_t num) {
  using F = Lanes<L>;
  const int64_t row = c.row();
  typename F::Vector acc[N * 4][V] = {};
  const auto add = [&](const float* from) {
    typename F::Vector part[V];
    UNROLLED for (int v = 0; v < V; ++v) part[v] = F::load(w + v * L);
    UNROLLED for (int p = 0; p < N * 4; ++p) {
      const float value = from[(p / 4 * 2 + p % 2) * c.C + p / 2 % 2 * row];
      UNROLLED for (int v = 0; v < V; ++v) acc[p][v] += part[v] * value;
    }
    w += wide;
  };
  if (c.C == 1)
    for (int64_t j = 0; j < c.KW; ++j)
      for (int64_t i = 0; i < c.KH; ++i) add(x + i * row + j);
  else
    for (int64_t i = 0; i < c.KH; ++i)
      for (int64_t k = 0; k < c.run(); ++k) add(x + i * row + k);
  UNROLLED for (int n = 0; n < N; ++n)
    UNROLLED for (int v = 0; v < V; ++v) {
      const auto added = F::load(bias + v * L);
      auto most = acc[n * 4][v] + added;
      typename F::Integers place{};
      UNROLLED for (int p = 1; p < 4; ++p) {
        const auto value = acc[n * 4 + p][v] + added;
        const auto better = (value > most) | (value != value);  // NaN stays, as in torch
        most = better ? value : most;
        place = better ? typename F::Integers{} + p : place;
      }
      const typename F::Vector zero{};
      most = most < zero ? zero : most;
      store(y + n * c.O + v * L, most, num - v * L);
      store(at + n * c.O + v * L, place, num - v * L);
    }
}

template <int L, int V>
inline void channel_tile(const Convolution& c, const float* x, const float* w, int64_t wide,
                         const float* bias, float* y, int32_t* at, int64_t num) {
  for (int64_t q = 0; q < c.B * c.PH() * c.PW();) {
    const int64_t left = c.PW() - q % c.PW();
    const float* from = x + c.start(q);
    if (left >= WINDOWS)
      window_tile<L, V, WINDOWS>(c, from, w, wide, bias, y + q * c.O, at + q * c.O, num);
    else
      window_tile<L, V, 1>(c, from, w, wide, bias, y + q * c.O, at + q * c.O, num);
    q += left >= WINDOWS ? WINDOWS : 1;
  }
}

template <int L>
void convolve(const Convolution& c, const float* x, const float* w, const float* bias, float* y,
              int32_t* at) {
  const int64_t K = c.KH * c.run(), wide = (c.O + L - 1) / L * L;
  Scratch packed(K * wide), biases(wide);
  if (bias) std::copy_n(bias, c.O, biases.data());
  for (int64_t first = 0; first < c.O; first += L)  // whole lines of the cache are written
    for (int64_t k = 0; k < K; ++k) {
      const int64_t position = c.C == 1 ? k % c.KW * c.KH + k / c.KW : k;
      for (int64_t o = first; o < std::min(first + L, c.O); ++o)
        packed.data()[position * wide + o] = w[o * K + k];
    }
  int64_t o = 0;
  const auto tile = [&](auto fn) {
    fn(c, x, packed.data() + o, wide, biases.data() + o, y + o, at + o, c.O - o);
  };
  for (; o + 2 * L <= wide; o += 2 * L) tile(channel_tile<L, 2>);
  for (; o < wide; o += L) tile(channel_tile<L, 1>);
}

// A gradient that is not zero, and the number of its output or channel.
struct Entry {
  float g;
  int32_t of;
};

// Calls fn(rows, vectors)(first row, first vector) for tiles that cover KH x `vectors` vectors, of
// `most` vectors each.
template <int ROWS, int V, class Fn>
inline void with_vectors(int64_t vectors, Fn&& fn) {
  if (vectors == V)
    fn(std::integral_constant<int, ROWS>{}, std::integral_constant<int, V>{});
  else if constexpr (V > 1)
    with_vectors<ROWS, V - 1>(vectors, fn);
}

template <int ROWS, class Fn>
inline void gradient_tiles(int64_t KH, int64_t vectors, int64_t most, Fn&& fn, int64_t i = 0) {
  constexpr int LARGEST = std::min(SUMS / ROWS, 8);
  const int64_t large = std::min<int64_t>(LARGEST, most / ROWS);
  for (; large && i + ROWS <= KH; i += ROWS) {
    const int64_t num = (vectors + large - 1) / large;
    for (int64_t j = 0; j < num; ++j) {
      const int64_t first = vectors * j / num, last = vectors * (j + 1) / num;
      with_vectors<ROWS, LARGEST>(last - first, [&](auto R, auto V) { fn(R, V, i, first); });
    }
  }
  if constexpr (ROWS > 1) gradient_tiles<ROWS - 2>(KH, vectors, most, fn, i);
}

// sums[i, v] = sums[i, v] + the sum of g times what their outputs read
template <int L, int ROWS, int V>
inline void add_reads(const Entry* e, const Entry* end, const float* x, int64_t row, float* sums,
                      int64_t wide) {
  using F = Lanes<L>;
  typename F::Vector acc[ROWS][V];
  UNROLLED for (int i = 0; i < ROWS; ++i)
    UNROLLED for (int v = 0; v < V; ++v) acc[i][v] = F::load(sums + i * wide + v * L);
  for (; e < end; ++e)
    UNROLLED for (int i = 0; i < ROWS; ++i)
      UNROLLED for (int v = 0; v < V; ++v)
        acc[i][v] += F::load(x + e->of + i * row + v * L) * e->g;
  UNROLLED for (int i = 0; i < ROWS; ++i)
    UNROLLED for (int v = 0; v < V; ++v) F::store(sums + i * wide + v * L, acc[i][v]);
}

// dw [O, KH, run] and db [O]. Windows are visited in blocks whose inputs stay in the cache.
template <int L>
void weight_gradient(const Convolution& c, const float* g, const float* y, const int32_t* at,
                     const float* x, float* dw, float* db) {
  const int64_t vectors = (c.run() + L - 1) / L, wide = vectors * L, num = c.B * c.PH();
  const int64_t image = c.H * c.row();
  int64_t block = (CACHED / c.row() - c.KH + 1) / 2;  // rows of windows
  if (image <= CACHED) block = CACHED / image * c.PH();
  block = std::max<int64_t>(block, 1);
  Scratch sums(c.O * c.KH * wide);
  std::vector<Entry> entries(block * c.PW());
  std::vector<int64_t> starts(block * c.PW());
  int64_t offsets[4];
  for (int64_t p = 0; p < 4; ++p) offsets[p] = c.offset(p);
  for (int64_t first = 0, last; first < num; first = last) {
    last = std::min(first + block, block < c.PH() ? (first / c.PH() + 1) * c.PH() : num);
    const int64_t q = first * c.PW(), windows = last * c.PW() - q, base = c.start(q);
    for (int64_t i = 0; i < windows; ++i) starts[i] = c.start(q + i) - base;
    for (int64_t o = 0; o < c.O; ++o) {
      Entry* end = entries.data();
      for (int64_t i = 0, k = q * c.O + o; i < windows; ++i, k += c.O) {
        *end = {g[k], static_cast<int32_t>(starts[i] + offsets[at[k]])};
        end += y[k] > 0.0f;
      }
      gradient_tiles<5>(c.KH, vectors, SUMS, [&](auto R, auto V, int64_t i, int64_t v) {
        add_reads<L, R.value, V.value>(entries.data(), end, x + base + i * c.row() + v * L,
                                       c.row(), sums.data() + (o * c.KH + i) * wide + v * L, wide);
      });
    }
  }
  for (int64_t r = 0; r < c.O * c.KH; ++r)
    std::copy_n(sums.data() + r * wide, c.run(), dw + r * c.run());
  std::fill_n(db, c.O, 0.0f);
  for (int64_t q = 0; q < num * c.PW(); ++q)
    for (int64_t o = 0, k = q * c.O; o < c.O; ++o, ++k) db[o] += y[k] > 0.0f ? g[k] : 0.0f;
}

// An output position with gradients in some channels.
struct Position {
  int64_t start, end;  // where it reads, and the end of its entries
};

// dx[position] += the sum over its channels of g times w
template <int L, int ROWS, int V>
inline void add_weights(const std::vector<Position>& positions, const Entry* entries,
                        const float* w, float* dx, int64_t row) {
  using F = Lanes<L>;
  const Entry* e = entries;
  for (const Position& position : positions) {
    typename F::Vector acc[ROWS][V] = {};
    for (const Entry* end = entries + position.end; e < end; ++e)
      UNROLLED for (int i = 0; i < ROWS; ++i)
        UNROLLED for (int v = 0; v < V; ++v)
          acc[i][v] += F::load(w + ((e->of * ROWS + i) * V + v) * L) * e->g;
    float* to = dx + position.start;
    UNROLLED for (int i = 0; i < ROWS; ++i)
      UNROLLED for (int v = 0; v < V; ++v) {
        float* const here = to + i * row + v * L;
        F::store(here, F::load(here) + acc[i][v]);
      }
  }
}

// dx [B, H, W, C] with padding, and room for a vector behind it
template <int L>
void input_gradient_of(const Convolution& c, const float* g, const float* y, const int32_t* at,
                       const float* w, float* dx) {
  const int64_t vectors = (c.run() + L - 1) / L, windows = c.B * c.PH() * c.PW();
  std::vector<Entry> entries(windows * c.O), of_place(4 * c.O);
  std::vector<Position> positions;
  positions.reserve(4 * windows);
  int64_t total = 0;
  for (int64_t q = 0; q < windows; ++q) {
    Entry* ends[4];
    for (int p = 0; p < 4; ++p) ends[p] = of_place.data() + p * c.O;
    for (int64_t o = 0, k = q * c.O; o < c.O; ++o, ++k) {
      *ends[at[k]] = {g[k], static_cast<int32_t>(o)};
      ends[at[k]] += y[k] > 0.0f;
    }
    for (int p = 0; p < 4; ++p) {
      const Entry* const begin = of_place.data() + p * c.O;
      if (ends[p] == begin) continue;
      std::copy(begin, static_cast<const Entry*>(ends[p]), entries.data() + total);
      total += ends[p] - begin;
      positions.push_back({c.start(q) + c.offset(p), total});
    }
  }
  const int64_t most = std::clamp<int64_t>(CACHED / (c.O * L), 4, SUMS);
  Scratch tile(c.O * SUMS * L);
  gradient_tiles<5>(c.KH, vectors, most, [&](auto R, auto V, int64_t i, int64_t v) {
    const int64_t length = std::min<int64_t>(V.value * L, c.run() - v * L);
    std::fill_n(tile.data(), c.O * R.value * V.value * L, 0.0f);
    for (int64_t o = 0; o < c.O; ++o)
      for (int64_t r = 0; r < R.value; ++r)
        std::copy_n(w + (o * c.KH + i + r) * c.run() + v * L, length,
                    tile.data() + (o * R.value + r) * V.value * L);
    add_weights<L, R.value, V.value>(positions, entries.data(), tile.data(),
                                     dx + i * c.row() + v * L, c.row());
  });
}

Tensor channels_last(const Tensor& images) { return images.permute({0, 2, 3, 1}).contiguous(); }

Tensor channels_first(const Tensor& images) { return images.permute({0, 3, 1, 2}); }

Convolution convolution_of(const Tensor& x, const Tensor& w, at::IntArrayRef padding) {
  TORCH_CHECK(x.dim() == 4 && w.dim() == 4 && padding.size() == 2 && x.size(1) == w.size(1) &&
                  x.scalar_type() == at::kFloat && w.scalar_type() == at::kFloat,
              "flfast::conv_pool: float32 images and weights with equal channels");
  const Convolution c{x.size(0), x.size(1), x.size(2) + 2 * padding[0], x.size(3) + 2 * padding[1],
                      w.size(0), w.size(2), w.size(3), padding[0], padding[1]};
  TORCH_CHECK(c.H > c.KH && c.W > c.KW && c.H * c.row() <= std::numeric_limits<int32_t>::max(),
              "flfast::conv_pool: images of at least one window");
  return c;
}

// (relu(max_pool2d(conv2d(x, w, bias, padding), 2)), place 0 to 3 of each maximum in its window)
std::tuple<Tensor, Tensor> conv_pool(const Tensor& x_, const Tensor& w_,
                                     const std::optional<Tensor>& bias_,
                                     at::IntArrayRef padding) {
  const Convolution c = convolution_of(x_, w_, padding);
  const Tensor x = channels_last(x_), w = channels_last(w_);
  std::optional<Tensor> bias;
  if (bias_.has_value()) bias = bias_->contiguous();
  const Tensor y = at::empty({c.B, c.PH(), c.PW(), c.O}, x.options());
  const Tensor places = at::empty(y.sizes(), x.options().dtype(at::kInt));
  const Images images(c, x, false);
  const auto run = c.O <= WIDTH / 2 ? convolve<WIDTH / 2> : convolve<WIDTH>;
  run(c, images.data, w.const_data_ptr<float>(), bias ? bias->const_data_ptr<float>() : nullptr,
      y.mutable_data_ptr<float>(), places.mutable_data_ptr<int32_t>());
  return {channels_first(y), channels_first(places)};
}

// Gradients of x, if wanted, w and bias; g is the gradient of y.
std::tuple<Tensor, Tensor, Tensor> conv_pool_backward(const Tensor& g_, const Tensor& y_,
                                                      const Tensor& places, const Tensor& x_,
                                                      const Tensor& w_, at::IntArrayRef padding,
                                                      bool needs_x) {
  const Convolution c = convolution_of(x_, w_, padding);
  const Tensor g = channels_last(g_), y = channels_last(y_), at = channels_last(places);
  const Tensor x = channels_last(x_), w = channels_last(w_);
  TORCH_CHECK(g.sizes() == y.sizes() && at.sizes() == y.sizes() && y.size(1) == c.PH() &&
                  y.size(2) == c.PW() && y.size(3) == c.O,
              "flfast::conv_pool_backward: shapes");
  const bool narrow = c.run() <= WIDTH / 2;
  const int64_t lanes = narrow ? WIDTH / 2 : WIDTH;
  const float* const gs = g.const_data_ptr<float>();
  const float* const ys = y.const_data_ptr<float>();
  const int32_t* const ats = at.const_data_ptr<int32_t>();
  const Tensor dw = at::empty(w.sizes(), w.options()), db = at::empty({c.O}, w.options());
  const Images images(c, x, c.run() % lanes != 0);
  const auto of_weights = narrow ? weight_gradient<WIDTH / 2> : weight_gradient<WIDTH>;
  of_weights(c, gs, ys, ats, images.data, dw.mutable_data_ptr<float>(),
             db.mutable_data_ptr<float>());
  if (!needs_x) return {Tensor(), channels_first(dw), db};
  const Tensor dx = at::zeros(x.sizes(), x.options());
  float* const out = dx.mutable_data_ptr<float>();
  const auto of_inputs = narrow ? input_gradient_of<WIDTH / 2> : input_gradient_of<WIDTH>;
  if (!images.copy) {
    of_inputs(c, gs, ys, ats, w.const_data_ptr<float>(), out);
  } else {
    Scratch padded(c.B * c.H * c.row() + WIDTH);
    of_inputs(c, gs, ys, ats, w.const_data_ptr<float>(), padded.data());
    c.rows([&](int64_t from, int64_t to, int64_t num) {
      std::copy_n(padded.data() + from, num, out + to);
    });
  }
  return {channels_first(dx), channels_first(dw), db};
}

}  // namespace
