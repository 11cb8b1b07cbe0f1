// The recurrence for every shape that has no tile, on every device: one block runs a sequence, the matrices stay in memory.
//
//   W s = s - Q (P' s), or W s with P = W (n, n) if Q is null.
//
// State and intermediate results lie in shared memory, or in `scratch` if that is too small. All products are row by row: a
// warp takes rows in turn, its lanes neighbouring columns, so that matrices are read in whole lines.
namespace householder {

constexpr int FALLBACK_THREADS = 256;
constexpr int FALLBACK_WARPS = FALLBACK_THREADS / WARP;

template <class S>
struct FromMemory {
  const S *P, *Q;
  int n, m;
  S *state, *product;  // (n) each
  S *z, *parts;        // (m); (FALLBACK_THREADS)

  DEVICE FromMemory(const S* P, const S* Q, int n, int m, S* scratch) : P(P), Q(Q), n(n), m(Q ? m : 0) {
    const long long numbers = 2ll * n + this->m + FALLBACK_THREADS;
    state = scratch ? scratch + blockIdx.x * numbers : reinterpret_cast<S*>(dynamic_shared());
    product = state + n;
    z = product + n;
    parts = z + this->m;
  }

  DEVICE static int thread() { return static_cast<int>(threadIdx.x); }
  DEVICE static int lane() { return thread() % WARP; }
  DEVICE static int warp() { return thread() / WARP; }

  // product = W state. Leaves P' state at z_out, unless that is null. The state is complete before, the product afterwards.
  template <class IO>
  DEVICE void apply(IO* z_out) {
    block_sync();
    if (!Q) {
      multiply(P, n, state, [&](int i, S sum) { product[i] = sum; });
    } else {
      for (int first = 0; first < m; first += WARP) project(first);
      if (z_out)
        for (int j = thread(); j < m; j += FALLBACK_THREADS) narrow(z[j], z_out + j);
      multiply(Q, m, z, [&](int i, S sum) { product[i] = state[i] - sum; });
    }
    block_sync();
  }

  // z = P' state for 32 columns: each warp sums over its rows, the first one over the warps.
  DEVICE void project(int first) {
    const int column = first + lane();
    S sum = 0;
    if (column < m)
      for (int i = warp(); i < n; i += FALLBACK_WARPS)
        sum = multiply_add(P[static_cast<long long>(i) * m + column], state[i], sum);
    parts[thread()] = sum;
    block_sync();
    if (warp() == 0 && column < m) {
      for (int w = 1; w < FALLBACK_WARPS; ++w) sum += parts[w * WARP + lane()];
      z[column] = sum;
    }
    block_sync();
  }

  // store(i, sum_k matrix[i, k] v[k]) for every row i of matrix (n, columns).
  template <class Store>
  DEVICE void multiply(const S* matrix, int columns, const S* v, const Store& store) const {
    for (int i = warp(); i < n; i += FALLBACK_WARPS) {
      const S* row = matrix + static_cast<long long>(i) * columns;
      S sum[1] = {0};
      for (int k = lane(); k < columns; k += WARP) sum[0] = multiply_add(row[k], v[k], sum[0]);
      const S total = sum_over_lanes<1>(sum, lane());
      if (lane() == 0) store(i, total);
    }
  }
};

// Runs f(i, partner) for every row i of a pair or of its own; a thread has both rows of its pairs.
template <int PHI, class Function>
DEVICE void for_each_row(int n, const Function& f) {
  constexpr int TOGETHER = PAIRED<PHI> ? 2 : 1;
  for (int first = static_cast<int>(threadIdx.x) * TOGETHER; first < n; first += FALLBACK_THREADS * TOGETHER) f(first);
}

template <class S, class IO, int PHI>
__global__ void __launch_bounds__(FALLBACK_THREADS, 2) fallback_forward(FORWARD_PARAMETERS(S, IO), S* scratch) {
  FromMemory<S> w(P, Q, n, m, scratch);
  const Steps steps{offsets, B, offsets != nullptr};
  for (int b = static_cast<int>(blockIdx.x); b < B; b += static_cast<int>(gridDim.x)) {
    const int length = steps.length(T, b);
    for_each_row<PHI>(n, [&](int at) {
      for (int e = 0; e < (PAIRED<PHI> ? 2 : 1); ++e) {
        const int i = row_at<PHI>(at + e, n);
        w.state[i] = entry<S>(h0, true, static_cast<long long>(b) * n + i);
      }
    });
    for (int t = 0; t < length; ++t) {
      const long long row = steps.row(t, b), base = row * n;
      w.apply(z ? z + row * m : nullptr);
      for_each_row<PHI>(n, [&](int at) {
        const int i = row_at<PHI>(at, n);
        const Activation<PHI, S> phi(slope, phi_bias, at, n);
        const S a = w.product[i] + widen(x[base + i]);
        if constexpr (PAIRED<PHI>) {
          const int k = row_at<PHI>(at + 1, n);
          const Activation<PHI, S> other(slope, phi_bias, at + 1, n);
          const S c = w.product[k] + widen(x[base + k]);
          bool exchanged = false;
          w.state[i] = phi.paired(a, c, exchanged);
          w.state[k] = other.paired(c, a, exchanged);
          if (PHI == OPLU && flags) flags[row * (n / 2) + at / 2] = exchanged;
          narrow(w.state[k], h + base + k);
        } else {
          w.state[i] = phi.pointwise(a);
        }
        narrow(w.state[i], h + base + i);
      });
    }
  }
}

template <class S, class IO, int PHI>
__global__ void __launch_bounds__(FALLBACK_THREADS, 2) fallback_backward(BACKWARD_PARAMETERS(S, IO), S* scratch) {
  FromMemory<S> w(P, Q, n, m, scratch);
  const Steps steps{offsets, B, offsets != nullptr};
  for (int b = static_cast<int>(blockIdx.x); b < B; b += static_cast<int>(gridDim.x)) {
    const int length = steps.length(T, b);
    const long long of_sequence = static_cast<long long>(b) * n;
    const long long of_biases = static_cast<long long>(b) * modulus_at<PHI>(n);
    for_each_row<PHI>(n, [&](int at) {
      for (int e = 0; e < (PAIRED<PHI> ? 2 : 1); ++e) {
        const int i = row_at<PHI>(at + e, n);
        w.product[i] = entry<S>(grad_last, true, of_sequence + i);
      }
      if (BIASED<PHI> && grad_phi_bias) grad_phi_bias[of_biases + modulus_at<PHI>(at)] = 0;
    });
    for (int t = length - 1; t >= 0; --t) {
      const long long row = steps.row(t, b), base = row * n;
      for_each_row<PHI>(n, [&](int at) {
        const int i = row_at<PHI>(at, n);
        Activation<PHI, S> phi(slope, phi_bias, at, n);
        const S g = entry<S>(grad_h, true, base + i) + w.product[i], h_i = widen(h[base + i]);
        if constexpr (PAIRED<PHI>) {
          const int k = row_at<PHI>(at + 1, n);
          Activation<PHI, S> other(slope, phi_bias, at + 1, n);
          const S g_k = entry<S>(grad_h, true, base + k) + w.product[k], h_k = widen(h[base + k]);
          const bool exchanged = PHI == OPLU && flags[row * (n / 2) + at / 2];
          w.state[i] = phi.paired_gradient(g, g_k, h_i, h_k, exchanged);
          w.state[k] = other.paired_gradient(g_k, g, h_k, h_i, exchanged);
          narrow(w.state[k], delta + base + k);
        } else {
          w.state[i] = phi.pointwise_gradient(g, h_i);
        }
        if (BIASED<PHI> && grad_phi_bias)
          grad_phi_bias[of_biases + modulus_at<PHI>(at)] += phi.grad_bias;
        narrow(w.state[i], delta + base + i);
      });
      w.apply(q ? q + row * m : nullptr);
    }
    if (grad_h0)
      for_each_row<PHI>(n, [&](int at) {
        for (int e = 0; e < (PAIRED<PHI> ? 2 : 1); ++e) {
          const int i = row_at<PHI>(at + e, n);
          narrow(w.product[i], grad_h0 + of_sequence + i);
        }
      });
  }
}

}  // namespace householder
