"""Numbers that must not change while the code around them does: recorded once, compared ever after."""
