// W s = s - Q (P' s): two thin products, P and Q (n, m) in the registers of the block or cluster for the whole sequence.
//
// Reading the factors from shared memory instead would cost 8 n m bytes per step at 128 bytes per clock: four times what their
// multiplications cost. In registers a step is bound by latency alone: two reductions and two barriers. Where there are no
// clusters and one block has too few registers, SHARED columns of Q are in shared memory all the same.
//
//   1. Warp w has columns w JW .. w JW + JW - 1 of P, its lanes share the rows; z = P' s by a transposing sum over lanes.
//   2. `SHARES` threads share a row of Q and sum their parts of Q z by shuffles.
//
// A cluster splits the rows. All that its blocks exchange at a step is M numbers each, the parts of z; what follows is
// local to a row.
namespace householder {

template <class S, int N, int M, int SHARED, int THREADS, int CLUSTER, int PHI>
struct LowRank {
  static constexpr int ROWS = N / CLUSTER;           // of this block
  static constexpr int WARPS = THREADS / WARP;
  static constexpr int COLUMNS = M / WARPS;          // of P that a warp has
  static constexpr int LANE_ROWS = ROWS / WARP;      // of P that a lane has
  static constexpr int SHARES = THREADS / ROWS;      // threads that share a row of Q
  static constexpr int SHARE = M / SHARES;           // columns of Q that a thread has
  static constexpr int HELD = SHARE - SHARED / SHARES;  // those of them in its registers, the first
  static constexpr int ROW_PACK = LANE_ROWS < WIDEST_PACK<S> ? LANE_ROWS : WIDEST_PACK<S>;
  static constexpr int WIDEST_COLUMN_PACK = SHARED ? WIDEST_PACK<S> / 2 : WIDEST_PACK<S>;  // a whole one spills
  static constexpr int COLUMN_PACK = SHARE < WIDEST_COLUMN_PACK ? SHARE : WIDEST_COLUMN_PACK;
  static_assert(M % WARPS == 0 && COLUMNS <= WARP && (COLUMNS & (COLUMNS - 1)) == 0, "a warp sums a power of two of columns");
  static_assert(ROWS % WARP == 0 && LANE_ROWS % ROW_PACK == 0, "lanes load whole packs of the state");
  static_assert(THREADS % ROWS == 0 && M % SHARES == 0 && SHARE % COLUMN_PACK == 0, "threads load whole packs of z");
  static_assert(SHARED % SHARES == 0 && HELD > 0 && HELD % COLUMN_PACK == 0, "whole packs of Q are in registers or shared");
  static_assert(2 * SHARES <= WARP && M <= THREADS, "pairs lie in one warp; a thread adds the parts of a column");

  S p[LANE_ROWS][COLUMNS], q[HELD];
  Exchange<CLUSTER> peers;
  S *state, *parts, *z;  // (ROWS); (2, CLUSTER, M), clusters only; (M)
  Pack<S, COLUMN_PACK>* shared_q;  // packs of columns of Q, (SHARED / SHARES / COLUMN_PACK, THREADS): a thread reads its own
  int position;
  bool owns;

  DEVICE static int thread() { return static_cast<int>(threadIdx.x); }
  DEVICE static int lane() { return thread() % WARP; }
  DEVICE static int first_column() { return thread() / WARP * COLUMNS; }
  DEVICE static int share() { return thread() % SHARES; }
  DEVICE static int partner_distance() { return SHARES; }
  DEVICE static int team() { return static_cast<int>(blockIdx.x) / CLUSTER; }
  DEVICE static int teams() { return static_cast<int>(gridDim.x) / CLUSTER; }

  // Position within the block of a lane's k-th row, and the k-th column of a thread's share: neighbours load neighbouring packs.
  DEVICE static int lane_row(int k) { return (k / ROW_PACK * WARP + lane()) * ROW_PACK + k % ROW_PACK; }
  DEVICE static int share_column(int k) {
    return (k / COLUMN_PACK * SHARES + share()) * COLUMN_PACK + k % COLUMN_PACK;
  }

  DEVICE LowRank(const S* P, const S* Q, int n, int m) {
    state = reinterpret_cast<S*>(dynamic_shared() + 128);
    z = state + ROWS;
    parts = z + M;
    const int first_row = static_cast<int>(peers.rank) * ROWS;
    position = first_row + thread() / SHARES;
    owns = share() == 0;
    const auto factor = [=](const S* matrix, int at, int column) {
      return at < n && column < m ? matrix[static_cast<long long>(row_at<PHI>(at, n)) * m + column] : S(0);
    };
    shared_q = reinterpret_cast<Pack<S, COLUMN_PACK>*>(parts + (CLUSTER == 1 ? 0 : 2 * CLUSTER * M)) + thread();
#pragma unroll 1
    for (int k = HELD; k < SHARE; k += COLUMN_PACK) {
      Pack<S, COLUMN_PACK> pack;
#pragma unroll
      for (int e = 0; e < COLUMN_PACK; ++e) pack.at[e] = factor(Q, position, share_column(k + e));
      shared_q[(k - HELD) / COLUMN_PACK * THREADS] = pack;
    }
#pragma unroll
    for (int k = 0; k < LANE_ROWS; ++k)
#pragma unroll
      for (int j = 0; j < COLUMNS; ++j) p[k][j] = factor(P, first_row + lane_row(k), first_column() + j);
#pragma unroll
    for (int k = 0; k < HELD; ++k) q[k] = factor(Q, position, share_column(k));
  }

  // The entry at this thread's position of W s, given that of s. Calls keep(column, entry) for each entry of P' s, once.
  template <class Keep>
  DEVICE S apply(S own, const Keep& keep) {
    if (owns) state[position - static_cast<int>(peers.rank) * ROWS] = own;
    block_sync();
    const S projected = project();
    const int column = first_column() + summed_index<COLUMNS>(lane());
    if constexpr (CLUSTER == 1) {
      if (holds_sum<COLUMNS>(lane())) {
        z[column] = projected;
        keep(column, projected);
      }
    } else {
      S* slot = parts + peers.slot() * CLUSTER * M;
      const bool holds = holds_sum<COLUMNS>(lane());
      peers.all_to_all(holds, slot + peers.rank * M + column, projected, CLUSTER * M * sizeof(S));
      if (thread() < M) {
        const S* part = slot + thread();
        S sum = part[0];
#pragma unroll
        for (int r = 1; r < CLUSTER; ++r) sum += part[r * M];
        z[thread()] = sum;
        if (peers.rank == 0) keep(thread(), sum);
      }
      ++peers.step;
    }
    block_sync();
    return own - expand();
  }

  // Sum `summed_index(lane)` of this warp's columns of P' s, over the rows of this block.
  DEVICE S project() const {
    S sums[COLUMNS];
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) sums[j] = 0;
#pragma unroll
    for (int k = 0; k < LANE_ROWS; k += ROW_PACK) {
      const Pack<S, ROW_PACK> s = *reinterpret_cast<const Pack<S, ROW_PACK>*>(state + lane_row(k));
#pragma unroll
      for (int j = 0; j < COLUMNS; ++j)
#pragma unroll
        for (int e = 0; e < ROW_PACK; ++e) sums[j] = multiply_add(p[k + e][j], s.at[e], sums[j]);
    }
    return sum_over_lanes<COLUMNS>(sums, lane());
  }

  // Q z at this thread's position. Separate sums for the entries of a pack shorten the chain of additions.
  DEVICE S expand() const {
    S sums[COLUMN_PACK];
#pragma unroll
    for (int e = 0; e < COLUMN_PACK; ++e) sums[e] = 0;
#pragma unroll
    for (int k = 0; k < SHARE; k += COLUMN_PACK) {
      const Pack<S, COLUMN_PACK> v = *reinterpret_cast<const Pack<S, COLUMN_PACK>*>(z + share_column(k));
      if (k < HELD) {
#pragma unroll
        for (int e = 0; e < COLUMN_PACK; ++e) sums[e] = multiply_add(q[k + e], v.at[e], sums[e]);
      } else {
        const Pack<S, COLUMN_PACK> shared = shared_q[(k - HELD) / COLUMN_PACK * THREADS];
#pragma unroll
        for (int e = 0; e < COLUMN_PACK; ++e) sums[e] = multiply_add(shared.at[e], v.at[e], sums[e]);
      }
    }
#pragma unroll
    for (int half = COLUMN_PACK / 2; half >= 1; half /= 2)
#pragma unroll
      for (int e = 0; e < half; ++e) sums[e] += sums[e + half];
#pragma unroll
    for (int distance = SHARES / 2; distance >= 1; distance /= 2) sums[0] += shuffle_xor(sums[0], distance);
    return sums[0];
  }

  DEVICE void finish() const { peers.finish(); }

  static constexpr int FACTOR_REGISTERS = (LANE_ROWS * COLUMNS + HELD) * static_cast<int>(sizeof(S)) / 4;
  static constexpr int BLOCKS = blocks_per_multiprocessor(THREADS, FACTOR_REGISTERS);
};

template <class S, class IO, int N, int M, int SHARED, int THREADS, int CLUSTER, int PHI>
__global__ void CLUSTER_OF(CLUSTER) __launch_bounds__(THREADS, (LowRank<S, N, M, SHARED, THREADS, CLUSTER, PHI>::BLOCKS))
    lowrank_forward(FORWARD_PARAMETERS(S, IO)) {
  const Forward<S, IO> call{FORWARD_ARGUMENTS};
  LowRank<S, N, M, SHARED, THREADS, CLUSTER, PHI> transition(P, Q, n, m);
  run_forward<PHI>(transition, call);
}

template <class S, class IO, int N, int M, int SHARED, int THREADS, int CLUSTER, int PHI>
__global__ void CLUSTER_OF(CLUSTER) __launch_bounds__(THREADS, (LowRank<S, N, M, SHARED, THREADS, CLUSTER, PHI>::BLOCKS))
    lowrank_backward(BACKWARD_PARAMETERS(S, IO)) {
  const Backward<S, IO> call{BACKWARD_ARGUMENTS};
  LowRank<S, N, M, SHARED, THREADS, CLUSTER, PHI> transition(P, Q, n, m);
  run_backward<PHI>(transition, call);
}

}  // namespace householder
