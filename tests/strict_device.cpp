// A device for tests that computes on the CPU and refuses what a GPU refuses: operators whose
// tensors lie on several devices, memory that was freed and, on request, double precision.
//
// Its memory is the CPU's, in which the CPU's operators compute.

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "strict_calls.h"
#include "strict_memory.h"
#include "strict_recordings.h"

namespace {

using namespace strict;

bool refuses_doubles = false;

REGISTER_ALLOCATOR(TYPE, &allocator)

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return TYPE; }
  c10::Device exchangeDevice(c10::Device) const override { return DEVICE; }
  c10::Device getDevice() const override { return DEVICE; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  // Whatever was asked of the stream is done already.
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}

  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, DEVICE); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::Device getDeviceFromPtr(void*) const override { return DEVICE; }
  // The host's memory is pinned by its nature.
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  bool isPinnedPtr(const void*) const override { return false; }
};

void check_type(c10::ScalarType type) {
  TORCH_CHECK_TYPE(
      !refuses_doubles || (type != at::kDouble && type != at::kComplexDouble),
      "the device has no double precision");
}

at::Tensor empty(
    c10::IntArrayRef size,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout>,
    std::optional<c10::Device>,
    std::optional<bool>,
    std::optional<c10::MemoryFormat> format) {
  auto type = c10::dtype_or_default(dtype);
  check_type(type);
  return at::detail::empty_generic(
      size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type, format);
}

at::Tensor empty_strided(
    c10::IntArrayRef size,
    c10::IntArrayRef stride,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout>,
    std::optional<c10::Device>,
    std::optional<bool>) {
  auto type = c10::dtype_or_default(dtype);
  check_type(type);
  return at::detail::empty_strided_generic(
      size, stride, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type);
}

void transfer(const at::Tensor& from, const at::Tensor& to) {
  Uses uses;
  uses.add(from, false);
  uses.add(to, true);
  auto run = [from = on_cpu(from), to = on_cpu(to)] { to.copy_(from); };
  run();
  uses.done(std::move(run));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  if (from.is_cpu() || to.is_cpu()) refuse_in_capture();
  transfer(from, to);
  if (to.is_cpu()) read_by_host(from.nbytes());
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) at::native::resize_(to, from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  refuse_in_capture();
  Uses().add(tensor, false);
  read_by_host(tensor.nbytes());
  return on_cpu(tensor).item();
}

at::Tensor& set_storage(
    at::Tensor& tensor, at::Storage source, int64_t offset, c10::IntArrayRef size,
    c10::IntArrayRef stride) {
  return at::native::set_storage_cpu_(tensor, source, offset, size, stride);
}

} // namespace

extern "C" void strict_listen(Listener listener) { on_host_copy = listener; }

TORCH_LIBRARY(strict, library) {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  library.def("refuse_doubles(bool refuses) -> ()", [](bool refuses) {
    refuses_doubles = refuses;
  });
  library.def("current_stream() -> int", [] { return current_stream; });
  library.def("set_stream(int stream) -> ()", [](int64_t stream) { current_stream = stream; });
  library.def("wait_stream(int stream, int other) -> ()", [](int64_t stream, int64_t other) {
    Memory::instance().wait_for(stream, other);
  });
  library.def("empty_cache() -> ()", [] { Memory::instance().release(0); });
  library.def("clear_workspaces() -> ()", [] { Workspaces::instance().blocks.clear(); });
  library.def("begin_capture(int pool) -> ()", [](int64_t pool) {
    Recordings::instance().begin(pool);
  });
  library.def("end_capture(bool failed) -> int", [](bool failed) {
    return Recordings::instance().end(failed);
  });
  library.def("replay(int recording) -> ()", [](int64_t recording) {
    at::AutoDispatchBelowADInplaceOrView below;
    Recordings::instance().replay(recording);
  });
  library.def("drop(int recording) -> ()", [](int64_t recording) {
    Recordings::instance().drop(recording);
  });
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &local_scalar);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("resize_", &at::native::resize_);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("unfold", &at::native::unfold);
  library.impl("view", &at::native::view);
  library.impl("convolution_overrideable", &convolution);
  library.impl("convolution_backward_overrideable", &convolution_backward);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

// Under autocast, products are of 16 bits as on other devices; nothing else is cast.
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp)
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}
