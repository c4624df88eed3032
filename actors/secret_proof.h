#pragma once
// Proof of knowing the cluster's secret without saying it. It guards the door: who comes in is believed until the
// connection ends, so a network that others can write to needs TLS as well.

#include <cstdint>
#include <string>
#include <string_view>

namespace cedar::actors {

/// 32 bytes that nobody can guess.
std::string random_nonce();

/// HMAC-SHA256 under `secret` of who proves it to whom: "node" | nonce | name | generation.
std::string node_proof(std::string_view secret, std::string_view nonce, std::string_view name,
                       uint64_t generation);
/// "gateway" | nonce | name.
std::string gateway_proof(std::string_view secret, std::string_view nonce, std::string_view name);

/// In a time that does not depend on where they differ.
bool equal_proofs(std::string_view a, std::string_view b);

}  // namespace cedar::actors
