// Where each kernel of conform_kernels.cu leaves its mark: indexes into an array of uint32.
// Read by device code and host code alike.
#pragma once

enum Mark {
  kMarkStep,      // conform_step: the original of the pattern, or the second image's
  kMarkFree,      // conform_free
  kMarkOther,     // conform_other
  kMarkCurated1,  // curated_n1 to curated_n6, but that the fourth is the second
  kMarkCurated2,
  kMarkCurated3,
  kMarkSplit,  // conform_split and conform_join, and what runs in their place
  kMarkJoin,
  kMarkJoined,
  kMarkCurated5,
  kMarkCurated6,
  kMarkCount,
  kLastValue = kMarkCount,  // the value that the last kernel was given
  kMarksSize,
};
