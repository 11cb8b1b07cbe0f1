// Where the state of sequence b at step t lies: row offsets[t] + b of an array (rows, n), or t B + b.
namespace householder {

struct Steps {
  const long long* offsets;
  long long batch;
  bool packed;

  DEVICE long long row(int t, int b) const { return (packed ? offsets[t] : t * batch) + b; }

  // How far apart in memory the same entry of states t and t + k is, n numbers each; `stride` is batch * n.
  DEVICE long long apart(int t, int k, int n, long long stride) const {
    return packed ? (offsets[t + k] - offsets[t]) * n : k * stride;
  }

  // Steps of sequence b. Since batches only shrink, it is running up to a step, found by bisection, and not after.
  DEVICE int length(int steps, int b) const {
    if (!packed) return steps;
    int running = 0, over = steps;  // it runs at `running`, not at `over`
    while (over - running > 1) {
      const int middle = (running + over) / 2;
      (offsets[middle + 1] - offsets[middle] > b ? running : over) = middle;
    }
    return running + 1;
  }
};

// The arguments of all kernels of a direction (README.md) and the same as one object.
#define FORWARD_PARAMETERS(S, IO)                                                                                         \
  const S *__restrict__ P, const S *__restrict__ Q, const IO *__restrict__ x, const IO *__restrict__ h0,                  \
      const S *__restrict__ phi_bias, double slope, const long long *__restrict__ offsets, IO *__restrict__ h,            \
      IO *__restrict__ z, unsigned char *__restrict__ flags, int n, int m, int T, int B
#define FORWARD_ARGUMENTS P, Q, x, h0, phi_bias, slope, offsets, h, z, flags, n, m, T, B

#define BACKWARD_PARAMETERS(S, IO)                                                                                        \
  const S *__restrict__ P, const S *__restrict__ Q, const IO *__restrict__ h, const unsigned char *__restrict__ flags,    \
      const S *__restrict__ phi_bias, double slope, const long long *__restrict__ offsets, const IO *__restrict__ grad_h, \
      const IO *__restrict__ grad_last, IO *__restrict__ delta, IO *__restrict__ q, IO *__restrict__ grad_h0,             \
      S *__restrict__ grad_phi_bias, int n, int m, int T, int B
#define BACKWARD_ARGUMENTS                                                                                                \
  P, Q, h, flags, phi_bias, slope, offsets, grad_h, grad_last, delta, q, grad_h0, grad_phi_bias, n, m, T, B

template <class S, class IO>
struct Forward {
  const S *P, *Q;
  const IO *x, *h0;
  const S* phi_bias;
  double slope;
  const long long* offsets;
  IO *h, *z;
  unsigned char* flags;
  int n, m, T, B;

  // Loops have `packed` as a constant: it decides how they find the next state, at every step.
  DEVICE Steps steps(bool packed) const { return {offsets, B, packed}; }
};

template <class S, class IO>
struct Backward {
  const S *P, *Q;
  const IO* h;
  const unsigned char* flags;
  const S* phi_bias;
  double slope;
  const long long* offsets;
  const IO *grad_h, *grad_last;
  IO *delta, *q, *grad_h0;
  S* grad_phi_bias;
  int n, m, T, B;

  DEVICE Steps steps(bool packed) const { return {offsets, B, packed}; }
};

// An entry as it is stored, 0 where there is none. The load is waited for only when the entry is widened.
template <class IO>
DEVICE IO stored(const IO* array, bool present, long long at) {
  return present && array ? array[at] : IO{};
}

// An entry, 0 where there is none.
template <class S, class IO>
DEVICE S entry(const IO* array, bool present, long long at) {
  return present && array ? widen(array[at]) : S(0);
}

}  // namespace householder
