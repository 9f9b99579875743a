//! Tests of execution.
