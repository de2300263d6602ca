"""Any optimizer as a step from one place in shared memory into another."""
