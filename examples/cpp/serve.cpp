// Runs the network of package.py without Python: serve FOLDER reads network.pt2 and inputs.pt, and writes output.
#include <ATen/ATen.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

extern "C" const char* householder_torch_register();  // of libhouseholder_torch: null, or an error

std::ifstream opened(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return file;
}

// A package reads the memory of its inputs row after row, so they must be contiguous.
std::vector<at::Tensor> read_inputs(const std::string& path) {
  std::ifstream file = opened(path);
  const at::IValue saved = torch::jit::pickle_load({std::istreambuf_iterator<char>(file), {}});
  std::vector<at::Tensor> inputs;
  for (const at::IValue& input : saved.toListRef()) inputs.push_back(input.toTensor().contiguous());
  return inputs;
}

void serve(const std::string& folder) {
  if (const char* error = householder_torch_register()) throw std::runtime_error(error);
  opened(folder + "network.pt2");
  torch::inductor::AOTIModelPackageLoader network(folder + "network.pt2");
  const std::vector<at::Tensor> inputs = read_inputs(folder + "inputs.pt");

  const std::vector<at::Tensor> results = network.run(inputs);
  std::ofstream output(folder + "output", std::ios::binary);
  for (const at::Tensor& result : results) {
    const at::Tensor y = result.contiguous();
    output.write(static_cast<const char*>(y.const_data_ptr()), y.nbytes());
  }
  if (!output.flush()) throw std::runtime_error("cannot write " + folder + "output");

  std::vector<double> times(100);
  for (double& time : times) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 10; ++i) network.run(inputs);
    time = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / 10;
  }
  std::nth_element(times.begin(), times.begin() + 50, times.end());
  std::printf("%.1f us a call\n", times[50]);
}

int main(int count, char** arguments) {
  // Only with this does a package compare the shapes, strides and types of its inputs with those it was compiled for.
  setenv("AOTI_RUNTIME_CHECK_INPUTS", "1", 1);
  try {
    if (count != 2) throw std::runtime_error("expected the name of a folder");
    serve(std::string(arguments[1]) + "/");
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "serve: %s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "serve: %s\n", error.what());
    return 1;
  }
}
