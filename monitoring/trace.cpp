#include "monitoring/trace.h"

#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

namespace cedar::monitoring {
namespace {

using Microseconds = std::chrono::microseconds;

/// Files grow while a process works, so that one can look at a run that is not over.
constexpr auto kWriteInterval = std::chrono::milliseconds(200);
constexpr size_t kMaxFields = 6;

struct Event {
  Track track = Track::encoder;
  const char* category = nullptr;  // null: work on a track
  const char* name = nullptr;
  uint64_t id = 0;
  int64_t begin_us = 0, end_us = 0;
  size_t fields = 0;
  std::array<TraceField, kMaxFields> field{};
};

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + '"';
}

}  // namespace

struct Trace::Impl {
  Options options;
  std::unique_ptr<std::FILE, CloseFile> file;
  int64_t bytes = 0;
  int64_t wall_minus_steady_us = 0;

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::vector<Event> queue;
  int64_t dropped = 0;
  bool ending = false;
  std::thread writer;

  int64_t micros(Time time) const {
    return std::chrono::duration_cast<Microseconds>(time.time_since_epoch()).count() +
           wall_minus_steady_us;
  }
  void add(Event event, std::initializer_list<TraceField> fields) {
    for (const TraceField& field : fields) {
      if (event.fields < kMaxFields) event.field[event.fields++] = field;
    }
    std::lock_guard lock(mutex);
    if (ending || queue.size() >= options.max_queued) {
      ++dropped;
    } else {
      queue.push_back(event);
    }
  }
  std::string head(const char* phase, const char* name) const {
    return std::string("{\"ph\":\"") + phase + "\",\"name\":\"" + name +
           "\",\"pid\":" + std::to_string(options.process_id);
  }
  std::string name_of(const char* what, int64_t track, const std::string& name) const {
    return head("M", what) + ",\"tid\":" + std::to_string(track) +
           ",\"args\":{\"name\":" + quoted(name) + "}}";
  }
  std::string text(const Event& event) const {
    std::string fields;
    for (size_t i = 0; i < event.fields; ++i) {
      fields += std::string(i > 0 ? "," : "") + '"' + event.field[i].key +
                "\":" + std::to_string(event.field[i].value);
    }
    const auto at = [](int64_t us) { return ",\"ts\":" + std::to_string(us); };
    const std::string args = ",\"args\":{" + fields + "}}";
    if (event.category == nullptr) {
      return head("X", event.name) + ",\"tid\":" + std::to_string(static_cast<int>(event.track)) +
             at(event.begin_us) + ",\"dur\":" + std::to_string(event.end_us - event.begin_us) +
             args;
    }
    char id[32];
    std::snprintf(id, sizeof id, "0x%llx", static_cast<unsigned long long>(event.id));
    const std::string same =
        std::string(",\"tid\":0,\"cat\":\"") + event.category + "\",\"id\":\"" + id + '"';
    return head("b", event.name) + same + at(event.begin_us) + args + ",\n" +
           head("e", event.name) + same + at(event.end_us) + "}";
  }
  /// False: the file is full.
  bool write(const std::string& line) {
    if (bytes + static_cast<int64_t>(line.size()) > options.max_bytes) return false;
    const std::string text = (bytes > 0 ? ",\n" : "[\n") + line;
    bytes += static_cast<int64_t>(text.size());
    return std::fwrite(text.data(), 1, text.size(), file.get()) == text.size();
  }
  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait_for(lock, kWriteInterval, [this] { return ending; });
      const bool last = ending;
      std::vector<Event> events = std::exchange(queue, {});
      lock.unlock();
      int64_t lost = 0;
      for (const Event& event : events) lost += write(text(event)) ? 0 : 1;
      std::fflush(file.get());
      lock.lock();
      dropped += lost;
      if (last) return;
    }
  }
};

Result<std::shared_ptr<Trace>> Trace::open(const Options& options) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->file.reset(std::fopen(options.path.c_str(), "we"));
  if (!impl->file) {
    return make_error(Errc::io_error,
                      "cannot write the trace " + options.path + ": " + std::strerror(errno));
  }
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  const auto steady = Clock::now().time_since_epoch();
  impl->wall_minus_steady_us = std::chrono::duration_cast<Microseconds>(wall).count() -
                               std::chrono::duration_cast<Microseconds>(steady).count();
  impl->write(impl->name_of("process_name", 0, options.process));
  impl->write(impl->name_of("thread_name", static_cast<int>(Track::encoder), "encoder"));
  impl->write(impl->name_of("thread_name", static_cast<int>(Track::decoder), "decoder"));
  impl->writer = std::thread([self = impl.get()] { self->run(); });
  return std::shared_ptr<Trace>(new Trace(std::move(impl)));
}

Trace::Trace(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Trace::~Trace() { finish(); }

void Trace::work(Track track, const char* name, Time begin, Time end,
                 std::initializer_list<TraceField> fields) {
  Event event;
  event.track = track;
  event.name = name;
  event.begin_us = impl_->micros(begin);
  event.end_us = impl_->micros(end);
  impl_->add(event, fields);
}

void Trace::span(const char* category, const char* name, uint64_t id, Time begin, Time end,
                 std::initializer_list<TraceField> fields) {
  Event event;
  event.category = category;
  event.name = name;
  event.id = id;
  event.begin_us = impl_->micros(begin);
  event.end_us = impl_->micros(end);
  impl_->add(event, fields);
}

int64_t Trace::dropped() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->dropped;
}

void Trace::finish() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->ending = true;
  }
  impl_->changed.notify_one();
  if (!impl_->writer.joinable()) return;
  impl_->writer.join();
  std::fputs("\n]\n", impl_->file.get());
  impl_->file.reset();
}

}  // namespace cedar::monitoring
