// libconform_private.so: is in a folder that only libconform_chain_a.so's run path names.
extern "C" __attribute__((visibility("default"))) int conform_private() { return 1; }
