//! How people read us: text tables, JSON as Ceph prints it, byte and count units, ages.
//!
//! Pure, and the one place for it: the monitor and the manager lay out every table and
//! every JSON text that the `ceph` tool prints as it comes, so scripts compare it byte for
//! byte with a real cluster's. Checked against `tests/data/vectors/cli-output`.
//!
//! * [`TextTable`] — columns with alignment, two spaces between
//! * [`Format`], [`to_json`] — plain, `json`, `json-pretty`; numbers as `%.17g`
//! * [`xml`] — `xml`, `xml-pretty`, made of a command's JSON
//! * [`IoRates`], [`Copies`] — what clients and recovery are doing, in Ceph's words
//! * [`bytes`], [`si`], [`age`] — `1.2 MiB`, `2.19k`, `83m`
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod io;
mod json;
mod table;
pub mod units;
pub mod xml;

pub use io::{Copies, IoRates};
pub use json::{Format, pretty, to_json, to_python, to_python_pretty};
pub use table::{Align, TextTable};
pub use units::{age, bytes, ctime, general, percent, si};
