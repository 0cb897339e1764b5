"""The manual and README: their code runs, their commands exist, their reference is complete."""
