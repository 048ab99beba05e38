"""`inputs(spec)`: pools of images and texts, batches, corruptions."""
