// `fibshim record --tensors` on the simulated driver: it keeps the launch's own bytes, of no more
// launches than asked for, and counts every launch that it leaves out.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/shim/recorded_program.h"

namespace fibshim {
namespace {

namespace fs = std::filesystem;

struct Dataset {
  Lines records;
  std::string err;
};

class RecordTensors : public Record {
 protected:
  std::string dataset() const { return folder_ + "/dataset"; }

  Dataset keep(const std::vector<std::string>& engine, const std::vector<std::string>& options = {},
               const std::string& config = pytorch_config()) const {
    fs::remove_all(dataset());
    std::vector<std::string> all = {"-c", config, "--tensors", dataset()};
    all.insert(all.end(), options.begin(), options.end());
    const Recorded run = record_engine(engine, all);
    EXPECT_EQ(run.process.exit_code, 0) << run.process.err;
    Dataset out{{}, run.process.err};
    const std::string file = dataset() + "/workloads/rmsnorm/rmsnorm_h4096.jsonl";
    if (fs::exists(file)) out.records = read_lines(file);
    return out;
  }

  // The bytes of a record's tensor, found through the safetensors file's own header.
  std::vector<uint16_t> tensor(const nlohmann::json& given) const {
    std::ifstream file(dataset() + "/" + given["path"].get<std::string>(), std::ios::binary);
    uint64_t bytes = 0;
    file.read(reinterpret_cast<char*>(&bytes), sizeof bytes);
    std::string header(bytes, 0);
    file.read(header.data(), static_cast<std::streamsize>(bytes));
    const auto entry = nlohmann::json::parse(header)[given["tensor_key"].get<std::string>()];
    const auto begin = entry["data_offsets"][0].get<uint64_t>();
    std::vector<uint16_t> out((entry["data_offsets"][1].get<uint64_t>() - begin) / 2);
    file.seekg(static_cast<std::streamoff>(8 + bytes + begin));
    file.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(2 * out.size()));
    EXPECT_TRUE(file);
    return out;
  }
};

double bf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

// The outputs follow from the inputs: both are of the same launch, taken before and after it.
TEST_F(RecordTensors, KeepsInputsAndTheOriginalsOutputs) {
  const Dataset kept = keep({"--launches=5", "--rows=3"});
  ASSERT_EQ(kept.records.size(), 1u) << kept.err;
  const nlohmann::json& record = kept.records[0];
  EXPECT_EQ(record["definition"], "rmsnorm_h4096");
  EXPECT_EQ(record["workload"]["axes"], (nlohmann::json{{"batch_size", 3}}));
  EXPECT_TRUE(record["solution"].is_null());
  EXPECT_CONTAINS(record["fibshim"]["note"].get<std::string>(), "private");
  const auto x = tensor(record["workload"]["inputs"]["hidden_states"]);
  const auto weight = tensor(record["workload"]["inputs"]["weight"]);
  const auto y = tensor(record["fibshim"]["outputs"]["output"]);
  ASSERT_EQ(x.size(), 3u * 4096);
  ASSERT_EQ(weight.size(), 4096u);
  ASSERT_EQ(y.size(), x.size());
  const double eps = record["fibshim"]["scalars"]["eps"];
  for (size_t row = 0; row < 3; ++row) {
    double squares = 0;
    for (size_t i = 0; i < 4096; ++i) squares += bf16(x[row * 4096 + i]) * bf16(x[row * 4096 + i]);
    const double factor = 1 / sqrt(squares / 4096 + eps);
    for (size_t i = 0; i < 4096; ++i) {
      const double wanted = bf16(x[row * 4096 + i]) * factor * bf16(weight[i]);
      ASSERT_NEAR(bf16(y[row * 4096 + i]), wanted, 1e-2 * std::max(1.0, std::abs(wanted)));
    }
  }
  const nlohmann::json& statistics = record["fibshim"]["statistics"]["hidden_states"];
  double least = bf16(x[0]), sum = 0;
  for (const uint16_t bits : x) {
    least = std::min(least, bf16(bits));
    sum += bf16(bits);
  }
  EXPECT_EQ(statistics["least"], least);
  EXPECT_NEAR(statistics["mean"].get<double>(), sum / static_cast<double>(x.size()), 1e-9);
  // The user is warned, and no other user can read the dataset.
  EXPECT_CONTAINS(kept.err, "values of the tensors of launches are written into");
  struct stat status;
  ASSERT_EQ(stat(dataset().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 077, 0u);
  // The judge accepts the dataset.
  EXPECT_CONTAINS(exits(0, run_process({fibshim_program(), "verify", pytorch_config(),
                                        "rmsnorm_h4096", "--axis", "batch_size=1", "--workloads",
                                        dataset() + "/workloads/rmsnorm/rmsnorm_h4096.jsonl"},
                                       environment()))
                      .out,
                  "2 cases: 2 passed");
}

// A null pointer of the host's leads with a shift to an input, and to the output.
TEST_F(RecordTensors, FollowsShiftsToTensors) {
  const auto bytes_of = [&](const Dataset& kept) {
    const nlohmann::json& record = kept.records.at(0);
    return std::pair(tensor(record["workload"]["inputs"]["hidden_states"]),
                     tensor(record["fibshim"]["outputs"]["output"]));
  };
  const auto plain = bytes_of(keep({"--launches=5", "--rows=3"}));
  const std::string config = copy_of_pytorch_config();
  const auto pattern = find_file(config, "torch-rms-norm-bf16.json");
  edit_file(pattern, R"("hidden_states": {"arg": 2, "dtype": "bfloat16"})",
            R"("from": {"arg": 2, "type": "int64"},
    "hidden_states": {"arg": 4, "dtype": "bfloat16", "shift": "from"})");
  edit_file(pattern, R"("output": {"arg": 7, "dtype": "bfloat16"})",
            R"("to": {"arg": 7, "type": "int64"},
    "output": {"arg": 4, "dtype": "bfloat16", "shift": "to"})");
  const Dataset shifted = keep({"--launches=5", "--rows=3"}, {}, config);
  ASSERT_EQ(shifted.records.size(), 1u) << shifted.err;
  EXPECT_EQ(bytes_of(shifted), plain);
}

// What the original is off from the reference, doubled, is what verify and shadow checks tolerate from then on.
TEST_F(RecordTensors, TheOriginalsOutputsSayWhatShadowChecksTolerate) {
  const std::string host = build_dir() + "/tests/hosts/shadow_host";
  const std::string config = copy_of_pytorch_config();
  const Recorded run =
      record({host, "400"}, {"-c", config, "--tensors", dataset(), "--tensors-keep", "shape:2"});
  EXPECT_EQ(run.process.exit_code, 0) << run.process.err;
  const auto verify = [&](const std::string& what, Environment more = {}) {
    more.merge(environment());
    return run_process({fibshim_program(), "verify", config, "rmsnorm_h128", "--axis",
                        "batch_size=1", "--workloads", dataset(), "--tolerances", what},
                       more);
  };
  const auto is_reported = [&](const char* fault) {
    Environment more = environment();
    more["SIMCUDA_KERNELS"] = build_dir() + "/tests/data/libshadow_faults.so";
    more["SHADOW_FAULT"] = fault;
    more["FIBSHIM_SHADOW"] = "1/1";
    const ProcessResult result =
        exits(0, run_process({fibshim_program(), "run", "-c", config, "--", host, "200"}, more));
    return result.err.find("differs from the original") != std::string::npos;
  };
  const std::string file = find_file(config, "fibshim_rmsnorm_h128.json");
  const auto block = [&] { return nlohmann::json::parse(std::ifstream(file))["verify"]; };
  const auto before = block();
  EXPECT_CONTAINS(exits(0, verify("show")).out,
                  "fibshim_rmsnorm_h128: atol = rtol = 0.0079: in 48 workloads the original is off "
                  "from the reference by 0.0039, the solution from the original by ");
  EXPECT_EQ(block(), before);
  EXPECT_FALSE(is_reported("just_within"));
  EXPECT_CONTAINS(exits(0, verify("write")).out, "; written\n");
  EXPECT_EQ(block()["atol"], 0.0079);
  EXPECT_EQ(block()["rtol"], 0.0079);
  EXPECT_TRUE(is_reported("just_within"));  // of the default tolerance, 0.01
  EXPECT_FALSE(is_reported("one_ulp"));
  // One that is wrong makes nothing wider.
  EXPECT_CONTAINS(
      exits(1,
            verify("write", {{"SIMCUDA_KERNELS", build_dir() + "/tests/data/libshadow_faults.so"},
                             {"SHADOW_FAULT", "just_beyond"}}))
          .out,
      "fibshim_rmsnorm_h128: no tolerance: the solution is off from the original by ");
  EXPECT_EQ(block()["atol"], 0.0079);
}

struct Policy {
  const char* name;
  std::string policy;
  const char* kept;  // of ten equal launches
};
class RecordTensorsBy : public RecordTensors, public testing::WithParamInterface<Policy> {};
TEST_P(RecordTensorsBy, NoMoreThanThePolicyAsksForAndEqualOnesOnce) {
  const Dataset kept = keep({"--launches=10", "--rows=2"}, {"--tensors-keep", GetParam().policy});
  EXPECT_EQ(kept.records.size(), 1u);
  EXPECT_CONTAINS(kept.err, GetParam().kept);
}
INSTANTIATE_TEST_SUITE_P(Policies, RecordTensorsBy,
                         testing::Values(Policy{"First", "first:4", ", 3 more like them"},
                                         Policy{"Every", "every:5", ", 1 more like them"},
                                         Policy{"Shape", "shape:2", ", 1 more like them"},
                                         Policy{"Axis", "axis:batch_size:6", ", 5 more like them"}),
                         kByName);

// Launches with other values each time, of 1 to 24 rows.
TEST_F(RecordTensors, EachPolicyKeepsItsOwnOfLaunchesThatDiffer) {
  const std::string file = dataset() + "/workloads/rmsnorm/rmsnorm_h128.jsonl";
  for (const auto& [policy, records] : std::map<std::string, size_t>{
           {"first:3", 3}, {"every:100", 4}, {"shape:2", 48}, {"axis:batch_size:1", 24}}) {
    const Recorded run =
        record({build_dir() + "/tests/hosts/shadow_host", "400"},
               {"-c", pytorch_config(), "--tensors", dataset(), "--tensors-keep", policy});
    EXPECT_EQ(run.process.exit_code, 0) << run.process.err;
    EXPECT_EQ(read_lines(file).size(), records) << policy << "\n" << run.process.err;
    fs::remove_all(dataset());
  }
}

TEST_F(RecordTensors, KeepsNothingOnceItsTimeIsOver) {
  // The engine waits for a line after ten of twenty launches.
  const ProcessResult run = run_process(
      {"bash",
       "-c",
       "coproc R { exec \"$@\"; }; pid=$R_PID; read -r -u ${R[0]} line; sleep 1.1; echo >&${R[1]}; "
       "wait $pid",
       "bash",
       fibshim_program(),
       "record",
       "-c",
       pytorch_config(),
       "-o",
       output(),
       "--tensors",
       dataset(),
       "--tensors-keep",
       "every:1",
       "--tensors-seconds",
       "1",
       "--",
       build_dir() + "/tests/hosts/shadow_host",
       "20",
       "0",
       "10"},
      environment());
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_CONTAINS(run.err, "10 launches not kept: after --tensors-seconds");
}

// 64 launches of 40 KB may be under way, but only one is written.
TEST_F(RecordTensors, EqualOnesCountOnceAgainstTheLimit) {
  const Dataset kept =
      keep({"--launches=400", "--rows=2"}, {"--tensors-keep", "every:1", "--tensors-limit", "3mb"});
  EXPECT_EQ(kept.records.size(), 1u);
  EXPECT_EQ(kept.err.find("beyond --tensors-limit"), std::string::npos) << kept.err;
}

TEST_F(RecordTensors, KeepsStatisticsAlone) {
  const Dataset kept = keep({"--launches=2", "--rows=3"}, {"--tensors-stats"});
  ASSERT_EQ(kept.records.size(), 1u);
  EXPECT_EQ(kept.records[0]["workload"]["inputs"]["weight"]["type"], "random");
  EXPECT_EQ(kept.records[0]["fibshim"]["statistics"]["weight"]["count"], 4096);
  EXPECT_FALSE(fs::exists(dataset() + "/blob"));
}

TEST_F(RecordTensors, CountsWhatItLeavesOut) {
  Dataset kept = keep({"--capture"});
  EXPECT_EQ(kept.records.size(), 0u);
  EXPECT_CONTAINS(kept.err, "1 launch not kept: in a graph or while one was captured");
  kept = keep({"--launches=3", "--rows=3"}, {"--tensors-limit", "30kb"});
  EXPECT_EQ(kept.records.size(), 0u);
  EXPECT_CONTAINS(kept.err, "3 launches not kept: beyond --tensors-limit");
}

// Only the definition states the shape. Nothing beyond the allocation is read.
TEST_F(RecordTensors, ReadsNothingBeyondAnAllocation) {
  const std::string config = copy_of_pytorch_config();
  edit_file(find_file(config, "torch-rms-norm-bf16.json"), R"("batch_size": {"grid": "x"})",
            R"("batch_size": {"block": "x"})");
  const Recorded run =
      record_engine({"--launches=3", "--rows=3"}, {"-c", config, "--tensors", dataset()});
  EXPECT_EQ(run.process.exit_code, 0) << run.process.err;
  EXPECT_CONTAINS(run.process.err, "3 launches not kept: of a shape or memory that is not known");
  EXPECT_FALSE(fs::exists(dataset() + "/workloads/rmsnorm/rmsnorm_h4096.jsonl"));
}

// The outputs of a solution are not those of the original.
TEST_F(RecordTensors, KeepsNoOutputsOfASolution) {
  const Dataset kept = keep({"--launches=2", "--rows=3"}, {"--mode", "apply"});
  ASSERT_EQ(kept.records.size(), 1u) << kept.err;
  EXPECT_EQ(kept.records[0]["workload"]["inputs"]["weight"]["type"], "safetensors");
  EXPECT_EQ(kept.records[0]["fibshim"]["outputs"].size(), 0u);
}

TEST_F(RecordTensors, ManyThreadsAndNothingUnlessAsked) {
  const Dataset kept =
      keep({"--launches=50", "--threads=8", "--rows=2"}, {"--tensors-keep", "every:1"});
  // Each thread has its own tensors. A launch is kept, equal to another, or has no room.
  EXPECT_GE(kept.records.size(), 1u);
  EXPECT_LE(kept.records.size(), 8u);
  const auto number_before = [&](const std::string& words) {
    const size_t at = kept.err.find(words);
    if (at == std::string::npos) return 0;
    return std::stoi(kept.err.substr(kept.err.find_last_of(" (", at - 1) + 1));
  };
  EXPECT_EQ(static_cast<int>(kept.records.size()) + number_before(" more like them") +
                number_before(" launches not kept: while copies"),
            400)
      << kept.err;
  fs::remove_all(dataset());
  const Recorded plain = record_engine({"--launches=5"}, {"-c", pytorch_config()});
  EXPECT_EQ(plain.process.err.find("tensors"), std::string::npos) << plain.process.err;
}

TEST_F(RecordTensors, SaysWhatItCannotDo) {
  const auto fails = [&](const std::vector<std::string>& options, int code,
                         const std::string& why) {
    std::vector<std::string> all = {"-c", pytorch_config(), "--tensors", dataset()};
    all.insert(all.end(), options.begin(), options.end());
    const Recorded run = record_engine({}, all);
    EXPECT_EQ(run.process.exit_code, code);
    EXPECT_CONTAINS(run.process.err, why);
  };
  fails({"--tensors-keep", "some"}, 2, "takes first:K, every:N, shape:K or axis:NAME:K");
  fails({"--tensors-keep", "first:0"}, 2, "takes first:K");
  fails({"--tensors-keep", "axis:nothing:3"}, 1, "no definition's launches can be kept");
  fails({"--tensors-of", "no_such*"}, 1, "no definition's launches can be kept");
  EXPECT_EQ(record_engine({}, {"--tensors-stats"}).process.exit_code, 2);
  EXPECT_FALSE(fs::exists(output() + ".parts"));
  // Two datasets are never mixed.
  fs::create_directories(dataset() + "/x");
  fails({}, 1, "it is no empty folder");
  EXPECT_FALSE(fs::exists(output() + ".parts"));
}

}  // namespace
}  // namespace fibshim
