"""C++ sources for Vitis HLS, which g++ builds too. Experimental: Vitis never read them, no card ran them."""
