// A producer as a process of its own, for tests that kill, stop and cut it off.
//
//   transport_peer HOST PORT NODE GENERATION TLS DEVICES BYTES
//
// Prints "port N" and, for its one region filled from its generation, "lease HEX": a descriptor of all of it under a lease of
// ten minutes that nobody needs to release. Then it serves until its standard input ends.

#include <cstdio>
#include <cstdlib>

#include <unistd.h>

#include "tests/transport/peer_process.h"
#include "transport/ucx.h"

int main(int argc, char** argv) {
  using namespace cedar;
  using namespace cedar::transport;
  if (argc != 8) return 2;
  TransportOptions options;
  options.listen_host = argv[1];
  options.listen_port = static_cast<uint16_t>(std::atoi(argv[2]));
  options.identity = {NodeId(static_cast<uint32_t>(std::atoi(argv[3]))),
                      std::strtoull(argv[4], nullptr, 10)};
  UcxOptions ucx;
  ucx.tls = argv[5];
  ucx.net_devices = argv[6];
  auto transport = make_ucx_transport(options, ucx);
  if (!transport) {
    std::printf("error %s\n", transport.error().message().c_str());
    return 1;
  }
  const auto region = (*transport)->allocate(std::strtoull(argv[7], nullptr, 10));
  if (!region) return 1;
  test::fill_pattern(region->memory.data, region->memory.bytes, options.identity.generation);
  OfferRequest request;
  request.region = region->id;
  request.ranges = {{0, region->memory.bytes, {}}};
  request.lease_deadline = Clock::now() + std::chrono::minutes(10);
  const auto descriptor = (*transport)->offer(request);
  if (!descriptor) return 1;
  std::printf("port %u\nlease %s\n", (*transport)->listen_port(),
              test::to_hex(serialise(*descriptor)).c_str());
  std::fflush(stdout);
  char byte;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return 0;
}
