"""The N-class counting task of Aitken et al. (2020): N classes need N − 1 dimensions."""
