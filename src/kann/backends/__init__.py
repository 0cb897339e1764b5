"""The array libraries and the ways to spread work: numpy and torch arrays, Dask, torch.distributed."""
