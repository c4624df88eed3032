// config.json: an error that names something, or a configuration that the layer plan explains.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/check.h"
#include "model/layer_plan.h"
#include "model/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cedar;
  const auto config =
      model::parse_model_config(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!config) {
    CEDAR_ASSERT(!config.error().context.empty(), "an error without context");
    return 0;
  }
  const auto plan = model::make_layer_plan(*config);
  if (!plan) CEDAR_ASSERT(!plan.error().context.empty(), "an error without context");
  return 0;
}
