// fibshim stats: adds up files that it can trust, refuses others with a reason, prints three
// formats.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/text.h"
#include "tests/tools/counters_file_builder.h"
#include "tests/tools/live_program.h"

namespace fibshim::test {
namespace {

class Stats : public testing::Test {
 protected:
  void write(const CountersFileBuilder& builder) {
    write_text(folder_ / builder.file_name(), builder.bytes());
  }

  ProgramResult stats(std::vector<std::string> arguments = {}) {
    arguments.insert(arguments.begin(), "stats");
    return run_fibshim(arguments, {{{"FIBSHIM_STATS_DIR", folder_.path()}}, ""});
  }

  // A file with 100 hits, 7 fallbacks for another shape and 12 unknown launches.
  CountersFileBuilder engine(uint64_t pid = kNoSuchPid, uint64_t start_time = 50) {
    CountersFileBuilder builder(pid, start_time);
    builder.add_config("/etc/fibshim/pytorch", 0xabc);
    builder.add_device("NVIDIA H200", 90);
    const size_t hit = builder.add_series("torch-rms-norm-bf16", "rmsnorm_h4096");
    const size_t miss = builder.add_series("torch-rms-norm-bf16", "rmsnorm_h4100");
    builder.count(0, Outcome::untracked, 12);
    builder.count(miss, Outcome::fallback_no_solution, 7);
    builder.count(hit, Outcome::hit, 100);
    return builder;
  }

  TemporaryFolder folder_;
};

TEST_F(Stats, PrintsHitsFirstThenTotalsReasonsAndProcesses) {
  write(engine());
  const ProgramResult result = exits(0, stats());
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out,
            "DEFINITION     PATTERN              OUTCOME               LAUNCHES  EXECUTIONS\n"
            "rmsnorm_h4096  torch-rms-norm-bf16  hit                        100         100\n"
            "rmsnorm_h4100  torch-rms-norm-bf16  fallback_no_solution         7           7\n"
            "-              -                    untracked                   12          12\n"
            "\n"
            "119 launches: 100 hit, 7 fallback_no_solution, 12 untracked\n"
            "  fallback_no_solution: a pattern named a definition that the folder has no solution "
            "for\n"
            "  untracked: no pattern knows this kernel\n"
            "1 process (0 live, 1 ended), counters in " +
                folder_.path() + "\n");
}

TEST_F(Stats, SortsByCountWithinAnOutcome) {
  CountersFileBuilder builder(kNoSuchPid, 1);
  builder.count(builder.add_series("p", "few"), Outcome::hit, 2);
  builder.count(builder.add_series("p", "many"), Outcome::hit, 2000);
  builder.count(builder.add_series("p", "some"), Outcome::hit, 30);
  write(builder);
  const std::string out = stats().out;
  EXPECT_LT(out.find("many"), out.find("some"));
  EXPECT_LT(out.find("some"), out.find("few"));
}

// Three launches and two nodes. One node's graph was launched ten times, the other's never.
TEST_F(Stats, TellsLaunchesAndExecutionsApart) {
  CountersFileBuilder builder(kNoSuchPid, 1);
  const size_t series = builder.add_series("p", "d");
  builder.count(series, Outcome::hit, 3);
  builder.count(series, Outcome::hit, 2, 0, CountKind::node);
  builder.count(series, Outcome::hit, 10, 0, CountKind::node_run);
  builder.count(0, Outcome::untracked, 4, 0, CountKind::node_run);
  builder.count(series, Outcome::fallback_graph, 6, 0, CountKind::body_node);
  builder.keep(series, GraphReason::unchecked, 3);
  builder.keep(series, GraphReason::set_child, 1);
  write(builder);
  const std::string out = exits(0, stats()).out;
  EXPECT_CONTAINS(out, "d           p        hit               5          13\n");
  EXPECT_CONTAINS(out, "-           -        untracked         0           4\n");
  EXPECT_CONTAINS(out,
                  "5 launches: 5 hit, 0 untracked\n17 executions: 13 hit, 4 untracked\n"
                  "6 kernel nodes in bodies of conditional nodes, which run as often as the device "
                  "decides: 6 fallback_graph\n");
  EXPECT_CONTAINS(
      out,
      "4 nodes of graphs were found to keep the original: 3 unchecked, 1 set_child\n"
      "  unchecked: each launch is to be checked (FIBSHIM_SHADOW), which needs a copy of "
      "the graph\n"
      "  set_child: the host set a child graph that the copy cannot follow\n");
  EXPECT_EQ(out.find("        fallback_graph "), std::string::npos) << out;
  const auto json = parse_json(stats({"--json", "--by", "definition"}).out);
  EXPECT_EQ(json["counters"][0]["count"], 5);
  EXPECT_EQ(json["counters"][0]["executions"], 13);
  EXPECT_EQ(json["totals"]["hit"], 5);
  EXPECT_EQ(json["nodes"]["hit"], 2);
  EXPECT_EQ(json["executions"]["hit"], 13);
  EXPECT_EQ(json["body_nodes"]["fallback_graph"], 6);
  EXPECT_EQ(json["executions"]["fallback_graph"], 0);
  EXPECT_EQ(json["graph_reasons"].size(), kGraphReasonCount);
  EXPECT_EQ(json["graph_reasons"]["unchecked"], 3);
  EXPECT_EQ(json["graph_reasons"]["refused"], 0);
  const auto one = parse_json(stats({"--json", "--per-process", "--definition", "e"}).out);
  EXPECT_EQ(one["graph_reasons"]["unchecked"], 0);
  EXPECT_EQ(one["processes"][0]["graph_reasons"]["unchecked"], 0);
  EXPECT_EQ(json["groups"][0]["body_nodes"], 6);
  EXPECT_EQ(json["groups"][0]["launches"], 5);
  EXPECT_EQ(json["groups"][0]["executions"], 13);
  EXPECT_EQ(json["groups"][0]["executed"]["hit"], 13);
  const std::string metrics = stats({"--prometheus"}).out;
  EXPECT_CONTAINS(metrics, "fibshim_launches_total{definition=\"d\",");
  EXPECT_CONTAINS(metrics, "start_time=\"1\"} 5\n");
  EXPECT_CONTAINS(metrics, "start_time=\"1\"} 13\n");
  EXPECT_CONTAINS(
      metrics,
      "fibshim_body_nodes_total{definition=\"d\",pattern=\"p\",outcome=\"fallback_graph\"");
  EXPECT_CONTAINS(
      metrics, "fibshim_kept_nodes_total{definition=\"d\",pattern=\"p\",reason=\"unchecked\",pid=");
}

TEST_F(Stats, AddsUpShardsAndProcesses) {
  CountersFileBuilder first = engine(kNoSuchPid, 1);
  const size_t shard = first.add_shard();
  first.count(1, Outcome::hit, 5, shard);
  first.count(1, Outcome::hit, 6, first.add_shard());
  write(first);
  write(engine(kNoSuchPid, 2));
  const auto json = parse_json(stats({"--json"}).out);
  EXPECT_EQ(json["processes"].size(), 2u);
  EXPECT_EQ(json["totals"]["hit"], 211);
  EXPECT_EQ(json["counters"].size(), 3u);
}

// Ranks of one job are compared by decisions: how often, on which device and in which order
// launches came does not matter.
TEST_F(Stats, TellsRanksOfAJobApartThatRunDifferentKernels) {
  const auto rank = [&](uint64_t pid, const std::string& solution, uint64_t launches,
                        const char* job = "JOB=7") {
    CountersFileBuilder builder(pid, 1);
    builder.add_config("/etc/fibshim/pytorch", 0xabc);
    builder.control.status.version = 2;
    CountersFileBuilder::copy(builder.control.status.job, job);
    const auto add = [&](const char* definition, const std::string& by) {
      builder.count(builder.add_series("p", definition, 0, static_cast<int16_t>(pid % 2), by),
                    Outcome::hit, launches);
    };
    if (pid % 2 == 0) add("shared", "s");
    add("d", solution);
    if (pid % 2 == 1) add("shared", "s");
    builder.count(0, Outcome::untracked, launches);
    write(builder);
  };
  rank(kNoSuchPid, "fast", 1);
  EXPECT_CONTAINS(exits(1, stats({"--diff"})).err, "nothing to compare");
  rank(kNoSuchPid + 1, "fast", 100);
  rank(kNoSuchPid + 9, "slow", 1, "JOB=8");  // of another job
  CountersFileBuilder idle(kNoSuchPid + 3, 1);
  idle.control.status.version = 2;
  CountersFileBuilder::copy(idle.control.status.job, "JOB=7");
  write(idle);
  // A rank that has every launch checked has another outcome, but the same decisions.
  CountersFileBuilder checked(kNoSuchPid + 5, 1);
  checked.add_config("/etc/fibshim/pytorch", 0xabc);
  checked.control.status.version = 2;
  CountersFileBuilder::copy(checked.control.status.job, "JOB=7");
  checked.count(checked.add_series("p", "d", 0, -1, "fast"), Outcome::shadowed, 1);
  checked.count(checked.add_series("p", "shared", 0, -1, "s"), Outcome::shadowed, 1);
  write(checked);
  const ProgramResult alike = exits(0, stats({"--diff"}));
  EXPECT_CONTAINS(alike.out, "job JOB=7: they decide alike\n");
  EXPECT_EQ(alike.out.find("DEFINITION"), std::string::npos);
  const std::string saved = folder_ / "saved.json";
  exits(0, stats({"--json", "--output", saved}));
  EXPECT_CONTAINS(exits(0, stats({"--diff", saved})).out, "they decide alike");

  rank(kNoSuchPid + 2, "slow", 1);
  const ProgramResult result = exits(1, stats({"--diff"}));
  EXPECT_CONTAINS(result.out, "job JOB=7: they decide differently\n");
  EXPECT_CONTAINS(result.out,
                  "d           fast      p        hit      000000000000  -      pid 4194399, pid "
                  "4194400, pid 4194404  pid 4194401\n");
  EXPECT_CONTAINS(result.out,
                  "d           slow      p        hit      000000000000  -      pid 4194401       "
                  "                     pid 4194399, pid 4194400, pid 4194404\n");
  const auto json = parse_json(exits(1, stats({"--diff", "--json"})).out);
  EXPECT_EQ(json["same"], false);
  EXPECT_EQ(json["groups"][0]["fingerprints"].size(), 2u);
  EXPECT_EQ(json["groups"][0]["differences"].size(), 2u);
  EXPECT_EQ(json["groups"].size(), 1u);  // JOB=8 has only one rank
  const auto processes = parse_json(stats({"--json"}).out)["processes"];
  EXPECT_EQ(processes[0]["decisions"], processes[1]["decisions"]);
  EXPECT_NE(processes[0]["decisions"], processes[2]["decisions"]);
  EXPECT_EQ(processes[3]["decisions"], "");
  EXPECT_EQ(processes[4]["decisions"], processes[0]["decisions"]);

  // The other job's rank uses that solution, too, so all processes together have not changed.
  EXPECT_EQ(stats({"--diff", saved}).exit_code, 0);
  EXPECT_CONTAINS(exits(1, stats({"--diff", "--pid", "4194399", saved})).out, "earlier");
  EXPECT_EQ(stats({"--diff", "--pid", "4194399", "--definition", "s*", saved}).exit_code, 0);
  EXPECT_CONTAINS(exits(1, stats({"--diff", "--definition", "x*", saved})).err,
                  "nothing to compare: no decisions, neither now nor in " + saved);
  EXPECT_CONTAINS(exits(1, stats({"--diff", folder_ / "none"})).err, "none");
  write_text(folder_ / "other.json", "{}");
  EXPECT_CONTAINS(exits(1, stats({"--diff", folder_ / "other.json"})).err, "not what");
  EXPECT_CONTAINS(exits(2, stats({saved})).err, "FILE is for --diff");
  EXPECT_CONTAINS(exits(2, stats({"--diff", "--rate", "1"})).err, "--diff takes");
}

// Ranks may differ in shapes, and not in images.
TEST_F(Stats, TellsImagesApartAndAfterThemShapes) {
  const auto rank = [&](uint64_t pid, uint64_t image, uint64_t shapes) {
    CountersFileBuilder builder(pid, 1);
    builder.control.status.version = 2;
    CountersFileBuilder::copy(builder.control.status.job, "JOB=7");
    const size_t series = builder.add_series("p", "d", 0, -1, "s");
    builder.series[series].image = image;
    builder.series[series].shapes[3] = shapes;
    builder.count(series, Outcome::hit, 1);
    write(builder);
  };
  rank(kNoSuchPid, 0xabcdef0123456789, 1);
  const std::string saved = folder_ / "saved.json";
  exits(0, stats({"--json", "--output", saved}));
  rank(kNoSuchPid + 1, 0xabcdef0123456789, 3);
  const std::string text = exits(0, stats({"--diff"})).out;
  EXPECT_CONTAINS(text, "they decide alike\n");
  EXPECT_CONTAINS(text,
                  "they met the same decisions in other shapes\n"
                  "DEFINITION  SOLUTION  PATTERN  OUTCOME  SAME SHAPES IN\n"
                  "d           s         p        hit      pid 4194399 | pid 4194400\n");
  const auto shapes = parse_json(exits(0, stats({"--diff", "--json"})).out);
  EXPECT_EQ(shapes["same"], true);
  EXPECT_EQ(shapes["same_shapes"], false);
  EXPECT_EQ(shapes["groups"][0]["shapes"][0]["sides"].size(), 2u);
  EXPECT_CONTAINS(exits(0, stats({"--diff", saved})).out, "SAME SHAPES IN");
  EXPECT_EQ(exits(0, stats({"--diff", "--pid", "4194399", saved})).out.find("SAME"),
            std::string::npos);

  rank(kNoSuchPid + 1, 0x1111, 1);
  const std::string images = exits(1, stats({"--diff"})).out;
  EXPECT_CONTAINS(images, "they decide differently\n");
  EXPECT_CONTAINS(images, "d           s         p        hit      -       abcdef012345  ");
  EXPECT_CONTAINS(images, "d           s         p        hit      -       000000000000  ");
  EXPECT_EQ(images.find("SHAPES"), std::string::npos);
  exits(1, stats({"--diff", saved}));
}

TEST_F(Stats, PrintsJson) {
  write(engine());
  const ProgramResult result = exits(0, stats({"--json"}));
  nlohmann::json expected = {
      {"version", 1},
      {"folder", folder_.path()},
      {"processes",
       {{{"pid", kNoSuchPid},
         {"start_time", 50},
         {"created_unix_ns", 1700000000000000000},
         {"alive", false},
         {"executable", "/usr/bin/engine"},
         {"command", "engine --serve"},
         {"mode", "apply"},
         {"config",
          {{{"path", "/etc/fibshim/pytorch"}, {"digest", "00000000000000000000000000000abc"}}}},
         {"folder",
          {{"path", "/etc/fibshim/pytorch"},
           {"digest", "00000000000000000000000000000abc"},
           {"state", "on"},
           {"off", false},
           {"movable", false},
           {"previous", ""},
           {"configured", ""},
           {"job", ""},
           {"swaps", 0},
           {"refusals", 0},
           {"refusal", ""},
           {"images", {{"count", 0}, {"bytes", 0}, {"kept_count", 0}, {"kept_bytes", 0}}}}},
         {"devices", {{{"ordinal", 0}, {"sm", 90}, {"name", "NVIDIA H200"}}}},
         {"file", "4194399-50.counters"},
         {"decisions", "54ac2c91e29f299d"}}}},
      {"counters",
       {{{"config", "/etc/fibshim/pytorch"},
         {"digest", "00000000000000000000000000000abc"},
         {"device", 0},
         {"pattern", "torch-rms-norm-bf16"},
         {"definition", "rmsnorm_h4096"},
         {"solution", ""},
         {"outcome", "hit"},
         {"count", 100},
         {"executions", 100},
         {"body_nodes", 0}},
        {{"config", "/etc/fibshim/pytorch"},
         {"digest", "00000000000000000000000000000abc"},
         {"device", 0},
         {"pattern", "torch-rms-norm-bf16"},
         {"definition", "rmsnorm_h4100"},
         {"solution", ""},
         {"outcome", "fallback_no_solution"},
         {"count", 7},
         {"executions", 7},
         {"body_nodes", 0}},
        {{"config", ""},
         {"digest", ""},
         {"device", 0},
         {"pattern", ""},
         {"definition", ""},
         {"solution", ""},
         {"outcome", "untracked"},
         {"count", 12},
         {"executions", 12},
         {"body_nodes", 0}}}},
      {"decisions",
       {{{"definition", "rmsnorm_h4096"},
         {"solution", ""},
         {"pattern", "torch-rms-norm-bf16"},
         {"outcome", "hit"},
         {"digest", "00000000000000000000000000000abc"},
         {"image", ""},
         {"shapes", std::string(64, '0')}},
        {{"definition", "rmsnorm_h4100"},
         {"solution", ""},
         {"pattern", "torch-rms-norm-bf16"},
         {"outcome", "fallback_no_solution"},
         {"digest", "00000000000000000000000000000abc"},
         {"image", ""},
         {"shapes", std::string(64, '0')}}}},
      {"totals",
       {{"hit", 100},
        {"fallback_no_solution", 7},
        {"fallback_where", 0},
        {"fallback_arch", 0},
        {"fallback_refused", 0},
        {"fallback_in_capture", 0},
        {"error", 0},
        {"untracked", 12},
        {"observed", 0},
        {"fallback_quarantined", 0},
        {"error_fallback", 0},
        {"fallback_graph", 0},
        {"absorbed", 0},
        {"shadowed", 0}}},
      {"shadow", nlohmann::json::array()},
      {"refused", nlohmann::json::array()}};
  // Each launch ran once, and there is no node.
  expected["executions"] = expected["totals"];
  expected["nodes"] = expected["totals"];
  for (auto& count : expected["nodes"]) count = 0;
  expected["body_nodes"] = expected["nodes"];
  for (const GraphReasonInfo& reason : kGraphReasons) expected["graph_reasons"][reason.name] = 0;
  EXPECT_EQ(parse_json(result.out), expected) << result.out;
}

// Shows the folder that a process says it uses, and the images that earlier folders keep loaded.
TEST_F(Stats, ShowsTheFolderInForceAndWhatIsKept) {
  // The file of this process, which is alive.
  CountersFileBuilder builder(static_cast<uint64_t>(getpid()), start_time_of(getpid()));
  builder.add_config("/a", 1);
  builder.add_config("/b", 2);
  builder.count(builder.add_series("p", "d", 0), Outcome::hit, 3);
  builder.count(builder.add_series("p", "d", 1), Outcome::hit, 4);
  ControlStatus& status = builder.control.status;
  status.version = 2;
  status.has_watcher = 1;
  status.swap_count = 5;
  status.refused_count = 1;
  status.digest[0] = 2;
  status.image_count = 7;
  status.image_bytes = 3 << 20;
  status.kept_image_count = 2;
  status.kept_image_bytes = 1 << 19;
  CountersFileBuilder::copy(status.folder, "/b");
  CountersFileBuilder::copy(status.refusal, "/c: error: No such file or directory [folder]");
  write(builder);
  const std::string table = stats({}).out;
  EXPECT_CONTAINS(table,
                  "\n1 process in /b (000000000000); 5 moves, 1 refusal\n"
                  "7 images loaded (3.0 MiB), 2 of them (512.0 KiB) kept from folders before\n");
  const std::string each = stats({"--per-process"}).out;
  EXPECT_CONTAINS(each,
                  "  now in /b; 5 moves, 1 refusal\n"
                  "  refused: /c: error: No such file or directory [folder]\n");
  const std::string prometheus = stats({"--prometheus"}).out;
  for (const char* line :
       {"fibshim_config_processes{config=\"/b\",digest=\"00000000000000000000000000000002\"} 1\n",
        "\nfibshim_folder_moves 5\n", "\nfibshim_folder_refusals 1\n",
        "fibshim_loaded_images{state=\"in_force\"} 5\n",
        "fibshim_loaded_images{state=\"kept\"} 2\n",
        "fibshim_loaded_image_bytes{state=\"kept\"} 524288\n"}) {
    EXPECT_CONTAINS(prometheus, line) << line;
  }
  const std::string top = run_fibshim({"top", "--count", "1", "--dir", folder_.path()}).out;
  EXPECT_CONTAINS(top, "; 1 process in /b (000000000000); 5 moves, 1 refusal\n");
}

// Findings of shadow checks, by definition, solution and shape, added up over two processes.
TEST_F(Stats, ShowsWhatShadowChecksFound) {
  for (const uint64_t pid : {4194398, 4194399}) {
    CountersFileBuilder builder(pid, 1);
    builder.add_config("/a", 1);
    const size_t series = builder.add_series("p", "norm_h8", 0, -1, "mine");
    builder.count(series, Outcome::shadowed, 12);
    ShadowEntry& entry = builder.add_shadow(series, "rows=3");
    entry.checks = 10;
    entry.mismatches = 1;
    entry.not_checked[static_cast<size_t>(ShadowMiss::busy)] = 2;
    entry.elements = 240;
    entry.wrong_elements = 5;
    entry.nans = 1;
    entry.largest_difference = pid == 4194398 ? 0.25 : 0.5;
    entry.largest_mean = 0.125;
    entry.buckets[0] = 9;
    entry.buckets[kShadowBuckets - 1] = 1;
    write(builder);
  }
  EXPECT_CONTAINS(stats({}).out,
                  "CHECKED  SOLUTION  SHAPE   CHECKS  MISMATCHES  LARGEST DIFFERENCE  "
                  "WORST OF TOLERANCE  NOT CHECKED\n"
                  "norm_h8  mine      rows=3      20           2                 0.5  "
                  "0: 18, >10: 2       busy 4\n");
  const auto shadow = parse_json(stats({"--json"}).out)["shadow"];
  ASSERT_EQ(shadow.size(), 1u);
  EXPECT_EQ(shadow[0]["definition"], "norm_h8");
  EXPECT_EQ(parse_json(stats({"--json", "--definition", "other"}).out)["shadow"].size(), 0u);
  EXPECT_EQ(shadow[0]["solution"], "mine");
  EXPECT_EQ(shadow[0]["shape"], "rows=3");
  EXPECT_EQ(shadow[0]["checks"], 20);
  EXPECT_EQ(shadow[0]["not_checked"]["busy"], 4);
  EXPECT_EQ(shadow[0]["not_checked"]["extent"], 0);
  EXPECT_EQ(shadow[0]["largest_difference"], 0.5);
  EXPECT_EQ(shadow[0]["worst_of_tolerance"].back()["checks"], 2);
  const std::string prometheus = stats({"--prometheus"}).out;
  const std::string labels = "{definition=\"norm_h8\",solution=\"mine\",shape=\"rows=3\"";
  const std::string process = ",pid=\"4194399\",start_time=\"1\"";
  EXPECT_CONTAINS(prometheus, "fibshim_shadow_checks_total" + labels + ",pid=\"4194398\"");
  for (const std::string& line :
       {"fibshim_shadow_checks_total" + labels + process + "} 10\n",
        "fibshim_shadow_mismatches_total" + labels + process + "} 1\n",
        "fibshim_shadow_not_checked_total" + labels + ",reason=\"busy\"" + process + "} 2\n",
        "fibshim_shadow_elements_total" + labels + process + "} 240\n",
        "fibshim_shadow_wrong_elements_total" + labels + process + "} 5\n",
        "fibshim_shadow_not_finite_total" + labels + ",kind=\"nan\"" + process + "} 1\n",
        "fibshim_shadow_not_finite_total" + labels + ",kind=\"inf\"" + process + "} 0\n",
        "fibshim_shadow_largest_difference" + labels + process + "} 0.5\n",
        "fibshim_shadow_largest_mean_difference" + labels + process + "} 0.125\n",
        "fibshim_shadow_worst_of_tolerance_bucket" + labels + ",le=\"10\"" + process + "} 9\n",
        "fibshim_shadow_worst_of_tolerance_bucket" + labels + ",le=\"+Inf\"" + process + "} 10\n",
        "fibshim_shadow_worst_of_tolerance_count" + labels + process + "} 10\n"}) {
    EXPECT_CONTAINS(prometheus, line) << line;
  }
  const std::string top = run_fibshim({"top", "--count", "1", "--dir", folder_.path()}).out;
  EXPECT_CONTAINS(top,
                  "; 20 shadow checks, 2 mismatches, most of norm_h8 at rows=3, 4 not checked\n");
  EXPECT_CONTAINS(top, "UNTRACKED  CHECKS  MISMATCHES  MAIN REASON\n");
  EXPECT_CONTAINS(top, "        0      20           2  shadowed\n");
  const auto groups = parse_json(stats({"--by", "solution", "--json"}).out)["groups"];
  EXPECT_EQ(groups[0]["shadow_checks"], 20);
  EXPECT_EQ(groups[0]["shadow_mismatches"], 2);
}

// Counters files are untrusted.
TEST_F(Stats, RefusesShadowEntriesThatLieElsewhere) {
  CountersFileBuilder builder(4194399, 1);
  builder.header.shadow_count = CountersFileBuilder::kShadowRoom + 1;
  write(builder);
  EXPECT_CONTAINS(run_fibshim({"stats", "--dir", folder_.path()}).err, "shadow checks elsewhere");
}

// A process that was killed during a write leaves an odd version. Its data is shown all the same.
TEST_F(Stats, ReadsAFolderThatWasBeingWritten) {
  CountersFileBuilder builder(kNoSuchPid, 1);
  builder.count(builder.add_series("p", "d"), Outcome::hit, 3);
  builder.control.status.version = 3;
  CountersFileBuilder::copy(builder.control.status.folder, "/b");
  write(builder);
  const nlohmann::json json = parse_json(stats({"--json"}).out);
  EXPECT_EQ(json["processes"][0]["folder"]["path"], "/b");
  EXPECT_EQ(json["totals"]["hit"], 3);
}

TEST_F(Stats, PrintsPrometheusTextWithEscapedLabels) {
  CountersFileBuilder builder(kNoSuchPid, 1);
  builder.add_config("/a\\b", 1);
  builder.count(builder.add_series("quote\"line\nend", "d"), Outcome::hit, 3);
  write(builder);
  const ProgramResult result = exits(0, stats({"--prometheus"}));
  EXPECT_EQ(
      result.out,
      "# HELP fibshim_launches_total Kernel launches and nodes of instantiated graphs, by what "
      "happened to them.\n"
      "# TYPE fibshim_launches_total counter\n"
      "fibshim_launches_total{definition=\"d\",pattern=\"quote\\\"line\\nend\",outcome=\"hit\","
      "config=\"/a\\\\b\",device=\"\",pid=\"4194399\",start_time=\"1\"} 3\n"
      "# HELP fibshim_executions_total Kernels that have run: a launch's once, a graph node's each "
      "time that its graph was launched.\n"
      "# TYPE fibshim_executions_total counter\n"
      "fibshim_executions_total{definition=\"d\",pattern=\"quote\\\"line\\nend\",outcome=\"hit\","
      "config=\"/a\\\\b\",device=\"\",pid=\"4194399\",start_time=\"1\"} 3\n"
      "# HELP fibshim_body_nodes_total Kernel nodes in bodies of conditional nodes of instantiated "
      "graphs, which run as often as the device decides.\n"
      "# TYPE fibshim_body_nodes_total counter\n"
      "# HELP fibshim_kept_nodes_total Nodes of graphs that keep their original (fallback_graph), "
      "by "
      "reason, each time that this was found.\n"
      "# TYPE fibshim_kept_nodes_total counter\n"
      "# HELP fibshim_folded_counts Counts without a series of their own: they are in "
      "definition=\"(other)\".\n"
      "# TYPE fibshim_folded_counts gauge\n"
      "fibshim_folded_counts 0\n"
      "# HELP fibshim_processes Processes that have written counters.\n"
      "# TYPE fibshim_processes gauge\n"
      "fibshim_processes{state=\"live\"} 0\n"
      "fibshim_processes{state=\"ended\"} 1\n"
      "# HELP fibshim_shadow_checks_total Launches whose solution was compared with the original "
      "(FIBSHIM_SHADOW).\n"
      "# TYPE fibshim_shadow_checks_total counter\n"
      "# HELP fibshim_shadow_mismatches_total Those whose solution was further from the original "
      "than it may be.\n"
      "# TYPE fibshim_shadow_mismatches_total counter\n"
      "# HELP fibshim_shadow_not_checked_total Launches that were to be compared and were not, by "
      "reason.\n"
      "# TYPE fibshim_shadow_not_checked_total counter\n"
      "# HELP fibshim_shadow_elements_total Elements that they compared.\n"
      "# TYPE fibshim_shadow_elements_total counter\n"
      "# HELP fibshim_shadow_wrong_elements_total Those that were further from the original's than "
      "they may be.\n"
      "# TYPE fibshim_shadow_wrong_elements_total counter\n"
      "# HELP fibshim_shadow_not_finite_total NaNs and infinities that solutions wrote, by kind.\n"
      "# TYPE fibshim_shadow_not_finite_total counter\n"
      "# HELP fibshim_shadow_largest_difference The largest difference of a finite element from "
      "the original's.\n"
      "# TYPE fibshim_shadow_largest_difference gauge\n"
      "# HELP fibshim_shadow_largest_mean_difference The largest mean difference of one "
      "comparison.\n"
      "# TYPE fibshim_shadow_largest_mean_difference gauge\n"
      "# HELP fibshim_shadow_worst_of_tolerance Comparisons by how far off the worst element was, "
      "as a share of what it may be. Without a sum.\n"
      "# TYPE fibshim_shadow_worst_of_tolerance histogram\n"
      "# HELP fibshim_folder_processes Live processes, by what became of their folder.\n"
      "# TYPE fibshim_folder_processes gauge\n"
      "fibshim_folder_processes{state=\"on\"} 0\n"
      "fibshim_folder_processes{state=\"off\"} 0\n"
      "fibshim_folder_processes{state=\"refused\"} 0\n"
      "# HELP fibshim_config_processes Live processes, by config folder.\n"
      "# TYPE fibshim_config_processes gauge\n"
      "# HELP fibshim_folder_moves Moves of live processes to another config folder.\n"
      "# TYPE fibshim_folder_moves gauge\n"
      "fibshim_folder_moves 0\n"
      "# HELP fibshim_folder_refusals Config folders that live processes were to move to and "
      "refused.\n"
      "# TYPE fibshim_folder_refusals gauge\n"
      "fibshim_folder_refusals 0\n"
      "# HELP fibshim_loaded_images Images that live processes have loaded; kept: for folders "
      "before the one in force.\n"
      "# TYPE fibshim_loaded_images gauge\n"
      "fibshim_loaded_images{state=\"in_force\"} 0\n"
      "fibshim_loaded_images{state=\"kept\"} 0\n"
      "# HELP fibshim_loaded_image_bytes Sizes of their files.\n"
      "# TYPE fibshim_loaded_image_bytes gauge\n"
      "fibshim_loaded_image_bytes{state=\"in_force\"} 0\n"
      "fibshim_loaded_image_bytes{state=\"kept\"} 0\n"
      "# HELP fibshim_refused_files Counters files that could not be read.\n"
      "# TYPE fibshim_refused_files gauge\n"
      "fibshim_refused_files 0\n"
      "# HELP fibshim_build_info The version of the fibshim that wrote this.\n"
      "# TYPE fibshim_build_info gauge\n"
      "fibshim_build_info{version=\"0.1.0\"} 1\n");
}

TEST_F(Stats, ShowsOnlyTheWantedProcesses) {
  write(engine(kNoSuchPid, 1));
  write(engine(kNoSuchPid + 1, 1));
  write(engine(kNoSuchPid + 2, 1));
  const auto json = parse_json(stats({"--json", "--pid", "4194399", "--pid", "4194401"}).out);
  EXPECT_EQ(json["processes"].size(), 2u);
  EXPECT_EQ(json["totals"]["hit"], 200);
}

TEST_F(Stats, ShowsOnlyTheWantedDefinitionsAndPatterns) {
  write(engine());
  const auto fallbacks = parse_json(stats({"--json", "--definition", "*_h4100"}).out);
  EXPECT_EQ(fallbacks["totals"]["fallback_no_solution"], 7);
  EXPECT_EQ(fallbacks["totals"]["hit"], 0);
  EXPECT_EQ(fallbacks["totals"]["untracked"], 0);
  const auto untracked = parse_json(stats({"--json", "--pattern", ""}).out);
  EXPECT_EQ(untracked["totals"]["untracked"], 12);
  const auto both =
      parse_json(stats({"--json", "--definition", "*_h4100", "--definition", "*_h4096"}).out);
  EXPECT_EQ(both["totals"]["hit"], 100);
  EXPECT_EQ(both["counters"].size(), 2u);
}

TEST_F(Stats, RefusesWhatIsNoGlob) {
  for (const char* option : {"--definition", "--pattern"}) {
    for (const std::string kind : {"re:", "glob:", "demangled:"}) {
      EXPECT_CONTAINS(exits(2, stats({option, kind + "((("})).err,
                      std::string(option) + ": takes a glob, as in the shell, not '" + kind);
    }
    EXPECT_EQ(stats({option, "["}).exit_code, 0);  // as in the shell, it stands for itself
  }
}

// If a process sees one GPU, its launches ran there. If it sees several, the file must tell.
TEST_F(Stats, ShowsOnlyTheWantedDevice) {
  write(engine(kNoSuchPid, 1));
  CountersFileBuilder two(kNoSuchPid, 2);
  two.add_device("NVIDIA H200", 90);
  two.add_device("NVIDIA H200", 90);
  const size_t told = two.add_series("p", "told", 0, 1);
  two.count(told, Outcome::hit, 1000);
  two.add_shadow(told, "rows=1").checks = 7;
  two.count(two.add_series("p", "not-told"), Outcome::hit, 20000);
  write(two);
  const ProgramResult first = exits(0, stats({"--json", "--device", "0"}));
  EXPECT_EQ(parse_json(first.out)["totals"]["hit"], 100);
  EXPECT_EQ(first.err,
            "fibshim stats: 20000 launches of processes that see several GPUs are left out: the "
            "counters do not tell on which one they ran\n");
  EXPECT_EQ(parse_json(first.out)["shadow"].size(), 0u);
  const auto second = parse_json(stats({"--json", "--device", "1"}).out);
  EXPECT_EQ(second["totals"]["hit"], 1000);
  EXPECT_EQ(second["shadow"].size(), 1u);
  EXPECT_CONTAINS(exits(2, stats({"--diff", folder_ / "earlier.json", "--device", "0"})).err,
                  "--diff FILE takes no --device");
}

TEST_F(Stats, GroupsByOneThing) {
  write(engine());
  const ProgramResult table = exits(0, stats({"--by", "definition"}));
  EXPECT_EQ(
      table.out.substr(0, table.out.find("\n\n")),
      "DEFINITION     LAUNCHES  ERRORS  RUNS  HIT %  HITS  FALLBACKS  UNTRACKED  MAIN REASON\n"
      "rmsnorm_h4096       100       0   100  100.0   100          0          0  -\n"
      "-                    12       0    12    0.0     0          0         12  -\n"
      "rmsnorm_h4100         7       0     7    0.0     0          7          0  "
      "fallback_no_solution");
  const std::pair<const char*, const char*> names[] = {
      {"pattern", "torch-rms-norm-bf16"},
      {"process", "4194399 (ended) engine --serve"},
      {"device", "0 NVIDIA H200"},
      {"config", "/etc/fibshim/pytorch"},
      {"outcome", "hit"}};
  for (const auto& [by, name] : names) {
    const auto json = parse_json(stats({"--json", "--by", by}).out);
    EXPECT_EQ(json["grouped_by"], by);
    EXPECT_EQ(json["groups"][0]["name"], name);
    EXPECT_EQ(json["groups"][0]["outcomes"]["hit"], 100);
    EXPECT_EQ(json["groups"][0]["per_second"], nullptr);
  }
}

TEST_F(Stats, TellsTheSolutionsOfADefinitionApart) {
  CountersFileBuilder file(kNoSuchPid, 1);
  file.add_config("/etc/fibshim/vllm", 7);
  const auto add = [&](const char* solution, Outcome outcome, uint64_t count) {
    file.count(file.add_series("norm", "rmsnorm_h4096", 0, -1, solution), outcome, count);
  };
  add("few_rows", Outcome::hit, 30);
  add("many_rows", Outcome::hit, 20);
  add("", Outcome::fallback_where, 5);
  write(file);
  const std::string table = exits(0, stats({})).out;
  EXPECT_CONTAINS(table,
                  "DEFINITION     SOLUTION   PATTERN  OUTCOME         LAUNCHES  EXECUTIONS\n"
                  "rmsnorm_h4096  few_rows   norm     hit                   30          30\n"
                  "rmsnorm_h4096  many_rows  norm     hit                   20          20\n"
                  "rmsnorm_h4096  -          norm     fallback_where         5           5\n");
  const auto json = parse_json(stats({"--json"}).out);
  EXPECT_EQ(json["counters"][1]["solution"], "many_rows");
  const auto groups = parse_json(stats({"--json", "--by", "solution"}).out);
  EXPECT_EQ(groups["groups"][0]["name"], "few_rows");
  EXPECT_CONTAINS(stats({"--prometheus"}).out, ",solution=\"many_rows\"");
}

// However long the command line is, the numbers come before it.
TEST_F(Stats, TheCommandLineOfAProcessComesLast) {
  write(engine());
  const std::string table = exits(0, stats({"--by", "process"})).out;
  EXPECT_CONTAINS(table, "MAIN REASON           COMMAND\n4194399 (ended) ");
  EXPECT_CONTAINS(table, "  fallback_no_solution  engine --serve\n");
}

TEST_F(Stats, AFailureIsToldAsJsonToo) {
  const std::string missing = folder_ / "nope";
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"stats", "--dir", missing, "--json"},
        {"top", "--dir", missing, "--json"},
        {"swap", "--off", "--dir", missing, "--json"},
        {"record", "--summary", missing, "--json"},
        {"report", missing, "--json"},
        {"verify", missing, "--json"},
        {"bench", missing, "--json"}}) {
    const ProgramResult result = exits(1, run_fibshim(command));
    const nlohmann::json json = parse_json(result.out);
    EXPECT_EQ(json["version"], 1);
    EXPECT_CONTAINS(json["error"].get<std::string>(), missing) << command[0];
    EXPECT_CONTAINS(result.err, "fibshim " + command[0] + ": ");
  }
}

TEST_F(Stats, CountsProcessesByTheStateOfTheirFolder) {
  CountersFileBuilder builder(static_cast<uint64_t>(getpid()), start_time_of(getpid()));
  builder.control.status.version = 2;
  builder.control.status.state = FolderState::refused;
  CountersFileBuilder::copy(builder.control.status.refusal, "/c: error: no such folder");
  write(builder);
  EXPECT_CONTAINS(stats({"--prometheus"}).out, "\nfibshim_folder_processes{state=\"refused\"} 1\n");
  const ProgramResult doctor =
      run_fibshim({"doctor"}, {{{"FIBSHIM_STATS_DIR", folder_.path()}}, ""});
  EXPECT_CONTAINS(doctor.out, "warning folders_in_force: 1 of 1 live process in no folder");
  EXPECT_CONTAINS(doctor.out, "/c: error: no such folder");
}

TEST_F(Stats, PrintsRatesWhenAsked) {
  write(engine());
  const auto json = parse_json(stats({"--json", "--rate", "0.1", "--by", "definition"}).out);
  EXPECT_GE(json["elapsed_s"], 0.1);
  EXPECT_EQ(json["counters"][0]["per_second"], 0);
  EXPECT_EQ(json["groups"][0]["per_second"], 0);
  const std::string table = stats({"--rate", "0.1"}).out;
  EXPECT_CONTAINS(table, "OUTCOME               LAUNCHES  EXECUTIONS  PER S\n");
  EXPECT_EQ(stats({"--rate", "0"}).exit_code, 2);
}

// Each count is read as long after its begin in both readings.
TEST_F(Stats, RatesAreOfTheTimeWithTheReading) {
  CountersFileBuilder builder(5, 1);
  builder.header.series_capacity = kSeriesCapacity;
  builder.header.series_count = kSeriesCapacity;
  builder.header.shards_at = 32 << 20;
  builder.header.shard_stride = kSeriesCapacity * kCountersPerSeries * 8;
  builder.header.shard_count = 100;  // 250 MiB, which no machine reads in 10 ms
  write(builder);
  std::filesystem::resize_file(folder_ / builder.file_name(), uint64_t{282} << 20);
  EXPECT_GE(parse_json(stats({"--json", "--rate", "0.1"}).out)["elapsed_s"], 0.11);
}

TEST_F(Stats, PrometheusLabelsAreBounded) {
  CountersFileBuilder builder(kNoSuchPid, 1);
  for (const char* name : {"c", "b", "a"}) {
    builder.count(builder.add_series("p", name), Outcome::hit, 10);
  }
  builder.count(builder.add_series("p", "later"), Outcome::hit, 3);
  builder.count(builder.add_series("p", "last"), Outcome::error, 1);
  write(builder);
  const std::string out = stats({"--prometheus", "--max-series", "3"}).out;
  // The first ones keep their names.
  for (const char* name : {"a", "b", "c", "(other)"}) {
    EXPECT_CONTAINS(out, "{definition=\"" + std::string(name) + "\"");
  }
  EXPECT_LACKS(out, "\"later\"");
  EXPECT_CONTAINS(out,
                  "definition=\"(other)\",pattern=\"(other)\",outcome=\"hit\",config=\"\","
                  "device=\"\",pid=\"4194399\",start_time=\"1\"} 3\n");
  EXPECT_CONTAINS(
      out, "outcome=\"error\",config=\"\",device=\"\",pid=\"4194399\",start_time=\"1\"} 1\n");
  EXPECT_CONTAINS(out, "\nfibshim_folded_counts 2\n");
}

TEST_F(Stats, ReplacesTheOutputFileAsAWhole) {
  write(engine());
  TemporaryFolder textfiles;
  const std::string path = textfiles / "fibshim.prom";
  write_text(path, "old");
  EXPECT_EQ(exits(0, stats({"--prometheus", "--output", path})).out, "");
  EXPECT_EQ(read_text(path), stats({"--prometheus"}).out);
  struct stat status;
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0644u);  // node exporter runs as another user
  size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(textfiles.path())) {
    ++files;
  }
  EXPECT_EQ(files, 1u);
  EXPECT_EQ(exits(1, stats({"--prometheus", "--output", textfiles / "no/such.prom"})).err,
            "fibshim stats: " + (textfiles / "no/such.prom") +
                ": cannot write it: No such file or directory\n");
}

TEST_F(Stats, AnOutputHasTheModeOfTheFileBeforeOrOfTheUmask) {
  write(engine());
  TemporaryFolder outputs;
  const auto mode_of_written = [&](const std::string& name) {
    EXPECT_EQ(stats({"--output", outputs / name}).exit_code, 0);
    return std::filesystem::status(outputs / name).permissions();
  };
  write_text(outputs / "mine", "");
  std::filesystem::permissions(outputs / "mine", std::filesystem::perms(0600));
  EXPECT_EQ(mode_of_written("mine"), std::filesystem::perms(0600));
  const mode_t before = umask(077);
  const auto made = mode_of_written(std::string(250, 'n'));  // its temporary name is no longer
  umask(before);
  EXPECT_EQ(made, std::filesystem::perms(0600));
}

TEST_F(Stats, SaysWhereAnOutputIsNotWrittenInEveryFormat) {
  write(engine());
  using Options = std::vector<std::string>;
  for (const Options& format : {Options{}, Options{"--json"}, Options{"--prometheus"},
                                Options{"--by", "process"}, Options{"--by", "process", "--json"}}) {
    for (const std::string& path : {folder_ / "no/such", std::string("/dev/full")}) {
      Options options = format;
      options.insert(options.end(), {"--output", path});
      const ProgramResult result = exits(1, stats(options));
      EXPECT_CONTAINS(result.err, path + ": cannot write it: ");
      if (!format.empty() && format.back() == "--json") {
        EXPECT_CONTAINS(parse_json(result.out)["error"].get<std::string>(), path);
      } else {
        EXPECT_EQ(result.out, "");
      }
    }
  }
}

TEST_F(Stats, WritesIntoAnOutputThatIsNoRegularFile) {
  write(engine());
  const std::string text = stats({"--prometheus"}).out;
  EXPECT_EQ(stats({"--prometheus", "--output", "/dev/stdout"}).out, text);
  TemporaryFolder textfiles;
  const std::string target = textfiles / "target";
  write_text(target, std::string(10000, 'x'));
  std::filesystem::create_symlink(target, textfiles / "link");
  EXPECT_EQ(stats({"--prometheus", "--output", textfiles / "link"}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(textfiles / "link"));
  EXPECT_EQ(read_text(target), text);
}

TEST_F(Stats, SaysWhichWantedProcessIsNotThere) {
  write(engine());
  const ProgramResult result = exits(1, stats({"--json", "--pid", "4194399", "--pid", "77"}));
  EXPECT_EQ(result.err, "fibshim stats: no counters of process 77 in " + folder_.path() + "\n");
  EXPECT_EQ(parse_json(result.out)["totals"]["hit"], 100);
}

TEST_F(Stats, PrintsEachProcessOnItsOwn) {
  write(engine(kNoSuchPid, 1));
  write(engine(kNoSuchPid + 1, 1));
  const ProgramResult table = stats({"--per-process"});
  EXPECT_CONTAINS(table.out,
                  "pid 4194399 (ended, mode apply): engine --serve\n"
                  "  config /etc/fibshim/pytorch (000000000000)\n"
                  "  decisions 54ac2c91e29f299d\n"
                  "  device 0: NVIDIA H200, sm_90\n");
  EXPECT_CONTAINS(table.out, "pid 4194400 ");
  EXPECT_CONTAINS(table.out, "238 launches: 200 hit");
  const auto json = parse_json(stats({"--json", "--per-process"}).out);
  EXPECT_EQ(json["processes"][1]["totals"]["hit"], 100);
  EXPECT_EQ(json["processes"][1]["counters"].size(), 3u);
}

TEST_F(Stats, TellsLiveFromEndedByPidAndStartTime) {
  const uint64_t start_time = start_time_of(getpid());
  write(engine(static_cast<uint64_t>(getpid()), start_time));
  write(engine(static_cast<uint64_t>(getpid()), start_time - 1));  // an earlier process of that pid
  const auto json = parse_json(stats({"--json"}).out);
  ASSERT_EQ(json["processes"].size(), 2u);
  EXPECT_EQ(json["processes"][0]["alive"], false);
  EXPECT_EQ(json["processes"][1]["alive"], true);
  EXPECT_CONTAINS(stats().out, "2 processes (1 live, 1 ended)");
}

// Of a process whose pid an earlier one had, as in a container that was started again.
TEST_F(Stats, GroupsAndRatesGoByPidAndStartTime) {
  const auto pid = static_cast<uint64_t>(getpid());
  const uint64_t start_time = start_time_of(getpid());
  write(engine(pid, start_time));
  write(engine(pid, start_time - 1));
  const auto json = parse_json(stats({"--json", "--by", "process"}).out)["groups"];
  ASSERT_EQ(json.size(), 2u);
  EXPECT_NE(json[0]["start_time"], json[1]["start_time"]);
  // The live one launches between two readings.
  CountersFileBuilder live = engine(pid, start_time);
  LiveProgram top({build_path("bin/fibshim"), "top", "--dir", folder_.path(), "--interval=0.1",
                   "--json", "--by=process"});
  double rate = 0;
  for (size_t at = 0, reading = 0; reading < 100 && rate <= 0; ++reading) {
    ASSERT_TRUE(top.read_until("\n", at)) << top.text();
    const size_t end = top.text().find('\n', at);
    const auto line = parse_json(top.text().substr(at, end - at));
    for (const auto& group : line["groups"]) {
      if (group["start_time"] == start_time && reading > 0) rate = group["per_second"];
    }
    at = end + 1;
    live.count(0, Outcome::untracked, 50);
    write_text(folder_ / "new", live.bytes());
    std::filesystem::rename(folder_ / "new", folder_ / live.file_name());
  }
  EXPECT_GT(rate, 0) << top.text();
}

TEST_F(Stats, ShowsDeviceAndConfigColumnsWhereTheyDiffer) {
  CountersFileBuilder builder(kNoSuchPid, 1);
  builder.add_config("/one", 1);
  builder.add_config("/two", 2);
  builder.count(builder.add_series("p", "d", 0, 0), Outcome::hit, 1);
  builder.count(builder.add_series("p", "d", 1, 1), Outcome::hit, 2);
  write(builder);
  const std::string out = stats().out;
  EXPECT_CONTAINS(
      out,
      "DEFINITION  PATTERN  OUTCOME  LAUNCHES  EXECUTIONS  DEVICE  CONFIG  DIGEST\n"
      "d           p        hit             2           2       1  /two    000000000000\n"
      "d           p        hit             1           1       0  /one    000000000000\n");
}

TEST_F(Stats, AnEmptyFolderIsNoErrorAndSaysWhatToDo) {
  const ProgramResult table = exits(0, stats());
  EXPECT_EQ(table.out, "");
  EXPECT_CONTAINS(table.err, "no counters in " + folder_.path());
  EXPECT_CONTAINS(table.err, "fibshim doctor");
  const ProgramResult json = exits(0, stats({"--json"}));
  EXPECT_EQ(parse_json(json.out)["counters"], nlohmann::json::array());
  EXPECT_EQ(parse_json(json.out)["totals"]["hit"], 0);
}

TEST_F(Stats, AFolderThatDoesNotExistYetIsEmptyUnlessItWasNamed) {
  const ProgramOptions options{{{"FIBSHIM_STATS_DIR", folder_ / "later"}}, ""};
  EXPECT_CONTAINS(exits(0, run_fibshim({"stats"}, options)).err, "no counters in");
  EXPECT_EQ(exits(1, stats({"--dir", folder_ / "typo"})).err,
            "fibshim stats: " + (folder_ / "typo") + ": no such folder\n");
}

// The shim prints a warning and counts nothing; `stats` tells the user, too.
TEST_F(Stats, SaysThatTheShimKeepsNoCountersInSuchAFolder) {
  const std::string others = "the shim keeps no counters there: other users may ";
  ASSERT_EQ(chmod(folder_.path().c_str(), 0777), 0);
  EXPECT_EQ(exits(0, stats()).err, "fibshim stats: " + folder_.path() + ": " + others +
                                       "write there (chmod go-w, or set the sticky bit)\n");
  write(engine());
  EXPECT_CONTAINS(exits(0, stats({"--json"})).err, others + "write there");
  ASSERT_EQ(mkdir((folder_ / "below").c_str(), 0700), 0);
  EXPECT_CONTAINS(exits(0, stats({"--dir", folder_ / "below"})).err, others + "exchange it");
  ASSERT_EQ(chmod(folder_.path().c_str(), 01777), 0);
  EXPECT_EQ(exits(0, stats()).err, "");
  EXPECT_LACKS(exits(0, stats({"--dir", folder_ / "below"})).err, others);
}

TEST_F(Stats, DirOverridesTheEnvironment) {
  write(engine());
  const ProgramOptions options{{{"FIBSHIM_STATS_DIR", "/nonexistent"}}, ""};
  EXPECT_EQ(run_fibshim({"stats", "--dir", folder_.path()}, options).exit_code, 0);
}

TEST_F(Stats, IgnoresFilesThatAreNoCounters) {
  write(engine());
  write_text(folder_ / "notes.txt", "hello");
  write_text(folder_ / ".4194399-50.counters", "being made");
  EXPECT_EQ(exits(0, stats()).err, "");
}

TEST_F(Stats, PassesOverFilesThatTheirProcessHasNotBegun) {
  write(engine());
  write_text(folder_ / "1-1.counters", "");
  write_text(folder_ / "2-2.counters", std::string(CountersFileBuilder::kShardsAt, '\0'));
  const ProgramResult result = exits(0, stats({"--json"}));
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(parse_json(result.out)["processes"].size(), 1u);
}

TEST_F(Stats, ClearRemovesTheFilesOfEndedProcessesOnly) {
  const CountersFileBuilder live = engine(static_cast<uint64_t>(getpid()), start_time_of(getpid()));
  write(live);
  write(engine());
  write_text(folder_ / "77-1.counters", "damaged");
  write_text(folder_ / "notes.counters", "of someone else");
  const ProgramResult result = exits(0, stats({"--clear"}));
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, "fibshim stats: removed the counters of 2 ended processes from " +
                            folder_.path() + "\n");
  EXPECT_TRUE(std::filesystem::exists(folder_ / live.file_name()));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "notes.counters"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "4194399-50.counters"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "77-1.counters"));
}

TEST_F(Stats, RefusesNonsenseOnTheCommandLine) {
  EXPECT_EQ(stats({"--pid", "abc"}).exit_code, 2);
  EXPECT_EQ(stats({"--pid"}).exit_code, 2);
  EXPECT_EQ(stats({"--jsn"}).exit_code, 2);
  EXPECT_EQ(stats({"--json", "--prometheus"}).exit_code, 2);
  EXPECT_EQ(stats({"--clear", "--json"}).exit_code, 2);
  EXPECT_EQ(stats({"--clear", "--pid", "1"}).exit_code, 2);
  EXPECT_EQ(stats({"extra"}).exit_code, 2);
  EXPECT_EQ(stats({"--by", "colour"}).exit_code, 2);
  EXPECT_EQ(stats({"--by", "device", "--per-process"}).exit_code, 2);
  EXPECT_EQ(stats({"--prometheus", "--by", "device"}).exit_code, 2);
  EXPECT_EQ(stats({"--max-series", "0"}).exit_code, 2);
  EXPECT_EQ(stats({"--device", "-1"}).exit_code, 2);
  EXPECT_EQ(stats({"--dir", ""}).exit_code, 2);
}

TEST_F(Stats, AFileInPlaceOfTheFolderIsAnError) {
  write_text(folder_ / "file", "");
  const ProgramResult result = exits(1, stats({"--dir", folder_ / "file"}));
  EXPECT_EQ(result.err,
            "fibshim stats: " + (folder_ / "file") + ": cannot read the folder: Not a directory\n");
}

TEST_F(Stats, ControlCharactersDoNotReachTheTerminal) {
  CountersFileBuilder builder(kNoSuchPid, 1);
  builder.copy(builder.header.command, "\x1b]0;owned\a\xff");
  builder.count(builder.add_series("\x1b[2J", "d\r"), Outcome::hit, 1);
  write(builder);
  const ProgramResult result = exits(0, stats({"--per-process"}));
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos);
  EXPECT_EQ(result.out.find('\r'), std::string::npos);
  EXPECT_EQ(result.out.find('\a'), std::string::npos);
  EXPECT_CONTAINS(result.out, "\\x1b[2J");
  EXPECT_CONTAINS(result.out, "\\xff");
  EXPECT_EQ(stats({"--json"}).exit_code, 0);
  parse_json(stats({"--json"}).out);
  EXPECT_EQ(stats({"--prometheus"}).exit_code, 0);
}

TEST_F(Stats, ReadsTextThatFillsItsFieldToTheLastByte) {
  CountersFileBuilder builder(kNoSuchPid, 1);
  memset(builder.header.command, 'c', sizeof builder.header.command);
  const size_t series = builder.add_series("", "");
  memset(builder.series[series].pattern, 'p', sizeof builder.series[series].pattern);
  memset(builder.series[series].definition, 'd', sizeof builder.series[series].definition);
  builder.count(series, Outcome::hit, 1);
  write(builder);
  const auto json = parse_json(stats({"--json"}).out);
  EXPECT_EQ(json["processes"][0]["command"], std::string(256, 'c'));
  EXPECT_EQ(json["counters"][0]["pattern"], std::string(120, 'p'));
  EXPECT_EQ(json["counters"][0]["definition"], std::string(128, 'd'));
}

TEST_F(Stats, NamesOutcomesOfANewerShimByNumber) {
  CountersFileBuilder builder(kNoSuchPid, 1);
  const std::string name = "outcome_" + std::to_string(kOutcomeCount);
  builder.count(0, static_cast<Outcome>(kOutcomeCount), 4);
  write(builder);
  EXPECT_EQ(parse_json(stats({"--json"}).out)["totals"][name], 4);
  EXPECT_CONTAINS(stats().out, name + ": written by a newer shim");
}

TEST_F(Stats, SumsThatOverflowStayAtTheLargestNumber) {
  CountersFileBuilder builder = engine();
  builder.count(1, Outcome::hit, UINT64_MAX, builder.add_shard());
  write(builder);
  EXPECT_EQ(parse_json(stats({"--json"}).out)["totals"]["hit"], UINT64_MAX);
}

// Files that must be refused, each with its reason, while the good file beside it is still shown.
struct Hostile {
  const char* name;
  void (*change_header)(FileHeader* header);  // null: `change` makes the fault
  const char* reason;
  void (*change)(std::string* bytes) = nullptr;

  std::string bytes() const {
    CountersFileBuilder builder(5, 5);
    if (change_header != nullptr) {
      builder.add_series("p", "d");
      change_header(&builder.header);
    }
    std::string out = builder.bytes();
    if (change != nullptr) change(&out);
    return out;
  }
};

const Hostile kHostile[] = {
    {"HalfAHeader", nullptr, "truncated: it ends within the header",
     [](std::string* bytes) { bytes->resize(600); }},
    {"Foreign", nullptr, "not a counters file: it does not begin with 'FIBCNTR'",
     [](std::string* bytes) { bytes->assign(200000, 'x'); }},
    {"OtherVersion", [](FileHeader* h) { h->version = kCountersVersion + 1; },
     "format version 10; this fibshim reads version 9"},
    {"OtherHeaderSize", [](FileHeader* h) { h->header_bytes = 8; },
     "damaged: its record sizes (8, 16, 5, 424) are not those of version 9"},
    {"OtherSlots", [](FileHeader* h) { h->outcome_slots = 1 << 30; }, "damaged: its record sizes"},
    {"NoCapacity", [](FileHeader* h) { h->series_capacity = 0; },
     "damaged: it claims room for 0 series"},
    {"HugeCapacity", [](FileHeader* h) { h->series_capacity = UINT32_MAX; },
     "damaged: it claims room for 4294967295 series"},
    {"MoreCapacityThanTheShimHas", [](FileHeader* h) { h->series_capacity = kSeriesCapacity + 1; },
     "damaged: it claims room for 4097 series"},
    {"MoreSeriesThanRoom", [](FileHeader* h) { h->series_count = 9; },
     "damaged: it claims 9 series with room for 8"},
    {"SeriesInTheHeader", [](FileHeader* h) { h->series_at = 8; }, "damaged: its parts overlap"},
    {"SeriesFarAway", [](FileHeader* h) { h->series_at = UINT64_MAX - 7; },
     "damaged: its parts overlap"},
    {"ShardsOverSeries", [](FileHeader* h) { h->shards_at = h->series_at; },
     "damaged: its parts overlap"},
    {"ShardsFarAway", [](FileHeader* h) { h->shards_at = UINT64_MAX - 7; },
     "damaged: its parts overlap"},
    {"ShardsOffBeat", [](FileHeader* h) { h->shards_at += 4; }, "damaged: its parts overlap"},
    {"TinyStride", [](FileHeader* h) { h->shard_stride = 8; }, "damaged: its 1 shards lie outside"},
    {"ManyShards", [](FileHeader* h) { h->shard_count = UINT32_MAX; },
     "damaged: its 4294967295 shards lie outside"},
    {"OverflowingShards",
     [](FileHeader* h) {
       h->shard_stride = uint64_t{1} << 62;
       h->shard_count = 4;
     },
     "damaged: its 4 shards lie outside"},
    {"ManyDevices", [](FileHeader* h) { h->device_count = 17; },
     "damaged: it claims 17 devices and 0 configs"},
    {"ManyConfigs", [](FileHeader* h) { h->config_count = 4000; },
     "damaged: it claims 0 devices and 4000 configs"},
    {"CutInAShard", nullptr, "damaged: its 1 shards lie outside",
     [](std::string* bytes) { bytes->pop_back(); }},
};

class StatsRefuses : public Stats, public testing::WithParamInterface<Hostile> {};

TEST_P(StatsRefuses, TheFileAndShowsTheOthers) {
  write(engine());
  write_text(folder_ / "5-5.counters", GetParam().bytes());
  const ProgramResult result = exits(1, stats({"--json"}));
  EXPECT_EQ(result.err.rfind(
                "fibshim stats: " + (folder_ / "5-5.counters") + ": " + GetParam().reason, 0),
            0u)
      << result.err;
  const auto json = parse_json(result.out);
  EXPECT_EQ(json["totals"]["hit"], 100);
  ASSERT_EQ(json["refused"].size(), 1u);
  EXPECT_EQ(json["refused"][0]["file"], "5-5.counters");
}

INSTANTIATE_TEST_SUITE_P(, StatsRefuses, testing::ValuesIn(kHostile), kByName);

TEST_F(Stats, RefusesAHugeSparseFileInsteadOfReadingItAll) {
  CountersFileBuilder builder(5, 5);
  builder.header.series_capacity = kSeriesCapacity;
  builder.header.series_count = kSeriesCapacity;
  builder.header.shards_at = 32 << 20;
  builder.header.shard_stride = kSeriesCapacity * kCountersPerSeries * 8;
  builder.header.shard_count = 65536;
  write(builder);
  std::filesystem::resize_file(folder_ / builder.file_name(), uint64_t{161} << 30);
  EXPECT_CONTAINS(exits(1, stats()).err, "damaged: it claims 171798691840 bytes of counters");
}

// Each of these sparse files alone may be read, but not all of them together.
TEST_F(Stats, ReadsNoMoreThanItsBudgetOfAllFilesTogether) {
  for (uint64_t start_time = 1; start_time <= 3; ++start_time) {
    CountersFileBuilder builder(5, start_time);
    builder.header.series_capacity = kSeriesCapacity;
    builder.header.series_count = kSeriesCapacity;
    builder.header.shards_at = 32 << 20;
    builder.header.shard_stride = kSeriesCapacity * kCountersPerSeries * 8;
    builder.header.shard_count = 380;  // 950 MiB
    write(builder);
    std::filesystem::resize_file(folder_ / builder.file_name(), uint64_t{982} << 20);
  }
  write(engine());
  const ProgramResult result = exits(1, stats({"--json"}));
  const auto json = parse_json(result.out);
  EXPECT_EQ(json["totals"]["hit"], 100);
  ASSERT_EQ(json["refused"].size(), 1u);
  EXPECT_EQ(json["refused"][0]["file"], "5-3.counters");
  EXPECT_EQ(json["refused"][0]["reason"],
            "left out: with it, more than 2048 MiB of counters would be read");
}

TEST_F(Stats, RefusesLinksFifosAndFolders) {
  write_text(folder_ / "outside", engine().bytes());
  std::filesystem::create_symlink(folder_ / "outside", folder_ / "1-1.counters");
  ASSERT_EQ(mkfifo((folder_ / "2-2.counters").c_str(), 0600), 0);
  std::filesystem::create_directory(folder_ / "3-3.counters");
  const ProgramResult result = exits(1, stats({"--json"}));
  const auto refused = parse_json(result.out)["refused"];
  ASSERT_EQ(refused.size(), 3u);
  EXPECT_EQ(refused[0]["reason"], "it is a symbolic link");
  EXPECT_EQ(refused[1]["reason"], "it is not a regular file");
  EXPECT_EQ(refused[2]["reason"], "it is not a regular file");
}

TEST_F(Stats, SurvivesEveryFlippedByteOfTheHeader) {
  const std::string good = engine().bytes();
  // The places of numbers: from the magic to the mode, and the two counts behind the texts.
  std::vector<size_t> places;
  for (size_t i = 0; i < offsetof(FileHeader, executable); ++i) places.push_back(i);
  for (size_t i = offsetof(FileHeader, device_count); i < offsetof(FileHeader, devices); ++i) {
    places.push_back(i);
  }
  for (const size_t place : places) {
    std::string bytes = good;
    bytes[place] = static_cast<char>(~bytes[place]);
    write_text(folder_ / (std::to_string(place) + "-1.counters"), bytes);
  }
  const ProgramResult result = exits(1, stats({"--json"}));
  const auto json = parse_json(result.out);
  EXPECT_EQ(json["processes"].size() + json["refused"].size(), places.size());
  EXPECT_GT(json["refused"].size(), places.size() / 2);
}

}  // namespace
}  // namespace fibshim::test
