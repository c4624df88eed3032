#pragma once
// From the settings of a server to the options of the rooms it is made of.

#include <string>

#include "actors/system.h"
#include "apps/model_setup.h"
#include "config/serve_config.h"
#include "core/device.h"
#include "core/result.h"
#include "gateway/model_card.h"
#include "gateway/options.h"

namespace cedar::apps {

actors::SystemOptions system_options(const config::ServeConfig& config, Device device, int threads);

/// Errors: invalid_config, of keys and origins (serve_access.h).
Result<gateway::GatewayOptions> gateway_options(const config::ServeConfig& config);

/// The model as the API shows it.
gateway::ModelCard served_model(const config::ServeConfig& config, const ModelText& text,
                                const std::string& directory);

}  // namespace cedar::apps
