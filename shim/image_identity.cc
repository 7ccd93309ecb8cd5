#include "shim/image_identity.h"

#include <elf.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/handles.h"
#include "shim/mutex.h"
#include "shim/pool.h"
#include "shim/recorder.h"
#include "shim/runtime.h"

namespace fibshim {
namespace {

struct Identity {
  uintptr_t owner;
  Identity* next;      // in its bucket
  const void* region;  // of a wrapper, not hashed yet; null once `image` holds
  ImageIdentity image;
};

constexpr uint32_t kWrapperMagic = 0x466243b1;
constexpr uint32_t kFatbinMagic = 0xba55ed50;
constexpr uint32_t kBucketCount = 1024;

Mutex g_lock;  // guards the buckets
Pool g_pool;
Identity* g_buckets[kBucketCount];

Identity** bucket_of(uintptr_t owner) { return &g_buckets[hash_handle(owner) >> 54]; }
static_assert(kBucketCount == 1u << 10);

// Holding g_lock.
Identity** find_identity(uintptr_t owner) {
  Identity** at = bucket_of(owner);
  while (*at != nullptr && (*at)->owner != owner) at = &(*at)->next;
  return at;
}

template <class T>
T read_at(const void* image, uint64_t offset) {
  T value;
  memcpy(&value, static_cast<const char*>(image) + offset, sizeof value);
  return value;
}

uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

// The length of an ELF file in memory, which its headers tell. The driver has just read it whole.
uint64_t elf_bytes(const void* image) {
  const auto header = read_at<Elf64_Ehdr>(image, 0);
  uint64_t end =
      later(sizeof header, header.e_shoff + uint64_t{header.e_shnum} * header.e_shentsize);
  end = later(end, header.e_phoff + uint64_t{header.e_phnum} * header.e_phentsize);
  for (uint32_t i = 0; i < header.e_shnum; ++i) {
    const auto section =
        read_at<Elf64_Shdr>(image, header.e_shoff + uint64_t{i} * sizeof(Elf64_Shdr));
    if (section.sh_type != SHT_NOBITS) end = later(end, section.sh_offset + section.sh_size);
  }
  return end;
}

// The fat binary's header says how much follows it.
uint64_t fatbin_bytes(const void* image) {
  return read_at<uint16_t>(image, 6) + read_at<uint64_t>(image, 8);
}

// By the first bytes. PTX is text: comments and directives.
RecordedImage kind_of_image(const void* image) {
  if (memcmp(image, ELFMAG, SELFMAG) == 0) return RecordedImage::cubin;
  if (read_at<uint32_t>(image, 0) == kFatbinMagic) return RecordedImage::fatbin;
  const char first = *static_cast<const char*>(image);
  const bool is_text = first == '/' || first == '.' || first == '\n' || first == '\r' ||
                       first == ' ' || first == '\t';
  return is_text ? RecordedImage::ptx : RecordedImage::unknown;
}

bool identify(const void* image, ImageIdentity* out) {
  uint64_t bytes = 0;
  out->kind = kind_of_image(image);
  switch (out->kind) {
    case RecordedImage::unknown: return false;
    case RecordedImage::cubin: bytes = elf_bytes(image); break;
    case RecordedImage::fatbin: bytes = fatbin_bytes(image); break;
    case RecordedImage::ptx: bytes = strlen(static_cast<const char*>(image)); break;
  }
  loader().hash_image(image, bytes, &out->hash);
  return true;
}

void remember(uintptr_t owner, const void* region, const ImageIdentity& image) {
  auto* identity = static_cast<Identity*>(g_pool.allocate(sizeof(Identity)));
  if (identity == nullptr) return;
  identity->owner = owner;
  identity->region = region;
  identity->image = image;
  MutexGuard guard(g_lock);
  Identity** at = find_identity(owner);
  if (*at != nullptr) {
    identity->next = (*at)->next;
    g_pool.release(*at, sizeof(Identity));
  }
  *at = identity;
}

}  // namespace

void note_image(uintptr_t owner, const void* image) {
  if (image == nullptr || !has_started()) return;
  ImageIdentity identity = {};
  if (read_at<uint32_t>(image, 0) == kWrapperMagic) {
    remember(owner, read_at<const void*>(image, 8), identity);
  } else if (identify(image, &identity)) {
    remember(owner, nullptr, identity);
  } else {
    forget_image(owner);  // the value may have been another module's
  }
}

void note_image_file(uintptr_t owner, const char* path) {
  if (path == nullptr || !has_started()) return;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  struct stat status;
  void* bytes = MAP_FAILED;
  if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
    bytes = mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, file, 0);
  }
  close(file);
  if (bytes == MAP_FAILED) return;
  ImageIdentity identity = {};
  if (status.st_size >= 4) identity.kind = kind_of_image(bytes);
  loader().hash_image(bytes, static_cast<size_t>(status.st_size), &identity.hash);
  munmap(bytes, static_cast<size_t>(status.st_size));
  remember(owner, nullptr, identity);
}

void forget_image(uintptr_t owner) {
  MutexGuard guard(g_lock);
  Identity** at = find_identity(owner);
  Identity* identity = *at;
  if (identity == nullptr) return;
  *at = identity->next;
  g_pool.release(identity, sizeof(Identity));
}

bool find_image(uintptr_t owner, ImageIdentity* out) {
  const void* region = nullptr;
  {
    MutexGuard guard(g_lock);
    const Identity* identity = *find_identity(owner);
    if (identity == nullptr) return false;
    region = identity->region;
    *out = identity->image;
  }
  if (region == nullptr) return true;
  if (!identify(region, out)) return false;
  remember(owner, nullptr, *out);
  return true;
}

void lock_image_identity_for_fork() {
  g_lock.lock();
  g_pool.lock_for_fork();
}

void unlock_image_identity_after_fork(bool is_child) {
  g_pool.unlock_after_fork(is_child);
  g_lock.unlock_after_fork(is_child);
}

}  // namespace fibshim
