// ggml's gated delta rule behind a C interface, for `delta_rivals.ggml`: float32, keys as wide as values.

#include <ggml-cpu.h>

#include <cstdint>
#include <vector>

namespace {

struct Rule {
  ggml_context* context = ggml_init({16 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true});
  ggml_cgraph* graph = ggml_new_graph(context);
  ggml_cplan plan;
  std::vector<uint8_t> work;

  ggml_tensor* tensor(int64_t width, int64_t heads, int64_t tokens, float* numbers) {
    auto found = ggml_new_tensor_3d(context, GGML_TYPE_F32, width, heads, tokens);
    found->data = numbers;
    return found;
  }
};

}  // namespace

extern "C" {

// A gate has `gates` numbers: one, or `width`. The outputs and after them the last states go to `results`.
Rule* rule_new(int threads, int width, int heads, int value_heads, int tokens, int gates, float* q, float* k, float* v,
               float* g, float* beta, float* states, float* results) {
  auto rule = new Rule;
  auto both = ggml_gated_delta_net(
      rule->context, rule->tensor(width, heads, tokens, q), rule->tensor(width, heads, tokens, k),
      rule->tensor(width, value_heads, tokens, v), rule->tensor(gates, value_heads, tokens, g),
      rule->tensor(1, value_heads, tokens, beta), rule->tensor(width, width, value_heads, states), 1);
  both->data = results;
  ggml_build_forward_expand(rule->graph, both);
  rule->plan = ggml_graph_plan(rule->graph, threads, nullptr);
  rule->work.resize(rule->plan.work_size);
  rule->plan.work_data = rule->work.data();
  return rule;
}

void rule_run(Rule* rule) { ggml_graph_compute(rule->graph, &rule->plan); }

}
