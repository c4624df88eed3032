#include "monitoring/metric_table.h"

namespace cedar::monitoring {
namespace {

using enum MetricType;

// In the order of MetricId.
constexpr MetricRow kTable[] = {
    {"cedar_gateway_http_requests_total", counter, "HTTP requests answered", "route,code"},
    {"cedar_gateway_responses_total", counter, "Generated answers by how they ended", "outcome"},
    {"cedar_gateway_prompt_tokens_total", counter, "Prompt tokens of finished answers", ""},
    {"cedar_gateway_completion_tokens_total", counter, "Tokens generated for finished answers", ""},
    {"cedar_gateway_time_to_first_token_seconds", histogram,
     "From a request's acceptance to its first token", ""},
    {"cedar_gateway_inter_token_seconds", histogram, "Between two token events of one answer", ""},
    {"cedar_gateway_connections", gauge, "Open client connections", ""},
    {"cedar_gateway_slow_readers_total", counter,
     "Connections closed because the client did not read", ""},
    {"cedar_actors_queued_requests", gauge, "Requests waiting for room", ""},
    {"cedar_actors_running_requests", gauge, "Requests with a live session", ""},
    {"cedar_actors_live", gauge, "Live actors of this process", ""},
    {"cedar_encoder_requests", gauge, "Prompts being read", ""},
    {"cedar_encoder_queued_tokens", gauge, "Prompt tokens not read yet", ""},
    {"cedar_encoder_free_kv_blocks", gauge, "Free KV blocks of the encoder's pool", ""},
    {"cedar_decoder_sequences", gauge, "Sequences being written", ""},
    {"cedar_decoder_free_kv_blocks", gauge, "Free KV blocks of the decoder's pool", ""},
    {"cedar_decoder_kv_blocks", gauge, "KV blocks of the decoder's pool", ""},
    {"cedar_engram_rows_total", counter,
     "Engram rows that stages took from services, by how they came by them", "found"},
    {"cedar_engram_failed_fetches_total", counter,
     "Steps whose Engram rows could not be had from a service", ""},
    {"cedar_ready", gauge, "1 while every stage is up", ""},
};
static_assert(sizeof kTable / sizeof kTable[0] == static_cast<size_t>(MetricId::count));

}  // namespace

std::span<const MetricRow> metric_table() { return kTable; }

const MetricRow& metric_row(MetricId id) { return kTable[static_cast<size_t>(id)]; }

}  // namespace cedar::monitoring
