// The buffers of one launch on the device, each between guard zones.
#pragma once

#include "tools/judge/call.h"

namespace fibshim::judge {

class DeviceBuffers {
 public:
  // The value of every byte of an output before a run: NaN in every floating-point type, -1 in
  // every integer type.
  static constexpr uint8_t kPoison = 0xff;

  struct Item {
    const BufferSpec* spec;
    CUdeviceptr base;
    size_t offset;  // of the data, from the base
    size_t bytes;
    size_t total;
    CUdeviceptr data() const { return base + offset; }
  };

  // `specs` must outlive the buffers.
  DeviceBuffers(Gpu* gpu, const std::vector<BufferSpec>& specs) : gpu_(gpu), specs_(specs) {}
  ~DeviceBuffers();
  DeviceBuffers(const DeviceBuffers&) = delete;
  DeviceBuffers& operator=(const DeviceBuffers&) = delete;

  Result<void> allocate(bool is_misaligned);

  // Fills guard zones and buffers with their patterns, then copies the inputs.
  Result<void> prepare(const CaseData& data);

  // A message if a guard zone was written, or an input in which no output is was changed; else "".
  Result<std::string> find_overrun();
  Result<std::string> find_changed_input(const CaseData& data);

  // Row by row, however it lies in memory.
  Result<Tensor> read(const std::string& name);

  // The bytes that a launch must move at least: a buffer that is read and written counts twice.
  int64_t moved_bytes() const;
  const std::map<std::string, uint64_t>& addresses() const { return addresses_; }

 private:
  bool is_written(const Item& item) const;

  Gpu* gpu_;
  const std::vector<BufferSpec>& specs_;
  std::vector<Item> items_;
  std::map<std::string, uint64_t> addresses_;
};

}  // namespace fibshim::judge
