// The buffers of one launch on the device, each between guard zones.
#pragma once

#include "tools/judge/call.h"

namespace fibshim::judge {

class DeviceBuffers {
 public:
  // Every byte of an output before a run: NaN in every floating-point type, -1 in every integer.
  static constexpr uint8_t kPoison = 0xff;

  struct Item {
    const BufferSpec* spec;
    CUdeviceptr base;
    size_t offset;  // of the data, from the base
    size_t bytes;
    size_t total;
    CUdeviceptr data() const { return base + offset; }
  };

  // `specs` outlive the buffers.
  DeviceBuffers(Gpu* gpu, const std::vector<BufferSpec>& specs) : gpu_(gpu), specs_(specs) {}
  ~DeviceBuffers();
  DeviceBuffers(const DeviceBuffers&) = delete;
  DeviceBuffers& operator=(const DeviceBuffers&) = delete;

  Result<void> allocate(bool is_misaligned);

  // Guards and poison everywhere, then the inputs.
  Result<void> prepare(const CaseData& data);

  // What was written where nothing may be written, or the input that was changed though no output lies in
  // it; "" when nothing was.
  Result<std::string> find_overrun();
  Result<std::string> find_changed_input(const CaseData& data);

  Result<Tensor> read(const std::string& name, const ElementType* type,
                      const std::vector<int64_t>& shape);

  // What a launch moves at least: a buffer that is read and written counts twice.
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
