#pragma once
// CRC-32C (Castagnoli, as in iSCSI and ext4): what guards bytes on wires and on disks.

#include <cstddef>
#include <cstdint>
#include <span>

namespace cedar {

/// The checksum of `bytes`, or of everything so far when `seed` is the checksum of what came before.
/// crc32c("123456789") is 0xE3069283. Uses the processor's instruction where the build allows it.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t seed = 0);

}  // namespace cedar
