// W s with W (n, n) in the registers of the block or cluster for the whole sequence.
//
// A warp has WARP_ROWS rows of W, its lanes share their columns; the sums over lanes leave each row's entry of W s in the
// lanes that own that row. Every block has the whole state: one exchange per step, and no other barrier.
//
// The state alternates between two slots. In a cluster the new entries go to all blocks as messages.
namespace householder {

template <class S, int N, int THREADS, int CLUSTER, int PHI>
struct Dense {
  static constexpr int ROWS = N / CLUSTER;            // of this block
  static constexpr int WARP_ROWS = ROWS * WARP / THREADS;
  static constexpr int LANE_COLUMNS = N / WARP;
  static constexpr int PACK = LANE_COLUMNS < WIDEST_PACK<S> ? LANE_COLUMNS : WIDEST_PACK<S>;
  static_assert(ROWS * WARP % THREADS == 0 && WARP_ROWS <= WARP && (WARP_ROWS & (WARP_ROWS - 1)) == 0,
                "a warp sums a power of two of rows");
  static_assert(N % WARP == 0 && LANE_COLUMNS % PACK == 0, "lanes load whole packs of the state");
  static_assert(WARP_ROWS >= 2, "pairs lie in one warp");

  S w[WARP_ROWS][LANE_COLUMNS];
  Exchange<CLUSTER> peers;
  S* states;  // (2, N)
  int position;
  bool owns;

  DEVICE static int thread() { return static_cast<int>(threadIdx.x); }
  DEVICE static int lane() { return thread() % WARP; }
  DEVICE static int partner_distance() { return WARP / WARP_ROWS; }
  DEVICE static int team() { return static_cast<int>(blockIdx.x) / CLUSTER; }
  DEVICE static int teams() { return static_cast<int>(gridDim.x) / CLUSTER; }
  DEVICE static int lane_column(int k) { return (k / PACK * WARP + lane()) * PACK + k % PACK; }

  DEVICE Dense(const S* W, int n) {
    states = reinterpret_cast<S*>(dynamic_shared() + 128);
    const int first_row = static_cast<int>(peers.rank) * ROWS + thread() / WARP * WARP_ROWS;
    position = first_row + summed_index<WARP_ROWS>(lane());
    owns = holds_sum<WARP_ROWS>(lane());
#pragma unroll
    for (int r = 0; r < WARP_ROWS; ++r)
#pragma unroll
      for (int k = 0; k < LANE_COLUMNS; ++k) {
        const int at = first_row + r, column = lane_column(k);
        const bool inside = at < n && column < n;
        w[r][k] = inside ? W[static_cast<long long>(row_at<PHI>(at, n)) * n + row_at<PHI>(column, n)] : S(0);
      }
  }

  // The entry at this thread's position of W s, given that of s.
  template <class Keep>
  DEVICE S apply(S own, const Keep&) {
    S* state = states + peers.slot() * N;
    if constexpr (CLUSTER == 1) {
      if (owns) state[position] = own;
      block_sync();
    } else {
      peers.all_to_all(owns, state + position, own, N * sizeof(S));
    }
    ++peers.step;
    S sums[WARP_ROWS];
#pragma unroll
    for (int r = 0; r < WARP_ROWS; ++r) sums[r] = 0;
#pragma unroll
    for (int k = 0; k < LANE_COLUMNS; k += PACK) {
      const Pack<S, PACK> s = *reinterpret_cast<const Pack<S, PACK>*>(state + lane_column(k));
#pragma unroll
      for (int r = 0; r < WARP_ROWS; ++r)
#pragma unroll
        for (int e = 0; e < PACK; ++e) sums[r] = multiply_add(w[r][k + e], s.at[e], sums[r]);
    }
    return sum_over_lanes<WARP_ROWS>(sums, lane());
  }

  DEVICE void finish() const { peers.finish(); }

  static constexpr int FACTOR_REGISTERS = WARP_ROWS * LANE_COLUMNS * static_cast<int>(sizeof(S)) / 4;
  static constexpr int BLOCKS = blocks_per_multiprocessor(THREADS, FACTOR_REGISTERS);
};

template <class S, class IO, int N, int THREADS, int CLUSTER, int PHI>
__global__ void CLUSTER_OF(CLUSTER) __launch_bounds__(THREADS, (Dense<S, N, THREADS, CLUSTER, PHI>::BLOCKS))
    dense_forward(FORWARD_PARAMETERS(S, IO)) {
  const Forward<S, IO> call{FORWARD_ARGUMENTS};
  Dense<S, N, THREADS, CLUSTER, PHI> transition(P, n);
  run_forward<PHI>(transition, call);
}

template <class S, class IO, int N, int THREADS, int CLUSTER, int PHI>
__global__ void CLUSTER_OF(CLUSTER) __launch_bounds__(THREADS, (Dense<S, N, THREADS, CLUSTER, PHI>::BLOCKS))
    dense_backward(BACKWARD_PARAMETERS(S, IO)) {
  const Backward<S, IO> call{BACKWARD_ARGUMENTS};
  Dense<S, N, THREADS, CLUSTER, PHI> transition(P, n);
  run_backward<PHI>(transition, call);
}

}  // namespace householder
