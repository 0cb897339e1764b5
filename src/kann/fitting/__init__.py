"""From second moments of states to the operator, its eigenvalues and its eigenvectors."""
