"""What bench/peers.py is made of. problems: what is computed; truth: whether a result is right; contenders, flash3: who
computes it; timing: how long it takes; table: where the figures go; parts: which problems meet which contenders; host:
what a plan and a call cost the host."""
