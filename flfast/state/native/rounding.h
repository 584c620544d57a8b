// Levels of `compression=quantize`: float32 in buckets of one scale each, one core.
//
// A vector [D] has consecutive groups of `nums[g]` buckets of `widths[g]` elements. Every result is
// that of torch's operators to the last bit.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

using at::Tensor;
using at::IntArrayRef;

// A product and a sum are rounded one by one.
#if defined(__clang__)
#define ROUNDED_EACH
#pragma clang fp contract(off)
#else
#define ROUNDED_EACH __attribute__((noinline, optimize("fp-contract=off")))
#endif

constexpr int64_t DRAWN = 4096;  // 16-bit random numbers at a time

// Chris Doty-Humphrey's generator, as numpy's SFC64.
struct Sfc64 {
  uint64_t a, b, c, counter;

  uint64_t operator()() {
    const uint64_t found = a + b + counter++;
    a = b ^ (b >> 11);
    b = c + (c << 3);
    c = ((c << 24) | (c >> 40)) + found;
    return found;
  }
};

// At least `num` numbers, four at a time.
void draw_many(Sfc64& state, int16_t* found, int64_t num) {
  Sfc64 draw = state;  // in registers, where writing the results cannot change it
  for (int64_t i = 0; i < num; i += 4) {
    const uint64_t four = draw();
    std::memcpy(found + i, &four, sizeof four);
  }
  state = draw;
}

// visit(bucket, first element, number of elements) for each bucket
template <typename Visit>
void each_bucket(IntArrayRef nums, IntArrayRef widths, Visit visit) {
  int64_t bucket = 0, start = 0;
  for (size_t g = 0; g < nums.size(); ++g)
    for (int64_t i = 0; i < nums[g]; ++i, start += widths[g]) visit(bucket++, start, widths[g]);
}

void check_buckets(const char* name, const Tensor& vector, IntArrayRef nums, IntArrayRef widths,
                   const Tensor* scales) {
  int64_t elements = 0, buckets = 0;
  TORCH_CHECK(nums.size() == widths.size(), name, ": a width for each group");
  for (size_t g = 0; g < nums.size(); ++g) elements += nums[g] * widths[g], buckets += nums[g];
  TORCH_CHECK(vector.is_contiguous() && vector.scalar_type() == at::kFloat &&
                  vector.numel() == elements,
              name, ": a contiguous float32 vector of all buckets' elements");
  TORCH_CHECK(!scales || (scales->is_contiguous() && scales->scalar_type() == at::kFloat &&
                          scales->numel() == buckets),
              name, ": a float32 for each bucket");
}

// Largest magnitude of each bucket.
Tensor largest_magnitudes(const Tensor& vector, IntArrayRef nums, IntArrayRef widths) {
  check_buckets("flfast::largest_magnitudes", vector, nums, widths, nullptr);
  int64_t buckets = 0;
  for (const int64_t num : nums) buckets += num;
  Tensor found = at::empty({buckets}, vector.options());
  float* out = found.mutable_data_ptr<float>();
  const float* x = vector.const_data_ptr<float>();
  each_bucket(nums, widths, [&](int64_t bucket, int64_t start, int64_t width) {
    // Magnitudes are in the order of their bits, and a maximum of integers has lanes.
    int32_t largest = 0;
    for (int64_t i = start; i < start + width; ++i) {
      int32_t bits;
      std::memcpy(&bits, x + i, sizeof bits);
      largest = std::max(largest, bits & INT32_MAX);
    }
    std::memcpy(out + bucket, &largest, sizeof largest);
  });
  return found;
}

// levels = floor(x * factor + noise / 2^16 + shift), all of them in 0 to 255
ROUNDED_EACH void round_block(const float* __restrict x, float factor,
                              const int16_t* __restrict noise, float shift,
                              uint8_t* __restrict levels, int64_t num) {
  for (int64_t i = 0; i < num; ++i) {
    const float scaled = x[i] * factor;
    const float drawn = scaled + noise[i] * 0x1p-16f;
    levels[i] = static_cast<uint8_t>(static_cast<int32_t>(drawn + shift));
  }
}

// The level of each element, uint8 [D], with 16 random bits from `state`, int64 [4].
Tensor round_randomly(const Tensor& vector, const Tensor& factors, const Tensor& state,
                      double shift, IntArrayRef nums, IntArrayRef widths) {
  check_buckets("flfast::round_randomly", vector, nums, widths, &factors);
  TORCH_CHECK(state.is_contiguous() && state.scalar_type() == at::kLong && state.numel() == 4,
              "flfast::round_randomly: a state of four int64");
  Sfc64 draw;
  std::memcpy(&draw, state.const_data_ptr<int64_t>(), sizeof draw);
  const int64_t size = vector.numel();
  Tensor levels = at::empty({size}, vector.options().dtype(at::kByte));
  uint8_t* out = levels.mutable_data_ptr<uint8_t>();
  const float *x = vector.const_data_ptr<float>(), *by = factors.const_data_ptr<float>();
  int16_t drawn[DRAWN];
  each_bucket(nums, widths, [&](int64_t bucket, int64_t start, int64_t width) {
    for (int64_t i = start, end = start + width; i < end;) {
      const int64_t offset = i % DRAWN;
      if (offset == 0)
        draw_many(draw, drawn, std::min(DRAWN, size - i));
      const int64_t num = std::min(end - i, DRAWN - offset);
      round_block(x + i, by[bucket], drawn + offset, static_cast<float>(shift), out + i, num);
      i += num;
    }
  });
  return levels;
}

// (level - half) * step * scale of the bucket, float32 [D].
Tensor values_of_levels(const Tensor& levels, const Tensor& scales, double half, double step,
                        IntArrayRef nums, IntArrayRef widths) {
  Tensor vector = at::empty({levels.numel()}, scales.options());
  check_buckets("flfast::values_of_levels", vector, nums, widths, &scales);
  TORCH_CHECK(levels.is_contiguous() && levels.scalar_type() == at::kByte,
              "flfast::values_of_levels: contiguous bytes");
  const uint8_t* in = levels.const_data_ptr<uint8_t>();
  const float* by = scales.const_data_ptr<float>();
  float* out = vector.mutable_data_ptr<float>();
  const float zero = static_cast<float>(half), unit = static_cast<float>(step);
  each_bucket(nums, widths, [&](int64_t bucket, int64_t start, int64_t width) {
    const float scale = by[bucket];
    for (int64_t i = start; i < start + width; ++i) out[i] = (in[i] - zero) * unit * scale;
  });
  return vector;
}

}  // namespace
