// dL/du from sums over all vectors and their gradients (Theorem 2), for many matrices in one launch; a block takes a matrix.
//
//   M = V* C2,   L = tril(S M),   X = L + L* with Re L_ii on the diagonal,   dL/dV = V X - C1 S* - C2
//
// with C1 = sum g z* and C2 = sum p w*, (n, k). The result is divided by the norms of u's columns, and zero above the diagonal.
namespace householder {

template <class T, int K, int THREADS>
struct Gradients : Squares<T, K, THREADS> {
  using Base = Squares<T, K, THREADS>;
  using Wide = WideOf<T>;
  using Base::SIDE, Base::SQUARES, Base::ACROSS, Base::k, Base::n, Base::sums, Base::thread, Base::place, Base::small;

  const T *v, *s, *c1, *c2;

  DEVICE Wide s_at(int i, int j) const { return i <= j && j < k ? converted<Wide>(s[place(i, j)]) : Wide{}; }

  // M, complete on and below the diagonal, in the first of `sums`.
  DEVICE void form_m() const {
    Base::multiply(v, c2, false);
    for (int at = thread(); at < K * K; at += THREADS) sums[at] = Base::total(at);
    block_sync();
  }

  // X in place of M.
  DEVICE void form_x() const {
    const int i = thread() % SQUARES / ACROSS * SIDE, j = thread() % SQUARES % ACROSS * SIDE;
    const bool mine = thread() < SQUARES && i >= j;
    Wide entries[SIDE][SIDE] = {};
    for (int l = i; l < k && mine; ++l)
#pragma unroll
      for (int x = 0; x < SIDE; ++x)
#pragma unroll
        for (int y = 0; y < SIDE; ++y)
          if (l >= i + x && i + x >= j + y) entries[x][y] = multiply_add(s_at(i + x, l), small(l, j + y), entries[x][y]);
    block_sync();
    if (mine) {
#pragma unroll
      for (int x = 0; x < SIDE; ++x)
#pragma unroll
        for (int y = 0; y < SIDE; ++y) {
          const int row = i + x, column = j + y;
          if (row > column) small(column, row) = conjugate(entries[x][y]);
          if (row >= column) small(row, column) = row > column ? entries[x][y] : number<Wide>(real_part(entries[x][y]), 0.0);
        }
    }
    block_sync();
  }

  DEVICE void expand(T* out, const RealOf<T>* norm) const {
    Base::for_each_square([&](int row, int column) {
      Wide entries[SIDE][SIDE] = {};
      Base::add_product(entries, v, row, column, 0, k, [&](int l, int j) { return small(l, j); });
      const auto minus_adjoint = [&](int l, int j) { return -conjugate(s_at(j, l)); };
      Base::add_product(entries, c1, row, column, column, k, minus_adjoint);
#pragma unroll
      for (int x = 0; x < SIDE; ++x)
#pragma unroll
        for (int y = 0; y < SIDE; ++y) {
          const int i = row + x, j = column + y;
          if (i >= n || j >= k) continue;
          const Wide sum = entries[x][y] - converted<Wide>(c2[place(i, j)]);
          out[place(i, j)] = i < j ? T{} : converted<T>(scaled(1 / static_cast<double>(norm[j]), sum));
        }
    });
  }
};

template <class T, int K, int THREADS>
__global__ void __launch_bounds__(THREADS, 2)
    gradients_form(const T* __restrict__ v, const T* __restrict__ s, const T* __restrict__ c1, const T* __restrict__ c2,
                   const RealOf<T>* __restrict__ norm, T* __restrict__ grad_u, int n, int k) {
  const long long matrix = blockIdx.x, tall = matrix * n * k;
  auto* sums = reinterpret_cast<WideOf<T>*>(dynamic_shared());
  const Gradients<T, K, THREADS> of{{n, k, sums}, v + tall, s + matrix * k * k, c1 + tall, c2 + tall};
  of.form_m();
  of.form_x();
  of.expand(grad_u + tall, norm + matrix * k);
}

}  // namespace householder
