// The memory of the strict device: freed memory is poisoned, and streams that touch the same memory
// have to wait for each other.
#pragma once

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

namespace strict {

constexpr auto TYPE = c10::DeviceType::PrivateUse1;
const c10::Device DEVICE(TYPE, 0);
constexpr int POISON = 0xFF; // NaN as a floating-point number, -1 as an integer

// How far the work of each stream is known to be done.
using Clocks = std::map<int64_t, int64_t>;

// Memory that was allocated at once.
struct Block {
  size_t size;
  int64_t allocation;  // its number; memory that is allocated again has another one
  int64_t pool;        // of the recordings that allocated it, or 0
  int64_t stream;      // that allocated it, and alone may get it again
  bool is_free = false;
  Clocks read, written; // the last access by each stream

  // A recording may use memory of its pool that is free, as long as the pool exists.
  bool is_usable(int64_t allocation_, int64_t pool_) const {
    return (pool_ && pool == pool_) || (!is_free && allocation == allocation_);
  }
};

// Everything is leaked: tensors are freed at the end of the process, too.
struct Memory {
  std::recursive_mutex mutex;
  std::map<char*, Block> blocks; // by their first byte
  std::map<std::tuple<int64_t, int64_t, size_t>, std::vector<char*>> free; // by pool, stream, size
  int64_t num_allocations = 0;

  std::map<int64_t, Clocks> known{{0, {}}}; // what each stream has waited for
  Clocks clock, host; // operators that a stream was given; those that the host has waited for

  static Memory& instance() {
    static auto& memory = *new Memory;
    return memory;
  }

  char* allocate(size_t size, int64_t pool, int64_t stream) {
    std::lock_guard lock(mutex);
    auto& freed = free[{pool, stream, size}];
    char* data;
    if (freed.empty()) {
      data = static_cast<char*>(std::aligned_alloc(64, (size + 63) / 64 * 64));
      TORCH_CHECK(data, "no memory for ", size, " bytes");
      blocks.emplace(data, Block{size, 0, pool, stream});
    } else {
      data = freed.back();
      freed.pop_back();
      check_poison(data);
    }
    auto& block = blocks.at(data);
    block.is_free = false;
    block.allocation = ++num_allocations;
    std::memset(data, POISON, size);
    return data;
  }

  void deallocate(void* data) {
    if (!data) return;
    std::lock_guard lock(mutex);
    auto* first = static_cast<char*>(data);
    auto& block = blocks.at(first);
    block.is_free = true;
    std::memset(first, POISON, block.size);
    free[{block.pool, block.stream, block.size}].push_back(first);
  }

  // Raises if freed memory was written. Replays write their pool's, so that it is not checked.
  void check_poison(char* data) const {
    const auto& block = blocks.at(data);
    for (size_t i = 0; !block.pool && i < block.size; ++i) {
      TORCH_CHECK(
          static_cast<unsigned char>(data[i]) == POISON, "memory was written after it was freed");
    }
  }

  // Give freed memory back, of a pool or of none.
  void release(int64_t pool) {
    std::lock_guard lock(mutex);
    for (auto& [key, freed] : free) {
      if (std::get<0>(key) != pool) continue;
      for (auto* data : freed) {
        check_poison(data);
        blocks.erase(data);
        std::free(data);
      }
      freed.clear();
    }
  }

  // The first byte of the block of an address.
  char* block_of(const void* data) {
    auto after = blocks.upper_bound(static_cast<char*>(const_cast<void*>(data)));
    TORCH_CHECK(after != blocks.begin(), "an illegal memory access was encountered");
    return std::prev(after)->first;
  }

  void wait(int64_t stream, const Clocks& others) {
    for (auto [other, time] : others) {
      auto& seen = known[stream][other];
      seen = std::max(seen, time);
    }
  }

  // What another stream has done by now, with everything that it has waited for.
  void wait_for(int64_t stream, int64_t other) {
    std::lock_guard lock(mutex);
    wait(stream, known[other]);
    wait(stream, {{other, clock[other]}});
  }

  // The host waits for a stream, and starts everything later.
  void synchronize(int64_t stream) {
    std::lock_guard lock(mutex);
    host[stream] = clock[stream];
    for (auto [other, time] : known[stream]) host[other] = std::max(host[other], time);
  }

  void synchronize_all() {
    std::lock_guard lock(mutex);
    host = clock;
  }

  // A stream reads or writes a block now; raises if another one may be writing or reading it.
  void access(char* data, int64_t stream, bool writes) {
    std::lock_guard lock(mutex);
    auto& block = blocks.at(data);
    TORCH_CHECK(!block.is_free || block.pool, "an illegal memory access was encountered");
    wait(stream, host);
    check_order(block.written, stream);
    if (writes) check_order(block.read, stream);
    (writes ? block.written : block.read)[stream] = ++clock[stream];
  }

  void check_order(const Clocks& accesses, int64_t stream) {
    for (auto [other, time] : accesses) {
      TORCH_CHECK(
          other == stream || known[stream][other] >= time, "stream ", stream,
          " uses memory of stream ", other, " without waiting for it");
    }
  }
};

} // namespace strict
