// h_t = phi(W h_{t-1} + x_t), and backward delta_t = phi'(h_t) o (g_t + W' delta_{t+1}), dL/dh_0 = W' delta_1.
//
// A block, or a cluster of blocks that share the rows of W, runs one sequence from end to end; sequences never wait for
// each other. `Transition` keeps the matrix in registers and applies it: every thread gives it the entry of the state at
// its position and gets that of the product. Several threads may share a position; all of them compute the same numbers
// and the one that `owns` it stores them.
namespace householder {

// Steps between a request to bring a line into L2 and its use. A step takes less time than memory does to answer.
constexpr int PREFETCH_STEPS = 8;

template <int PHI, class S, class IO, class Transition>
DEVICE void run_forward(Transition& transition, const Forward<S, IO>& call) {
  const int n = call.n, position = transition.position, i = row_at<PHI>(position, n);
  const bool inside = position < n, stores = inside && transition.owns;
  const Activation<PHI, S> phi(call.slope, call.phi_bias, position, n);
  const Steps steps = call.steps();
  for (int b = transition.team(); b < call.B; b += transition.teams()) {
    const int length = steps.length(call.T, b);
    long long row = steps.row(0, b);
    S state = entry<S>(call.h0, inside, static_cast<long long>(b) * n + i);
    S x = entry<S>(call.x, inside, row * n + i);
    for (int t = 0; t < length; ++t) {
      const long long next_row = steps.row(t + 1 < length ? t + 1 : t, b);
      const S next_x = entry<S>(call.x, inside, next_row * n + i);
      if (stores && t + PREFETCH_STEPS < length) prefetch(call.x + steps.row(t + PREFETCH_STEPS, b) * n + i);
      const S a = transition.apply(state, call.z ? call.z + row * call.m : nullptr) + x;
      if constexpr (PAIRED<PHI>) {
        bool exchanged = false;
        state = phi.paired(a, shuffle_xor(a, transition.partner_distance()), exchanged);
        if (PHI == OPLU && stores && !phi.second && call.flags) call.flags[row * (n / 2) + position / 2] = exchanged;
      } else {
        state = phi.pointwise(a);
      }
      if (stores) narrow(state, call.h + row * n + i);
      row = next_row;
      x = next_x;
    }
  }
  transition.finish();
}

template <int PHI, class S, class IO, class Transition>
DEVICE void run_backward(Transition& transition, const Backward<S, IO>& call) {
  const int n = call.n, position = transition.position, i = row_at<PHI>(position, n);
  const bool inside = position < n, stores = inside && transition.owns;
  Activation<PHI, S> phi(call.slope, call.phi_bias, position, n);
  const Steps steps = call.steps();
  const auto flag = [&](long long row) { return PHI == OPLU && inside && call.flags[row * (n / 2) + position / 2]; };
  for (int b = transition.team(); b < call.B; b += transition.teams()) {
    const int length = steps.length(call.T, b);
    const long long of_sequence = static_cast<long long>(b) * n + i;
    long long row = steps.row(length - 1, b);
    S carried = entry<S>(call.grad_last, inside, of_sequence);
    S g = entry<S>(call.grad_h, inside, row * n + i), h = entry<S>(call.h, inside, row * n + i);
    bool exchanged = flag(row);
    phi.grad_bias = 0;
    for (int t = length - 1; t >= 0; --t) {
      const long long next_row = steps.row(t > 0 ? t - 1 : t, b);
      const S next_g = entry<S>(call.grad_h, inside, next_row * n + i);
      const S next_h = entry<S>(call.h, inside, next_row * n + i);
      const bool next_exchanged = flag(next_row);
      if (stores && t >= PREFETCH_STEPS) {
        const long long at = steps.row(t - PREFETCH_STEPS, b) * n + i;
        prefetch(call.h + at);
        if (call.grad_h) prefetch(call.grad_h + at);
      }
      S delta = g + carried;
      if constexpr (PAIRED<PHI>) {
        const int distance = transition.partner_distance();
        delta = phi.paired_gradient(delta, shuffle_xor(delta, distance), h, shuffle_xor(h, distance), exchanged);
      } else {
        delta = phi.pointwise_gradient(delta, h);
      }
      if (stores) narrow(delta, call.delta + row * n + i);
      carried = transition.apply(delta, call.q ? call.q + row * call.m : nullptr);
      row = next_row;
      g = next_g;
      h = next_h;
      exchanged = next_exchanged;
    }
    if (stores && call.grad_h0) narrow(carried, call.grad_h0 + of_sequence);
    if (PHI >= MODRELU && stores && !phi.second && call.grad_phi_bias)
      call.grad_phi_bias[static_cast<long long>(b) * (n / 2) + position / 2] = phi.grad_bias;
  }
  transition.finish();
}

}  // namespace householder
