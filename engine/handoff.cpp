#include "engine/handoff.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "core/check.h"
#include "engine/loaded_model.h"

namespace cedar::engine {
namespace {

constexpr uint32_t kMagic = 0x314F4843;  // "CHO1"
constexpr uint32_t kVersion = 1;

/// Little-endian, like every machine that Cedar runs on.
struct Header {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  int64_t length = 0;
  int64_t window_rows = 0;
  int64_t boundary_rows = 0;
  int64_t part_bytes[4] = {};  // windows, pending, boundary_x, boundary_pre
};
static_assert(sizeof(Header) == 64 && std::endian::native == std::endian::little);

constexpr std::array<const char*, 4> kPartNames = {"windows", "pending", "boundary_x",
                                                   "boundary_pre"};

template <class H>
auto parts(H& handoff) {
  return std::array{&handoff.windows, &handoff.pending, &handoff.boundary_x, &handoff.boundary_pre};
}

Error mismatch(const char* field, int64_t expected, int64_t got) {
  return make_error(Errc::invalid_argument, std::string("hand-off: ") + field + ": expected " +
                                                std::to_string(expected) + ", got " +
                                                std::to_string(got));
}

struct Shape {
  int64_t window_rows, boundary_rows;
  std::array<int64_t, 4> part_bytes;
};

Shape shape_of(const LoadedModel& model, ReplayMode mode, Position length) {
  Shape shape{};
  shape.window_rows = std::min<int64_t>(model.config.sliding_window, length);
  shape.boundary_rows = replay_rows(model, mode, length);
  const int64_t copies = model.config.hc_mult;
  shape.part_bytes = {
      model.plan.boundary * shape.window_rows * model.layout.window_row_bytes,
      pending_bytes(model, length),
      shape.boundary_rows * copies * model.config.hidden_size * int64_t{2},
      shape.boundary_rows * copies * int64_t{4},
  };
  return shape;
}

}  // namespace

int64_t pending_bytes(const LoadedModel& model, Position length) {
  int64_t floats = 0;
  bool open = false;
  for (const model::KvSource& source : model.plan.kv_sources) {
    if (source.ratio == 1) continue;
    floats += 2 * (source.ratio - 1) * model.config.head_dim;
    open = open || length % source.ratio != 0;
  }
  return open ? floats * int64_t{4} : 0;
}

int64_t replay_rows(const LoadedModel& model, ReplayMode mode, Position length) {
  const int64_t window = model.config.sliding_window;
  const int64_t rows = mode == ReplayMode::exact ? model.plan.exact_replay_rows(window) : window;
  return std::min<int64_t>(rows, length);
}

Status check_handoff(const LoadedModel& model, ReplayMode mode, Position length,
                     const Handoff& handoff) {
  if (handoff.length != length) return mismatch("length", length, handoff.length);
  const Shape shape = shape_of(model, mode, length);
  if (handoff.window_rows != shape.window_rows) {
    return mismatch("window_rows", shape.window_rows, handoff.window_rows);
  }
  if (handoff.boundary_rows != shape.boundary_rows) {
    return mismatch("boundary_rows", shape.boundary_rows, handoff.boundary_rows);
  }
  const auto got = parts(handoff);
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i]->bytes() != shape.part_bytes[i]) {
      return mismatch(kPartNames[i], shape.part_bytes[i], got[i]->bytes());
    }
  }
  return {};
}

int64_t serialised_bytes(const Handoff& handoff) {
  return static_cast<int64_t>(sizeof(Header)) + handoff.bytes();
}

int64_t max_handoff_bytes(const LoadedModel& model, const EngineOptions& options) {
  int64_t bytes = sizeof(Header);
  // One of two neighbours has an open group, if any length has.
  for (const int64_t back : {0, 1}) {
    const Position length = std::max<Position>(1, options.max_context_tokens - back);
    const Shape shape = shape_of(model, options.replay, length);
    int64_t sum = sizeof(Header);
    for (const int64_t part : shape.part_bytes) sum += part;
    bytes = std::max(bytes, sum);
  }
  return bytes;
}

void serialise(const Handoff& handoff, std::span<std::byte> to) {
  CEDAR_ASSERT(static_cast<int64_t>(to.size()) == serialised_bytes(handoff),
               std::to_string(to.size()));
  Header header;
  header.length = handoff.length;
  header.window_rows = handoff.window_rows;
  header.boundary_rows = handoff.boundary_rows;
  const auto sources = parts(handoff);
  for (size_t i = 0; i < sources.size(); ++i) header.part_bytes[i] = sources[i]->bytes();
  std::memcpy(to.data(), &header, sizeof header);
  std::byte* at = to.data() + sizeof header;
  for (const Buffer* source : sources) {
    if (source->bytes() == 0) continue;
    std::memcpy(at, source->data(), static_cast<size_t>(source->bytes()));
    at += source->bytes();
  }
}

Result<Handoff> parse_handoff(std::span<const std::byte> bytes) {
  Header header;
  if (bytes.size() < sizeof header) {
    return mismatch("header bytes", sizeof header, static_cast<int64_t>(bytes.size()));
  }
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kMagic) return mismatch("magic", kMagic, header.magic);
  if (header.version != kVersion) return mismatch("version", kVersion, header.version);
  for (const auto& [name, value] :
       {std::pair{"length", header.length}, std::pair{"window_rows", header.window_rows},
        std::pair{"boundary_rows", header.boundary_rows}}) {
    if (value < 0) return mismatch(name, 0, value);
  }
  auto left = static_cast<int64_t>(bytes.size() - sizeof header);
  for (size_t i = 0; i < kPartNames.size(); ++i) {
    if (header.part_bytes[i] < 0 || header.part_bytes[i] > left) {
      return mismatch(kPartNames[i], left, header.part_bytes[i]);
    }
    left -= header.part_bytes[i];
  }
  if (left != 0) return mismatch("trailing bytes", 0, left);

  Handoff handoff;
  handoff.length = header.length;
  handoff.window_rows = header.window_rows;
  handoff.boundary_rows = header.boundary_rows;
  const std::byte* at = bytes.data() + sizeof header;
  const auto targets = parts(handoff);
  for (size_t i = 0; i < targets.size(); ++i) {
    const int64_t count = header.part_bytes[i];
    if (count == 0) continue;
    CEDAR_TRY(*targets[i], Buffer::allocate(Device{}, count));
    std::memcpy(targets[i]->data(), at, static_cast<size_t>(count));
    at += count;
  }
  return handoff;
}

}  // namespace cedar::engine
