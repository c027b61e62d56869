import ctypes
import sys

library, source, to, *options = sys.argv[1:]
nvrtc = ctypes.CDLL(library)
with open(source, "rb") as file:
    text = file.read()
program, size = ctypes.c_void_p(), ctypes.c_size_t()
given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))


def call(name, *arguments):
    status = getattr(nvrtc, name)(*arguments)
    if status and name != "nvrtcCompileProgram":
        sys.exit(f"{name} failed with {status}")
    return status


def text_of(kind):
    call(f"nvrtcGet{kind}Size", program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    call(f"nvrtcGet{kind}", program, buffer)
    return buffer.value


call("nvrtcCreateProgram", ctypes.byref(program), text, source.encode(), 0, None, None)
status = call("nvrtcCompileProgram", program, len(options), given)
sys.stderr.buffer.write(text_of("ProgramLog"))
if status:
    sys.exit(1)
with open(to, "wb") as file:
    file.write(text_of("PTX"))
