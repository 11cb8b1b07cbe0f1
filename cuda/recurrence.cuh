// h_t = phi(W h_{t-1} + x_t), and backward delta_t = phi'(h_t) o (g_t + W' delta_{t+1}), dL/dh_0 = W' delta_1.
//
// A block, or a cluster of blocks that share the rows of W, runs one sequence from end to end; sequences never wait for
// each other. `Transition` keeps the matrix in registers and applies it: every thread passes it the entry of the state at
// its position and gets that of the product. Several threads may share a position; all of them compute the same numbers
// and the one that `owns` it stores them.
namespace householder {

// Steps between a request to bring a line into L2 and its use. A step takes less time than memory does to answer.
constexpr int PREFETCH_STEPS = 8;

template <int PHI, class S, class IO, class Transition>
DEVICE void loop_forward(Transition& transition, const Forward<S, IO>& call, const Steps steps) {
  const int n = call.n, position = transition.position, i = row_at<PHI>(position, n);
  const bool inside = position < n, stores = inside && transition.owns;
  const Activation<PHI, S> phi(call.slope, call.phi_bias, position, n);
  const long long stride = steps.batch * n;
  for (int b = transition.team(); b < call.B; b += transition.teams()) {
    const int length = steps.length(call.T, b);
    S state = entry<S>(call.h0, inside, static_cast<long long>(b) * n + i);
    long long at = steps.row(0, b) * n + i;
    IO x = stored(call.x, inside, at);
    for (int t = 0; t < length; ++t) {
      const long long apart = t + 1 < length ? steps.apart(t, 1, n, stride) : 0;
      const IO next_x = stored(call.x, inside, at + apart);
      if (stores && t + PREFETCH_STEPS < length) prefetch(call.x + at + steps.apart(t, PREFETCH_STEPS, n, stride));
      const auto keep_z = [&](int column, S v) {
        if (call.z && column < call.m) narrow(v, call.z + steps.row(t, b) * call.m + column);
      };
      const S a = transition.apply(state, keep_z) + widen(x);
      if constexpr (PAIRED<PHI>) {
        bool exchanged = false;
        state = phi.paired(a, shuffle_xor(a, transition.partner_distance()), exchanged);
        if (PHI == OPLU && stores && !phi.second && call.flags)
          call.flags[steps.row(t, b) * (n / 2) + position / 2] = exchanged;
      } else {
        state = phi.pointwise(a);
      }
      if (stores) narrow(state, call.h + at);
      at += apart;
      x = next_x;
    }
  }
}

template <int PHI, class S, class IO, class Transition>
DEVICE void run_forward(Transition& transition, const Forward<S, IO>& call) {
  if constexpr (PHI == OPLU) {  // two loops take more registers than there are
    loop_forward<PHI>(transition, call, call.steps(call.offsets != nullptr));
  } else if (call.offsets) {
    loop_forward<PHI>(transition, call, call.steps(true));
  } else {
    loop_forward<PHI>(transition, call, call.steps(false));
  }
  transition.finish();
}

template <int PHI, class S, class IO, class Transition>
DEVICE void loop_backward(Transition& transition, const Backward<S, IO>& call, const Steps steps) {
  const int n = call.n, position = transition.position, i = row_at<PHI>(position, n);
  const bool inside = position < n, stores = inside && transition.owns;
  Activation<PHI, S> phi(call.slope, call.phi_bias, position, n);
  const long long stride = steps.batch * n;
  const auto flag_of = [&](int t, int b) { return steps.row(t, b) * (n / 2) + position / 2; };
  for (int b = transition.team(); b < call.B; b += transition.teams()) {
    const int length = steps.length(call.T, b);
    const long long of_sequence = static_cast<long long>(b) * n + i;
    S carried = entry<S>(call.grad_last, inside, of_sequence);
    long long at = steps.row(length - 1, b) * n + i;
    IO stored_g = stored(call.grad_h, inside, at), stored_h = stored(call.h, inside, at);
    unsigned char exchanged = stored(call.flags, PHI == OPLU && inside, flag_of(length - 1, b));
    phi.grad_bias = 0;
    for (int t = length - 1; t >= 0; --t) {
      const long long apart = t > 0 ? steps.apart(t - 1, 1, n, stride) : 0;
      const IO next_g = stored(call.grad_h, inside, at - apart), next_h = stored(call.h, inside, at - apart);
      const unsigned char next_exchanged = stored(call.flags, PHI == OPLU && inside, flag_of(t > 0 ? t - 1 : 0, b));
      if (stores && t >= PREFETCH_STEPS) {
        const long long ahead = at - steps.apart(t - PREFETCH_STEPS, PREFETCH_STEPS, n, stride);
        prefetch(call.h + ahead);
        if (call.grad_h) prefetch(call.grad_h + ahead);
        if (PHI == OPLU) prefetch(call.flags + flag_of(t - PREFETCH_STEPS, b));
      }
      const S g = widen(stored_g), h = widen(stored_h);
      S delta = g + carried;
      if constexpr (PAIRED<PHI>) {
        const int distance = transition.partner_distance();
        delta = phi.paired_gradient(delta, shuffle_xor(delta, distance), h, shuffle_xor(h, distance), exchanged != 0);
      } else {
        delta = phi.pointwise_gradient(delta, h);
      }
      if (stores) narrow(delta, call.delta + at);
      const auto keep_q = [&](int column, S v) {
        if (call.q && column < call.m) narrow(v, call.q + steps.row(t, b) * call.m + column);
      };
      carried = transition.apply(delta, keep_q);
      at -= apart;
      stored_g = next_g;
      stored_h = next_h;
      exchanged = next_exchanged;
    }
    if (stores && call.grad_h0) narrow(carried, call.grad_h0 + of_sequence);
    if (BIASED<PHI> && stores && !phi.second && call.grad_phi_bias)
      call.grad_phi_bias[static_cast<long long>(b) * modulus_at<PHI>(n) + modulus_at<PHI>(position)] = phi.grad_bias;
  }
}

template <int PHI, class S, class IO, class Transition>
DEVICE void run_backward(Transition& transition, const Backward<S, IO>& call) {
  if constexpr (PHI == OPLU) {  // two loops take more registers than there are
    loop_backward<PHI>(transition, call, call.steps(call.offsets != nullptr));
  } else if (call.offsets) {
    loop_backward<PHI>(transition, call, call.steps(true));
  } else {
    loop_backward<PHI>(transition, call, call.steps(false));
  }
  transition.finish();
}

}  // namespace householder
