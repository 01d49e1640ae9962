"""Python face of the C++ kernels. Each operation has a slow reference in plain torch or numpy beside it."""
