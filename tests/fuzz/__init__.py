"""Damaged files, wrong arguments and kills, all drawn from one seed; ``make fuzz`` runs many of them."""
