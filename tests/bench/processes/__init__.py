"""Between a bench and the processes it starts: numbers in a file, and the address of a receiver."""
