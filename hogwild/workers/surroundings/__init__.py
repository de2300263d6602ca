"""What surrounds a worker: settings of torch, generators and the interpreter, which all threads of a process share.

bit_flags, vector_math, scripted      what of torch decides bits: its flags, MKL's code path, TorchScript as written
torch_threads, blas_threads, no_grad  how many threads torch computes with, and NumPy; whether torch records
own_generators, shared_generator      random generators, of a process and of all threads
interpreter, shared_code, allocator   the GIL, what threads write to without it, and large blocks of memory
"""
