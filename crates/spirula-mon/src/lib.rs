//! The monitor: maps, commands, subscriptions, health; a state machine and its store.
