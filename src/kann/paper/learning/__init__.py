"""When a network learns to remember: eigenvalues, loss and gradients during training."""
