// Where the rows of packed sequences lie, told to the device by the arguments of a launch: no copy from host memory, whose
// contents a CUDA graph would read again at every replay.
namespace householder {

constexpr int PACKING_THREADS = 256;

struct Offsets {
  long long at[PACKING_THREADS];
};

// offsets[first + i] = given.at[i]
__global__ void __launch_bounds__(PACKING_THREADS) packing_offsets(Offsets given, long long* offsets, int first, int count) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < count) offsets[first + i] = given.at[i];
}

// The row of the same sequence one step before row B + i, and the row in which sequence b ends. Either array may be null.
__global__ void __launch_bounds__(PACKING_THREADS)
    packing_rows(const long long* __restrict__ offsets, long long* __restrict__ previous, long long* __restrict__ last,
                 long long rows, int T, int B) {
  const long long i = static_cast<long long>(blockIdx.x) * PACKING_THREADS + threadIdx.x;
  if (previous && i < rows - B) {
    int step = 0, over = T;  // row B + i belongs to a step from `step` on, before `over`
    while (over - step > 1) {
      const int middle = (step + over) / 2;
      (offsets[middle] <= B + i ? step : over) = middle;
    }
    previous[i] = offsets[step - 1] + (B + i - offsets[step]);
  }
  if (last && i < B) {
    const int b = static_cast<int>(i);
    last[b] = offsets[Steps{offsets, B, true}.length(T, b) - 1] + b;
  }
}

}  // namespace householder
