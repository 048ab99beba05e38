"""The papers' numbers and claims, and the verdicts on them."""
