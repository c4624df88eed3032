#pragma once

#include <cstdint>
#include <string>

#include "core/result.h"

namespace cedar {

enum class DeviceKind : uint8_t { cpu, cuda };

/// Which processor runs kernels and owns buffers. CPU has ordinal 0.
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int32_t ordinal = 0;
  friend bool operator==(Device, Device) = default;
};

/// "cpu", "cuda", "cuda:1". Anything else is invalid_argument.
Result<Device> parse_device(const std::string& text);
std::string to_string(Device device);

}  // namespace cedar
