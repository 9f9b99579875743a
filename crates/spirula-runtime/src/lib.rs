//! Sockets, clocks and links: runs the messenger over TCP and, inside one process, over memory.
