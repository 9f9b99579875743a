//! CRUSH placement, bit-exact with Ceph: map, codec, mapper, editing.
//!
//! A [`CrushMap`] is a value: it is decoded, mapped with ([`CrushMap::do_rule`]), edited,
//! dumped and encoded. Every client places objects without asking a server, so the same
//! map and input must yield the same devices here as in Ceph, to the bit.
//! Weights are 16.16 fixed point. Does not know about OSDs being up or in a PG's history:
//! see `spirula-maps`.
//! Source: Weil et al., SC'06; `docs/protocol/mon.md` ("CRUSH map"); golden mappings and
//! the `crushtool` of Ceph 16.2.15.

mod bucket;
mod check;
mod classes;
mod codec;
mod dump;
mod edit;
mod error;
pub mod hash;
mod ln;
mod lookup;
mod map;
mod mapper;
mod reweight;
mod rules;
mod tunables;
mod weight_set;

pub use error::CrushError;
pub use lookup::{Location, is_valid_name, parse_location, weight_from_f64, weight_to_f64};
pub use map::{
    Bucket, BucketData, ChooseArg, ChooseArgs, CrushMap, Rule, Step, Tunables, alg, step_op,
};
pub use mapper::{ITEM_NONE, Scratch};
pub use rules::{RULE_ERASURE, RULE_REPLICATED, SimpleRule};
pub use weight_set::COMPAT;
