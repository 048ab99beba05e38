"""What the papers print and claim, and from numbers to a verdict."""
