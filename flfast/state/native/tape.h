// Runs a step's operators again and again through torch's dispatcher, without Python in between.

#pragma once

#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/from_blob.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

using c10::IValue;
using Registers = std::vector<IValue>;

// Where the value of an argument comes from.
struct Source {
  enum { CONSTANT, REGISTER, LAST_READ, PER_CLIENT, LIST } kind;
  IValue constant;
  int64_t number = 0;    // of the register, or the size per client
  c10::TypePtr element;  // type of a list's elements
  std::vector<Source> items;

  IValue read(Registers& registers, int64_t width) const {
    switch (kind) {
      case CONSTANT: return constant;
      case REGISTER: return registers[number];
      case LAST_READ: return std::move(registers[number]);
      case PER_CLIENT: return number * width;
      case LIST: break;
    }
    c10::impl::GenericList list(element);
    for (const Source& item : items) list.push_back(item.read(registers, width));
    return list;
  }
};

struct Call {
  c10::OperatorHandle op;
  std::vector<Source> args;
  std::vector<int64_t> results;  // registers; -1 for a value that is never read

  void run(Registers& registers, c10::Stack& stack, int64_t width) const {
    stack.clear();
    for (const Source& arg : args) stack.push_back(arg.read(registers, width));
    try {
      op.callBoxed(stack);
    } catch (c10::Error& error) {
      error.add_context("in " + c10::toString(op.operator_name()) + " of a local step");
      throw;
    }
    if (stack.size() == 1 && stack[0].isList()) stack = stack[0].toListRef().vec();
    for (size_t i = 0; i < results.size(); ++i)
      if (results[i] >= 0) registers[results[i]] = std::move(stack[i]);
  }
};

struct Tape {
  std::vector<Call> once, step;
  int64_t num_registers;
};

// Reads an argument as graph/executor.py writes it: a constant, a tuple for a list, or a string
// whose first letter is a kind: 'r' a register, 'l' its last read, 'w' the width times a size, and
// any other letter a constant string.
Source source_of(const IValue& written, c10::TypePtr type) {
  if (auto optional = type->cast<c10::OptionalType>(); optional && !written.isNone())
    type = optional->getElementType();
  if (written.isString()) {
    const std::string rest = written.toStringRef().substr(1);
    switch (written.toStringRef()[0]) {
      case 'r': return {Source::REGISTER, {}, std::stoll(rest)};
      case 'l': return {Source::LAST_READ, {}, std::stoll(rest)};
      case 'w': return {Source::PER_CLIENT, {}, std::stoll(rest)};
      default: return {Source::CONSTANT, rest};
    }
  }
  if (written.isTuple()) {
    Source list{Source::LIST, {}, 0, type->expectRef<c10::ListType>().getElementType()};
    bool is_constant = true;
    for (const IValue& item : written.toTupleRef().elements()) {
      list.items.push_back(source_of(item, list.element));
      is_constant = is_constant && list.items.back().kind == Source::CONSTANT;
    }
    Registers none;
    return is_constant ? Source{Source::CONSTANT, list.read(none, 1)} : list;
  }
  if (type->kind() == c10::TypeKind::FloatType)
    return {Source::CONSTANT, written.toScalar().toDouble()};
  if (type->kind() == c10::TypeKind::TensorType && written.isScalar())
    return {Source::CONSTANT, at::native::wrapped_scalar_tensor(written.toScalar())};
  return {Source::CONSTANT, written};
}

// Reads (operator, overload, (arguments), (registers of results)).
Call call_of(const IValue& written) {
  const auto& parts = written.toTupleRef().elements();
  const auto& args = parts[2].toTupleRef().elements();
  Call call{c10::Dispatcher::singleton().findSchemaOrThrow(parts[0].toStringRef().c_str(),
                                                           parts[1].toStringRef().c_str())};
  for (size_t i = 0; i < args.size(); ++i)
    call.args.push_back(source_of(args[i], call.op.schema().arguments()[i].type()));
  for (const IValue& place : parts[3].toTupleRef().elements())
    call.results.push_back(place.toInt());
  return call;
}

// (calls before the first step, calls of a step, number of registers) -> a tensor that owns them
void make_tape(const c10::OperatorHandle&, c10::Stack* stack) {
  auto tape = std::make_unique<Tape>();
  tape->num_registers = torch::jit::pop(*stack).toInt();
  const IValue step = torch::jit::pop(*stack), once = torch::jit::pop(*stack);
  for (const IValue& call : once.toTupleRef().elements()) tape->once.push_back(call_of(call));
  for (const IValue& call : step.toTupleRef().elements()) tape->step.push_back(call_of(call));
  const auto free = [](void* held) { delete static_cast<Tape*>(held); };
  stack->push_back(at::from_blob(tape.release(), {1}, free, at::kByte));
}

// The first registers hold `fixed` and constants, the next ones row i of `rows` in step i.
void run_tape(const at::Tensor& held, at::TensorList fixed, at::TensorList rows, int64_t num,
              int64_t width) {
  const Tape& tape = *static_cast<const Tape*>(held.const_data_ptr());
  Registers registers(fixed.begin(), fixed.end());
  registers.resize(tape.num_registers);
  c10::Stack stack;
  for (const Call& call : tape.once) call.run(registers, stack, width);
  for (int64_t i = 0; i < num; ++i) {
    for (size_t row = 0; row < rows.size(); ++row)
      registers[fixed.size() + row] = rows[row].select(0, i);
    for (const Call& call : tape.step) call.run(registers, stack, width);
  }
}

}  // namespace
