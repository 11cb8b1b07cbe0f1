// Messages between the blocks of a cluster, counted by an mbarrier at the receiver.
//
// Two slots and two barriers, used in turn, suffice: a block sends for exchange t + 2 only after it has got all of t + 1, and the
// others' warps send that after they have read their slot of t.
namespace householder {

template <int CLUSTER>
struct Exchange {
  Barrier* arrived;  // (2), where shared memory begins
  unsigned rank, step = 0;

  DEVICE Exchange() : arrived(reinterpret_cast<Barrier*>(dynamic_shared())), rank(CLUSTER == 1 ? 0u : cluster_rank()) {
    if constexpr (CLUSTER > 1) {
      if (threadIdx.x == 0) {
        barrier_init(arrived);
        barrier_init(arrived + 1);
        barrier_init_fence();
      }
      cluster_sync();
    }
  }

  DEVICE unsigned slot() const { return step & 1; }

  // Sends the participating threads' numbers to that place of every block, this one included, and waits for all `bytes`.
  template <class S>
  DEVICE void all_to_all(bool takes_part, S* place, S own, unsigned bytes) const {
    if (threadIdx.x == 0) barrier_expect(arrived + slot(), bytes);
    if (takes_part) {
#pragma unroll
      for (unsigned r = 0; r < CLUSTER; ++r) send(place, own, arrived + slot(), r);
    }
    barrier_wait(arrived + slot(), step >> 1 & 1);
  }

  // All messages to this block have arrived; the blocks end together so that none outlives its sender.
  DEVICE void finish() const {
    if constexpr (CLUSTER > 1) cluster_sync();
  }
};

}  // namespace householder
