"""What holds for every test."""

import signal

# A shell starts background jobs with this signal ignored, and children inherit that: a program that a test interrupts
# would go on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
