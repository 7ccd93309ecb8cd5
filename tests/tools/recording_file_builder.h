// Writes recordings byte by byte, from the format's header alone: files that `fibshim record` must
// read, and files that it must refuse. The shim's own writer is not used, so that the two cannot
// share a mistake.
#pragma once

#include <stddef.h>
#include <string.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "shim/abi/outcomes.h"
#include "shim/abi/recording_format.h"

namespace fibshim::test {

struct RecordedParamValues {
  uint32_t size;
  std::vector<std::pair<uint64_t, uint64_t>> values;
  std::vector<RecordedParamValues> words = {};      // of a struct
  RecordedMemory memory = RecordedMemory::unknown;  // of a word
};

// A recording as the shim writes it.
class RecordingBuilder {
 public:
  RecordingBuilder() {
    RecordingHeader header = {};
    memcpy(header.magic, kRecordingMagic, sizeof header.magic);
    header.version = kRecordingVersion;
    header.header_bytes = sizeof header;
    header.limit_bytes = kRecordedSymbolBytes * 64;
    header.pid = 0x7fffffff;  // above any pid: not alive
    header.mode = 1;
    header.timed_every = kTimedEvery;
    strcpy(header.command, "python3 serve.py");
    append(header);
  }

  RecordingBuilder& kernel(const std::string& symbol,
                           const std::vector<RecordedParamValues>& params, uint64_t launches,
                           uint64_t nodes = 0, uint64_t image = 0x1234, uint64_t code = 0) {
    RecordedKernel kernel = {};
    const size_t symbol_bytes = (symbol.size() + 8) / 8 * 8;
    std::vector<RecordedParamValues> all = params;
    for (const RecordedParamValues& param : params) {
      all.insert(all.end(), param.words.begin(), param.words.end());
    }
    kernel.block = {
        RecordedKind::kernel,
        static_cast<uint32_t>(sizeof kernel + all.size() * sizeof(RecordedParam) +
                              all.size() * kRecordedValues * sizeof(RecordedValue) + symbol_bytes)};
    kernel.image_low = image;
    kernel.code_low = code;
    kernel.image_kind = RecordedImage::cubin;
    kernel.sm = 90;
    kernel.param_count = static_cast<uint32_t>(params.size());
    kernel.word_count = static_cast<uint32_t>(all.size() - params.size());
    kernel.value_count = static_cast<uint32_t>(all.size()) * kRecordedValues;
    kernel.symbol_bytes = static_cast<uint32_t>(symbol.size() + 1);
    kernel.has_params = 1;
    kernel.launches = launches;
    kernel.nodes = nodes;
    kernel.outcomes[static_cast<size_t>(Outcome::untracked)] = launches + nodes;
    kernel_at_ = bytes_.size();
    append(kernel);
    uint32_t next_value = 0;
    const auto append_param = [&](const RecordedParamValues& values, uint32_t offset) {
      RecordedParam param = {offset, values.size, next_value, values.memory, 0, 0};
      next_value += kRecordedValues;
      for (const auto& [value, count] : values.values) param.bits |= value;
      append(param);
    };
    uint32_t offset = 0;
    std::vector<uint32_t> offsets;
    for (const RecordedParamValues& param : params) {
      const uint32_t alignment = std::min(param.size, 8u);
      offsets.push_back(offset = (offset + alignment - 1) / alignment * alignment);
      append_param(param, offset);
      offset += param.size;
    }
    for (size_t i = 0; i < params.size(); ++i) {
      for (const RecordedParamValues& word : params[i].words) {
        append_param(word, offsets[i]);
        offsets[i] += word.size;
      }
    }
    for (const RecordedParamValues& param : all) {
      for (size_t i = 0; i < kRecordedValues; ++i) {
        append(i < param.values.size()
                   ? RecordedValue{param.values[i].first, param.values[i].second}
                   : RecordedValue{});
      }
    }
    std::string text = symbol;
    text.resize(symbol_bytes);
    bytes_ += text;
    return *this;
  }

  // A geometry of the kernel that was added last.
  RecordingBuilder& geometry(uint32_t grid, uint32_t block, uint64_t launches, uint64_t nodes,
                             RecordedTimes times) {
    const RecordedGeometry geometry = {{RecordedKind::geometry, sizeof(RecordedGeometry)},
                                       kernel_at_,
                                       {grid, 1, 1, block, 1, 1, 1, 1, 1, 0},
                                       launches,
                                       nodes,
                                       times};
    append(geometry);
    return *this;
  }

  // Runs that CUPTI reported, for the name that was added last or for a new one.
  RecordingBuilder& runs(const std::string& symbol, uint32_t grid, uint32_t block, bool in_graph,
                         RecordedTimes warm_up, RecordedTimes times) {
    if (symbol != last_name_) {
      std::string text = symbol;
      text.resize((symbol.size() + 8) / 8 * 8);
      name_at_ = bytes_.size();
      append(RecordedName{
          {RecordedKind::name, static_cast<uint32_t>(sizeof(RecordedName) + text.size())},
          static_cast<uint32_t>(symbol.size() + 1),
          1});
      bytes_ += text;
      last_name_ = symbol;
    }
    append(RecordedRuns{{RecordedKind::runs, sizeof(RecordedRuns)},
                        name_at_,
                        {grid, 1, 1, block, 1, 1, 1, 1, 1, 0},
                        in_graph,
                        0,
                        warm_up,
                        times});
    return *this;
  }
  RecordingBuilder& device(uint64_t first_ns, uint64_t last_ns, uint64_t busy_ns) {
    append(RecordedDevice{
        {RecordedKind::device, sizeof(RecordedDevice)}, 0, first_ns, last_ns, busy_ns});
    return *this;
  }
  RecordingBuilder& timing(RecordedTiming timing, const std::string& reason = "") {
    memcpy(bytes_.data() + offsetof(RecordingHeader, timing), &timing, sizeof timing);
    memcpy(bytes_.data() + offsetof(RecordingHeader, timing_reason), reason.c_str(),
           reason.size() + 1);
    return *this;
  }

  // The hash of the image of the kernel that was added last.
  RecordingBuilder& image(uint64_t high, uint64_t low) {
    memcpy(bytes_.data() + kernel_at_ + offsetof(RecordedKernel, image_high), &high, sizeof high);
    memcpy(bytes_.data() + kernel_at_ + offsetof(RecordedKernel, image_low), &low, sizeof low);
    return *this;
  }

  // An outcome of launches of the kernel that was added last.
  RecordingBuilder& outcome(Outcome outcome, uint64_t count) {
    const size_t at =
        kernel_at_ + offsetof(RecordedKernel, outcomes) + static_cast<size_t>(outcome) * 8;
    memcpy(bytes_.data() + at, &count, sizeof count);
    return *this;
  }
  // The config folder in use.
  RecordingBuilder& config(const std::string& path) {
    memcpy(bytes_.data() + offsetof(RecordingHeader, config), path.c_str(), path.size() + 1);
    return *this;
  }

  std::string bytes() const {
    std::string out = bytes_;
    const uint64_t used = out.size();
    memcpy(out.data() + offsetof(RecordingHeader, used_bytes), &used, sizeof used);
    return out;
  }

 private:
  template <class T>
  void append(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }

  std::string bytes_;
  uint64_t kernel_at_ = 0;
  uint64_t name_at_ = 0;
  std::string last_name_;
};

constexpr char kScale[] =
    "_Z5scalePfPKfiaf";  // scale(float*, float const*, int, signed char, float)
constexpr uint64_t kAddress = 0x7f1200000000;

}  // namespace fibshim::test
