#pragma once
// Who may use a server, from its settings: the keys' digests and the origins of web pages.

#include <vector>

#include "config/serve_config.h"
#include "core/result.h"
#include "gateway/options.h"

namespace cedar::apps {

/// Reads the keys' files and environment variables. Errors: invalid_config, naming the setting and where the key was
/// looked for, never what was found there.
Result<std::vector<gateway::ApiKey>> read_api_keys(const std::vector<config::KeySettings>& keys);

/// The address to listen on. Errors: invalid_config naming it.
Status check_address(const std::string& host);

/// Errors: invalid_config naming the origin.
Status check_origins(const std::vector<std::string>& origins);

/// Errors: invalid_config naming the host.
Status check_hosts(const std::vector<std::string>& hosts);

}  // namespace cedar::apps
