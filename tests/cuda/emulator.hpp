// CUDA threads on a CPU: what cuda/prims.cuh asks of a device, so that the kernels' source runs under g++ unchanged.
//
// Every thread of a block, or of a cluster of blocks, is a fiber on one OS thread. It runs until it has to wait for others;
// which one goes on is a schedule: forward, in reverse, block by block, or in a random order. A kernel whose result depends on the
// schedule has a race. Shared memory has exactly the size of the launch (a sanitizer sees what exceeds it) and begins as NaN.
// Messages between blocks arrive late and in random order. Waiting that can never end is an error. What this cannot show: weak memory order.
#pragma once
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define HOUSEHOLDER_EMULATED
#define DEVICE inline
#define CLUSTER_OF(size)
#define __global__
#define __launch_bounds__(...)

namespace householder {
struct alignas(8) Barrier {
  std::int32_t bytes;     // announced and not yet here
  std::uint16_t expected; // 1 until this phase's announcement
  std::uint16_t phase;
};
}  // namespace householder

namespace emulator {

using householder::Barrier;

struct Index {
  unsigned x;
};

#if defined(__x86_64__)
using Context = void*;
extern "C" void householder_switch(Context* from, Context to);
#else
using Context = ucontext_t;
#endif

// A group that waits until all of it has come.
struct Meeting {
  unsigned members = 0, here = 0, round = 0;
};

struct Warp {
  Meeting meeting;
  unsigned char given[2][32][8];
};

struct Block {
  unsigned char* shared = nullptr;
  unsigned running = 0;
  Meeting meeting;
  std::vector<Warp> warps;
};

struct Fiber {
  Context context;
  Index thread, block;
  unsigned rank;  // of its block in the cluster
  unsigned shuffles = 0, waits = 0;
  bool done = false;
};

struct Message {
  unsigned rank;
  unsigned char* to;
  unsigned char bytes[8];
  unsigned size;
  Barrier* barrier;
};

struct Machine {
  std::vector<Fiber> fibers;
  std::vector<unsigned> order;
  std::vector<Block> blocks;
  std::vector<Message> messages;
  Meeting cluster;
  Context host;
  Index grid;
  unsigned current = 0, turn = 0, running = 0;
  std::size_t idle = 0;   // switches since anything happened
  std::size_t stuck = 0;  // the same, or since the last change of blocks
  std::string error;
  void (*kernel)(void**) = nullptr;
  void** arguments = nullptr;
  std::uint64_t random = 1;

  Fiber& fiber() { return fibers[current]; }
  Block& block() { return blocks[fiber().rank]; }
};

inline Machine machine;
inline unsigned schedule = 0;  // 0 forward, 1 in reverse, 2 block by block, others random
inline unsigned omitted = ~0u;  // which wait of a block, counted as it runs, is left out: a planted fault

inline void note_progress() { machine.idle = machine.stuck = 0; }

inline std::uint64_t random_number() {
  std::uint64_t& x = machine.random;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  return x;
}

inline void switch_context(Context& from, Context& to) {
#if defined(__x86_64__)
  householder_switch(&from, to);
#else
  swapcontext(&from, &to);
#endif
}

// Gives up the launch; does not return to the fiber.
[[noreturn]] inline void fail(const std::string& what) {
  const Fiber& fiber = machine.fiber();
  machine.error = what + " (block " + std::to_string(fiber.block.x) + ", thread " + std::to_string(fiber.thread.x) + ")";
  switch_context(machine.fiber().context, machine.host);
  std::abort();
}

// The thread after this one in the order; or of this block, as long as it gets on.
inline unsigned next_turn() {
  const unsigned count = static_cast<unsigned>(machine.order.size());
  if (schedule != 2) return (machine.turn + 1) % count;
  const unsigned threads = count / static_cast<unsigned>(machine.blocks.size()), first = machine.turn / threads * threads;
  if (++machine.stuck <= 2 * threads) return first + (machine.turn + 1) % threads;
  machine.stuck = 0;
  return (first + threads) % count;
}

inline void next_fiber() {
  Fiber& previous = machine.fiber();
  if (machine.running == 0) switch_context(previous.context, machine.host);
  if (++machine.idle > 8 * machine.order.size()) fail("deadlock: threads wait for others that never come");
  do {
    machine.turn = next_turn();
  } while (machine.fibers[machine.order[machine.turn]].done);
  machine.current = machine.order[machine.turn];
  if (&machine.fiber() != &previous) switch_context(previous.context, machine.fiber().context);
}

inline void meet(Meeting& meeting) {
  note_progress();
  if (++meeting.here == meeting.members) {
    meeting.here = 0;
    ++meeting.round;
    return;
  }
  for (const unsigned round = meeting.round; meeting.round == round;) next_fiber();
  note_progress();
}

inline void complete_if_due(Barrier* barrier) {
  if (barrier->expected != 0 || barrier->bytes != 0) return;
  ++barrier->phase;
  barrier->expected = 1;
  note_progress();
}

// Delivers some of the messages under way.
inline void deliver() {
  std::vector<Message>& messages = machine.messages;
  for (std::size_t i = 0; i < messages.size();) {
    if (random_number() % 4 == 0) {
      ++i;
      continue;
    }
    const Message message = messages[i];
    messages[i] = messages.back();
    messages.pop_back();
    if (machine.blocks[message.rank].running == 0) fail("a message to a block that has ended");
    std::memcpy(message.to, message.bytes, message.size);
    message.barrier->bytes -= static_cast<std::int32_t>(message.size);
    complete_if_due(message.barrier);
  }
}

// Where block `rank` has what the current block has at p.
inline unsigned char* at_rank(void* p, unsigned rank) {
  return machine.blocks[rank].shared + (static_cast<unsigned char*>(p) - machine.block().shared);
}

inline void run_fiber() {
  machine.kernel(machine.arguments);
  machine.fiber().done = true;
  --machine.block().running;
  --machine.running;
  note_progress();
  next_fiber();
  std::abort();
}

inline constexpr std::size_t STACK = 256 << 10;

inline void prepare(Context& context, unsigned char* stack) {
#if defined(__x86_64__)
  void** top = reinterpret_cast<void**>(stack + STACK - 64);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&run_fiber);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  context = top;
#else
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = STACK;
  makecontext(&context, run_fiber, 0);
#endif
}

inline void* checked(void* memory) {
  if (memory == nullptr || memory == MAP_FAILED) {
    std::perror("emulator");
    std::abort();
  }
  return memory;
}

// Stacks of fibers, mapped once. After an error they are left as they are and new ones are made.
inline unsigned char* stack_of(unsigned fiber, bool renew) {
  static std::vector<unsigned char*> stacks;
  if (renew) stacks.clear();
  while (stacks.size() <= fiber) {
    void* stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stacks.push_back(static_cast<unsigned char*>(checked(stack)));
  }
  return stacks[fiber];
}

inline void set_order() {
  std::vector<unsigned>& order = machine.order;
  for (unsigned i = 0; i < order.size(); ++i) order[i] = i;
  if (schedule == 1) std::reverse(order.begin(), order.end());
  if (schedule <= 2) return;
  for (std::size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[random_number() % (i + 1)]);
}

// The blocks first .. first + cluster - 1 of a grid. Returns whether they ended well.
inline bool run_cluster(unsigned first, unsigned cluster, unsigned threads, std::size_t shared, bool renew) {
  const unsigned count = cluster * threads;
  machine.running = machine.cluster.members = count;
  machine.random = 0x9E3779B97F4A7C15ull * (schedule + 1);
  machine.blocks.resize(cluster);
  machine.fibers.resize(count);
  machine.order.resize(count);
  for (Block& block : machine.blocks) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 128, std::max<std::size_t>(shared, 1)) != 0) memory = nullptr;
    block.shared = static_cast<unsigned char*>(checked(memory));
    std::memset(block.shared, 0xff, shared);
    block.running = block.meeting.members = threads;
    block.warps.resize(threads / 32);
    for (Warp& warp : block.warps) warp.meeting.members = 32;
  }
  for (unsigned i = 0; i < count; ++i) {
    Fiber& fiber = machine.fibers[i];
    fiber.rank = i / threads;
    fiber.thread = {i % threads};
    fiber.block = {first + fiber.rank};
    prepare(fiber.context, stack_of(i, renew && i == 0));
  }
  set_order();
  machine.current = machine.order[0];
  switch_context(machine.host, machine.fiber().context);
  if (machine.error.empty() && !machine.messages.empty()) machine.error = "messages that no block waited for";
  for (Block& block : machine.blocks) std::free(block.shared);
  return machine.error.empty();
}

inline std::string launch(void (*kernel)(void**), unsigned grid, unsigned cluster, unsigned threads, std::size_t shared,
                          void** arguments) {
  static bool failed = false;
  for (unsigned first = 0; first < grid; first += cluster) {
    machine = Machine{};
    machine.grid = {grid};
    machine.kernel = kernel;
    machine.arguments = arguments;
    failed = !run_cluster(first, cluster, threads, shared, failed);
    if (failed) return machine.error;
  }
  return "";
}

template <class S>
S shuffle(S v, unsigned from) {
  Fiber& fiber = machine.fiber();
  Warp& warp = machine.block().warps[fiber.thread.x / 32];
  auto& given = warp.given[fiber.shuffles++ % 2];
  std::memcpy(given[fiber.thread.x % 32], &v, sizeof v);
  meet(warp.meeting);
  std::memcpy(&v, given[from], sizeof v);
  return v;
}

}  // namespace emulator

#define threadIdx (emulator::machine.fiber().thread)
#define blockIdx (emulator::machine.fiber().block)
#define gridDim (emulator::machine.grid)

namespace householder {

using std::copysign;

inline unsigned char* dynamic_shared() { return emulator::machine.block().shared; }
inline void block_sync() {
  if (emulator::machine.fiber().waits++ != emulator::omitted) emulator::meet(emulator::machine.block().meeting);
}

template <class S>
S shuffle_xor(S v, int distance) {
  return emulator::shuffle(v, emulator::machine.fiber().thread.x % 32 ^ static_cast<unsigned>(distance));
}

inline void prefetch(const void*) {}
inline float exp2_approximate(float x) { return std::exp2(x); }
inline float reciprocal_approximate(float x) { return 1.0f / x; }

inline unsigned bits_of(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float float_of(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline float half_to_float(unsigned short bits) {
  _Float16 x;
  std::memcpy(&x, &bits, sizeof x);
  return static_cast<float>(x);
}

inline unsigned short float_to_half(float x) {
  const _Float16 half = static_cast<_Float16>(x);
  unsigned short bits;
  std::memcpy(&bits, &half, sizeof bits);
  return bits;
}

inline unsigned cluster_rank() { return emulator::machine.fiber().rank; }
inline void cluster_sync() { emulator::meet(emulator::machine.cluster); }

inline void barrier_init(Barrier* barrier) { *barrier = {0, 1, 0}; }
inline void barrier_init_fence() {}

inline void barrier_expect(Barrier* barrier, unsigned bytes) {
  if (barrier->expected != 1) emulator::fail("an mbarrier's phase was announced twice");
  barrier->bytes += static_cast<std::int32_t>(bytes);
  barrier->expected = 0;
  emulator::complete_if_due(barrier);
}

inline void barrier_wait(Barrier* barrier, unsigned parity) {
  while (barrier->phase % 2 == parity) {
    if (!emulator::machine.messages.empty()) {
      emulator::deliver();
      emulator::note_progress();
    }
    if (barrier->phase % 2 == parity) emulator::next_fiber();
  }
  emulator::note_progress();
}

template <class S>
void send(S* p, S v, Barrier* barrier, unsigned rank) {
  emulator::Message message{rank, emulator::at_rank(p, rank), {}, sizeof v, nullptr};
  message.barrier = reinterpret_cast<Barrier*>(emulator::at_rank(barrier, rank));
  std::memcpy(message.bytes, &v, sizeof v);
  emulator::machine.messages.push_back(message);
}

}  // namespace householder
