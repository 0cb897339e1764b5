"""The array libraries and the ranks of torch.distributed."""
