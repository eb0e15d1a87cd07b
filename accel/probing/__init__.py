"""Reading a machine: one file per kind of fact, one function per operating system. Nothing here decides what to use."""
