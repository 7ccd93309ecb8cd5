// The marks of the kernels of conform_kernels.cu: indexes into an array of uint32. Used by device
// code and host code alike.
#pragma once

enum Mark {
  kMarkStep,      // conform_step: the original of the pattern, or the second image's
  kMarkFree,      // conform_free
  kMarkOther,     // conform_other
  kMarkCurated1,  // curated_n1 to curated_n6; shape 4 uses curated_n2
  kMarkCurated2,
  kMarkCurated3,
  kMarkSplit,  // conform_split and conform_join, and the kernel that replaces both
  kMarkJoin,
  kMarkJoined,
  kMarkCurated5,
  kMarkCurated6,
  kMarkLarge,  // conform_large
  kMarkCount,
  kLastValue = kMarkCount,  // the value that the last kernel was given
  kMarksSize,
};
