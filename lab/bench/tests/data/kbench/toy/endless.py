# Writes a line without an end to every pipe that it finds, as if it had an answer.
import os
import stat

pipes = []
for descriptor in range(3, 32):
    try:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode) and os.write(descriptor, b"x"):
            pipes.append(descriptor)
    except OSError:
        pass
while True:
    for descriptor in pipes:
        os.write(descriptor, b"x" * 65536)
