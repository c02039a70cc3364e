"""From a PyTorch model to a program, by torch.export."""
