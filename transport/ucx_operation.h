#pragma once
// One operation that UCX has taken on: what must stay alive until its callback, and whom to tell. Private to UcxLink.

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "transport/ucx_link.h"
#include "transport/wire.h"

namespace cedar::transport {

struct UcxLink::Operation {
  static constexpr size_t kHeaderBytes = 12;

  UcxLink* link = nullptr;
  Channel* channel = nullptr;
  Completion done{};
  std::vector<std::byte> bytes{};
  std::vector<std::byte> header{};
  std::vector<ucp_dt_iov_t> iov{};

  void set_header(const DataHeader& value) {
    header = ByteWriter().put(value.transfer.value).put(value.part).take();
  }
  static std::optional<DataHeader> parse_header(const void* data, size_t count) {
    if (count != kHeaderBytes) return std::nullopt;
    ByteReader in({static_cast<const std::byte*>(data), count});
    DataHeader value;
    value.transfer = TransferId(in.get<uint64_t>());
    value.part = in.get<uint32_t>();
    return value;
  }

  /// Buffer and count of the segments; several are given to UCX as a list.
  std::pair<void*, size_t> payload(ucp_request_param_t& param) {
    if (iov.size() == 1) return {iov[0].buffer, iov[0].length};
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    param.datatype = ucp_dt_make_iov();
    return {iov.data(), iov.size()};
  }

  /// `flags` 0: none (for RMA).
  static ucp_request_param_t send_param(unsigned flags, Operation* operation) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.user_data = operation;
    param.cb.send = [](void* request, ucs_status_t status, void* arg) {
      ucp_request_free(request);
      auto* self = static_cast<Operation*>(arg);
      self->link->finish(self, status);
    };
    if (flags == 0) return param;
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = flags | UCP_AM_SEND_FLAG_REPLY;
    return param;
  }
  static ucp_request_param_t receive_param(Operation* operation) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.user_data = operation;
    param.cb.recv_am = [](void* request, ucs_status_t status, size_t, void* arg) {
      ucp_request_free(request);
      auto* self = static_cast<Operation*>(arg);
      self->link->finish(self, status);
    };
    return param;
  }
};

}  // namespace cedar::transport
