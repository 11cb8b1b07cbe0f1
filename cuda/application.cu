// c = W h, or W* h, for many small matrices, one reflection after the other, and the gradients of u and h: one launch each.
//
// LANES threads of a warp have a matrix (n <= 4 LANES), four rows each; a block is one warp. The columns lie in shared memory, so
// that global memory is read in whole lines, scaled so that |v|^2 = 2 and H = I - v v*; one that stands for the identity is zero.
//
// Backward, with y = H x, g = dL/dy, alpha = v* y and beta = v* g:
//
//   dL/dv = conj(alpha) g - conj(beta) y + i Im(alpha conj(beta)) v,   x = y - alpha v,   dL/dx = g - beta v
//
// so that nothing but c is needed: going back, each vector is recovered from the one after it.
namespace householder {

template <class T, int LANES>
struct Reflections {
  using Real = RealOf<T>;
  static constexpr int ROWS = 4;  // of a thread
  static constexpr int MATRICES = WARP / LANES;
  static constexpr int STRIDE = (LANES + 1) * ROWS;  // of columns in shared memory; one more, so that neighbours differ in banks
  using Part = Pack<T, ROWS>;  // a thread's rows of a vector

  int n, m, count;  // count: of reflections; with m = n (real) the last column is the number u_1
  bool transpose, present;
  long long matrix;
  const T* u;
  T *columns, *gradients;  // (m, STRIDE) each, the latter backward only
  Real* scale;             // (m): what a column was multiplied by

  DEVICE Reflections(const T* all, int matrices, int n, int m, bool transpose, bool backward)
      : n(n), m(m), count(m - (m == n && !IS_COMPLEX<T>)), transpose(transpose) {
    const int team = thread() / LANES;
    matrix = static_cast<long long>(blockIdx.x) * MATRICES + team;
    present = matrix < matrices;
    u = all + (present ? matrix * n * m : 0);
    const int arrays = backward ? 2 : 1;
    columns = reinterpret_cast<T*>(dynamic_shared()) + team * arrays * m * STRIDE;
    gradients = columns + m * STRIDE;
    scale = reinterpret_cast<Real*>(reinterpret_cast<T*>(dynamic_shared()) + MATRICES * arrays * m * STRIDE) + team * m;
  }

  DEVICE static int thread() { return static_cast<int>(threadIdx.x); }
  DEVICE static int lane() { return thread() % LANES; }
  DEVICE static int first_row() { return lane() * ROWS; }
  DEVICE bool has_number() const { return count < m; }
  DEVICE T last_number() const { return u[static_cast<long long>(n) * m - 1]; }
  DEVICE bool owns_last() const { return lane() == (n - 1) / ROWS; }
  DEVICE Part& part(T* of, int column) const { return *reinterpret_cast<Part*>(of + column * STRIDE + first_row()); }

  // f(row, column, index) for each entry of a matrix (n, m) in memory, neighbouring ones in neighbouring lanes.
  template <class Function>
  DEVICE void for_each_entry(const Function& f) const {
    int row = 0, column = lane();
    for (int at = lane(); at < n * m; at += LANES, column += LANES) {
      while (column >= m) {
        column -= m;
        ++row;
      }
      f(row, column, at);
    }
  }

  DEVICE static Real largest_of_lanes(Real x) {
#pragma unroll
    for (int distance = LANES / 2; distance >= 1; distance /= 2) {
      const Real other = shuffle_xor(x, distance);
      x = other > x || other != other ? other : x;
    }
    return x;
  }

  DEVICE static Real sum_of_lanes(Real x) {
#pragma unroll
    for (int distance = LANES / 2; distance >= 1; distance /= 2) x += shuffle_xor(x, distance);
    return x;
  }

  template <class R>
  DEVICE static Complex<R> sum_of_lanes(Complex<R> x) {
    return {sum_of_lanes(x.re), sum_of_lanes(x.im)};
  }

  DEVICE static T inner(const Part& v, const Part& x) {
    T sum = {};
#pragma unroll
    for (int e = 0; e < ROWS; ++e) sum = multiply_add(conjugate(v.at[e]), x.at[e], sum);
    return sum_of_lanes(sum);
  }

  DEVICE static void subtract(Part& x, T factor, const Part& v) {
#pragma unroll
    for (int e = 0; e < ROWS; ++e) x.at[e] = multiply_add(-factor, v.at[e], x.at[e]);
  }

  DEVICE void load_columns() const {
    for (int row = n; row < LANES * ROWS; ++row)
      for (int column = lane(); column < m; column += LANES) columns[column * STRIDE + row] = T{};
    for_each_entry([&](int row, int column, int at) {
      columns[column * STRIDE + row] = present && row >= column ? u[at] : T{};
    });
    block_sync();
    for (int column = 0; column < count; ++column) {
      Part& v = part(columns, column);
      Real largest = 0;
#pragma unroll
      for (int e = 0; e < ROWS; ++e) {
        const Real size = size_of(v.at[e]);
        largest = size > largest || size != size ? size : largest;
      }
      largest = largest_of_lanes(largest);
      // Up to 2^126; the inverse of a larger number would be denormal, which is zero to the compiler. NaN if infinite.
      const Real usual = largest <= 1 / TINY<Real> ? 1 / largest : TINY<Real> + 0 * largest;
      const Real inverse = largest < TINY<Real> ? Real(1) : usual;
      Real square = 0;
#pragma unroll
      for (int e = 0; e < ROWS; ++e) square += squared_modulus(scaled(inverse, v.at[e]));
      square = sum_of_lanes(square);
      const bool zero = largest * square_root(square) < TINY<Real>;
      const Real length = zero ? Real(0) : square_root(2 / square);
#pragma unroll
      for (int e = 0; e < ROWS; ++e) v.at[e] = zero ? T{} : scaled(length, scaled(inverse, v.at[e]));
      if (lane() == 0) scale[column] = inverse * length;
    }
    if (lane() == 0 && has_number()) scale[count] = 1;
  }

  DEVICE Part load(const T* vectors, long long vector) const {
    Part x = {};
#pragma unroll
    for (int e = 0; e < ROWS; ++e)
      if (present && first_row() + e < n) x.at[e] = vectors[vector * n + first_row() + e];
    return x;
  }

  DEVICE void store(T* vectors, long long vector, const Part& x) const {
#pragma unroll
    for (int e = 0; e < ROWS; ++e)
      if (present && first_row() + e < n) vectors[vector * n + first_row() + e] = x.at[e];
  }

  // The entry of row n - 1, in the thread that has it.
  DEVICE T last_of(const Part& x) const {
    T found = {};
#pragma unroll
    for (int e = 0; e < ROWS; ++e)
      if (first_row() + e == n - 1) found = x.at[e];
    return found;
  }

  DEVICE void multiply_last(Part& x) const {
    if constexpr (!IS_COMPLEX<T>) {
#pragma unroll
      for (int e = 0; e < ROWS; ++e)
        if (first_row() + e == n - 1) x.at[e] *= last_number();
    }
  }

  // The column that acts as the i-th.
  DEVICE int turn(int i) const { return transpose ? i : count - 1 - i; }

  DEVICE void reflect(Part& x) const {
    for (int i = 0; i < count; ++i) {
      const Part& v = part(columns, turn(i));
      subtract(x, inner(v, x), v);
    }
  }

  // Adds to the gradients of column j and goes back across it: y and g become x and dL/dx.
  DEVICE void reflect_back(Part& y, Part& g, int j) const {
    const Part& v = part(columns, j);
    Part& gradient = part(gradients, j);
    const T alpha = inner(v, y), beta = inner(v, g);
    const Real turned = imaginary_part(multiply_add(alpha, conjugate(beta), T{}));
#pragma unroll
    for (int e = 0; e < ROWS; ++e) {
      T& sum = gradient.at[e];
      sum = multiply_add(conjugate(alpha), g.at[e], multiply_add(-conjugate(beta), y.at[e], sum));
      if constexpr (IS_COMPLEX<T>) sum = multiply_add(T{0, turned}, v.at[e], sum);
    }
    subtract(y, alpha, v);
    subtract(g, beta, v);
  }

  // Adds to the gradients of u what one vector contributes; g becomes the gradient of h.
  DEVICE void differentiate(const Part& h, Part& g) const {
    Part y = h;
    if (has_number() && !transpose) multiply_last(y);
    reflect(y);
    T last_gradient = {};
    if (has_number() && transpose) {
      last_gradient = multiply_add(last_of(g), last_of(y), T{});
      multiply_last(g);
    }
    for (int i = count - 1; i >= 0; --i) reflect_back(y, g, turn(i));
    if (has_number() && !transpose) {
      last_gradient = multiply_add(last_of(g), last_of(h), T{});
      multiply_last(g);
    }
    if (has_number() && owns_last()) {
      T& sum = gradients[count * STRIDE + n - 1];
      sum = sum + last_gradient;
    }
  }

  DEVICE void clear_gradients() const {
    for (int column = 0; column < m; ++column) part(gradients, column) = Part{};
  }

  DEVICE void store_gradients(T* out) const {
    block_sync();
    if (!present) return;
    out += matrix * n * m;
    for_each_entry([&](int row, int column, int at) {
      out[at] = row < column ? T{} : scaled(scale[column], gradients[column * STRIDE + row]);
    });
  }
};

/// Blocks that share a multiprocessor, which leaves 128 registers to a thread. Without it the compiler may use fewer and spill.
constexpr int BLOCKS = 16;

template <class T, int LANES>
__global__ void __launch_bounds__(WARP, BLOCKS)
    application_forward(const T* __restrict__ u, const T* __restrict__ h, T* __restrict__ c, int matrices, int n, int m,
                        int rows, int transpose) {
  const Reflections<T, LANES> w(u, matrices, n, m, transpose, false);
  w.load_columns();
  for (int row = 0; row < rows; ++row) {
    auto x = w.load(h, w.matrix * rows + row);
    if (w.has_number() && !transpose) w.multiply_last(x);
    w.reflect(x);
    if (w.has_number() && transpose) w.multiply_last(x);
    w.store(c, w.matrix * rows + row, x);
  }
}

template <class T, int LANES>
__global__ void __launch_bounds__(WARP, BLOCKS)
    application_backward(const T* __restrict__ u, const T* __restrict__ h, const T* __restrict__ grad_c, T* __restrict__ grad_u,
                         T* __restrict__ grad_h, int matrices, int n, int m, int rows, int transpose) {
  const Reflections<T, LANES> w(u, matrices, n, m, transpose, true);
  w.load_columns();
  w.clear_gradients();
  for (int row = 0; row < rows; ++row) {
    const long long vector = w.matrix * rows + row;
    auto g = w.load(grad_c, vector);
    w.differentiate(w.load(h, vector), g);
    if (grad_h) w.store(grad_h, vector, g);
  }
  w.store_gradients(grad_u);
}

}  // namespace householder
