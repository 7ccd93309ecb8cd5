// The cases of the host program `conform`, one small process each. A row says which of the failures
// in tools/doc/driver_facts.md, section 7, it is about, and why it cannot run against a real driver, if it cannot.
// What must run and be counted is stated by the case itself, next to what it does.

#include "tests/conformance/conform_run.h"

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "tests/support/text.h"

namespace fibshim::conformance {
namespace {

struct Row {
  const char* name;
  std::vector<std::string> words;  // case and arguments
  int fact;                        // of driver_facts.md, section 7; 0: a rule of contract.md
  const char* only_simulated = nullptr;
  Environment environment = {};
  int messages = 0;  // lines that the shim writes
};

constexpr char kAsksWhatRan[] = "it asks the simulated driver how a launch or a call looked";
constexpr char kFaults[] = "it makes driver calls fail";
constexpr char kHolds[] = "it holds a launch for as long as it likes";
constexpr char kNullArguments[] = "a real driver may read through the pointers that are missing";
constexpr char kAfterEnd[] = "a real driver need not survive calls after its end";

// Too many launches to write them all down.
const Environment kNoLog = {{"SIMCUDA_LOG", ""}};
const Environment kVllm = {{"FIBSHIM_CONFIG", build_dir() + "/config/vllm"}, {"SIMCUDA_LOG", ""}};
const Environment kSglang = {{"FIBSHIM_CONFIG", build_dir() + "/config/sglang"},
                             {"SIMCUDA_LOG", ""}};
// Its codes are not asked for.
const Environment kSglangRouting = {{"FIBSHIM_CONFIG", conform_path("sglang_config")},
                                    {"SIMCUDA_LOG", ""}};
const Environment kMachete = {{"FIBSHIM_CONFIG", build_dir() + "/config/machete"},
                              {"SIMCUDA_LOG", ""}};
const Environment kVllmWithoutCodes = {{"FIBSHIM_CONFIG", conform_path("vllm_config")},
                                       {"SIMCUDA_LOG", ""}};
const Environment kVllmAndCublas = {
    {"FIBSHIM_CONFIG", conform_path("vllm_config") + ":" + build_dir() + "/config/cublas"},
    {"SIMCUDA_LOG", ""}};

const Row kRows[] = {
    {"AbiVersions", {"abi_versions"}, 2},
    {"DefaultStreams", {"default_streams"}, 3, kAsksWhatRan},
    {"CapturePerThread", {"capture_per_thread"}, 3},
    {"CapturePerThreadInTwoContexts", {"capture_per_thread_in_two_contexts"}, 3},
    {"ArgumentsMissing", {"arguments_missing"}, 4},
    {"ArgumentsNull", {"arguments_null"}, 4, kNullArguments},
    {"HandlesWrong", {"handles_wrong"}, 4, kNullArguments},
    {"Attributes", {"attributes"}, 4},
    {"AttributesMany", {"attributes_many"}, 4, "a real driver refuses an attribute given twice"},
    {"DeviceUpdatable", {"device_updatable"}, 5},
    {"GraphReadAndSetAgain", {"graph_read_and_set_again"}, 5},
    {"GraphPatchOneArgument", {"graph_patch_one_argument"}, 5},
    {"GraphWriteThroughPointers", {"graph_write_through_pointers"}, 5},
    {"GraphClusterComesAndGoes", {"graph_cluster_comes_and_goes"}, 5},
    {"GraphPreferredCluster",
     {"graph_preferred_cluster"},
     5,
     "an H200 refuses preferred clusters in graphs"},
    {"GraphCopyBetweenNodes", {"graph_copy_between_nodes"}, 5},
    {"GraphKernelHandles", {"graph_kernel_handles"}, 5},
    {"GraphPackedArguments", {"graph_packed_arguments"}, 5},
    {"GraphCloneAndChild", {"graph_clone_and_child"}, 5},
    {"GraphCloneReadAndSet", {"graph_clone_read_and_set"}, 5},
    {"GraphUpdate", {"graph_update"}, 5},
    {"GraphReplaysCostNothing", {"graph_replays_cost_nothing"}, 5, kAsksWhatRan},
    {"GraphOutlivesItsModule", {"graph_outlives_its_module"}, 5},
    {"GraphCaptureFails", {"graph_capture_fails"}, 5},
    {"GraphExecOfOthersCostsACopy", {"exec_of_others_costs_a_copy"}, 0, kAsksWhatRan},
    {"GraphExecCosts", {"exec_costs"}, 0, kAsksWhatRan},
    {"GraphUpdatesKeepACopyWithTheSameEdges",
     {"updates_keep_a_copy_with_the_same_edges"},
     0,
     kAsksWhatRan},
    {"GraphUpdatesFollowTheirValues", {"updates_follow_their_values"}, 0, kAsksWhatRan},
    {"GraphUpdatesBeginEarly", {"updates_begin_early"}, 0, kAsksWhatRan},
    {"GraphUpdatesThatAreCopiedAreTriedOnce",
     {"updates_that_are_copied_are_tried_once"},
     0,
     kAsksWhatRan},
    {"GraphExecWithMemoryNodes", {"exec_with_memory_nodes"}, 0},
    {"GraphExecWithChildGraphsSet", {"exec_with_child_graphs_set"}, 0},
    {"ExecWithConditionalNodes", {"exec_with_conditional_nodes"}, 0},
    {"BodiesOfThreads", {"bodies_of_threads"}, 0},
    {"BodiesSurviveFailures", {"bodies_survive_failures"}, 0, kFaults},
    {"GraphExecUpdateKeepsWhatIsDisabled", {"exec_update_keeps_what_is_disabled"}, 0},
    {"GraphExecWithProgrammaticEdges", {"exec_with_programmatic_edges"}, 0, kAsksWhatRan},
    {"GraphExecBeginsEarly", {"exec_begins_early"}, 0, kAsksWhatRan},
    {"GraphExecBeginsEarlyOnItsOwnMemory",
     {"exec_begins_early_on_its_own_memory"},
     0,
     kAsksWhatRan},
    {"GraphExecTellsThatTheNextMayBegin", {"exec_tells_that_the_next_may_begin"}, 0, kAsksWhatRan},
    {"ExecSurvivesFailures", {"exec_survives_failures"}, 0, kFaults},
    {"UpdatesBesideTakeFewCalls", {"updates_beside_take_few_calls"}, 0, kAsksWhatRan},
    {"RewriteRunsAsOne", {"rewrite_runs_as_one"}, 0, kAsksWhatRan},
    {"GraphReplacementsKeepPriorities", {"replacements_keep_priorities"}, 0, kAsksWhatRan},
    {"RewriteNeedsItsTies", {"rewrite_needs_its_ties"}, 0},
    {"RewriteNeedsProof", {"rewrite_needs_proof"}, 0, "a kernel leaves its mark elsewhere"},
    {"RewriteSharesAWorkspace", {"rewrite_shares_a_workspace"}, 0},
    {"RewriteBesideShortParameters", {"rewrite_beside_short_parameters"}, 0},
    {"RewriteLeavesOutNothingThatAnotherReads",
     {"rewrite_leaves_out_nothing_that_another_reads"},
     0,
     kAsksWhatRan},
    {"RewriteKeepsTheOrder", {"rewrite_keeps_the_order"}, 0, kAsksWhatRan},
    {"RewriteAmongProgrammaticEdges", {"rewrite_among_programmatic_edges"}, 0, kAsksWhatRan},
    {"RewriteFollowsItsKernels", {"rewrite_follows_its_kernels"}, 0, kAsksWhatRan},
    {"RewriteFollowsNoMore", {"rewrite_follows_no_more"}, 0, kAsksWhatRan},
    {"RewriteIsUndone", {"rewrite_is_undone"}, 0, kAsksWhatRan},
    {"RewriteIsUndoneByASwitch", {"rewrite_is_undone_by_a_switch"}, 0},
    {"RewriteByBenefit", {"rewrite_by_benefit"}, 0, kAsksWhatRan},
    {"RewriteOfCublas",
     {"rewrite_of_cublas"},
     0,
     kAsksWhatRan,
     {{"FIBSHIM_CONFIG", build_dir() + "/config/cublas"}, {"SIMCUDA_LOG", ""}}},
    {"ProductsOfCublas",
     {"products_of_cublas"},
     0,
     kAsksWhatRan,
     {{"FIBSHIM_CONFIG", build_dir() + "/config/cublas"}, {"SIMCUDA_LOG", ""}}},
    {"FieldsOfCublas",
     {"fields_of_cublas"},
     0,
     kAsksWhatRan,
     {{"FIBSHIM_CONFIG", build_dir() + "/config/cublas"}, {"SIMCUDA_LOG", ""}}},
    {"PackedLaunchesAgain",
     {"packed_launches_again"},
     0,
     kAsksWhatRan,
     {{"FIBSHIM_CONFIG", build_dir() + "/config/cublas"}, {"SIMCUDA_LOG", ""}}},
    {"MembersInAnotherOrder",
     {"members_in_another_order"},
     0,
     kAsksWhatRan,
     {{"FIBSHIM_CONFIG", conform_path("graphs_config")},
      {"SIMCUDA_KERNELS", conform_path("libgraph_kernels.so")},
      {"SIMCUDA_LOG", ""}}},
    {"ScaledProductsOfVllm", {"scaled_products_of_vllm"}, 0, kAsksWhatRan, kVllmWithoutCodes},
    {"FieldsOfScaledProducts", {"fields_of_scaled_products"}, 0, kAsksWhatRan, kVllmWithoutCodes},
    {"BlockScaledProducts", {"block_scaled_products"}, 0, kAsksWhatRan, kVllm},
    {"FieldsOfBlockScaledProducts", {"fields_of_block_scaled_products"}, 0, kAsksWhatRan, kVllm},
    {"MacheteProducts", {"machete_products"}, 0, kAsksWhatRan, kMachete},
    {"FieldsOfMacheteProducts", {"fields_of_machete_products"}, 0, kAsksWhatRan, kMachete},
    {"BlockQuantisationOfVllm", {"block_quantisation_of_vllm"}, 0, kAsksWhatRan, kVllm},
    {"BlockSiluOfVllm", {"block_silu_of_vllm"}, 0, kAsksWhatRan, kVllm},
    {"BlockQuantisationOfSglang", {"block_quantisation_of_sglang"}, 0, kAsksWhatRan, kSglang},
    {"RewriteOfSglangBlockQuantisation",
     {"rewrite_of_sglang_block_quantisation"},
     0,
     kAsksWhatRan,
     kSglangRouting},
    {"RewriteOfSglangBlockQuantisationNeedsItsTies",
     {"rewrite_of_sglang_block_quantisation_needs_its_ties"},
     0,
     kAsksWhatRan,
     kSglangRouting},
    {"RewriteOfVllmBlockQuantisation",
     {"rewrite_of_vllm_block_quantisation"},
     0,
     kAsksWhatRan,
     kVllmWithoutCodes},
    {"RewriteOfVllmBlockQuantisationNeedsItsTies",
     {"rewrite_of_vllm_block_quantisation_needs_its_ties"},
     0,
     kAsksWhatRan,
     kVllmWithoutCodes},
    {"RewriteOfSglangCombineAndQuantisation",
     {"rewrite_of_sglang_combine_and_quantisation"},
     0,
     kAsksWhatRan,
     kSglang},
    {"RewriteOfSglangCombineAndQuantisationNeedsItsTies",
     {"rewrite_of_sglang_combine_and_quantisation_needs_its_ties"},
     0,
     kAsksWhatRan,
     kSglang},
    {"BlockNormsOfVllm", {"block_norms_of_vllm"}, 0, kAsksWhatRan, kVllm},
    {"NormsOfVllmWithoutAWeight", {"norms_of_vllm_without_a_weight"}, 0, kAsksWhatRan, kVllm},
    {"ActivationsOfVllm", {"activations_of_vllm"}, 0, kAsksWhatRan, kVllm},
    {"FusedAddOfVllmHasARange", {"fused_add_of_vllm_has_a_range"}, 0, kAsksWhatRan, kVllm},
    {"KvWritesOfVllm", {"kv_writes_of_vllm"}, 0, kAsksWhatRan, kVllm},
    {"RewriteOfVllmFp8", {"rewrite_of_vllm_fp8"}, 0, kAsksWhatRan, kVllm},
    {"RewriteOfVllmFp8Strided", {"rewrite_of_vllm_fp8_strided"}, 0, kAsksWhatRan, kVllm},
    {"RewriteOfVllmFp8NeedsItsTies",
     {"rewrite_of_vllm_fp8_needs_its_ties"},
     0,
     kAsksWhatRan,
     kVllm},
    {"RewriteOfVllmQkNorm", {"rewrite_of_vllm_qk_norm"}, 0, kAsksWhatRan, kVllm},
    {"RewriteOfVllmQkNormNeedsItsTies",
     {"rewrite_of_vllm_qk_norm_needs_its_ties"},
     0,
     kAsksWhatRan,
     kVllm},
    {"RewriteOfVllmQkNormNeedsRoom",
     {"rewrite_of_vllm_qk_norm_needs_room"},
     0,
     kAsksWhatRan,
     kVllm},
    {"RewriteOfSglangQkNorm", {"rewrite_of_sglang_qk_norm"}, 0, kAsksWhatRan, kSglang},
    {"RewriteOfSglangRopeAndStore", {"rewrite_of_sglang_rope_and_store"}, 0, kAsksWhatRan, kSglang},
    {"RewriteOfSglangQkNormAndRopeStore",
     {"rewrite_of_sglang_qk_norm_and_rope_store"},
     0,
     kAsksWhatRan,
     kSglang},
    {"RewriteOfSglangQkNormAndRopeStoreNeedsRoom",
     {"rewrite_of_sglang_qk_norm_and_rope_store_needs_room"},
     0,
     kAsksWhatRan,
     kSglang},
    {"SglangRopeAndStoreAsOne", {"sglang_rope_and_store_as_one"}, 0, kAsksWhatRan, kSglang},
    {"SglangRopeAndStoreAsOneNeedsItsTies",
     {"sglang_rope_and_store_as_one_needs_its_ties"},
     0,
     kAsksWhatRan,
     kSglang},
    {"RewriteOfSglangRopeAndStoreOf64",
     {"rewrite_of_sglang_rope_and_store_of_64"},
     0,
     kAsksWhatRan,
     kSglang},
    {"RewriteOfSglangQkNormNeedsItsTies",
     {"rewrite_of_sglang_qk_norm_needs_its_ties"},
     0,
     kAsksWhatRan,
     kSglang},
    {"RewriteOfSglangQkNormNeedsRoom",
     {"rewrite_of_sglang_qk_norm_needs_room"},
     0,
     kAsksWhatRan,
     kSglang},
    {"RewriteOfVllmSumNorm", {"rewrite_of_vllm_sum_norm"}, 0, kAsksWhatRan, kVllmAndCublas},
    {"RewriteOfVllmSumNormAlone",
     {"rewrite_of_vllm_sum_norm_alone"},
     0,
     kAsksWhatRan,
     {{"FIBSHIM_CONFIG", conform_path("vllm_config")}, {"SIMCUDA_LOG", ""}}},
    {"RewriteOfVllmSumNormNeedsItsTies",
     {"rewrite_of_vllm_sum_norm_needs_its_ties"},
     0,
     kAsksWhatRan,
     kVllmAndCublas},
    {"ProductsOfVllmExperts", {"products_of_vllm_experts"}, 0, kAsksWhatRan, kVllmWithoutCodes},
    {"ProductsOfVllmExpertsNeedTheirTies",
     {"products_of_vllm_experts_need_their_ties"},
     0,
     kAsksWhatRan,
     kVllmWithoutCodes},
    {"ProductsOfScaledVllmExperts",
     {"products_of_scaled_vllm_experts"},
     0,
     kAsksWhatRan,
     kVllmWithoutCodes},
    {"ProductsOfScaledVllmExpertsNeedTheirTies",
     {"products_of_scaled_vllm_experts_need_their_ties"},
     0,
     kAsksWhatRan,
     kVllmWithoutCodes},
    {"ProductsOfScaledSglangExperts",
     {"products_of_scaled_sglang_experts"},
     0,
     kAsksWhatRan,
     kSglangRouting},
    {"ProductsOfScaledSglangExpertsNeedTheirTies",
     {"products_of_scaled_sglang_experts_need_their_ties"},
     0,
     kAsksWhatRan,
     kSglangRouting},
    {"RewriteOfVllmRouting", {"rewrite_of_vllm_routing"}, 0, kAsksWhatRan, kVllm},
    {"RewriteOfVllmRoutingScaled", {"rewrite_of_vllm_routing_scaled"}, 0, kAsksWhatRan, kVllm},
    {"RewriteOfVllmRoutingNeedsItsTies",
     {"rewrite_of_vllm_routing_needs_its_ties"},
     0,
     kAsksWhatRan,
     kVllm},
    {"RewriteOfSglangRouting", {"rewrite_of_sglang_routing"}, 0, kAsksWhatRan, kSglangRouting},
    {"RewriteOfSglangRoutingNeedsItsTies",
     {"rewrite_of_sglang_routing_needs_its_ties"},
     0,
     kAsksWhatRan,
     kSglangRouting},
    {"SumOfVllmExperts", {"sum_of_vllm_experts"}, 0, kAsksWhatRan, kVllmWithoutCodes},
    {"SumOfVllmExpertsNeedsItsTies",
     {"sum_of_vllm_experts_needs_its_ties"},
     0,
     kAsksWhatRan,
     kVllmWithoutCodes},
    {"SumOfSglangExperts", {"sum_of_sglang_experts"}, 0, kAsksWhatRan, kSglangRouting},
    {"SumOfSglangExpertsNeedsItsTies",
     {"sum_of_sglang_experts_needs_its_ties"},
     0,
     kAsksWhatRan,
     kSglangRouting},
    {"RewriteOfVllmRoutingReusesMemory",
     {"rewrite_of_vllm_routing_reuses_memory"},
     0,
     kAsksWhatRan,
     kVllm},
    {"RewriteSurvivesFailures", {"rewrite_survives_failures"}, 0, kFaults},
    {"CheckGraphInPlace", {"check_graph_in_place"}, 0, kFaults},
    {"CheckGraphSetInPlace", {"check_graph_set_in_place"}, 0, kFaults},
    {"CheckGraphSetUncopied",
     {"check_graph_set_uncopied"},
     0,
     nullptr,
     {{"FIBSHIM_SHADOW", "1/1"}}},
    {"CheckGraphsWhenOn", {"check_graphs_when_on"}, 0, kFaults},
    {"CheckGraphNoMore", {"check_graph_no_more"}, 0, kFaults},
    {"CheckGraphWhileTold", {"check_graph_while_told"}, 0, kFaults, kNoLog},
    {"CheckLaunchedGraphWhileTold", {"check_launched_graph_while_told"}, 0, kFaults, kNoLog},
    {"CheckLaunchesWhileTold", {"check_launches_while_told"}, 0, kFaults, kNoLog},
    {"CheckGraphOfTwoContexts",
     {"check_graph_of_two_contexts"},
     0,
     kAsksWhatRan,
     {{"FIBSHIM_SHADOW", "1/1"}, {"SIMCUDA_LOG", ""}}},
    {"CheckStreamsOfOtherContexts",
     {"check_streams_of_other_contexts"},
     0,
     kAsksWhatRan,
     {{"FIBSHIM_SHADOW", "1/1"}, {"SIMCUDA_DEVICES", "90,90"}, {"SIMCUDA_LOG", ""}}},
    {"CheckBesideEnds",
     {"check_beside_ends"},
     0,
     kAsksWhatRan,
     {{"FIBSHIM_SHADOW", "1/1"},
      {"FIBSHIM_SHADOW_MEMORY", "64k"},
      {"SIMCUDA_DEVICES", "90,90"},
      {"SIMCUDA_LOG", ""}}},
    {"GraphExecChurn", {"exec_churn"}, 0},
    {"GraphExecAndFork", {"exec_and_fork"}, 12},
    {"CaptureBesidePrimaryContext",
     {"capture_beside_primary_context"},
     16,
     "its marks go with the primary context"},
    {"CaptureCold", {"capture_cold"}, 6},
    {"NothingIsLoadedAtLaunch", {"nothing_is_loaded_at_launch"}, 6, kAsksWhatRan},
    {"NamesDoNotCollide", {"names_do_not_collide"}, 18},
    {"LibraryUsesCuda", {"library_uses_cuda"}, 10},
    {"LibraryStartsCuda", {"library_starts_cuda"}, 10},
    {"LibraryStartsCudaBesideAnotherThread", {"library_starts_cuda_beside_another_thread"}, 10},
    {"LibraryBindsDeep", {"library_binds_deep"}, 0},
    {"LibraryBindsDeepNoMore",
     {"library_binds_deep", "clear"},
     0,
     nullptr,
     {{"FIBSHIM_DEEPBIND", "clear"}}},
    {"FailurePasses", {"failure_passes"}, 11, kFaults, {}, 6},
    {"InitFailsFirst", {"init_fails_first"}, 11, kFaults},
    {"ForkBeforeCuda", {"fork_before_cuda"}, 12},
    {"ForkAfterImport", {"fork_after_import"}, 12},
    {"ForkAfterCuda", {"fork_after_cuda"}, 12, nullptr, {}, 1},
    {"ForkUnderLoad", {"fork_under_load"}, 12},
    {"ForkBesideConditionalNodes",
     {"fork_beside_conditional_nodes"},
     12,
     "a real driver in a forked child may do anything with a wrong handle"},
    {"ForkWhileStarting", {"fork_while_starting"}, 12},
    {"KilledChildren", {"killed_children"}, 13},
    // Each process takes half a gigabyte of a real GPU.
    {"Herd", {"herd", is_real_driver() ? "16" : "200"}, 14},
    {"ExitWithStaticDestructors", {"destructors_use_cuda"}, 15, kAfterEnd, {}, 1},
    {"Reuse", {"reuse"}, 16},
    {"ReuseBetweenKinds", {"reuse_between_kinds"}, 16},
    {"ReuseUnderLoad", {"reuse_under_load"}, 16, nullptr, kNoLog},
    {"ContextsUnderLoad", {"contexts_under_load"}, 16, nullptr, kNoLog},
    {"KernelFunctionsUnderLoad", {"kernel_functions_under_load"}, 16, nullptr, kNoLog},
    {"Strangers", {"strangers"}, 16},
    {"SeveralContexts", {"several_contexts"}, 16},
    {"CapturesBesideEnds", {"captures_beside_ends"}, 16, nullptr, kNoLog},
    {"LibraryInSeveralContexts", {"library_in_several_contexts"}, 16},
    {"SeveralDevicesAlike", {"several_devices"}, 0, nullptr, {{"SIMCUDA_DEVICES", "90,90"}}},
    {"SeveralDevicesUnlike", {"several_devices"}, 0, nullptr, {{"SIMCUDA_DEVICES", "90,80"}}},
    {"DevicesAlikeKnownLate", {"devices_known_late"}, 0, kFaults, {{"SIMCUDA_DEVICES", "90,90"}}},
    {"DevicesUnlikeKnownLate", {"devices_known_late"}, 0, kFaults, {{"SIMCUDA_DEVICES", "90,80"}}},
    {"CancelledLaunches",
     {"cancelled_launches"},
     0,
     kHolds,
     {{"SIMCUDA_KERNELS", conform_path("libconform_hold.so")}, {"SIMCUDA_LOG", ""}}},
    {"ForkInALaunch",
     {"fork_in_a_launch"},
     12,
     kHolds,
     {{"SIMCUDA_KERNELS", conform_path("libconform_hold.so")}},
     1},
    {"SameNameOtherImage", {"same_name_other_image"}, 17},
    {"WrappedImage", {"wrapped_image"}, 0},
    {"WorkerWithoutPreload", {"worker_without_preload"}, 20},
    {"ExecAfterCuda", {"exec_after_cuda"}, 21},
    {"SpawnBeforeAndAfter", {"spawn_before_and_after"}, 21},
    {"DaemonClosesDescriptors", {"daemon_closes_descriptors"}, 0},
    {"DaemonClosesDescriptorsInUse",
     {"daemon_closes_descriptors", "used"},
     0,
     "a real driver needs its descriptors",
     {{"SIMCUDA_LOG", ""}}},
    {"ManyThreads", {"many_threads"}, 22},
    {"OutParameters", {"out_parameters"}, 25},
};

void PrintTo(const Row& row, std::ostream* out) { *out << row.name << ", fact " << row.fact; }

// The facts that other tests here are about, and those that are not the shim's.
constexpr struct {
  int fact;
  const char* where;
} kElsewhere[] = {
    {1, "SameAsWithout.Answers/before_init, Processes.WithoutADriverThereIsNone"},
    {7, "Beside.EverythingHolds"},
    {8, "SameAsWithout.Answers/dlerror_is_kept"},
    {9, "SameAsWithout.Answers/exact_names"},
    {19, "the command line's: fibshim run and doctor"},
    {23, "Sanitizers.FindNothing"},
    {24, "Images.AreKnown, OtherImages.AreLeftAlone"},
};

TEST(Facts, EachHasATest) {
  for (int fact = 1; fact <= 25; ++fact) {
    bool is_tested = false;
    for (const Row& row : kRows) is_tested = is_tested || row.fact == fact;
    for (const auto& other : kElsewhere) is_tested = is_tested || other.fact == fact;
    EXPECT_TRUE(is_tested) << "tools/doc/driver_facts.md, section 7, number " << fact;
  }
}

class EveryCase : public testing::TestWithParam<Row> {};

TEST_P(EveryCase, Holds) {
  const Row& row = GetParam();
  if (is_real_driver() && row.only_simulated != nullptr) {
    GTEST_SKIP() << "not for a real driver: " << row.only_simulated;
  }
  std::vector<std::string> command = {"conform"};
  command.insert(command.end(), row.words.begin(), row.words.end());
  const HostRun run(command, row.environment);
  if (run.was_skipped()) GTEST_SKIP() << run.process().out;
  run.expect_holds(row.messages);
  const std::string name = row.name;
  if (name.starts_with("Graph") || name.starts_with("Rewrite")) run.expect_all_executed();
}

INSTANTIATE_TEST_SUITE_P(Conformance, EveryCase, testing::ValuesIn(kRows), kByName);

TEST(Recordings, HaveTheClustersOfNodes) {
  if (is_real_driver()) GTEST_SKIP() << "an H200 refuses preferred clusters in graphs";
  const std::string folder = make_temporary_dir();
  const HostRun run({"conform", "graph_preferred_cluster"}, {{"FIBSHIM_RECORD", folder}});
  run.expect_holds();
  const std::string file = folder + "/recording.json";
  (void)exits(
      0, run_process({build_dir() + "/bin/fibshim", "record", "--from", folder, "-o", file}, {}));
  std::ifstream lines(file);
  std::string line;
  for (int i = 0; i < 2; ++i) std::getline(lines, line);  // the head, and the one kernel
  const nlohmann::json geometries = nlohmann::json::parse(line)["geometries"];
  ASSERT_EQ(geometries.size(), 1U) << geometries.dump();
  EXPECT_EQ(geometries[0]["cluster"], (nlohmann::json{2, 1, 1}));
}

TEST(UncheckedLaunches, AreCountedOfGraphsThatAreLeft) {
  if (is_real_driver()) GTEST_SKIP() << kFaults;
  const HostRun run({"conform", "check_graph_left"});
  run.expect_holds();
  // A sample that was made in time says of its node why there is no check of it.
  long unchecked = 0;
  const nlohmann::json stats = stats_json(run.stats_dir());
  for (const nlohmann::json& one : stats["shadow"]) {
    if (one["shape"] != "(graph)") continue;
    const nlohmann::json& reasons = one["not_checked"];
    unchecked += reasons["busy"].get<long>() + reasons["memory"].get<long>();
  }
  EXPECT_EQ(unchecked, 2);
}

TEST(ChecksInGraphs, TakeNoMoreMemoryThanTheyMay) {
  if (is_real_driver()) GTEST_SKIP() << kAsksWhatRan;
  const HostRun run(
      {"conform", "check_graphs_without_room"},
      {{"FIBSHIM_SHADOW", "1/1"}, {"FIBSHIM_SHADOW_MEMORY", "64k"}, {"SIMCUDA_LOG", ""}});
  run.expect_holds();
  const nlohmann::json stats = stats_json(run.stats_dir());
  long without_room = 0;
  for (const nlohmann::json& one : stats["shadow"]) {
    if (one["shape"] == "(graph)") without_room += one["not_checked"]["memory"].get<long>();
  }
  EXPECT_GE(without_room, 1) << stats["shadow"].dump();
}

TEST(ChecksInGraphs, AreMadeBesideANodeThatCannotBeChecked) {
  if (is_real_driver()) GTEST_SKIP() << kAsksWhatRan;
  const std::string config = make_temporary_dir() + "/config";
  std::filesystem::copy(conform_path("config"), config, std::filesystem::copy_options::recursive);
  for (const auto& [name, bytes] : {std::pair("large", 4096), {"huge", 8192}}) {
    std::ofstream(config + "/patterns/" + name + ".json") << nlohmann::json{
        {"label", name},
        {"benefit", 1},
        {"description", "A step whose parameters are in one struct."},
        {"match", {{"symbol", std::string("conform_") + name}, {"params", {bytes}}}},
        {"axes",
         {{"shape", {{"arg", 0}, {"offset", 8}, {"type", "int32"}}}, {"slots", {{"value", 8}}}}},
        {"arguments",
         {{"marks", {{"arg", 0}, {"offset", 0}, {"dtype", "int32"}}},
          {"value", {{"arg", 0}, {"offset", 12}, {"type", "int32"}}}}},
        {"writes", {"marks"}},
        {"definition", "conform_n{shape}"}};
  }
  const HostRun run({"conform", "check_graph_beside_unchecked"},
                    {{"FIBSHIM_CONFIG", config}, {"FIBSHIM_SHADOW", "1/1"}, {"SIMCUDA_LOG", ""}});
  run.expect_holds();
  long without_extent = 0;
  const nlohmann::json stats = stats_json(run.stats_dir());
  for (const nlohmann::json& one : stats["shadow"]) {
    without_extent += one["not_checked"]["extent"].get<long>();
  }
  EXPECT_EQ(without_extent, 1) << stats["shadow"].dump();
}

TEST(ChecksInGraphs, AreMadeOfRewrites) {
  if (is_real_driver()) GTEST_SKIP() << kAsksWhatRan;
  const HostRun run({"conform", "check_rewrite_of_cublas"},
                    {{"FIBSHIM_CONFIG", build_dir() + "/config/cublas"},
                     {"FIBSHIM_SHADOW", "1/1"},
                     {"SIMCUDA_LOG", ""}});
  run.expect_holds();
  const nlohmann::json stats = stats_json(run.stats_dir());
  EXPECT_EQ(stats["executions"]["hit"], 0);
  long checks = 0;
  for (const nlohmann::json& one : stats["shadow"]) {
    EXPECT_EQ(one["definition"], "gemm_n4096_k4096");
    EXPECT_EQ(one["mismatches"], 0);
    checks += one["checks"].get<long>();
  }
  EXPECT_GE(checks, 3);
}

std::set<std::string> checked_routings(const std::string& of_case, const std::string& folder) {
  const HostRun run({"conform", of_case},
                    {{"FIBSHIM_CONFIG", folder}, {"FIBSHIM_SHADOW", "1/1"}, {"SIMCUDA_LOG", ""}});
  run.expect_holds();
  const nlohmann::json stats = stats_json(run.stats_dir());
  std::set<std::string> checked;
  for (const nlohmann::json& one : stats["shadow"]) {
    if (one["checks"] > 0) checked.insert(one["definition"]);
    EXPECT_EQ(one["mismatches"], 0);
  }
  return checked;
}

TEST(ChecksInGraphs, AreMadeOfVllmsRoutingButForWhatHasAnyOrder) {
  if (is_real_driver()) GTEST_SKIP() << kAsksWhatRan;
  EXPECT_EQ(
      checked_routings("check_rewrite_of_vllm_routing", build_dir() + "/config/vllm"),
      (std::set<std::string>{"moe_routing_e128_k8_b16_n1", "moe_routing_small_e8_k2_b64_n1"}));
}

TEST(ChecksInGraphs, AreMadeOfSglangsRoutingButForWhatMayVary) {
  if (is_real_driver()) GTEST_SKIP() << kAsksWhatRan;
  EXPECT_EQ(checked_routings("check_rewrite_of_sglang_routing", conform_path("sglang_config")),
            (std::set<std::string>{"moe_routing_by_logit_e128_k8_b16_n1"}));
}

TEST(LostContexts, AreReportedOnceEachWithTheReplacementsThatRan) {
  if (is_real_driver()) GTEST_SKIP() << kFaults;
  const HostRun run({"conform", "lost_contexts"});
  run.expect_holds();
  const std::vector<std::string> messages = run.messages();
  ASSERT_EQ(messages.size(), 5u) << run.process().err;
  const char* const kParts[] = {"cuModuleGetFunction returns CUDA_ERROR_ILLEGAL_ADDRESS (700)",
                                "no replacement has run there",
                                "cuModuleGetFunction returns CUDA_ERROR_ILLEGAL_ADDRESS (700)",
                                "replacements that have run there: conform_n1 (solution ",
                                "compute-sanitizer or CUDA_LAUNCH_BLOCKING=1"};
  for (size_t i = 0; i < messages.size(); ++i) {
    EXPECT_CONTAINS(messages[i], kParts[i]);
  }
}

}  // namespace
}  // namespace fibshim::conformance
