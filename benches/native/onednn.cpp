// oneDNN's vanilla RNN behind a C interface, for `sequence_rivals.OneDNN`: ReLU or tanh, one layer, float32.

#include <omp.h>

#include <cstring>
#include <unordered_map>

#include <oneapi/dnnl/dnnl.hpp>

using namespace dnnl;
using Tag = memory::format_tag;
using Arguments = std::unordered_map<int, memory>;

namespace {

struct Rnn {
  engine cpu{engine::kind::cpu, 0};
  stream queue{cpu};
  vanilla_rnn_forward forward;
  vanilla_rnn_backward backward;
  Arguments forward_arguments, backward_arguments;
  memory v, w, grad_v, grad_w, grad_b;                                  // as the caller has them
  memory packed_v, packed_w, turned_v, turned_w, summed_v, summed_w;    // as oneDNN wants them

  void reorder_to(memory& from, memory& to) { reorder(from, to).execute(queue, from, to); }
};

void clear(memory& m) { std::memset(m.get_data_handle(), 0, m.get_desc().get_size()); }

}  // namespace

extern "C" {

// Without gradients, the pointers from `grad_h` on are null.
Rnn* rnn_new(int threads, int steps, int batch, int inputs, int units, int relu, float* x, float* h0, float* w, float* v,
             float* b, float* h, float* grad_h, float* grad_last, float* grad_x, float* grad_h0, float* grad_w,
             float* grad_v, float* grad_b) {
  omp_set_num_threads(threads);
  auto rnn = new Rnn;
  auto& cpu = rnn->cpu;
  auto desc = [](memory::dims dims, Tag tag) { return memory::desc(dims, memory::data_type::f32, tag); };
  memory::dims v_dims{1, 1, inputs, 1, units}, w_dims{1, 1, units, 1, units};
  auto x_desc = desc({steps, batch, inputs}, Tag::tnc), h_desc = desc({steps, batch, units}, Tag::tnc);
  auto state_desc = desc({1, 1, batch, units}, Tag::ldnc), b_desc = desc({1, 1, 1, units}, Tag::ldgo);
  auto v_desc = desc(v_dims, Tag::ldgoi), w_desc = desc(w_dims, Tag::ldgoi);  // (units, inputs), as torch stores it
  auto any_v = desc(v_dims, Tag::any), any_w = desc(w_dims, Tag::any);
  auto how = relu ? algorithm::eltwise_relu : algorithm::eltwise_tanh;
  auto direction = rnn_direction::unidirectional_left2right;
  auto kind = grad_h ? prop_kind::forward_training : prop_kind::forward_inference;
  vanilla_rnn_forward::primitive_desc plan(cpu, kind, how, direction, x_desc, state_desc, any_v, any_w, b_desc, h_desc,
                                           state_desc);
  rnn->forward = vanilla_rnn_forward(plan);
  rnn->v = memory(v_desc, cpu, v);
  rnn->w = memory(w_desc, cpu, w);
  rnn->packed_v = memory(plan.weights_layer_desc(), cpu);
  rnn->packed_w = memory(plan.weights_iter_desc(), cpu);
  Arguments common{{DNNL_ARG_SRC_LAYER, memory(x_desc, cpu, x)},    {DNNL_ARG_SRC_ITER, memory(state_desc, cpu, h0)},
                   {DNNL_ARG_BIAS, memory(b_desc, cpu, b)},         {DNNL_ARG_DST_LAYER, memory(h_desc, cpu, h)},
                   {DNNL_ARG_DST_ITER, memory(state_desc, cpu)}};
  if (grad_h) common.insert({DNNL_ARG_WORKSPACE, memory(plan.workspace_desc(), cpu)});
  rnn->forward_arguments = common;
  rnn->forward_arguments.insert({{DNNL_ARG_WEIGHTS_LAYER, rnn->packed_v}, {DNNL_ARG_WEIGHTS_ITER, rnn->packed_w}});
  if (!grad_h) return rnn;

  vanilla_rnn_backward::primitive_desc back(cpu, prop_kind::backward, how, direction, x_desc, state_desc, any_v, any_w,
                                            b_desc, h_desc, state_desc, x_desc, state_desc, any_v, any_w, b_desc,
                                            h_desc, state_desc, plan);
  rnn->backward = vanilla_rnn_backward(back);
  rnn->turned_v = memory(back.weights_layer_desc(), cpu);
  rnn->turned_w = memory(back.weights_iter_desc(), cpu);
  rnn->summed_v = memory(back.diff_weights_layer_desc(), cpu);
  rnn->summed_w = memory(back.diff_weights_iter_desc(), cpu);
  rnn->grad_v = memory(v_desc, cpu, grad_v);
  rnn->grad_w = memory(w_desc, cpu, grad_w);
  rnn->grad_b = memory(b_desc, cpu, grad_b);
  rnn->backward_arguments = common;
  rnn->backward_arguments.insert({{DNNL_ARG_WEIGHTS_LAYER, rnn->turned_v},
                                  {DNNL_ARG_WEIGHTS_ITER, rnn->turned_w},
                                  {DNNL_ARG_DIFF_DST_LAYER, memory(h_desc, cpu, grad_h)},
                                  {DNNL_ARG_DIFF_DST_ITER, memory(state_desc, cpu, grad_last)},
                                  {DNNL_ARG_DIFF_SRC_LAYER, memory(x_desc, cpu, grad_x)},
                                  {DNNL_ARG_DIFF_SRC_ITER, memory(state_desc, cpu, grad_h0)},
                                  {DNNL_ARG_DIFF_WEIGHTS_LAYER, rnn->summed_v},
                                  {DNNL_ARG_DIFF_WEIGHTS_ITER, rnn->summed_w},
                                  {DNNL_ARG_DIFF_BIAS, rnn->grad_b}});
  return rnn;
}

void rnn_pack(Rnn* rnn) {
  rnn->reorder_to(rnn->v, rnn->packed_v);
  rnn->reorder_to(rnn->w, rnn->packed_w);
  rnn->queue.wait();
}

void rnn_forward(Rnn* rnn) {
  rnn->forward.execute(rnn->queue, rnn->forward_arguments);
  rnn->queue.wait();
}

void rnn_backward(Rnn* rnn) {
  rnn->reorder_to(rnn->v, rnn->turned_v);
  rnn->reorder_to(rnn->w, rnn->turned_w);
  for (auto sum : {&rnn->summed_v, &rnn->summed_w, &rnn->grad_b}) clear(*sum);  // it adds to these
  rnn->backward.execute(rnn->queue, rnn->backward_arguments);
  rnn->reorder_to(rnn->summed_v, rnn->grad_v);
  rnn->reorder_to(rnn->summed_w, rnn->grad_w);
  rnn->queue.wait();
}

}
