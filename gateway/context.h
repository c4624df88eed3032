#pragma once
// What every connection of one gateway shares.

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>

#include <atomic>
#include <chrono>
#include <memory>

#include "actors/client.h"
#include "gateway/api_keys.h"
#include "gateway/body_budget.h"
#include "gateway/connection_set.h"
#include "gateway/model_card.h"
#include "gateway/options.h"
#include "gateway/tls_context.h"
#include "monitoring/metrics.h"

namespace cedar::gateway {

class DetachedAnswers;
class StreamRegistry;

struct GatewayContext {
  GatewayContext(GatewayOptions o, ModelCard c, actors::Client& cl, monitoring::Metrics& m);
  ~GatewayContext();

  const GatewayOptions options;
  const ModelCard card;
  const KeyRing keys;
  CurrentTls tls;
  actors::Client& client;
  monitoring::Metrics& metrics;
  std::atomic<bool> stopping{false};
  std::atomic<std::chrono::milliseconds> stop_grace{};  // for running answers, once stopping
  ConnectionSet connections;
  BodyBudget bodies;   // being read or parsed
  BodyBudget answers;  // whole ones, until they are written
  std::unique_ptr<StreamRegistry> streams;
  std::unique_ptr<DetachedAnswers> detached;
  // Last, so that what their queues hold is destroyed while the rest still lives.
  boost::asio::io_context io;
  boost::asio::thread_pool compute;  // JSON and tokenisation
};

}  // namespace cedar::gateway
