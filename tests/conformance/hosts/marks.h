// Where each kernel of conform_kernels.cu leaves its mark: indexes into an array of uint32.
// Read by device code and host code alike.
#ifndef FIBSHIM_TESTS_CONFORMANCE_HOSTS_MARKS_H_
#define FIBSHIM_TESTS_CONFORMANCE_HOSTS_MARKS_H_

enum Mark {
  kMarkStep,      // conform_step: the original of the pattern, or the second image's
  kMarkFree,      // conform_free
  kMarkOther,     // conform_other
  kMarkCurated1,  // curated_n1 to curated_n3
  kMarkCurated2,
  kMarkCurated3,
  kMarkCount,
  kLastValue = kMarkCount,  // the value that the last kernel was given
  kMarksSize,
};

#endif  // FIBSHIM_TESTS_CONFORMANCE_HOSTS_MARKS_H_
