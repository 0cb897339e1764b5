"""Which networks are alike inside: two tasks, three architectures, several seeds, and several distances."""
