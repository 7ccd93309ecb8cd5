#include "loader/check/images.h"

#include <sys/stat.h>

#include <algorithm>

#include "loader/compile/bind.h"
#include "loader/read/fatbin_payload.h"

namespace fibshim {
namespace {

constexpr size_t kMaxImageAheadBytes = 16 << 20;  // a larger image is not read ahead
constexpr size_t kMaxKeptBytes = 4 << 20;         // of a buffer
constexpr size_t kImagesPerThread = 8;
constexpr size_t kMostBadEntriesTold = 4;  // per fatbin

Result<void> read_entry(const FatbinEntry& entry, std::string* memory, ImageFacts* facts) {
  const auto raw = unpack_payload(entry, memory);
  if (!raw) return tl::unexpected(raw.error());
  if (entry.kind == FatbinEntryKind::elf) {
    auto cubin = read_cubin(*raw);
    if (!cubin) return tl::unexpected(std::move(cubin.error()));
    facts->cubins.push_back(std::move(*cubin));
  } else {
    auto ptx = read_ptx(*raw);
    if (!ptx) return tl::unexpected(std::move(ptx.error()));
    facts->ptx.push_back(std::move(*ptx));
  }
  return {};
}

void read_facts(std::string_view bytes, ImageKind kind, ImageFacts* facts) {
  // Returns false after setting format_error if the bytes could not be read as that kind.
  const auto add = [&](auto read, auto* out) {
    if (read) {
      out->push_back(std::move(*read));
    } else {
      facts->format_error = std::move(read.error());
    }
    return read.has_value();
  };
  const auto tell_sm = [&](const auto& image) {
    facts->sm = image.sm;
    facts->scope = image.scope;
  };
  switch (kind) {
    case ImageKind::cubin:
      if (add(read_cubin(bytes), &facts->cubins)) tell_sm(facts->cubins[0]);
      return;
    case ImageKind::ptx:
      if (add(read_ptx(bytes), &facts->ptx)) tell_sm(facts->ptx[0]);
      return;
    case ImageKind::fatbin: break;
  }
  const auto fatbin = read_fatbin(bytes);
  if (!fatbin) {
    facts->format_error = fatbin.error();
    return;
  }
  // An entry that cannot be read serves no GPU, but does not affect the other entries.
  std::string memory;
  uint64_t budget = kMaxImageBytes;  // of all entries together: a few bytes may unpack to that
  for (size_t i = 0; i < fatbin->entries.size(); ++i) {
    const FatbinEntry& entry = fatbin->entries[i];
    if (entry.kind == FatbinEntryKind::other) {
      facts->has_unreadable_entries = true;
      continue;
    }
    const uint64_t raw_bytes =
        entry.compression == FatbinCompression::none ? entry.stored_bytes : entry.raw_bytes;
    const bool is_affordable = raw_bytes <= budget;
    const Result<void> read =
        is_affordable ? read_entry(entry, &memory, facts)
                      : fail(ErrorCode::invalid_image, "the entries unpack to too many bytes");
    if (read) {
      budget -= raw_bytes;
      continue;
    }
    const std::string problem = "entry " + std::to_string(i) + " (sm_" + std::to_string(entry.sm) +
                                ") cannot be read: " + read.error().message;
    if (++facts->bad_entry_count <= kMostBadEntriesTold) {
      facts->bad_entries += (facts->bad_entries.empty() ? "" : "; ") + problem;
    }
  }
  if (facts->bad_entry_count == fatbin->entries.size()) {
    facts->format_error = Error{ErrorCode::invalid_image, facts->bad_entries};
  }
  facts->has_unreadable_entries |= facts->bad_entry_count != 0;
}

// Returns the NN of "sm_NN" in the file's name, or 0 if there is none.
uint16_t sm_in_name(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  const size_t at = name.find("sm_");
  if (at == std::string_view::npos) return 0;
  uint32_t sm = 0;
  for (size_t i = at + 3; i < name.size() && name[i] >= '0' && name[i] <= '9' && sm < 1000; ++i) {
    sm = sm * 10 + static_cast<uint32_t>(name[i] - '0');
  }
  return static_cast<uint16_t>(sm);
}

// Knows a definition's constant axes and no other names.
class ConstAxes : public Scope {
 public:
  explicit ConstAxes(const Definition* definition) : definition_(definition) {}

  std::optional<Meaning> find(std::string_view name) const override {
    const DefinitionAxis* const axis =
        definition_ == nullptr ? nullptr : definition_->find_axis(name);
    if (axis == nullptr || !axis->is_const) return std::nullopt;
    return Meaning{Source::constant(axis->value)};
  }
  std::vector<std::string_view> names() const override { return {}; }

 private:
  const Definition* definition_;
};

class ImageChecker {
 public:
  ImageChecker(SolutionSpec* solution, const Definition* definition, ImageStore* store,
               Diagnostics* diagnostics)
      : solution_(solution), definition_(definition), store_(store), diagnostics_(diagnostics) {}

  void check() {
    for (SolutionImage& image : solution_->images) check_image(&image);
    report_repeated_sms();
    std::stable_sort(solution_->images.begin(), solution_->images.end(),
                     [](const SolutionImage& a, const SolutionImage& b) {
                       if (a.kind != b.kind) return a.kind < b.kind;
                       if (a.sm != b.sm) return a.sm > b.sm;
                       return a.scope == ArchScope::arch_specific &&
                              b.scope != ArchScope::arch_specific;
                     });
    if (solution_->has_params) check_arguments();
  }

 private:
  void broken(ErrorCode code, Rule rule, Mark mark, std::string message, std::string hint = {}) {
    if (solution_->error_code == ErrorCode::success) {
      solution_->error_code = code;
      solution_->error_message = message;
    }
    diagnostics_->add(rule, mark, std::move(message), std::move(hint));
  }

  static bool is_mislabelled(const SolutionImage& image) {
    const uint16_t stated = sm_in_name(image.relative);
    return image.kind == ImageKind::cubin && stated != 0 && stated != image.sm;
  }

  void check_image(SolutionImage* image) {
    const ImageFacts& facts = store_->facts(image->relative, image->kind);
    const std::string name = "image " + in_quotes(image->path.text);
    image->sm = facts.sm;
    image->scope = facts.scope;
    if (facts.leaves_folder) {
      diagnostics_->add(Rule::image_path, image->path.mark,
                        name + " leaves the config folder through a link");
      return;
    }
    if (facts.read_error) {
      broken(facts.read_error->code, Rule::image_missing, image->path.mark,
             name + ": " + facts.read_error->message);
      image->sm = image->kind == ImageKind::cubin ? sm_in_name(image->relative) : 0;
      return;
    }
    if (!facts.unsigned_reason.empty()) {
      diagnostics_->add(Rule::signature, image->path.mark, name + ": " + facts.unsigned_reason);
      return;
    }
    if (facts.hash != image->hash) {
      broken(
          ErrorCode::invalid_image, Rule::image_sha256, image->hash_mark,
          name + " has the SHA-256 " + sha256_hex(facts.hash) + ", not " + sha256_hex(image->hash));
    }
    if (facts.format_error) {
      broken(ErrorCode::invalid_image, Rule::image_invalid, image->path.mark,
             name + ": " + facts.format_error->message);
      image->sm = image->kind == ImageKind::cubin ? sm_in_name(image->relative) : 0;
      return;
    }
    if (is_mislabelled(*image)) {
      broken(ErrorCode::no_binary_for_gpu, Rule::image_sm, image->path.mark,
             name + " is for " + arch_name(facts.sm, facts.scope) + ", not for sm_" +
                 std::to_string(sm_in_name(image->relative)) + " as its name says");
    }
    if (facts.bad_entry_count != 0) report_bad_entries(*image, facts, name);
    check_kernel(*image, facts, name);
  }

  void report_bad_entries(const SolutionImage& image, const ImageFacts& facts,
                          const std::string& name) {
    std::string message = name + ": " + facts.bad_entries;
    if (facts.bad_entry_count > kMostBadEntriesTold) {
      message += "; and " + std::to_string(facts.bad_entry_count - kMostBadEntriesTold) + " more";
    }
    diagnostics_->add(Rule::unreadable_entry, image.path.mark, std::move(message));
  }

  void check_kernel(const SolutionImage& image, const ImageFacts& facts, const std::string& name) {
    const std::string& wanted = solution_->kernel.name;
    bool is_found = false;
    for (const CubinInfo& cubin : facts.cubins) {
      const CubinKernel* const kernel = cubin.find_kernel(wanted);
      if (kernel == nullptr) continue;
      is_found = true;
      check_launch(cubin, *kernel, name);
      if (cubin.sm >= 90 && !kernel->has_wait && solution_->image_without_wait.empty()) {
        solution_->image_without_wait = image.path.text;
      }
      match_params(*kernel, name);
    }
    for (const PtxInfo& ptx : facts.ptx) {
      const auto at = std::find(ptx.kernels.begin(), ptx.kernels.end(), wanted);
      if (at == ptx.kernels.end()) continue;
      is_found = true;
      check_param_count(ptx.param_counts[static_cast<size_t>(at - ptx.kernels.begin())], name);
    }
    if (is_found || facts.has_unreadable_entries) return;
    std::vector<std::string_view> known;
    for (const CubinInfo& cubin : facts.cubins) {
      for (const CubinKernel& kernel : cubin.kernels) known.push_back(kernel.name);
    }
    for (const PtxInfo& ptx : facts.ptx) {
      known.insert(known.end(), ptx.kernels.begin(), ptx.kernels.end());
    }
    std::string hint;
    if (known.empty()) {
      hint = "it has no kernel at all";
    } else if (known.size() <= 8) {
      hint = "it has " + list_words(known);
    } else if (known.size() <= 256) {
      const std::string_view nearest = nearest_word(wanted, known);
      if (!nearest.empty()) hint = "did you mean " + in_quotes(nearest) + "?";
    }
    broken(ErrorCode::not_found, Rule::kernel_missing, solution_->kernel.mark,
           name + " has no kernel " + in_quotes(wanted), hint);
  }

  // The PTX reader only counts parameters; the driver checks their sizes.
  void check_param_count(uint32_t count, const std::string& name) {
    if (count == solution_->arguments.size()) return;
    broken(ErrorCode::invalid_value, Rule::kernel_params, solution_->arguments_mark,
           "kernel " + in_quotes(solution_->kernel.name) + " of " + name + " takes " +
               std::to_string(count) + " parameters, \"arguments\" has " +
               std::to_string(solution_->arguments.size()));
  }

  // Keeps the first image's parameters, and compares those of the other images with them.
  void match_params(const CubinKernel& kernel, const std::string& name) {
    if (!solution_->has_params) {
      solution_->has_params = true;
      solution_->params = kernel.params;
      return;
    }
    const bool is_same =
        std::equal(kernel.params.begin(), kernel.params.end(), solution_->params.begin(),
                   solution_->params.end(), [](const KernelParam& a, const KernelParam& b) {
                     return a.size == b.size && a.offset == b.offset;
                   });
    if (!is_same) {
      broken(ErrorCode::invalid_value, Rule::kernel_params, solution_->arguments_mark,
             "kernel " + in_quotes(solution_->kernel.name) + " of " + name +
                 " takes other parameters than that of the images before");
    }
  }

  // Returns a geometry value if it is a constant whatever the pattern, and in range.
  std::optional<int64_t> constant(uint32_t index) const {
    const Expression& expression = solution_->geometry[index].expression;
    if (solution_->geometry[index].is_number) return number(index, expression.node(0).integer);
    const ConstAxes scope(definition_);
    const auto compiled = compile_value(expression, scope);
    return compiled && compiled->constant ? number(index, *compiled->constant) : std::nullopt;
  }

  // check_names() reports a value out of range.
  static std::optional<int64_t> number(uint32_t index, int64_t value) {
    std::string why;
    return is_geometry_in_range(index, value, &why) ? std::optional(value) : std::nullopt;
  }

  void check_launch(const CubinInfo& cubin, const CubinKernel& kernel, const std::string& name) {
    const auto dims = [](int64_t x, int64_t y, int64_t z) {
      return std::to_string(x) + " x " + std::to_string(y) + " x " + std::to_string(z);
    };
    const auto fault = [&](uint32_t index, const std::string& message) {
      broken(ErrorCode::invalid_value, Rule::kernel_geometry, solution_->geometry[index].text.mark,
             "kernel " + in_quotes(kernel.name) + " of " + name + " " + message);
    };
    if (kernel.max_threads != 0) {
      uint32_t& most = solution_->max_threads;
      most = most == 0 ? kernel.max_threads : std::min<uint32_t>(most, kernel.max_threads);
    }
    const auto x = constant(kBlockX);
    const auto y = constant(kBlockY);
    const auto z = constant(kBlockZ);
    if (x && y && z && *x * *y * *z <= kMaxBlockThreads) {
      const int64_t threads = *x * *y * *z;
      const Dim3& required = kernel.required_threads;
      if (kernel.max_threads != 0 && threads > kernel.max_threads) {
        fault(kBlockX, "takes at most " + std::to_string(kernel.max_threads) +
                           " threads in a block, not " + dims(*x, *y, *z));
      } else if (required.x != 0 && (required.x != *x || required.y != *y || required.z != *z)) {
        fault(kBlockX, "takes blocks of " + dims(required.x, required.y, required.z) + ", not " +
                           dims(*x, *y, *z));
      }
    }
    const auto cx = constant(kClusterX);
    const auto cy = constant(kClusterY);
    const auto cz = constant(kClusterZ);
    const Dim3& cluster = kernel.required_cluster;
    if (solution_->has_cluster && cx && cy && cz && cluster.x != 0 &&
        (cluster.x != *cx || cluster.y != *cy || cluster.z != *cz)) {
      fault(kClusterX, "takes clusters of " + dims(cluster.x, cluster.y, cluster.z) + ", not " +
                           dims(*cx, *cy, *cz));
    }
    const uint32_t blocks[] = {cluster.x, cluster.y, cluster.z};
    for (uint32_t i = 0; i < 3 && cluster.x != 0 && !solution_->has_cluster; ++i) {
      std::string why;
      const auto grid = constant(kGridX + i);
      if (grid && blocks[i] != 0 && !is_whole_clusters(kGridX + i, *grid, blocks[i], &why)) {
        fault(kGridX + i,
              "takes clusters of " + dims(cluster.x, cluster.y, cluster.z) + ": " + why);
      }
    }
    const auto dynamic = constant(kSharedMem);
    // From sm_90 on the static size includes the reserve of 1 KB.
    const int64_t limit = kMaxSharedMemBytes + (cubin.sm >= 90 ? 1024 : 0);
    if (dynamic && *dynamic + int64_t{kernel.static_shared_bytes} > limit) {
      fault(kSharedMem, "has " + std::to_string(kernel.static_shared_bytes) +
                            " bytes of static shared memory; with " + std::to_string(*dynamic) +
                            " more, a block has more than any GPU gives");
    }
  }

  // Compares the sizes of the definition's axes and arguments with the parameters. Arguments that
  // patterns supply are checked when a pattern is bound.
  void check_arguments() {
    const auto& arguments = solution_->arguments;
    const auto& params = solution_->params;
    const std::string kernel = "kernel " + in_quotes(solution_->kernel.name);
    if (arguments.size() != params.size()) {
      broken(ErrorCode::invalid_value, Rule::kernel_params, solution_->arguments_mark,
             kernel + " takes " + std::to_string(params.size()) +
                 " parameters, \"arguments\" has " + std::to_string(arguments.size()));
      return;
    }
    if (definition_ == nullptr) return;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const std::string& name = arguments[i].name;
      const uint32_t size = params[i].size;
      const auto fault = [&](const std::string& found) {
        std::string message = kernel;
        message.append(" takes ").append(std::to_string(size)).append(" bytes for ");
        message.append(in_quotes(name)).append(", but it is ").append(found);
        broken(ErrorCode::invalid_value, Rule::kernel_params, arguments[i].mark,
               std::move(message));
      };
      const bool holds_integer = size == 1 || size == 2 || size == 4 || size == 8;
      const DefinitionAxis* const axis = definition_->find_axis(name);
      const DefinitionArgument* const argument = definition_->find_argument(name);
      if (axis != nullptr) {
        if (!holds_integer) {
          fault("an axis, an integer");
        } else if (axis->is_const && !fits_in_bytes(axis->value, size)) {
          fault("the axis " + std::to_string(axis->value));
        }
      } else if (argument != nullptr && !argument->is_scalar) {
        if (size != 8) fault("a tensor, a pointer of 8 bytes");
      } else if (argument != nullptr) {
        const ValueType type = kDtypes[argument->dtype].scalar;
        if (is_floating(type) ? size != size_of(type) : !holds_integer) {
          fault(std::string("a scalar of ") + kDtypes[argument->dtype].name);
        }
      }
    }
  }

  void report_repeated_sms() {
    const auto& images = solution_->images;
    for (size_t i = 0; i < images.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (images[i].kind != images[j].kind || images[i].sm != images[j].sm ||
            images[i].scope != images[j].scope) {
          continue;
        }
        // A mislabelled image has been reported, and that error alone breaks the solution.
        if (is_mislabelled(images[i]) || is_mislabelled(images[j])) continue;
        // The SM of unreadable cubins is unknown if their names do not state it.
        if (images[i].kind != ImageKind::fatbin && images[i].sm == 0) continue;
        const std::string what = images[i].kind == ImageKind::fatbin
                                     ? "two fatbins"
                                     : "two images for " + arch_name(images[i].sm, images[i].scope);
        diagnostics_->add(Rule::duplicate_image, images[i].path.mark,
                          what + ": " + in_quotes(images[j].path.text) + " and " +
                              in_quotes(images[i].path.text));
        break;
      }
    }
  }

  SolutionSpec* solution_;
  const Definition* definition_;
  ImageStore* store_;
  Diagnostics* diagnostics_;
};

}  // namespace

ImageStore::ImageStore(const FolderListing& listing, const SignedManifest* manifest)
    : listing_(listing), manifest_(manifest), buffers_(kMaxKeptBytes) {}

void ImageStore::start() {
  ahead_.emplace(expected_.size(), kImagesPerThread, [this](size_t i) {
    Facts made = read(expected_[i].first, expected_[i].second, kMaxImageAheadBytes);
    return made->read_error ? nullptr : std::make_unique<Facts>(std::move(made));
  });
}

const ImageFacts& ImageStore::facts(const std::string& relative, ImageKind kind) {
  // The kind follows from the path's extension, so the path alone is the key.
  auto& entry = facts_[relative];
  if (entry != nullptr) return *entry;
  while (entry == nullptr && asked_ < expected_.size()) {
    const size_t place = asked_++;
    if (expected_[place].first != relative) continue;
    if (const auto made = ahead_->fetch(place)) entry = *made;
    break;
  }
  if (entry == nullptr) entry = read(relative, kind, kMaxImageBytes);
  return *entry;
}

ImageStore::Facts ImageStore::read(const std::string& relative, ImageKind kind, size_t max_bytes) {
  const auto file = listing_.root.open_to_read(relative);
  if (!file) {
    const auto facts = std::make_shared<ImageFacts>();
    facts->leaves_folder = file.error().code == ErrorCode::invalid_value;
    facts->read_error = file.error();
    return facts;
  }
  struct stat status {};
  // With a manifest, whether an image is signed depends on its path.
  if (manifest_ != nullptr || fstat(file->get(), &status) != 0) {
    return read_opened(*file, relative, kind, max_bytes);
  }
  const FileKey key(status.st_dev, status.st_ino, status.st_ctim.tv_sec, status.st_ctim.tv_nsec,
                    kind, max_bytes);
  SharedFile* shared;
  {
    const std::lock_guard lock(mutex_);
    shared = &shared_[key];
  }
  const std::lock_guard lock(shared->reading);
  // An error names the path, so another path has its own.
  if (shared->facts == nullptr || shared->facts->read_error) {
    shared->facts = read_opened(*file, relative, kind, max_bytes);
  }
  return shared->facts;
}

ImageStore::Facts ImageStore::read_opened(const FileDescriptor& file, const std::string& relative,
                                          ImageKind kind, size_t max_bytes) {
  const auto entry = std::make_shared<ImageFacts>();
  auto content = listing_.root.read_opened(file, relative, max_bytes, buffers_.take());
  if (!content) {
    entry->read_error = content.error();
    return entry;
  }
  const std::string& bytes = content->bytes;
  entry->stamp = content->stamp;
  entry->size_bytes = bytes.size();
  entry->hash = sha256(bytes);
  if (manifest_ != nullptr) {
    entry->unsigned_reason = manifest_->difference(relative, bytes.size(), entry->hash);
    if (!entry->unsigned_reason.empty()) return entry;
  }
  if (is_lfs_pointer(bytes)) {
    entry->read_error = Error{ErrorCode::invalid_image, kLfsPointer};
    return entry;
  }
  read_facts(bytes, kind, entry.get());
  buffers_.give(std::move(content->bytes));
  return entry;
}

void check_images(SolutionSpec* solution, const Definition* definition, ImageStore* store,
                  Diagnostics* diagnostics) {
  ImageChecker(solution, definition, store, diagnostics).check();
}

}  // namespace fibshim
