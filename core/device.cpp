#include "core/device.h"

#include <charconv>

namespace cedar {

Result<Device> parse_device(const std::string& text) {
  if (text == "cpu") return Device{};
  if (text == "cuda") return Device{DeviceKind::cuda, 0};
  if (text.rfind("cuda:", 0) == 0) {
    int32_t ordinal = -1;
    const char* end = text.data() + text.size();
    auto [parsed, error] = std::from_chars(text.data() + 5, end, ordinal);
    if (error == std::errc() && parsed == end && ordinal >= 0) {
      return Device{DeviceKind::cuda, ordinal};
    }
  }
  return make_error(Errc::invalid_argument,
                    "device: expected cpu, cuda or cuda:N, got '" + text + "'");
}

std::string to_string(Device device) {
  if (device.kind == DeviceKind::cpu) return "cpu";
  return "cuda:" + std::to_string(device.ordinal);
}

}  // namespace cedar
