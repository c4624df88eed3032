#pragma once
// The client's messages on one WebSocket (spec/api.md 6.2): starts, cancels, resumes responses. Knows no
// sockets. All calls on the connection's executor.
//
// Whose a response is: that of the API key which made it; other keys do not even learn that its id is taken. Among the
// clients of one key, and where no keys are asked for, a client proves it by knowing the id, so ids that others must
// not use have to be hard to guess (the server's own ones are). response.resume takes the stream from whoever has it, and that one
// is told. response.create with a known id is the retry of a client that lost its answer: the request must
// be the same (response_id_conflict), and a stream that another connection has is not taken
// (response_in_use). Cancelling needs the stream.

#include <boost/asio/any_io_executor.hpp>

#include <memory>
#include <string>
#include <unordered_map>

#include "gateway/context.h"
#include "gateway/field_reader.h"
#include "gateway/frame_target.h"
#include "gateway/stream_response.h"

namespace cedar::gateway {

class StreamProtocol : public std::enable_shared_from_this<StreamProtocol> {
 public:
  StreamProtocol(GatewayContext& context, boost::asio::any_io_executor executor,
                 std::weak_ptr<FrameTarget> target, KeyAccount* key);

  /// The first event of a connection.
  std::string session_created() const;
  /// The parsed text of one message, or why it could not be parsed.
  /// `held` is kept until the message has been dealt with; may be null.
  void on_message(Result<Json> message, std::shared_ptr<BodyLease> held);
  void on_writable();
  void response_left(const std::string& response_id);
  /// The connection ended; `client_closed`: with a close frame.
  void on_closed(bool client_closed);
  /// No new responses from now on; the client is told.
  void stop_soon(std::chrono::milliseconds grace);
  void cancel_all();

  /// Responses that run or are being prepared.
  size_t in_flight() const { return attached_.size() + preparing_.size(); }

 private:
  /// A response whose request is being read, and what was said about it meanwhile.
  struct Preparing {
    uint64_t request_digest = 0;
    bool cancelled = false;
    int64_t credits = 0;  // granted in response.credit messages
  };

  void create(Json& message, const std::string& event_id, std::shared_ptr<BodyLease> held);
  void created(StreamResponseSetup setup, Result<PreparedRequest> prepared, KeyUse use);
  void cancel(const Json& message, const std::string& event_id);
  void resume(const Json& message, const std::string& event_id);
  void acknowledge(const Json& message, const std::string& event_id);
  void grant(const Json& message, const std::string& event_id);
  void update_session(const Json& message, const std::string& event_id);
  void malformed(const std::string& problem, const std::string& event_id);
  void attach(const std::shared_ptr<StreamResponse>& response, StreamClaim claim);
  void attach_again(const std::shared_ptr<StreamResponse>& response,
                    const StreamResponseSetup& setup);
  /// The response that the message names, or null after an error was sent.
  std::shared_ptr<StreamResponse> named_response(const Json& message, const std::string& event_id);
  void send(std::string frame);
  /// `response_id`: of a response that does not start; empty: the message named none.
  void refuse(const ApiError& error, const std::string& event_id, const std::string& response_id);
  void refuse(const Error& error, const std::string& event_id, const std::string& response_id = {});

  GatewayContext& context_;
  boost::asio::any_io_executor executor_;
  std::weak_ptr<FrameTarget> target_;
  KeyAccount* key_;  // null where none is asked for
  std::string session_id_;
  SessionPace pace_;
  std::unordered_map<std::string, std::shared_ptr<StreamResponse>> attached_;
  std::unordered_map<std::string, Preparing> preparing_;
  int malformed_messages_ = 0;
  bool stopping_ = false;
  bool closed_ = false;
};

}  // namespace cedar::gateway
