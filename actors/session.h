#pragma once
// One request from its reservation to its last token, and the hub of its stages: what one of them says to the other goes
// through here. Watches both stages and is watched by them: whoever dies first, the other side frees what the request
// held.
//
// A lost stage is replaced, a few times and within the request's own deadline. Another encoder reads the prompt again,
// and the decoder keeps the blocks it has. Another decoder begins again from the prompt and the tokens that the client
// has; the answer goes on with the next index.
//
// Before a prompt is read, the cache is asked once what it has of it; encoder and decoder fetch that from the cache, and the
// cache fetches what they compute, and the encoder's windows for the next turn. All of this is best effort: a cache that is slow, lost or useless is done without.

#include <caf/typed_event_based_actor.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "actors/messages.h"
#include "actors/prompt_keys.h"
#include "actors/request_list.h"
#include "monitoring/metrics.h"
#include "monitoring/trace.h"

namespace cedar::actors {

struct SessionSetup {
  std::shared_ptr<const GenerateRequest> request;
  std::shared_ptr<OnceSink> sink;
  std::chrono::steady_clock::time_point deadline;  // the router ends the session then
  EncoderChoice encoder;
  DecoderChoice decoder;
  RouterActor router;
  int32_t max_replacements = 3;  // of stages
  CacheChoice cache;
  std::shared_ptr<monitoring::Trace> trace;         // null: none
  std::chrono::steady_clock::time_point arrival{};  // of the request
  std::shared_ptr<monitoring::Metrics> metrics = monitoring::no_metrics();
  std::shared_ptr<RequestEntry> entry;  // null: not listed
  /// For the answer about a prompt's beginning, and a millisecond for each of its blocks, which the cache may have to read from
  /// its disk: any encoder takes longer for one. Computing is the alternative to waiting.
  std::chrono::milliseconds lookup_timeout{250};
};

class Session final : public SessionActor::base {
 public:
  Session(caf::actor_config& config, SessionSetup setup);

  behavior_type make_behavior() override;
  void on_exit() override;
  const char* name() const override { return "cedar.session"; }

 private:
  /// reserving: the decoder holds room.  prefilling: the encoder reads, blocks flow to the decoder.
  /// handing_over: the encoder is done, the decoder fetches the rest.  replaying: the encoder is not needed any more.
  /// decoding: tokens arrive.  rerouting: the router looks for another stage.  done: told the sink.
  enum class Phase : uint8_t {
    reserving,
    prefilling,
    handing_over,
    replaying,
    decoding,
    rerouting,
    done
  };

  RequestId id() const { return setup_.request->decode.id; }
  int64_t prompt_tokens() const {
    return static_cast<int64_t>(setup_.request->decode.prompt.size());
  }
  bool resumed() const { return !setup_.request->decode.emitted.empty(); }
  int64_t tokens_to_read() const {
    return prompt_tokens() + static_cast<int64_t>(setup_.request->decode.emitted.size());
  }
  int64_t cached_tokens() const { return keys_ ? cached_blocks_ * keys_->block_tokens() : 0; }
  std::chrono::milliseconds remaining() const;
  /// Ends the phase that was, in trace and metrics.
  void enter(Phase phase);
  static monitoring::Phase label_of(Phase phase);  // not of done
  void list_stages();
  void reserve();
  void on_no_room(const caf::error& error);
  void look_up();
  void on_hit(PrefixLease hit);
  void release_hit();
  /// When there is room and the cache has answered.
  void try_prefill();
  void prefill();
  void on_down(const caf::down_msg& down);
  void on_progress(PrefillProgress progress);
  void on_replay(const ReplayBegun& message);
  void on_tokens(TokenBatch batch);
  void on_block_written(const BlockWritten& message);
  void keep(int64_t first, int64_t count, Offer blocks);
  void keep_windows(int64_t at, Offer windows);
  void on_stage_failed(StageFailed message);
  void replace_encoder(Error reason, bool counts = true);
  void replace_decoder(Error reason);
  /// False, and the request has failed, when too many stages were replaced already.
  bool may_replace(const Error& reason, bool counts = true);
  void finish(engine::FinishReason reason);
  void fail(Error error);
  /// Both stages stop within one step; then the session ends.
  void abandon();
  template <class Stage>
  void cancel_at(const Stage& stage);

  SessionSetup setup_;
  Attempt attempt_;  // the current one; what speaks of another is late
  Phase phase_ = Phase::reserving;
  std::chrono::steady_clock::time_point phase_begin_;
  int32_t replacements_ = 0;
  int64_t told_computed_ = -1;  // of the prompt, so that progress never goes back
  bool told_read_ = false;
  bool has_room_ = false;           // at the decoder, for this hand-off
  std::optional<PromptKeys> keys_;  // of prompt and answer, where there is a cache
  bool use_cache_ = false;          // for reading; what is computed is kept anyway
  bool looked_up_ = false;          // the cache has answered, or will not
  PrefixLease hit_;                 // blocks 0: none, or it is passed on
  int64_t cached_blocks_ = 0;       // of the prompt, that the encoder did not compute
  int64_t disk_blocks_ = 0;         // of them, read for this
  std::vector<TokenId> emitted_;    // by this decoder
};

}  // namespace cedar::actors
