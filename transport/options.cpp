#include "transport/options.h"

#include "transport/messages.h"

namespace cedar::transport {
namespace {

Status at_least(const char* name, uint64_t value, uint64_t least) {
  if (value >= least) return {};
  return make_error(Errc::invalid_argument, std::string(name) + " must be at least " +
                                                std::to_string(least) + ", got " +
                                                std::to_string(value));
}

}  // namespace

Status validate(const TransportOptions& options) {
  CEDAR_CHECK_OK(at_least("part_bytes", options.part_bytes, 256u << 10));
  CEDAR_CHECK_OK(at_least("window_bytes", options.window_bytes, options.part_bytes));
  CEDAR_CHECK_OK(at_least("window_parts", options.window_parts, 1));
  CEDAR_CHECK_OK(at_least("part_ranges", options.part_ranges, 1));
  CEDAR_CHECK_OK(at_least("queue_pulls", options.queue_pulls, 1));
  CEDAR_CHECK_OK(at_least("queue_messages", options.queue_messages, 1));
  CEDAR_CHECK_OK(at_least("ping_interval_ms", options.ping_interval_ms, 1));
  CEDAR_CHECK_OK(
      at_least("ping_timeout_ms", options.ping_timeout_ms, 2 * uint64_t{options.ping_interval_ms}));
  if (options.part_ranges > PartRequest::kMaxRanges) {
    return make_error(Errc::invalid_argument, "part_ranges must be at most " +
                                                  std::to_string(PartRequest::kMaxRanges) +
                                                  ", got " + std::to_string(options.part_ranges));
  }
  if (options.cluster.size() > 64) {
    return make_error(Errc::invalid_argument, "cluster must have at most 64 bytes, got " +
                                                  std::to_string(options.cluster.size()));
  }
  return {};
}

}  // namespace cedar::transport
