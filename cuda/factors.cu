// The factors of W = I - V S V* for many matrices u (n, m) in one launch; a block takes a matrix.
//
//   1. Norms of the columns, and V, the columns of u as unit vectors.
//   2. T = striu(V* V) + diag(V* V) / 2: a thread has 4 x 4 entries, and groups of threads share the rows. V is read as it was
//      rounded, so that T + T* = V* V holds for the V that is applied.
//   3. S = T^-1 by doubling diagonal blocks: [[A, B], [0, D]]^-1 = [[A^-1, -A^-1 B D^-1], [0, D^-1]].
//   4. A = V S.
//
// All sums are double precision, for float too. Norms neither overflow nor underflow. A column that stands for the identity gives a
// zero column of V, and its norm is infinite.
namespace householder {

template <class T, int K, int THREADS>
struct Factors : Squares<T, K, THREADS> {
  using Base = Squares<T, K, THREADS>;
  using Wide = WideOf<T>;
  using Real = RealOf<T>;
  using Base::SIDE, Base::n, Base::k, Base::sums, Base::thread, Base::place, Base::small;
  static constexpr int COLUMN_GROUPS = THREADS / K;
  static_assert(THREADS % K == 0, "whole groups");

  const T* u;
  T *v, *a;
  int m;
  double* totals;  // (K); parts of them (THREADS) lie where the sums will, which are T and S (K, K) in the end

  // Combines the partial results of the threads of a column.
  template <class Combine>
  DEVICE double over_rows(double own, const Combine& combine) const {
    double* parts = reinterpret_cast<double*>(sums);
    parts[thread()] = own;
    block_sync();
    if (thread() < K) {
      for (int group = 1; group < COLUMN_GROUPS; ++group) own = combine(own, parts[group * K + thread()]);
      totals[thread()] = own;
    }
    block_sync();
    return totals[thread() % K];
  }

  DEVICE void normalise(Real* norm) const {
    const int column = thread() % K, group = thread() / K;
    const bool present = column < k;
    const auto entry = [&](int row) { return converted<Wide>(u[static_cast<long long>(row) * m + column]); };
    const int first = column + (group - column % COLUMN_GROUPS + COLUMN_GROUPS) % COLUMN_GROUPS;  // = group, and >= column
    double own = 0;
    for (int row = first; row < n && present; row += COLUMN_GROUPS) {
      const double size = size_of(entry(row));
      own = size > own || size != size ? size : own;
    }
    const double largest = over_rows(own, [](double a, double b) { return b > a || b != b ? b : a; });
    const double unit = largest < TINY<Real> ? 1.0 : 1.0 / largest;
    own = 0;
    for (int row = first; row < n && present; row += COLUMN_GROUPS) own += squared_modulus(scaled(unit, entry(row)));
    const double scaled_norm = sqrt(over_rows(own, [](double a, double b) { return a + b; }));
    const bool zero = largest * scaled_norm < TINY<Real>;
    const double inverse = zero ? 0.0 : 1.0 / scaled_norm;
    for (int row = group; row < n && present; row += COLUMN_GROUPS)
      v[place(row, column)] = row < column || zero ? T{} : converted<T>(scaled(inverse, scaled(unit, entry(row))));
    if (group == 0 && present) norm[column] = static_cast<Real>(zero ? 1 / inverse : largest * scaled_norm);
    block_sync();
  }

  DEVICE void form_t(Wide* out) const {
    for (int at = thread(); at < K * K; at += THREADS) {
      const int i = at / K, j = at % K;
      Wide sum = Base::total(at);
      const double half = real_part(sum) / 2;
      sum = i < j ? sum : number<Wide>(i > j ? 0.0 : half == 0 ? 0.5 : half, 0.0);
      sums[at] = sum;
      if (out && i < k && j < k) out[place(i, j)] = sum;
    }
    block_sync();
  }

  // In place. Intermediate products lie below the diagonal.
  DEVICE void invert() const {
    if (thread() < K) small(thread(), thread()) = number<Wide>(1 / real_part(small(thread(), thread())), 0.0);
    block_sync();
    for (int block = 1; block < K; block *= 2) {
      const auto for_each_entry = [&](const auto& f) {
        for (int at = thread(); at < K * block / 2; at += THREADS) {
          const int first = at / (block * block) * 2 * block, row = at / block % block, column = at % block;
          f(first, first + block, row, column);
        }
      };
      for_each_entry([&](int first, int second, int row, int column) {
        Wide sum = {};
        for (int l = 0; l <= column; ++l) sum = multiply_add(small(first + row, second + l), small(second + l, second + column), sum);
        small(second + row, first + column) = sum;
      });
      if (block > 1) block_sync();  // a single entry is its thread's own
      for_each_entry([&](int first, int second, int row, int column) {
        Wide sum = {};
        for (int l = row; l < block; ++l) sum = multiply_add(small(first + row, first + l), small(second + l, first + column), sum);
        small(first + row, second + column) = -sum;
      });
      block_sync();
    }
  }

  DEVICE void store_s(Wide* s) const {
    for (int at = thread(); at < K * K; at += THREADS) {
      const int i = at / K, j = at % K;
      if (i < k && j < k) s[place(i, j)] = i <= j ? small(i, j) : Wide{};
    }
  }

  DEVICE void expand() const {
    Base::for_each_square([&](int row, int column) {
      Wide entries[SIDE][SIDE] = {};
      const auto s = [&](int l, int j) { return l <= j ? small(l, j) : Wide{}; };
      Base::add_product(entries, v, row, column, 0, column + SIDE < k ? column + SIDE : k, s);
#pragma unroll
      for (int x = 0; x < SIDE; ++x)
#pragma unroll
        for (int y = 0; y < SIDE; ++y)
          if (row + x < n && column + y < k) a[place(row + x, column + y)] = converted<T>(entries[x][y]);
    });
  }
};

template <class T, int K, int THREADS>
__global__ void __launch_bounds__(THREADS, 2)
    factors_form(const T* __restrict__ u, T* v, T* a, WideOf<T>* s, WideOf<T>* t, RealOf<T>* norm, int n, int m, int k) {
  const long long matrix = blockIdx.x, tall = matrix * n * k, small = matrix * k * k;
  auto* sums = reinterpret_cast<WideOf<T>*>(dynamic_shared());
  auto* totals = reinterpret_cast<double*>(sums + 16 * THREADS);
  const Factors<T, K, THREADS> of{{n, k, sums}, u + matrix * n * m, v + tall, a + tall, m, totals};
  of.normalise(norm + matrix * k);
  of.multiply(of.v, of.v, true);
  of.form_t(t ? t + small : nullptr);
  of.invert();
  of.store_s(s + small);
  of.expand();
}

}  // namespace householder
