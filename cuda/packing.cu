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

// The step that a row belongs to.
DEVICE int step_of(const long long* offsets, int T, long long row) {
  int step = 0, over = T;  // from `step` on, before `over`
  while (over - step > 1) {
    const int middle = (step + over) / 2;
    (offsets[middle] <= row ? step : over) = middle;
  }
  return step;
}

// The row of the same sequence one step before row B + i, the row in which sequence b ends, and the row that row i becomes
// when every sequence is reversed within its own length. Arrays may be null.
__global__ void __launch_bounds__(PACKING_THREADS)
    packing_rows(const long long* __restrict__ offsets, long long* __restrict__ previous, long long* __restrict__ last,
                 long long* __restrict__ reversed, long long rows, int T, int B) {
  const long long i = static_cast<long long>(blockIdx.x) * PACKING_THREADS + threadIdx.x;
  if (previous && i < rows - B) {
    const int step = step_of(offsets, T, B + i);
    previous[i] = offsets[step - 1] + (B + i - offsets[step]);
  }
  if (reversed && i < rows) {
    const int step = step_of(offsets, T, i);
    const int b = static_cast<int>(i - offsets[step]);
    reversed[i] = offsets[Steps{offsets, B, true}.length(T, b) - 1 - step] + b;
  }
  if (last && i < B) {
    const int b = static_cast<int>(i);
    last[b] = offsets[Steps{offsets, B, true}.length(T, b) - 1] + b;
  }
}

}  // namespace householder
