"""What holds for every test."""

import os
import signal

# A shell starts background jobs with this signal ignored, and children inherit that: a program that a test interrupts
# would go on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A theme, a folder of figures or a cache that the person has set for their own work is not what the tests are about.
for name in [name for name in os.environ if name.startswith("WORKBENCH_")]:
    del os.environ[name]
