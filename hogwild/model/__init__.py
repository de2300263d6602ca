"""The caller's module: taken apart, and put on shared bytes.

anatomy          what is trained, what is constant, what is buffered; and what cannot be trained here
replica          a worker's copy, whose parameters are views of a slot
row_parameter    a parameter of it that is read by rows, at a version
computed         weights that torch's hooks compute before a forward pass
buffers          what becomes of a buffer that others have changed meanwhile
"""
