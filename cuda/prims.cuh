// Everything a kernel needs that is not plain C++: number types, barriers, shuffles and messages between the blocks of a
// cluster. Kernels contain no PTX. A build for the CPU (tests/cuda/emulator.hpp) defines the first half in its own way.
#ifndef HOUSEHOLDER_EMULATED

#define DEVICE __device__ __forceinline__
#if defined(HOUSEHOLDER_CLUSTERS) && __CUDA_ARCH__ >= 900
#define CLUSTER_OF(size) __cluster_dims__(size, 1, 1)
#else
#define CLUSTER_OF(size)
#endif

namespace householder {

using Barrier = unsigned long long;  // an mbarrier

DEVICE unsigned char* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char householder_shared[];
  return householder_shared;
}

// All threads of the block.
DEVICE void block_sync() { __syncthreads(); }

// `v` of the lane whose number differs in the bits of `distance`; all 32 lanes take part.
template <class S>
DEVICE S shuffle_xor(S v, int distance) {
  return __shfl_xor_sync(0xffffffffu, v, distance);
}

// Begins to bring the line at p into L2; reads nothing.
DEVICE void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

DEVICE float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

DEVICE float reciprocal_approximate(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

DEVICE unsigned bits_of(float x) { return __float_as_uint(x); }
DEVICE float float_of(unsigned bits) { return __uint_as_float(bits); }

DEVICE float half_to_float(unsigned short bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}

DEVICE unsigned short float_to_half(float x) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}

DEVICE unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of the cluster. It waits for the block's stores to reach memory (MEMBAR.GPU): never inside the loop over time.
DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

DEVICE unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// Other blocks of the cluster write what these barriers announce, so expecting and waiting have the scope of the cluster.
// HOUSEHOLDER_BLOCK_SCOPE leaves both with the default, which is the block: `gpu-check` compares the two.
#ifdef HOUSEHOLDER_BLOCK_SCOPE
#define RELEASE ""
#define ACQUIRE ""
#else
#define RELEASE ".release.cluster"
#define ACQUIRE ".acquire.cluster"
#endif

// A barrier that completes a phase after one `barrier_expect` and the arrival of the bytes that it announced.
DEVICE void barrier_init(Barrier* barrier) {
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}

// Makes initialised barriers visible to the other blocks of the cluster, after the next `cluster_sync`.
DEVICE void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

DEVICE void barrier_expect(Barrier* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx" RELEASE ".shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

// Until the phase of that parity (0, 1, 0, ..) is complete; what arrived for it is then visible.
DEVICE void barrier_wait(Barrier* barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred complete;\n"
      "AGAIN%=: mbarrier.try_wait.parity" ACQUIRE ".shared::cta.b64 complete, [%0], %1;\n"
      "@!complete bra AGAIN%=;\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// The address in block `rank` of the cluster that corresponds to `address` in this block.
DEVICE unsigned at_rank(unsigned address, unsigned rank) {
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// Writes v into block `rank`, where this block has *p, and counts its bytes on that block's `barrier`. No fence is needed.
DEVICE void send(float* p, float v, Barrier* barrier, unsigned rank) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                   at_rank(shared_address(p), rank)),
               "r"(__float_as_uint(v)), "r"(at_rank(shared_address(barrier), rank))
               : "memory");
}

DEVICE void send(double* p, double v, Barrier* barrier, unsigned rank) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(
                   at_rank(shared_address(p), rank)),
               "l"(__double_as_longlong(v)), "r"(at_rank(shared_address(barrier), rank))
               : "memory");
}

}  // namespace householder
#endif

namespace householder {

struct bf16 {
  unsigned short bits;
};

struct f16 {
  unsigned short bits;
};

DEVICE float widen(float x) { return x; }
DEVICE double widen(double x) { return x; }
DEVICE float widen(bf16 x) { return float_of(static_cast<unsigned>(x.bits) << 16); }
DEVICE float widen(f16 x) { return half_to_float(x.bits); }

DEVICE void narrow(float x, float* out) { *out = x; }
DEVICE void narrow(double x, double* out) { *out = x; }
DEVICE void narrow(float x, f16* out) { out->bits = float_to_half(x); }

// To nearest, ties to even; a NaN stays one.
DEVICE void narrow(float x, bf16* out) {
  const unsigned bits = bits_of(x), rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  out->bits = static_cast<unsigned short>(x == x ? rounded : bits >> 16 | 0x40u);
}

// K numbers that are loaded from shared memory at once.
template <class S, int K>
struct alignas(K * sizeof(S)) Pack {
  S at[K];
};

template <class S>
constexpr int WIDEST_PACK = 16 / static_cast<int>(sizeof(S));

constexpr int WARP = 32;

// Sums J numbers over the 32 lanes of a warp, with J - 1 + log2(32 / J) shuffles instead of 5 J: lanes hand on half of
// what they hold as long as they hold several. Sum `summed_index` ends in lane `lane`, the same one in 32 / J lanes.
template <int HELD, int DISTANCE = WARP / 2, int J, class S>
DEVICE S sum_over_lanes(S (&v)[J], int lane) {
  if constexpr (DISTANCE == 0) {
    return v[0];
  } else if constexpr (HELD == 1) {
    v[0] += shuffle_xor(v[0], DISTANCE);
    return sum_over_lanes<1, DISTANCE / 2>(v, lane);
  } else {
    const bool upper = lane & DISTANCE;
#pragma unroll
    for (int k = 0; k < HELD / 2; ++k) {
      const S given = upper ? v[k] : v[k + HELD / 2], kept = upper ? v[k + HELD / 2] : v[k];
      v[k] = kept + shuffle_xor(given, DISTANCE);
    }
    return sum_over_lanes<HELD / 2, DISTANCE / 2>(v, lane);
  }
}

template <int J>
DEVICE int summed_index(int lane) {
  int j = 0, distance = WARP / 2;
#pragma unroll
  for (int half = J / 2; half >= 1; half /= 2, distance /= 2) j += lane & distance ? half : 0;
  return j;
}

// Whether `lane` is the first of those that hold the same sum.
template <int J>
DEVICE bool holds_sum(int lane) {
  return (lane & (WARP / J - 1)) == 0;
}

// Most registers a thread may use, given how many hold matrix entries: at 128, two blocks of 256 threads share an SM.
DEVICE constexpr int register_budget(int factor_registers) { return factor_registers <= 64 ? 128 : 256; }

// Blocks that the 65536 registers of an SM hold, for __launch_bounds__.
DEVICE constexpr int blocks_per_multiprocessor(int threads, int factor_registers) {
  const int blocks = 65536 / (threads * register_budget(factor_registers));
  return blocks ? blocks : 1;
}

}  // namespace householder
