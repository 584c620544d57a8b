// Runs operators of the strict device on the CPU, in the device's memory.
#pragma once

#include <set>
#include <string>
#include <vector>

#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/resize_native.h>
#include <torch/library.h>

#include "strict_recordings.h"

namespace strict {

// As on a GPU, only numbers may be on the CPU.
inline void check_device(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() == TYPE) return;
  TORCH_CHECK(
      tensor.device().is_cpu() && tensor.dim() == 0,
      "Expected all tensors to be on the same device, but ", name, " got a tensor ",
      tensor.sizes(), " on ", tensor.device(), " beside others on ", DEVICE);
}

// Operators that need a workspace on a GPU, and those for which the host waits there.
inline const std::set<std::string> PRODUCTS{
    "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"};
inline const std::set<std::string> SIZED_BY_VALUES{
    "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim"};
inline const std::set<std::string> INDEXED{
    "aten::index", "aten::index_put_", "aten::_index_put_impl_"}; // by truth values

inline std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  if (value.isTensorList()) return value.toTensorVector();
  std::vector<at::Tensor> found;
  if (value.isOptionalTensorList()) {
    for (const auto& tensor : value.toOptionalTensorVector()) {
      if (tensor) found.push_back(*tensor);
    }
  }
  return found;
}

// One call of an operator on the CPU, in the device's memory, which a recording repeats.
struct Call {
  c10::OperatorHandle op;
  torch::jit::Stack lent = {};      // its arguments, on the CPU
  std::vector<size_t> outputs = {}; // which of them it may give another size

  at::Tensor lend(const at::Tensor& tensor) const {
    check_device(op.schema().name(), tensor);
    // A recording keeps the values of numbers on the CPU.
    return capture && tensor.defined() && tensor.is_cpu() ? tensor.clone() : on_cpu(tensor);
  }

  c10::IValue lend(const c10::IValue& value) const {
    if (value.isDevice()) return c10::Device(c10::kCPU);
    if (value.isTensor()) return lend(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> found;
      for (const auto& tensor : value.toTensorVector()) found.push_back(lend(tensor));
      return found;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> found;
      for (const auto& tensor : value.toOptionalTensorVector()) {
        found.push_back(tensor ? std::make_optional(lend(*tensor)) : std::nullopt);
      }
      return found;
    }
    return value;
  }

  void lend(const torch::jit::Stack& given, Uses& uses) {
    const auto& schema = op.schema();
    bool waits = SIZED_BY_VALUES.count(schema.name());
    for (size_t i = 0; i < given.size(); ++i) {
      const auto& argument = schema.arguments()[i];
      for (const auto& tensor : tensors_of(given[i])) {
        uses.add(tensor, argument.alias_info() && argument.alias_info()->isWrite());
        waits |= INDEXED.count(schema.name()) && i == 1 && tensor.scalar_type() == at::kBool;
      }
      if (argument.is_out() && given[i].isTensor()) outputs.push_back(i);
      lent.push_back(lend(given[i]));
    }
    if (PRODUCTS.count(schema.name())) uses.add(Workspaces::instance().current(), true);
    if (waits) {
      refuse_in_capture();
      read_by_host(sizeof(int64_t));
    }
  }

  // Its arguments, with those of `outputs` anew, and after them its results.
  torch::jit::Stack run() const {
    auto found = lent;
    for (auto i : outputs) found[i] = at::empty({0}, lent[i].toTensor().options());
    auto stack = found;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    found.insert(found.end(), stack.begin(), stack.end());
    return found;
  }
};

// A new tensor on the device with the values of one on the CPU.
inline at::Tensor on_device(const at::Tensor& tensor, Uses& uses) {
  if (!tensor.defined()) return tensor;
  auto made = at::empty_like(tensor, tensor.options().device(DEVICE));
  uses.add(made, true);
  on_cpu(made).copy_(tensor);
  return made;
}

inline c10::IValue on_device(const c10::IValue& value, Uses& uses) {
  if (value.isTensor()) return on_device(value.toTensor(), uses);
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> found;
  for (const auto& tensor : value.toTensorVector()) found.push_back(on_device(tensor, uses));
  return found;
}

inline void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto given = torch::jit::pop(*stack, schema.arguments().size());
  Uses uses;
  Call call{op};
  call.lend(given, uses);
  const auto found = call.run();
  std::vector<std::pair<size_t, std::vector<at::Tensor>>> written; // place in `found`, by whom
  for (auto i : call.outputs) {
    const auto output = given[i].toTensor(), value = found[i].toTensor();
    if (output.sizes() != value.sizes()) at::native::resize_(output, value.sizes());
    uses.add(output, true);
    on_cpu(output).copy_(value);
    written.push_back({i, {on_cpu(output)}});
  }
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    const auto* alias = schema.returns()[i].alias_info();
    if (!alias) {
      const auto place = given.size() + i;
      stack->push_back(on_device(found[place], uses));
      written.push_back({place, tensors_of(stack->back())});
      for (auto& tensor : written.back().second) tensor = on_cpu(tensor);
      continue;
    }
    TORCH_CHECK(alias->isWrite(), schema.name(), " is a view, which the fallback cannot make");
    for (size_t j = 0; j < given.size(); ++j) {
      const auto* argument = schema.arguments()[j].alias_info();
      if (argument && *argument == *alias) stack->push_back(given[j]);
    }
  }
  uses.done([call, written] {
    const auto found = call.run();
    for (const auto& [place, targets] : written) {
      const auto values = tensors_of(found[place]);
      for (size_t i = 0; i < targets.size(); ++i) {
        if (targets[i].defined()) targets[i].copy_(values[i]);
      }
    }
  });
}

// The CPU has other operators for convolutions, so that the fallback knows none of these. Fake
// tensors expect contiguous results.
using Sizes = c10::IntArrayRef;
using Tensors = std::vector<at::Tensor>;

// Run a function of these tensors on the CPU. Its results are on the device.
inline Tensors convolved(
    const Tensors& given, const std::function<Tensors(const Tensors&)>& compute) {
  Uses uses;
  Tensors lent, made, targets;
  for (const auto& tensor : given) {
    check_device("convolution", tensor);
    uses.add(tensor, false);
    lent.push_back(on_cpu(tensor));
  }
  for (const auto& value : compute(lent)) {
    made.push_back(on_device(value.defined() ? value.contiguous() : value, uses));
    targets.push_back(on_cpu(made.back()));
  }
  uses.done([lent, targets, compute] {
    const auto values = compute(lent);
    for (size_t i = 0; i < targets.size(); ++i) {
      if (targets[i].defined()) targets[i].copy_(values[i]);
    }
  });
  return made;
}

inline at::Tensor convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    Sizes stride, Sizes padding, Sizes dilation, bool transposed, Sizes output_padding,
    int64_t groups) {
  auto compute = [stride = stride.vec(), padding = padding.vec(), dilation = dilation.vec(),
                  transposed, added = output_padding.vec(), groups](const Tensors& lent) {
    return Tensors{at::convolution(
        lent[0], lent[1], lent[2], stride, padding, dilation, transposed, added, groups)};
  };
  return convolved({input, weight, bias.value_or(at::Tensor())}, compute)[0];
}

inline std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, Sizes stride,
    Sizes padding, Sizes dilation, bool transposed, Sizes output_padding, int64_t groups,
    std::array<bool, 3> wanted) {
  int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  auto compute = [stride = stride.vec(), padding = padding.vec(), dilation = dilation.vec(),
                  transposed, added = output_padding.vec(), groups, channels,
                  wanted](const Tensors& lent) {
    auto [a, b, c] = at::convolution_backward(
        lent[0], lent[1], lent[2], at::OptionalIntArrayRef({channels}), stride, padding, dilation,
        transposed, added, groups, wanted);
    return Tensors{a, b, c};
  };
  auto found = convolved({gradient, input, weight}, compute);
  return {found[0], found[1], found[2]};
}

} // namespace strict
