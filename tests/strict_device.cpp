// A device for tests that computes on the CPU and refuses what a GPU refuses: operators whose
// tensors lie on several devices and, on request, double precision.
//
// Its memory is the CPU's, in which the CPU's operators compute.

#include <cstdlib>
#include <cstring>

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {

constexpr auto TYPE = c10::DeviceType::PrivateUse1;
const c10::Device DEVICE(TYPE, 0);

bool refuses_doubles = false;

// What is told of a read of the device's memory: its bytes. It may call Python.
using Listener = void (*)(int64_t);

Listener on_host_copy = nullptr;

void tell_of_host_copy(int64_t bytes) {
  if (on_host_copy) on_host_copy(bytes);
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    void* data = size ? std::malloc(size) : nullptr;
    TORCH_CHECK(data || !size, "no memory for ", size, " bytes");
    return {data, data, &std::free, DEVICE};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }
};

Allocator allocator;
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

// The same memory as a tensor on the CPU.
at::Tensor on_cpu(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() != TYPE) return tensor;
  auto options = tensor.options().device(c10::kCPU).requires_grad(std::nullopt);
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), options);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  if (from.device().type() == TYPE && to.is_cpu()) tell_of_host_copy(from.nbytes());
  on_cpu(to).copy_(on_cpu(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) at::native::resize_(to, from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  tell_of_host_copy(tensor.nbytes());
  return on_cpu(tensor).item();
}

at::Tensor& set_storage(
    at::Tensor& tensor, at::Storage source, int64_t offset, c10::IntArrayRef size,
    c10::IntArrayRef stride) {
  return at::native::set_storage_cpu_(tensor, source, offset, size, stride);
}

// As on a GPU, only numbers may be on the CPU.
void check_device(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() == TYPE) return;
  TORCH_CHECK(
      tensor.device().is_cpu() && tensor.dim() == 0,
      "Expected all tensors to be on the same device, but ", name, " got a tensor ",
      tensor.sizes(), " on ", tensor.device(), " beside others on ", DEVICE);
}

at::Tensor on_device(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.to(DEVICE) : tensor;
}

// One call of an operator on the CPU, in the device's memory.
struct Call {
  const c10::OperatorHandle& op;
  std::vector<std::pair<at::Tensor, at::Tensor>> outputs; // (on the device, on the CPU)

  at::Tensor lend(const at::Tensor& tensor, bool is_output) {
    check_device(op.schema().name(), tensor);
    if (!is_output) return on_cpu(tensor);
    // The operator may give its output another size.
    outputs.emplace_back(tensor, at::empty({0}, tensor.options().device(c10::kCPU)));
    return outputs.back().second;
  }

  c10::IValue argument(const c10::IValue& value, bool is_output) {
    if (value.isDevice()) return c10::Device(c10::kCPU);
    if (value.isTensor()) return lend(value.toTensor(), is_output);
    if (value.isTensorList()) {
      c10::List<at::Tensor> found;
      for (const auto& tensor : value.toTensorVector()) found.push_back(lend(tensor, is_output));
      return found;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> found;
      for (const auto& tensor : value.toOptionalTensorVector()) {
        found.push_back(tensor ? std::make_optional(lend(*tensor, is_output)) : std::nullopt);
      }
      return found;
    }
    return value;
  }

  c10::IValue result(const c10::IValue& value) {
    if (value.isTensor()) return on_device(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<at::Tensor> found;
    for (const auto& tensor : value.toTensorVector()) found.push_back(on_device(tensor));
    return found;
  }
};

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto given = torch::jit::pop(*stack, schema.arguments().size());
  Call call{op, {}};
  for (size_t i = 0; i < given.size(); ++i) {
    stack->push_back(call.argument(given[i], schema.arguments()[i].is_out()));
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  for (const auto& [own, lent] : call.outputs) copy_from_and_resize(lent, own);
  const auto found = torch::jit::pop(*stack, schema.returns().size());
  for (size_t i = 0; i < found.size(); ++i) {
    const auto* alias = schema.returns()[i].alias_info();
    if (!alias) {
      stack->push_back(call.result(found[i]));
      continue;
    }
    TORCH_CHECK(alias->isWrite(), schema.name(), " is a view, which the fallback cannot make");
    for (size_t j = 0; j < given.size(); ++j) {
      const auto* argument = schema.arguments()[j].alias_info();
      if (argument && *argument == *alias) stack->push_back(given[j]);
    }
  }
}

// The CPU has other operators for convolutions, so that the fallback knows none of these. Fake
// tensors expect contiguous results.
using Sizes = c10::IntArrayRef;

at::Tensor convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    Sizes stride, Sizes padding, Sizes dilation, bool transposed, Sizes output_padding,
    int64_t groups) {
  for (const auto& tensor : {input, weight, bias.value_or(at::Tensor())}) {
    check_device("convolution", tensor);
  }
  auto own_bias = bias && bias->defined() ? on_cpu(*bias) : at::Tensor();
  return at::convolution(
      on_cpu(input), on_cpu(weight), own_bias, stride, padding, dilation, transposed,
      output_padding, groups).contiguous().to(DEVICE);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, Sizes stride,
    Sizes padding, Sizes dilation, bool transposed, Sizes output_padding, int64_t groups,
    std::array<bool, 3> wanted) {
  for (const auto& tensor : {gradient, input, weight}) check_device("convolution", tensor);
  int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  at::Tensor a, b, c;
  std::tie(a, b, c) = at::convolution_backward(
      on_cpu(gradient), on_cpu(input), on_cpu(weight), at::OptionalIntArrayRef({channels}), stride,
      padding, dilation, transposed, output_padding, groups, wanted);
  for (auto* found : {&a, &b, &c}) {
    if (found->defined()) *found = found->contiguous().to(DEVICE);
  }
  return {a, b, c};
}

} // namespace

extern "C" void strict_listen(Listener listener) { on_host_copy = listener; }

TORCH_LIBRARY(strict, library) {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  library.def("refuse_doubles(bool refuses) -> ()", [](bool refuses) {
    refuses_doubles = refuses;
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
