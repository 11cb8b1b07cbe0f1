// Runs the network of package.py without Python: serve FOLDER reads network.pt2 and inputs.pt, and writes output.
#include <ATen/ATen.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" const char* householder_torch_register();  // of libhouseholder_torch: null, or an error

int main(int, char** arguments) {
  const std::string folder = std::string(arguments[1]) + "/";
  if (const char* error = householder_torch_register()) {
    std::fprintf(stderr, "%s\n", error);
    return 1;
  }
  torch::inductor::AOTIModelPackageLoader network(folder + "network.pt2");

  std::ifstream file(folder + "inputs.pt", std::ios::binary);
  const at::IValue saved = torch::jit::pickle_load({std::istreambuf_iterator<char>(file), {}});
  std::vector<at::Tensor> inputs;
  for (const at::IValue& input : saved.toListRef()) inputs.push_back(input.toTensor());

  std::ofstream output(folder + "output", std::ios::binary);
  for (const at::Tensor& result : network.run(inputs)) {
    const at::Tensor y = result.contiguous();
    output.write(static_cast<const char*>(y.const_data_ptr()), y.nbytes());
  }

  std::vector<double> times(100);
  for (double& time : times) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 10; ++i) network.run(inputs);
    time = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / 10;
  }
  std::nth_element(times.begin(), times.begin() + 50, times.end());
  std::printf("%.1f us a call\n", times[50]);
}
