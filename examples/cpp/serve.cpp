// Runs the network of package.py without Python: serve FOLDER reads network.pt2 and input, and writes output.
#include <ATen/ATen.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>

extern "C" const char* householder_torch_register();  // of libhouseholder_torch: null, or an error

int main(int, char** arguments) {
  const std::string folder = std::string(arguments[1]) + "/";
  if (const char* error = householder_torch_register()) {
    std::fprintf(stderr, "%s\n", error);
    return 1;
  }
  torch::inductor::AOTIModelPackageLoader network(folder + "network.pt2");

  at::Tensor x = at::empty({50, 1, 1});
  std::ifstream(folder + "input", std::ios::binary).read(static_cast<char*>(x.data_ptr()), x.nbytes());
  at::Tensor y = network.run({x})[0].contiguous();
  std::ofstream(folder + "output", std::ios::binary).write(static_cast<char*>(y.data_ptr()), y.nbytes());

  double best = 1e9;
  for (int round = 0; round < 100; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 10; ++i) network.run({x});
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    best = std::min(best, time.count() / 10);
  }
  std::printf("%.1f us a call\n", best);
}
