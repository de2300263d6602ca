"""hogwild."""
