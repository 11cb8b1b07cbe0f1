// The C interface of a build of the emulator: a table of kernels by name, launched as a driver would.
#pragma once
#include "emulator.hpp"

#if defined(__x86_64__)
asm(R"(.text
.globl householder_switch
.type householder_switch, @function
householder_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
)");
#endif

namespace library {

template <class... A, std::size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<A*>(arguments[I])...);
}

template <class... A>
void call(void (*kernel)(A...), void** arguments) {
  call(kernel, arguments, std::index_sequence_for<A...>{});
}

struct Kernel {
  const char* name;
  unsigned threads, cluster;
  void (*run)(void**);
};

extern const Kernel KERNELS[];  // ends with a null name

inline std::string error;

inline std::string launch(const char* name, unsigned grid, unsigned block, unsigned shared_bytes, void** arguments) {
  for (const Kernel* kernel = KERNELS; kernel->name != nullptr; ++kernel) {
    if (std::strcmp(kernel->name, name) != 0) continue;
    if (block != kernel->threads) return "invalid block: the kernel is compiled for " + std::to_string(kernel->threads) + " threads";
    if (grid == 0 || grid % kernel->cluster != 0) return "invalid grid: not a multiple of the cluster";
    return emulator::launch(kernel->run, grid, kernel->cluster, block, shared_bytes, arguments);
  }
  return std::string("no kernel ") + name + " in this build";
}

}  // namespace library

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED int householder_emulated_launch(const char* name, unsigned grid, unsigned block, unsigned shared_bytes,
                                         void** arguments) {
  library::error = library::launch(name, grid, block, shared_bytes, arguments);
  return library::error.empty() ? 0 : 1;
}

EXPORTED const char* householder_emulated_error() { return library::error.c_str(); }

EXPORTED void householder_emulated_omit(int wait) { emulator::omitted = static_cast<unsigned>(wait); }

EXPORTED void householder_emulated_schedule(int order) { emulator::schedule = static_cast<unsigned>(order); }
