// Operators for graphs of local steps, and for compression, as `torch.ops.flfast`.

#include <torch/library.h>

#include "convolutions.h"
#include "cross_entropy.h"
#include "distance.h"
#include "pointwise.h"
#include "products.h"
#include "rounding.h"
#include "tape.h"

TORCH_LIBRARY(flfast, m) {
  m.def("linear(Tensor x, Tensor w, Tensor? bias, bool relu) -> Tensor");
  m.def("input_gradient(Tensor g, Tensor w, Tensor? active) -> Tensor");
  m.def("weight_update_(Tensor(a!) w, Tensor g, Tensor x, float beta, float alpha, "
        "Tensor? anchor=None, Tensor? share=None) -> Tensor(a!)");
  m.def("bias_update_(Tensor(a!) bias, Tensor g, float alpha) -> Tensor(a!)");
  m.def("conv_pool(Tensor x, Tensor w, Tensor? bias, int[] padding) -> (Tensor y, Tensor places)");
  m.def("conv_pool_backward(Tensor g, Tensor y, Tensor places, Tensor x, Tensor w, int[] padding, "
        "bool needs_x) -> (Tensor, Tensor, Tensor)");
  m.def("squared_distance(Tensor left, Tensor right) -> Tensor");
  m.def("pointwise(Tensor[] reads, Tensor(a!)[] written, Tensor[] factors, Tensor[] scalars, "
        "float[] numbers, int[] code, int num_results, int num_kept, "
        "int num_scratch) -> Tensor[]");
  m.def("cross_entropy(Tensor logits, Tensor targets) -> (Tensor losses, Tensor softmax)");
  m.def("cross_entropy_gradient(Tensor g, Tensor softmax, Tensor targets) -> Tensor");
  m.def("largest_magnitudes(Tensor vector, int[] nums, int[] widths) -> Tensor");
  m.def("round_randomly(Tensor vector, Tensor factors, Tensor state, float shift, int[] nums, "
        "int[] widths) -> Tensor");
  m.def("values_of_levels(Tensor levels, Tensor scales, float half, float step, int[] nums, "
        "int[] widths) -> Tensor");
  m.def("make_tape(Any once, Any step, int num_registers) -> Tensor",
        torch::CppFunction::makeFromBoxedFunction<&make_tape>());
  m.def("run_tape(Tensor tape, Tensor[] fixed, Tensor[] rows, int num, int width) -> ()",
        run_tape);
}

TORCH_LIBRARY_IMPL(flfast, CPU, m) {
  m.impl("linear", linear);
  m.impl("input_gradient", input_gradient);
  m.impl("weight_update_", weight_update_);
  m.impl("bias_update_", bias_update_);
  m.impl("conv_pool", conv_pool);
  m.impl("conv_pool_backward", conv_pool_backward);
  m.impl("squared_distance", squared_distance);
  m.impl("pointwise", pointwise);
  m.impl("cross_entropy", cross_entropy);
  m.impl("cross_entropy_gradient", cross_entropy_gradient);
  m.impl("largest_magnitudes", largest_magnitudes);
  m.impl("round_randomly", round_randomly);
  m.impl("values_of_levels", values_of_levels);
}
