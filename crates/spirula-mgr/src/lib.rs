//! The manager: PG statistics, rates, and the commands that report them.
