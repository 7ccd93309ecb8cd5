// Writes counters files byte by byte, from the format's header alone: files that `fibshim stats`
// must read, and files that it must refuse. The shim's own writer is not used, so that the two
// cannot share a mistake.
#pragma once

#include <string.h>

#include <string>
#include <vector>

#include "shim/abi/control_format.h"
#include "shim/abi/counters_format.h"
#include "shim/abi/graph_reasons.h"
#include "shim/abi/outcomes.h"

namespace fibshim::test {

constexpr uint64_t kNoSuchPid = 4194399;  // beyond the largest pid_max (2^22)

struct CountersFileBuilder {
  static constexpr uint32_t kCapacity = 8;
  static constexpr uint64_t kControlAt = 49152;
  static constexpr uint64_t kShadowAt = kControlAt + 24576;
  static constexpr uint32_t kShadowRoom = 4;
  static constexpr uint64_t kSeriesAt = kShadowAt + kShadowRoom * sizeof(ShadowEntry);
  static_assert(kControlAt >= sizeof(FileHeader) && kShadowAt >= kControlAt + sizeof(ControlBlock));
  static constexpr uint64_t kShardsAt = kSeriesAt + kCapacity * sizeof(SeriesEntry);
  static constexpr uint64_t kShardStride = 8192;

  FileHeader header{};
  ControlBlock control{};
  std::vector<ShadowEntry> shadow;
  std::vector<SeriesEntry> series;
  std::vector<std::vector<uint64_t>> shards;

  CountersFileBuilder(uint64_t pid, uint64_t start_time) {
    memcpy(header.magic, kCountersMagic, sizeof header.magic);
    header.version = kCountersVersion;
    header.header_bytes = sizeof(FileHeader);
    header.outcome_slots = kOutcomeSlots;
    header.count_kinds = kCountKinds;
    header.series_capacity = kCapacity;
    header.series_entry_bytes = sizeof(SeriesEntry);
    header.control_at = kControlAt;
    header.shadow_at = kShadowAt;
    header.shadow_capacity = kShadowRoom;
    header.shadow_entry_bytes = sizeof(ShadowEntry);
    header.series_at = kSeriesAt;
    header.shards_at = kShardsAt;
    header.shard_stride = kShardStride;
    header.pid = pid;
    header.start_time = start_time;
    header.created_unix_ns = 1700000000000000000;
    header.mode = 2;
    copy(header.executable, "/usr/bin/engine");
    copy(header.command, "engine --serve");
    add_series("", "");
    shards.emplace_back(kCapacity * kCountersPerSeries);
    header.shard_count = 1;
  }

  template <class Entry>
  static void copy_into(std::string* bytes, uint64_t at, const std::vector<Entry>& entries) {
    // memcpy accepts no null pointer, not even for 0 bytes.
    if (!entries.empty()) memcpy(&(*bytes)[at], entries.data(), entries.size() * sizeof(Entry));
  }

  template <size_t size>
  static void copy(char (&field)[size], const std::string& text) {
    memset(field, 0, size);
    memcpy(field, text.data(), text.size() < size ? text.size() : size);
  }

  void add_config(const std::string& path, uint64_t digest) {
    CountedConfig& config = header.configs[header.config_count++];
    copy(config.path, path);
    config.digest[0] = digest;
  }

  void add_device(const std::string& name, uint32_t sm) {
    CountedDevice& device = header.devices[header.device_count++];
    copy(device.name, name);
    device.sm = sm;
  }

  // Returns the new series' index.
  size_t add_series(const std::string& pattern, const std::string& definition, uint16_t config = 0,
                    int16_t device = -1, const std::string& solution = "") {
    SeriesEntry entry{};
    copy(entry.pattern, pattern);
    copy(entry.definition, definition);
    copy(entry.solution, solution);
    entry.config = config;
    entry.device = device;
    series.push_back(entry);
    header.series_count = static_cast<uint32_t>(series.size());
    return series.size() - 1;
  }

  ShadowEntry& add_shadow(size_t series_index, const std::string& shape) {
    ShadowEntry& entry = shadow.emplace_back();
    entry.series = static_cast<uint32_t>(series_index);
    copy(entry.shape, shape);
    header.shadow_count = static_cast<uint32_t>(shadow.size());
    return entry;
  }

  size_t add_shard() {
    shards.emplace_back(kCapacity * kCountersPerSeries);
    header.shard_count = static_cast<uint32_t>(shards.size());
    return shards.size() - 1;
  }

  void count(size_t series_index, Outcome outcome, uint64_t count, size_t shard = 0,
             CountKind kind = CountKind::launch) {
    shards[shard][series_index * kCountersPerSeries + static_cast<size_t>(kind) * kOutcomeSlots +
                  static_cast<size_t>(outcome)] += count;
  }

  void keep(size_t series_index, GraphReason reason, uint64_t number) {
    count(series_index, static_cast<Outcome>(reason), number, 0, CountKind::kept);
  }

  std::string file_name() const {
    return std::to_string(header.pid) + "-" + std::to_string(header.start_time) + kCountersSuffix;
  }

  std::string bytes() const {
    std::string out(kShardsAt + shards.size() * kShardStride, '\0');
    memcpy(out.data(), &header, sizeof header);
    memcpy(out.data() + kControlAt, &control, sizeof control);
    copy_into(&out, kShadowAt, shadow);
    copy_into(&out, kSeriesAt, series);
    for (size_t i = 0; i < shards.size(); ++i) {
      copy_into(&out, kShardsAt + i * kShardStride, shards[i]);
    }
    return out;
  }
};

}  // namespace fibshim::test
