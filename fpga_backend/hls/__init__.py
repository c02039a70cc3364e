"""C++ sources for Vitis HLS, which g++ builds too."""
