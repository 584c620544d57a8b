// Recordings of the strict device, as CUDA graphs are of a GPU: what is captured takes no effect,
// and a replay does it again, on the same addresses.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include <ATen/ATen.h>

#include "strict_memory.h"

namespace strict {

inline thread_local int64_t current_stream = 0;

// The use of a block by an operator.
struct Access {
  char* data;
  int64_t allocation;
  bool writes;
};

struct Node {
  std::function<void()> run;
  std::vector<Access> accesses;
};

struct Recording {
  int64_t pool;
  std::vector<Node> nodes;
  std::vector<std::function<void()>> undo; // while it is captured
};

inline thread_local std::shared_ptr<Recording> capture;

inline int64_t current_pool() { return capture ? capture->pool : 0; }

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    void* data =
        size ? Memory::instance().allocate(size, current_pool(), current_stream) : nullptr;
    return {data, data, &deallocate, DEVICE};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &deallocate; }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }
  static void deallocate(void* data) { Memory::instance().deallocate(data); }
};

inline Allocator allocator;

// Hears of reads of the device's memory by the host, with their bytes. It may call Python.
using Listener = void (*)(int64_t);

inline Listener on_host_copy = nullptr;

inline void read_by_host(int64_t bytes) {
  Memory::instance().synchronize(current_stream);
  if (on_host_copy) on_host_copy(bytes);
}

inline void refuse_in_capture() {
  TORCH_CHECK(!capture, "operation not permitted when stream is capturing");
}

// A tensor on the CPU in the same memory, which it does not own.
inline at::Tensor on_cpu(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device() != DEVICE) return tensor;
  auto options = tensor.options().device(c10::kCPU).requires_grad(std::nullopt);
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), options);
}

// An operator's uses of memory, which are checked at once, or when it is replayed.
struct Uses {
  std::vector<Access> accesses;

  void add(const at::Tensor& tensor, bool writes) {
    if (!tensor.defined() || tensor.device() != DEVICE || !tensor.storage().data()) return;
    add(tensor.storage().data(), writes);
    if (capture && writes) keep(tensor);
  }

  void add(const void* address, bool writes) {
    auto& memory = Memory::instance();
    std::lock_guard lock(memory.mutex);
    auto* data = memory.block_of(address);
    accesses.push_back({data, memory.blocks.at(data).allocation, writes});
    if (!capture) memory.access(data, current_stream, writes);
  }

  // The operator is done; a recording does `run` again.
  void done(std::function<void()> run) {
    if (capture) capture->nodes.push_back({std::move(run), std::move(accesses)});
  }

 private:
  // A capture computes, so that operators which need values find some, and takes it back.
  static void keep(const at::Tensor& tensor) {
    auto& memory = Memory::instance();
    auto* data = memory.block_of(tensor.storage().data());
    auto view = on_cpu(tensor);
    capture->undo.emplace_back([&memory, data, view, before = view.clone()] {
      const auto& block = memory.blocks.at(data);
      if (!block.is_free || block.pool) view.copy_(before);
    });
  }
};

struct Recordings {
  std::map<int64_t, std::shared_ptr<Recording>> kept; // by number
  std::map<int64_t, int64_t> users;                   // recordings by pool
  int64_t count = 0;

  static Recordings& instance() {
    static auto& recordings = *new Recordings;
    return recordings;
  }

  void begin(int64_t pool) {
    refuse_in_capture();
    Memory::instance().synchronize_all(); // as torch.cuda.graph does
    capture = std::make_shared<Recording>(Recording{pool});
    ++users[pool];
  }

  // The number of the recording; where it failed, nothing is kept.
  int64_t end(bool failed) {
    auto done = std::move(capture);
    capture = nullptr;
    for (auto undo = done->undo.rbegin(); undo != done->undo.rend(); ++undo) (*undo)();
    done->undo.clear();
    if (failed) {
      leave(done->pool);
      return 0;
    }
    kept[++count] = done;
    return count;
  }

  void replay(int64_t number) {
    refuse_in_capture();
    auto recording = kept.at(number);
    auto& memory = Memory::instance();
    for (const auto& node : recording->nodes) {
      for (const auto& access : node.accesses) {
        auto found = memory.blocks.find(access.data);
        TORCH_CHECK(
            found != memory.blocks.end() &&
                found->second.is_usable(access.allocation, recording->pool),
            "an illegal memory access was encountered: a recording uses memory that was freed");
        memory.access(access.data, current_stream, access.writes);
      }
      node.run();
    }
  }

  void drop(int64_t number) {
    auto pool = kept.at(number)->pool;
    kept.erase(number);
    leave(pool);
  }

 private:
  void leave(int64_t pool) {
    if (--users[pool] == 0) Memory::instance().release(pool);
  }
};

// Memory that products of matrices need: one block for each stream, as cuBLAS has it.
struct Workspaces {
  std::map<int64_t, c10::DataPtr> blocks;

  static Workspaces& instance() {
    static auto& workspaces = *new Workspaces;
    return workspaces;
  }

  const void* current() {
    auto& block = blocks[current_stream];
    if (!block) block = allocator.allocate(1);
    return block.get();
  }
};

} // namespace strict
