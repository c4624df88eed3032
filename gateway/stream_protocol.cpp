#include "gateway/stream_protocol.h"

#include <boost/asio/post.hpp>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <functional>
#include <utility>

#include "gateway/handlers.h"
#include "gateway/stream_registry.h"

namespace cedar::gateway {
namespace {

constexpr size_t kMaxEventIdBytes = 128;
constexpr size_t kMaxResponseIdBytes = 64;
/// A second message that is no message of the protocol closes the connection.
constexpr int kMalformedLimit = 2;
// What session.update takes.
constexpr float kMinPingIntervalS = 1;
constexpr float kMaxPingIntervalS = 300;
constexpr int64_t kMaxCoalesceMs = 200;

bool is_response_id(const std::string& id) {
  return id.size() >= 8 && id.size() <= kMaxResponseIdBytes &&
         std::all_of(id.begin(), id.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-'; });
}

std::string text_of(const Json& message, const char* name) {
  const auto field = message.find(name);
  return field != message.end() && field->is_string() ? field->get<std::string>() : std::string();
}

std::string id_field(const std::string& response_id) {
  return response_id.empty() ? "" : R"(,"response_id":)" + json_string(response_id);
}

std::string seconds(std::chrono::milliseconds time) {
  return Json(std::chrono::duration<double>(time).count()).dump();
}

}  // namespace

StreamProtocol::StreamProtocol(GatewayContext& context, boost::asio::any_io_executor executor,
                               std::weak_ptr<FrameTarget> target, KeyAccount* key)
    : context_(context),
      executor_(std::move(executor)),
      target_(std::move(target)),
      key_(key),
      session_id_(random_id("sess_")) {
  pace_.ping_interval = context.options.stream.ping_interval;
}

std::string StreamProtocol::session_created() const {
  const StreamOptions& options = context_.options.stream;
  std::string models = json_string(context_.card.name);
  for (const std::string& alias : context_.card.aliases) models += ',' + json_string(alias);
  return R"({"type":"session.created","event_id":)" + json_string(new_event_id()) +
         R"(,"session_id":)" + json_string(session_id_) + R"(,"server_time":)" +
         std::to_string(std::time(nullptr)) + R"(,"limits":{"max_message_bytes":)" +
         std::to_string(options.max_message_bytes) + R"(,"max_in_flight":)" +
         std::to_string(options.max_in_flight) + R"(,"ping_interval_s":)" +
         seconds(options.ping_interval) + R"(,"idle_timeout_s":)" + seconds(options.idle_timeout) +
         R"(,"replay_ttl_s":)" + seconds(options.replay_ttl) + R"(,"replay_max_bytes":)" +
         std::to_string(options.replay_max_bytes) + R"(},"models":[)" + models + "]}";
}

void StreamProtocol::on_message(Result<Json> parsed, std::shared_ptr<BodyLease> held) {
  if (closed_) return;  // its parsing took longer than the connection
  if (!parsed) return malformed(parsed.error().context, {});
  Json& message = *parsed;
  std::string event_id;
  FieldReader fields(message);
  fields.text("event_id", kMaxEventIdBytes, event_id);
  if (!fields.status()) {
    const std::string id = text_of(message, "response_id");
    return refuse(fields.status().error(), {}, is_response_id(id) ? id : "");
  }
  const std::string type = text_of(message, "type");
  if (type == "response.create") return create(message, event_id, std::move(held));
  held.reset();
  if (type == "response.cancel") return cancel(message, event_id);
  if (type == "response.resume") return resume(message, event_id);
  if (type == "response.ack") return acknowledge(message, event_id);
  if (type == "response.credit") return grant(message, event_id);
  if (type == "ping") {
    const auto nonce = message.find("nonce");
    std::string pong = R"({"type":"pong","event_id":)" + json_string(new_event_id());
    if (nonce != message.end() && (nonce->is_string() || nonce->is_number())) {
      pong += R"(,"nonce":)" +
              (nonce->is_string() ? json_string(nonce->get<std::string>()) : nonce->dump());
    }
    return send(pong + '}');
  }
  if (type == "session.update") return update_session(message, event_id);
  malformed(
      "type: must be response.create, response.cancel, response.resume, response.ack, "
      "response.credit, session.update or ping",
      event_id);
}

void StreamProtocol::malformed(const std::string& problem, const std::string& event_id) {
  refuse(make_error(Errc::invalid_argument, problem), event_id);
  if (++malformed_messages_ < kMalformedLimit) return;
  if (const auto target = target_.lock()) target->close(CloseCode::malformed, "malformed messages");
}

// --- response.create -------------------------------------------------------------------------------------

void StreamProtocol::create(Json& message, const std::string& event_id,
                            std::shared_ptr<BodyLease> held) {
  FieldReader fields(message);
  StreamResponseSetup setup;
  setup.owner = key_;
  setup.client_event_id = event_id;
  fields.text("response_id", kMaxResponseIdBytes, setup.response_id);
  fields.boolean("resumable", setup.resumable);
  const Json* request = fields.object("request");
  if (request == nullptr) fields.complain("request", "is missing");
  if (fields.find("response_id") != nullptr && !is_response_id(setup.response_id)) {
    fields.complain("response_id", "must match [A-Za-z0-9_-]{8,64}");
  }
  fields.integer("credits", 1, kMaxCredits, setup.credits);
  const std::string given_id = is_response_id(setup.response_id) ? setup.response_id : "";
  if (!fields.status()) return refuse(fields.status().error(), event_id, given_id);
  if (stopping_ || context_.stopping) {
    return refuse(make_error(Errc::unavailable, "the server stops"), event_id, given_id);
  }
  if (given_id.empty()) {
    setup.response_id = random_id("resp_");
  } else {
    setup.request_digest = std::hash<Json>{}(*request);
  }
  const auto asked = preparing_.find(setup.response_id);
  if (asked != preparing_.end()) {
    if (asked->second.request_digest == setup.request_digest)
      return;  // a retry of what has just been asked for
    return send(protocol_error("response_id_conflict",
                               "response_id: already names a response to a different request",
                               event_id, id_field(given_id)));
  }
  if (const auto known = context_.streams->find(key_, setup.response_id)) {
    return attach_again(known, setup);
  }
  if (static_cast<int64_t>(in_flight()) >= context_.options.stream.max_in_flight) {
    return send(protocol_error("too_many_responses",
                               "at most " + std::to_string(context_.options.stream.max_in_flight) +
                                   " responses at once on one connection",
                               event_id, id_field(given_id)));
  }
  KeyUse use;
  if (key_ != nullptr) {
    if (const auto refusal = key_->enter()) return refuse(*refusal, event_id, given_id);
    use = KeyUse(key_);
  }
  preparing_[setup.response_id].request_digest = setup.request_digest;
  boost::asio::post(
      context_.compute, [self = shared_from_this(), setup, use = std::move(use),
                         held = std::move(held), body = std::move(message["request"])]() mutable {
        auto prepared = read_generate_json(ApiKind::chat, std::move(body), self->context_.card);
        boost::asio::post(self->executor_, [self, setup = std::move(setup), use = std::move(use),
                                            prepared = std::move(prepared)]() mutable {
          self->created(std::move(setup), std::move(prepared), std::move(use));
        });
      });
}

void StreamProtocol::created(StreamResponseSetup setup, Result<PreparedRequest> prepared,
                             KeyUse use) {
  const std::string id = setup.response_id;
  const Preparing asked = preparing_.extract(id).mapped();
  const auto target = target_.lock();
  if (closed_ || !target) return;
  if (!prepared) return refuse(prepared.error(), setup.client_event_id, id);
  auto response = std::make_shared<StreamResponse>(context_, executor_, setup, target);
  if (context_.streams->add(response)) {
    attached_[id] = response;
    response->start(std::move(*prepared), std::move(use));
  } else {  // another connection was faster with the same id
    response = context_.streams->find(key_, id);
    if (!response) return;
    attach_again(response, setup);
  }
  response->post([target, asked](StreamResponse& r) {
    if (asked.credits > 0) r.grant(target.get(), asked.credits);
    if (asked.cancelled) r.cancel(target.get());
  });
}

void StreamProtocol::attach_again(const std::shared_ptr<StreamResponse>& response,
                                  const StreamResponseSetup& setup) {
  StreamClaim claim;
  claim.client_event_id = setup.client_event_id;
  claim.request_digest = setup.request_digest;
  attach(response, std::move(claim));
}

// --- the other messages ----------------------------------------------------------------------------------

std::shared_ptr<StreamResponse> StreamProtocol::named_response(const Json& message,
                                                               const std::string& event_id) {
  const std::string id = text_of(message, "response_id");
  auto response = context_.streams->find(key_, id);
  if (!response) {
    send(protocol_error("response_not_found", "no such response is kept", event_id, id_field(id)));
  }
  return response;
}

void StreamProtocol::cancel(const Json& message, const std::string& event_id) {
  const std::string id = text_of(message, "response_id");
  if (const auto early = preparing_.find(id); early != preparing_.end()) {
    early->second.cancelled = true;
    return;
  }
  const auto attached = attached_.find(id);
  if (attached != attached_.end()) {
    attached->second->post(
        [target = target_.lock()](StreamResponse& r) { r.cancel(target.get()); });
    return;
  }
  send(protocol_error("response_not_found", "no such response runs on this connection", event_id,
                      id_field(id)));
}

void StreamProtocol::resume(const Json& message, const std::string& event_id) {
  FieldReader fields(message);
  StreamClaim claim;
  claim.client_event_id = event_id;
  claim.resumes = true;
  fields.integer("last_seq", 0, INT64_MAX - 1, claim.last_seq);
  if (!fields.status()) return refuse(fields.status().error(), event_id);
  const std::string id = text_of(message, "response_id");
  if (preparing_.count(id) != 0) {  // its events will come here, from the first one
    if (claim.last_seq > 0) send(no_such_event(id, claim.last_seq, 0, event_id));
    return;
  }
  if (const auto response = named_response(message, event_id)) attach(response, std::move(claim));
}

void StreamProtocol::attach(const std::shared_ptr<StreamResponse>& response, StreamClaim claim) {
  claim.target = target_.lock();
  if (!claim.target) return;
  attached_[response->id()] = response;
  response->post([claim = std::move(claim)](StreamResponse& r) { r.attach(claim); });
}

void StreamProtocol::acknowledge(const Json& message, const std::string& event_id) {
  FieldReader fields(message);
  int64_t seq = 0;
  fields.integer("seq", 0, INT64_MAX - 1, seq);
  if (!fields.status()) return refuse(fields.status().error(), event_id);
  if (preparing_.count(text_of(message, "response_id")) != 0) return;  // it has no events yet
  if (const auto response = named_response(message, event_id)) {
    response->post([seq](StreamResponse& r) { r.acknowledge(seq); });
  }
}

void StreamProtocol::grant(const Json& message, const std::string& event_id) {
  FieldReader fields(message);
  int64_t add = 0;
  if (fields.find("add") == nullptr) fields.complain("add", "is missing");
  fields.integer("add", 1, kMaxCredits, add);
  if (!fields.status()) return refuse(fields.status().error(), event_id);
  const std::string id = text_of(message, "response_id");
  if (const auto early = preparing_.find(id); early != preparing_.end()) {
    early->second.credits = std::min(early->second.credits + add, kMaxCredits);
    return;
  }
  const auto attached = attached_.find(id);
  if (attached != attached_.end()) {
    return attached->second->post(
        [target = target_.lock(), add](StreamResponse& r) { r.grant(target.get(), add); });
  }
  // That of an answer which has just ended is late, not wrong.
  if (context_.streams->find(key_, id)) return;
  send(protocol_error("response_not_found", "no such response runs on this connection", event_id,
                      id_field(id)));
}

// --- the connection --------------------------------------------------------------------------------------

void StreamProtocol::on_writable() {
  // A copy: what a response sends may be the byte too much that closes the connection, here and now.
  for (const auto& [id, response] : std::unordered_map(attached_)) {
    response->post([](StreamResponse& r) { r.on_writable(); });
  }
}

void StreamProtocol::response_left(const std::string& response_id) { attached_.erase(response_id); }

void StreamProtocol::on_closed(bool client_closed) {
  if (std::exchange(closed_, true)) return;
  const auto target = target_.lock();
  for (const auto& [id, response] : std::exchange(attached_, {})) {
    response->post(
        [target, client_closed](StreamResponse& r) { r.detach(target.get(), client_closed); });
  }
}

void StreamProtocol::stop_soon(std::chrono::milliseconds grace) {
  if (std::exchange(stopping_, true)) return;
  send(R"({"type":"session.going_away","event_id":)" + json_string(new_event_id()) +
       R"(,"reason":"shutdown","grace_s":)" + seconds(grace) + R"(,"resumable":false})");
  for (const auto& [id, response] : std::unordered_map(attached_)) {
    response->post([](StreamResponse& r) { r.on_stopping(); });
  }
}

void StreamProtocol::cancel_all() {
  for (const auto& [id, response] : std::unordered_map(attached_)) {
    response->post([target = target_.lock()](StreamResponse& r) { r.cancel(target.get()); });
  }
}

void StreamProtocol::update_session(const Json& message, const std::string& event_id) {
  FieldReader fields(message);
  float ping_interval_s = std::chrono::duration<float>(pace_.ping_interval).count();
  int64_t coalesce_ms = pace_.coalesce.count();
  fields.number("ping_interval_s", kMinPingIntervalS, kMaxPingIntervalS, ping_interval_s);
  fields.integer("coalesce_ms", 0, kMaxCoalesceMs, coalesce_ms);
  if (!fields.status()) return refuse(fields.status().error(), event_id);
  if (fields.find("ping_interval_s") != nullptr) {
    pace_.ping_interval = std::chrono::milliseconds(std::lround(ping_interval_s * 1000));
  }
  pace_.coalesce = std::chrono::milliseconds(coalesce_ms);
  if (const auto target = target_.lock()) target->set_pace(pace_);
  std::string event = R"({"type":"session.updated","event_id":)" + json_string(new_event_id());
  if (!event_id.empty()) event += R"(,"client_event_id":)" + json_string(event_id);
  send(event + R"(,"ping_interval_s":)" + seconds(pace_.ping_interval) + R"(,"coalesce_ms":)" +
       std::to_string(coalesce_ms) + '}');
}

void StreamProtocol::send(std::string frame) {
  if (const auto target = target_.lock()) target->send(std::move(frame));
}

void StreamProtocol::refuse(const Error& error, const std::string& event_id,
                            const std::string& response_id) {
  refuse(to_api_error(error), event_id, response_id);
}

void StreamProtocol::refuse(const ApiError& error, const std::string& event_id,
                            const std::string& response_id) {
  std::string extra = id_field(response_id);
  if (error.retry_after_s > 0)
    extra += R"(,"retry_after_s":)" + std::to_string(error.retry_after_s);
  send(error_event(error, event_id, extra));
}

}  // namespace cedar::gateway
