#pragma once
// One suite per operation, run on every back end that this build and this machine have: the list
// below is the only place that a further device has to join.

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/device_memory.h"
#include "tests/support/kernel_fixture.h"

namespace cedar::test {

struct Backend {
  std::string name;
  Device device;
  kernels::CpuIsa isa = kernels::CpuIsa::portable;
  int threads = 1;
  kernels::CudaLevel level = kernels::CudaLevel::hopper;
};

inline const std::vector<Backend>& all_backends() {
  using kernels::CpuIsa;
  static const std::vector<Backend> backends = {
      {"portable", Device{}, CpuIsa::portable, 1},
      {"avx2", Device{}, CpuIsa::avx2, 2},
      {"avx512_bf16", Device{}, CpuIsa::avx512_bf16, 2},
      {"cuda", Device{DeviceKind::cuda, 0}, CpuIsa::portable, 1},
      {"cuda_plain", Device{DeviceKind::cuda, 0}, CpuIsa::portable, 1, kernels::CudaLevel::plain},
  };
  return backends;
}

inline bool on_cuda(const Backend& backend) { return backend.device.kind == DeviceKind::cuda; }

inline bool available(const Backend& backend) {
  return on_cuda(backend) ? cuda_device_count() > 0 : kernels::cpu_supports(backend.isa);
}

/// Owns what the KernelContext of one back end points to.
class BackendContext {
 public:
  explicit BackendContext(const Backend& backend, int threads = 0)
      : device_(backend.device),
        pool_(threads > 0 ? threads : backend.threads),
        arena_(backend.device) {
    ctx_.device = backend.device;
    ctx_.pool = &pool_;
    ctx_.arena = &arena_;
    ctx_.isa = backend.isa;
    ctx_.cuda_level = backend.level;
  }
  kernels::KernelContext& operator*() { return ctx_; }
  Device device() const { return device_; }

 private:
  Device device_;
  ThreadPool pool_;
  Arena arena_;
  kernels::KernelContext ctx_;
};

/// An array in the memory of a back end's device. Copies in and out happen here and nowhere else.
template <class T>
class DeviceArray {
 public:
  DeviceArray(Device device, std::span<const T> values) : count_(values.size()) {
    auto buffer =
        Buffer::allocate(device, std::max<int64_t>(static_cast<int64_t>(values.size_bytes()), 1));
    CEDAR_ASSERT(buffer.has_value(), buffer ? std::string() : buffer.error().message());
    buffer_ = std::move(*buffer);
    const Status copied = copy_to_device(device, buffer_.data(), values.data(),
                                         static_cast<int64_t>(values.size_bytes()));
    CEDAR_ASSERT(copied.has_value(), copied ? std::string() : copied.error().message());
  }
  DeviceArray(Device device, const std::vector<T>& values)
      : DeviceArray(device, std::span<const T>(values)) {}
  DeviceArray(Device device, int64_t count, T value = T{})
      : DeviceArray(device, std::vector<T>(static_cast<size_t>(count), value)) {}

  T* data() { return buffer_.as<T>(); }
  const T* data() const { return buffer_.as<T>(); }
  /// What the array holds once everything queued so far is done.
  std::vector<T> host() const {
    std::vector<T> values(count_);
    const Status copied = copy_to_host(buffer_.device(), values.data(), data(),
                                       static_cast<int64_t>(count_ * sizeof(T)));
    CEDAR_ASSERT(copied.has_value(), copied ? std::string() : copied.error().message());
    return values;
  }

 private:
  size_t count_;
  Buffer buffer_;
};

/// Base of suites that run once per back end; those that the machine lacks show as skipped.
class EachBackend : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!available(GetParam())) GTEST_SKIP() << "this machine lacks " << GetParam().name;
    context_ = std::make_unique<BackendContext>(GetParam());
  }
  kernels::KernelContext& ctx() { return **context_; }
  Device device() const { return GetParam().device; }

  template <class T>
  DeviceArray<T> upload(const std::vector<T>& values) const {
    return DeviceArray<T>(device(), values);
  }
  template <class T>
  DeviceArray<T> reserve(int64_t count, T value = T{}) const {
    return DeviceArray<T>(device(), count, value);
  }

 private:
  std::unique_ptr<BackendContext> context_;
};

inline std::string backend_name(const ::testing::TestParamInfo<Backend>& info) {
  return info.param.name;
}

/// INSTANTIATE for a suite derived from EachBackend.
#define CEDAR_EACH_BACKEND(suite)                                                               \
  INSTANTIATE_TEST_SUITE_P(Backends, suite, ::testing::ValuesIn(::cedar::test::all_backends()), \
                           ::cedar::test::backend_name)

inline void expect_ok(const Status& status) {
  EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().message());
}

/// The error's message names the operation, the field and the value.
inline void expect_invalid(const Status& status, const std::string& field,
                           const std::string& value) {
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, Errc::invalid_argument);
  EXPECT_NE(status.error().context.find(field), std::string::npos) << status.error().context;
  EXPECT_NE(status.error().context.find(value), std::string::npos) << status.error().context;
}

inline std::vector<double> widened(std::span<const Bf16> x) {
  std::vector<double> y;
  for (const Bf16 v : x) y.push_back(as_double(v));
  return y;
}
inline std::vector<uint16_t> bits_of(std::span<const Bf16> x) {
  std::vector<uint16_t> y;
  for (const Bf16 v : x) y.push_back(v.bits);
  return y;
}
inline std::vector<float> random_f32(int64_t count, uint32_t seed, float deviation = 1.0f) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(engine);
  return values;
}

/// Largest |got - want| over the largest |want|.
template <class A, class B>
double worst_error(std::span<const A> got, std::span<const B> want) {
  EXPECT_EQ(got.size(), want.size());
  double worst = 0, largest = 0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    worst = std::max(worst, std::abs(as_double(got[i]) - as_double(want[i])));
    largest = std::max(largest, std::abs(as_double(want[i])));
  }
  return largest == 0 ? worst : worst / largest;
}

}  // namespace cedar::test
