// Products of tall matrices (n, k), k <= K, with each other and with small ones (k, k), by one block: a thread has 4 x 4 entries of
// the result. Sums are double precision for every T.
namespace householder {

template <class T, int K, int THREADS>
struct Squares {
  using Wide = WideOf<T>;
  static constexpr int SIDE = 4;
  static constexpr int ACROSS = K / SIDE;           // squares in a row of the matrix
  static constexpr int SQUARES = ACROSS * ACROSS;
  static constexpr int GROUPS = THREADS / SQUARES;  // of threads that have all squares of a small matrix; they share rows
  static_assert(THREADS % SQUARES == 0, "whole groups");

  int n, k;
  Wide* sums;  // (GROUPS, K, K)

  DEVICE static int thread() { return static_cast<int>(threadIdx.x); }
  DEVICE long long place(int row, int column) const { return static_cast<long long>(row) * k + column; }
  DEVICE Wide& small(int row, int column) const { return sums[row * K + column]; }

  // Each group's part of A* B into `sums`, on and above the diagonal or on and below it; the rest is undefined.
  DEVICE void multiply(const T* a, const T* b, bool above) const {
    const int square = thread() % SQUARES, group = thread() / SQUARES;
    const int i = square / ACROSS * SIDE, j = square % ACROSS * SIDE;
    Wide entries[SIDE][SIDE] = {};
    for (int row = group; row < n && (above ? i <= j : i >= j); row += GROUPS) {
      Wide left[SIDE], right[SIDE];
#pragma unroll
      for (int e = 0; e < SIDE; ++e) {
        left[e] = i + e < k ? conjugate(converted<Wide>(a[place(row, i + e)])) : Wide{};
        right[e] = j + e < k ? converted<Wide>(b[place(row, j + e)]) : Wide{};
      }
#pragma unroll
      for (int x = 0; x < SIDE; ++x)
#pragma unroll
        for (int y = 0; y < SIDE; ++y) entries[x][y] = multiply_add(left[x], right[y], entries[x][y]);
    }
#pragma unroll
    for (int x = 0; x < SIDE; ++x)
#pragma unroll
      for (int y = 0; y < SIDE; ++y) sums[(group * K + i + x) * K + j + y] = entries[x][y];
    block_sync();
  }

  // The sum over groups of the entry at that place of a small matrix.
  DEVICE Wide total(int at) const {
    Wide sum = sums[at];
    for (int group = 1; group < GROUPS; ++group) sum = sum + sums[group * K * K + at];
    return sum;
  }

  // f(row, column) for the first entries of the squares of a tall matrix that this thread has.
  template <class Function>
  DEVICE void for_each_square(const Function& f) const {
    const int column = thread() % ACROSS * SIDE;
    for (int row = thread() / ACROSS * SIDE; row < n; row += THREADS / ACROSS * SIDE) f(row, column);
  }

  // entries += A B for the square at (row, column); B's entries are right(l, column), first <= l < end.
  template <class Right>
  DEVICE void add_product(Wide (&entries)[SIDE][SIDE], const T* a, int row, int column, int first, int end,
                          const Right& right) const {
    for (int l = first; l < end; ++l) {
      Wide x_entries[SIDE], y_entries[SIDE];
#pragma unroll
      for (int e = 0; e < SIDE; ++e) {
        x_entries[e] = row + e < n ? converted<Wide>(a[place(row + e, l)]) : Wide{};
        y_entries[e] = right(l, column + e);
      }
#pragma unroll
      for (int x = 0; x < SIDE; ++x)
#pragma unroll
        for (int y = 0; y < SIDE; ++y) entries[x][y] = multiply_add(x_entries[x], y_entries[y], entries[x][y]);
    }
  }
};

}  // namespace householder
