#include "gateway/gateway.h"

#include <boost/asio/executor_work_guard.hpp>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "gateway/context.h"
#include "gateway/detached_answers.h"
#include "gateway/handlers.h"
#include "gateway/listener.h"
#include "gateway/stream_registry.h"
#include "gateway/stream_response.h"

namespace cedar::gateway {

namespace asio = boost::asio;

namespace {

constexpr int64_t kMaxFinishedBytes = int64_t{64} << 20;

}  // namespace

GatewayContext::GatewayContext(GatewayOptions o, ModelCard c, actors::Client& cl,
                               monitoring::Metrics& m)
    : options(std::move(o)),
      card(std::move(c)),
      keys(options.keys),
      client(cl),
      metrics(m),
      bodies(std::max(options.http.max_bodies_bytes,
                      std::max(options.http.max_body_bytes, options.stream.max_message_bytes))),
      // The ids of a text may be several times as long as the text; one answer fits.
      answers(std::max(options.http.max_bodies_bytes, 8 * options.http.max_body_bytes)),
      streams(std::make_unique<StreamRegistry>(kMaxFinishedBytes)),
      detached(std::make_unique<DetachedAnswers>(options.stream.max_detached)),
      io(options.http.io_threads),
      compute(static_cast<size_t>(options.http.compute_threads)) {}

// Responses hold timers of `io`.
GatewayContext::~GatewayContext() {
  detached.reset();
  streams.reset();
}

struct Gateway::Impl {
  Impl(const GatewayOptions& options, const ModelCard& card, actors::Client& client,
       monitoring::Metrics& metrics)
      : context(std::make_shared<GatewayContext>(options, card, client, metrics)),
        work(asio::make_work_guard(context->io)) {}

  std::shared_ptr<GatewayContext> context;
  std::shared_ptr<Listener> listener;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  std::vector<std::thread> threads;
  std::shared_ptr<void> reports;  // of what the client knows, at every scrape
  bool stopped = false;
};

Result<std::unique_ptr<Gateway>> Gateway::start(const GatewayOptions& options,
                                                const ModelCard& card, actors::Client& client,
                                                monitoring::Metrics& metrics) {
  auto impl = std::make_unique<Impl>(options, card, client, metrics);
  if (!options.http.tls_certificate.empty() || !options.http.tls_key.empty()) {
    CEDAR_TRY(auto tls, TlsContext::load(options.http.tls_certificate, options.http.tls_key));
    impl->context->tls.set(std::move(tls));
  }
  impl->listener = std::make_shared<Listener>(*impl->context);
  CEDAR_CHECK_OK(impl->listener->open(options.http.host, options.http.port));
  impl->reports = metrics.collect(
      [context = impl->context.get()](monitoring::Metrics& to) { report_stats(*context, to); });
  impl->listener->run();
  for (int i = 0; i < options.http.io_threads; ++i) {
    impl->threads.emplace_back([context = impl->context.get()] { context->io.run(); });
  }
  return std::unique_ptr<Gateway>(new Gateway(std::move(impl)));
}

Gateway::Gateway(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Gateway::~Gateway() { finish_stop(std::chrono::milliseconds(0)); }

Status Gateway::reload_certificate() {
  const HttpOptions& http = impl_->context->options.http;
  if (http.tls_certificate.empty()) return {};
  CEDAR_TRY(auto tls, TlsContext::load(http.tls_certificate, http.tls_key));
  impl_->context->tls.set(std::move(tls));
  return {};
}

uint16_t Gateway::port() const { return impl_->listener->port(); }

int64_t Gateway::connections() const { return impl_->context->connections.size(); }

void Gateway::begin_stop(std::chrono::milliseconds grace) {
  impl_->context->stop_grace = grace;
  impl_->context->stopping = true;
  for (const auto& connection : impl_->context->connections.all()) connection->stop_soon();
}

void Gateway::finish_stop(std::chrono::milliseconds limit) {
  if (std::exchange(impl_->stopped, true)) return;
  impl_->listener->stop();
  begin_stop(limit);
  const auto wait = [this](std::chrono::milliseconds time) {
    const auto deadline = std::chrono::steady_clock::now() + time;
    while (connections() > 0 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  };
  wait(limit);
  for (const auto& connection : impl_->context->connections.all()) connection->stop_now();
  wait(std::chrono::milliseconds(500));
  impl_->context->compute.join();
  impl_->work.reset();
  impl_->context->io.stop();
  for (std::thread& thread : impl_->threads) thread.join();
  impl_->reports.reset();
}

}  // namespace cedar::gateway
