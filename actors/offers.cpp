#include "actors/offers.h"

#include <string>

namespace cedar::actors {

Offer make_offer(const transport::RegionDescriptor& descriptor, const DataEndpoint& owner) {
  const auto bytes = transport::serialise(descriptor);
  const auto* first = reinterpret_cast<const uint8_t*>(bytes.data());
  return {{first, first + bytes.size()}, owner};
}

Result<transport::RegionDescriptor> descriptor_of(const Offer& offer) {
  CEDAR_TRY(auto descriptor, transport::parse_descriptor(
                                 {reinterpret_cast<const std::byte*>(offer.descriptor.data()),
                                  offer.descriptor.size()}));
  if (descriptor.owner != identity_of(offer.owner)) {
    return make_error(Errc::invalid_argument, "an offer of " + to_string(descriptor.owner) +
                                                  " in the name of " +
                                                  to_string(identity_of(offer.owner)));
  }
  return descriptor;
}

}  // namespace cedar::actors
