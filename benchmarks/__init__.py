"""Speed, shown as ratios inside one run; never part of a timed test."""
