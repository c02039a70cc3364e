"""The HLS sources built by g++ and run as a device."""
