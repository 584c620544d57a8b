// Vectors of float32, of any power of two of lanes.

#pragma once

#include <cstring>
#include <utility>

// Accumulators are registers only where loops over them are unrolled.
#define UNROLLED _Pragma("GCC unroll 16")

// A tile takes less time than passing its arguments.
#define INLINED __attribute__((always_inline)) inline

// A row is loaded once, not anew for each of its products.
#if defined(__x86_64__)
#define KEEP(value) __asm__("" : "+v"(value))
#else
#define KEEP(value)
#endif

namespace {

// Lanes of the widest vector.
#if defined(__AVX512F__)
constexpr int WIDTH = 16;
#elif defined(__AVX2__)
constexpr int WIDTH = 8;
#else
constexpr int WIDTH = 4;
#endif

template <int L>
struct Lanes {
  typedef float Vector __attribute__((vector_size(L * sizeof(float))));
  typedef int Integers __attribute__((vector_size(L * sizeof(int))));

  static inline Vector load(const float* from) {
    Vector v;
    std::memcpy(&v, from, sizeof v);
    return v;
  }
  static inline void store(float* to, Vector v) { std::memcpy(to, &v, sizeof v); }
  // Halves are shuffled, not copied: an accumulator whose address is taken leaves its register.
  template <int... I>
  static inline auto halves(Vector v, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(v, v, I...) + __builtin_shufflevector(v, v, (I + L / 2)...);
  }
  static inline auto quad(Vector v) {
    if constexpr (L == 4)
      return v;
    else
      return Lanes<L / 2>::quad(halves(v, std::make_integer_sequence<int, L / 2>{}));
  }
  static inline float sum(Vector v) {
    if constexpr (L > 4) {
      return Lanes<4>::sum(quad(v));
    } else {
      float parts[L], total = 0.0f;
      store(parts, v);
      for (const float part : parts) total += part;
      return total;
    }
  }
  // sums[i] += the sum over v[i]
  static inline void add_sums(const Vector (&v)[4], float* sums) {
    const auto a = quad(v[0]), b = quad(v[1]), c = quad(v[2]), d = quad(v[3]);
    const auto ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) +
                    __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const auto cd = __builtin_shufflevector(c, d, 0, 4, 1, 5) +
                    __builtin_shufflevector(c, d, 2, 6, 3, 7);
    const auto all = __builtin_shufflevector(ab, cd, 0, 1, 4, 5) +
                     __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    Lanes<4>::store(sums, Lanes<4>::load(sums) + all);
  }
};

template <>
struct Lanes<1> {
  typedef float Vector;
  static inline Vector load(const float* from) { return *from; }
  static inline void store(float* to, Vector v) { *to = v; }
  static inline float sum(Vector v) { return v; }
};

}  // namespace
