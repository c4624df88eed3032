#pragma once
// Label values. Every label is one of these enumerations, so that no client's text can ever become a series.

#include <array>
#include <cstdint>
#include <string_view>

namespace cedar::monitoring {

/// Values of an enumeration, in its order.
template <size_t count>
using LabelNames = std::array<std::string_view, count>;

enum class Route : uint8_t {
  chat,
  completions,
  stream,
  models,
  tokens,
  probes,
  metrics,
  page,
  debug,
  unknown
};
inline constexpr LabelNames<10> kRouteNames = {"chat",   "completions", "stream",  "models",
                                               "tokens", "probes",      "metrics", "page",
                                               "debug",  "unknown"};

/// Status codes that this program answers with; any other one is `other`.
inline constexpr LabelNames<24> kCodeNames = {
    "101", "200", "204", "304", "400", "401", "403", "404", "405", "408", "411", "413",
    "415", "422", "426", "429", "431", "499", "500", "501", "503", "504", "505", "other"};

enum class Outcome : uint8_t { completed, incomplete, cancelled, failed };
inline constexpr LabelNames<4> kOutcomeNames = {"completed", "incomplete", "cancelled", "failed"};

/// Where KV blocks were found.
enum class Tier : uint8_t { memory, disk };
inline constexpr LabelNames<2> kTierNames = {"memory", "disk"};

/// How an encoder came by its windows behind cached blocks.
enum class Resume : uint8_t { none, windows, bounded, exact };
inline constexpr LabelNames<4> kResumeNames = {"none", "windows", "bounded", "exact"};

/// Of a request.
enum class Phase : uint8_t { queue, reserve, prefill, handover, replay, decode, reroute };
inline constexpr LabelNames<7> kPhaseNames = {"queue",  "reserve", "prefill", "handover",
                                              "replay", "decode",  "reroute"};

enum class Stage : uint8_t { encoder, decoder };
inline constexpr LabelNames<2> kStageNames = {"encoder", "decoder"};

enum class NodeKind : uint8_t { encoder, decoder, cache };
inline constexpr LabelNames<3> kNodeKindNames = {"encoder", "decoder", "cache"};

/// How a question to a cache ended; a session does without a cache that fails.
enum class Lookup : uint8_t { hit, miss, failed };
inline constexpr LabelNames<3> kLookupNames = {"hit", "miss", "failed"};

/// What became of a stage's work.
enum class WorkEnd : uint8_t { finished, abandoned, failed };
inline constexpr LabelNames<3> kWorkEndNames = {"finished", "abandoned", "failed"};

enum class Pulled : uint8_t { blocks, state };
inline constexpr LabelNames<2> kPulledNames = {"blocks", "state"};

enum class LeaseEnd : uint8_t { released, expired, revoked };
inline constexpr LabelNames<3> kLeaseEndNames = {"released", "expired", "revoked"};

enum class PeerEnd : uint8_t { error, silence };
inline constexpr LabelNames<2> kPeerEndNames = {"error", "silence"};

/// How a stage came by Engram rows: in its cache, there because it had asked ahead, asked for ahead but late, asked for when
/// needed.
enum class EngramFound : uint8_t { cache, ahead, late, missed };
inline constexpr LabelNames<4> kEngramFoundNames = {"cache", "ahead", "late", "missed"};

enum class Answer : uint8_t { ok, failed };
inline constexpr LabelNames<2> kAnswerNames = {"ok", "failed"};

enum class WindowEnd : uint8_t { expired, evicted };
inline constexpr LabelNames<2> kWindowEndNames = {"expired", "evicted"};

/// By the value of Errc.
inline constexpr LabelNames<16> kErrcNames = {
    "ok",        "invalid_argument", "invalid_config",   "invalid_checkpoint", "not_found",
    "io_error",  "out_of_memory",    "overloaded",       "context_too_long",   "deadline_exceeded",
    "cancelled", "unavailable",      "stale_generation", "checksum_mismatch",  "unsupported",
    "internal"};

}  // namespace cedar::monitoring
