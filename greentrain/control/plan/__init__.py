"""The plan of a training, made and followed in its own process."""
